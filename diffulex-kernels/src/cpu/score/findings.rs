//! Intermediate results of rows in tiles of the vocabulary.

use std::sync::{Mutex, PoisonError};

use crate::cpu::score::summary::Summary;

/// Intermediate results of a row in one tile.
pub(crate) struct TileOfRow {
    /// Summary of the distribution that the token is taken from: the sampleable tokens, or all tokens in a greedy row.
    pub(crate) summary: Summary,
    /// Summary of all tokens, if log-probabilities are requested.
    pub(crate) whole: Option<Box<Summary>>,
    /// Logits of the requested tokens that lie in the tile, by their index in [`ScoreSpec::asked`](crate::ScoreSpec::asked).
    pub(crate) asked: Vec<(usize, f32)>,
}

/// Lists of findings, kept for the next step: with hundreds of rows, mapping new memory for them in each step costs more
/// than filling it.
#[derive(Default)]
pub(crate) struct Findings(Mutex<Vec<Vec<TileOfRow>>>);

impl Findings {
    /// An empty list.
    pub(crate) fn take(&self) -> Vec<TileOfRow> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Takes lists back, emptied.
    pub(crate) fn give_back(&self, mut lists: Vec<Vec<TileOfRow>>) {
        lists.iter_mut().for_each(Vec::clear);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).append(&mut lists);
    }
}
