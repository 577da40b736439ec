//! Findings about rows in the tiles of the vocabulary.

use std::sync::{Mutex, PoisonError};

use crate::cpu::score::summary::Summary;

/// Findings about a row in one tile.
pub(crate) struct TileOfRow {
    /// Of what the token comes from: without what may not be drawn, unless the row is greedy.
    pub(crate) summary: Summary,
    /// Of everything, where log-probabilities are asked for.
    pub(crate) whole: Option<Box<Summary>>,
    /// Logits of the tokens asked for that lie in the tile, by their place among them.
    pub(crate) asked: Vec<(usize, f32)>,
}

/// Memory of findings that the next step uses again: with hundreds of rows, what the system takes back after each step costs
/// more to map anew than to fill.
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
