//! Embeddings: the states that the output head would read of a text's tokens, pooled as forwards bring them.
//!
//! Never here: forwards, normalisation.

use std::ops::Range;

use diffulex_protocol::Pooling;

use crate::error::RequestError;

/// The pooled state of the first positions of a text.
#[derive(Clone, Debug)]
pub struct PooledStates {
    pooling: Pooling,
    /// Positions of the text.
    n_positions: usize,
    /// Next position to take.
    next: usize,
    /// Sum of the states so far, in 64 bits and in order of position, so that chunks and preemptions change nothing.
    sum: Vec<f64>,
    n_taken: usize,
}

impl PooledStates {
    /// No states yet, of a text of `n_positions`.
    pub fn new(pooling: Pooling, n_positions: usize) -> Self {
        Self { pooling, n_positions, next: 0, sum: Vec::new(), n_taken: 0 }
    }

    /// The part of a forward's `positions` with states that are still needed.
    pub fn wanted(&self, positions: Range<usize>) -> Range<usize> {
        let first = match self.pooling {
            Pooling::Mean => self.next,
            Pooling::Last => self.next.max(self.n_positions.saturating_sub(1)),
        };
        positions.start.max(first).min(positions.end)..positions.end
    }

    /// Takes the states of `positions`, row-major.
    pub fn take(&mut self, positions: Range<usize>, states: &[f32]) -> Result<(), RequestError> {
        let width = states.len().checked_div(positions.len()).unwrap_or_default();
        for (position, state) in positions.clone().zip(states.chunks_exact(width.max(1))) {
            if !state.iter().all(|value| value.is_finite()) {
                return Err(RequestError::engine(format!("the state at position {position} is not a number")));
            }
            self.sum.resize(width, 0.0);
            self.sum.iter_mut().zip(state).for_each(|(sum, value)| *sum += f64::from(*value));
            self.n_taken += 1;
        }
        self.next = self.next.max(positions.end);
        Ok(())
    }

    /// The mean of the states so far: `[hidden_size]`.
    pub fn embedding(&self) -> Vec<f32> {
        self.sum.iter().map(|sum| (sum / self.n_taken as f64) as f32).collect()
    }
}
