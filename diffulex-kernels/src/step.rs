//! The rows of one forward: what every operation of a step shares.

use std::collections::BTreeMap;
use std::ops::Range;

use super::ScoreSpec;

/// Id of a loaded adapter; never reused.
pub type AdapterId = u32;

/// The rows of one forward, in host vectors. [`super::Ops::begin`] brings them to a device, once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelBatch {
    /// Token of each row.
    pub ids: Vec<u32>,
    /// Absolute position of each row.
    pub positions: Vec<u32>,
    /// Cache slot each row's K/V goes to; no two rows have the same.
    pub slots: Vec<u32>,
    /// Which rows belong together and what they attend to; in order of rows, without gaps.
    pub sequences: Vec<SequenceRows>,
    /// How rows are scored.
    pub specs: Vec<ScoreSpec>,
    /// Rows whose final states are wanted on the host.
    pub state_rows: Vec<u32>,
    /// Rows of canvases that took a step, ascending.
    pub conditioned: Vec<u32>,
    /// For each of them, the row of the conditioning buffer that the step wrote.
    pub conditioning: Vec<u32>,
    /// Rows that have an adapter.
    pub adapted: BTreeMap<AdapterId, Vec<u32>>,
    /// Rows that are not the embedding of their token alone.
    pub blends: Vec<Blend>,
}

impl ModelBatch {
    /// The rows of a list, in its order.
    pub fn rows(&self, list: RowList) -> &[u32] {
        match list {
            RowList::States => &self.state_rows,
            RowList::Conditioned => &self.conditioned,
            RowList::Conditioning => &self.conditioning,
            RowList::Adapter(id) => self.adapted.get(&id).map_or(&[], Vec::as_slice),
        }
    }
}

/// Names a list of rows that a step holds. No list has a row twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowList {
    /// [`ModelBatch::state_rows`].
    States,
    /// [`ModelBatch::conditioned`].
    Conditioned,
    /// [`ModelBatch::conditioning`], rows of another tensor.
    Conditioning,
    /// Those of an adapter in [`ModelBatch::adapted`]; empty where it has none.
    Adapter(AdapterId),
}

/// The rows of one sequence in a batch, and what they attend to.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceRows {
    /// Rows of the batch.
    pub rows: Range<usize>,
    /// Pages that hold the sequence's K/V: position `p` lies in slot `pages[p / page_size] * page_size + p % page_size`.
    pub pages: Vec<u32>,
    /// One per row: it attends to positions `0..visible`.
    pub visible: Vec<u32>,
}

/// A row that is a sum of embeddings by weight; see [`super::Ops::blend`].
#[derive(Clone, Debug, PartialEq)]
pub struct Blend {
    /// Which row.
    pub row: u32,
    /// Tokens and their weights.
    pub parts: Vec<(u32, f32)>,
    /// The sum is brought to the length that the embeddings' lengths sum up to by the same weights.
    pub keeps_length: bool,
}

/// A blend that is shorter than this is left as it is: it points nowhere. DMax adds it to the length instead.
pub(super) const LEAST_BLEND: f32 = 1e-6;

/// Attention's parameters in one layer.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Query heads; head `h` reads K/V head `h / (n_heads / n_kv_heads)`.
    pub n_heads: usize,
    /// Positions a row attends to at most, counted back from the last visible one; `None`: all of them.
    pub reach: Option<usize>,
    /// Factor on `q K^T`, as a rule `1 / sqrt(head_dim)`.
    pub scale: f32,
}

impl Attention {
    /// The first position that a row attends to which may attend to `0..visible`.
    pub fn first(&self, visible: usize) -> usize {
        self.reach.map_or(0, |reach| visible.saturating_sub(reach))
    }
}
