//! What a rule may propose.

/// A change of one position of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Edit {
    /// Write a token where a mask is.
    Fill {
        /// Index into the block.
        row: usize,
        /// The token.
        token: u32,
        /// Its probability.
        confidence: f32,
    },
}
