//! Tiles of attention: rows of a sequence that a block computes, as `gpu/include/attention.h` describes them.

use std::rc::Rc;

use crate::ModelBatch;
use crate::device::memory::arena::Block;
use crate::device::operands::padding::bucket;

/// Words of a tile.
pub(crate) const TILE: usize = 5;

/// Tiles of a step.
#[derive(Clone)]
pub(crate) struct Tiles {
    pub(crate) memory: Rc<Block>,
    pub(crate) n_tiles: usize,
    /// Offset of the list of pages, in bytes.
    pub(crate) pages_at: usize,
    /// Chunks of the longest context, rounded up.
    pub(crate) n_chunks: usize,
}

/// Words of the tiles of a batch with `n_rows` padded rows, and of all its pages, each rounded up so that steps of about the
/// same size have the same extent; the number of tiles.
pub(crate) fn tiles(batch: &ModelBatch, rows_per_tile: usize, n_rows: usize) -> (Vec<u32>, usize, Vec<u32>) {
    let (mut words, mut pages) = (Vec::new(), Vec::new());
    let mut n_attending = 0;
    for sequence in &batch.sequences {
        let mut row = sequence.rows.start;
        for visible in sequence.visible.chunks(rows_per_tile) {
            let [most, least] = [visible.iter().max(), visible.iter().min()].map(|n| n.copied().unwrap_or(0));
            words.extend([row as u32, visible.len() as u32, pages.len() as u32, most, least]);
            row += visible.len();
        }
        n_attending = row;
        pages.extend(&sequence.pages);
    }
    // Rows of padding attend to nothing.
    for row in (n_attending..n_rows).step_by(rows_per_tile) {
        words.extend([row as u32, rows_per_tile.min(n_rows - row) as u32, 0, 0, 0]);
    }
    let n_tiles = bucket(words.len() / TILE);
    words.resize(n_tiles * TILE, 0);
    pages.resize(pages.len().next_power_of_two(), 0);
    (words, n_tiles, pages)
}
