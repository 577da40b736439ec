//! A rotation of heads that waits to be launched, and that a store may take along.

use super::queue::{Arg, Ticket};

/// A launch of `norm_rope`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rotation {
    pub(super) ticket: Ticket,
    /// The heads and their norm.
    pub(super) heads: [Arg; 3],
    /// Angles and positions.
    pub(super) angles: [Arg; 3],
    pub(super) n_rows: usize,
    pub(super) n_heads: usize,
    pub(super) half: usize,
}
