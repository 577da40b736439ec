//! A rotation of heads that waits to be launched, and that a store may take along.

use crate::device::work::arg::Arg;
use crate::device::work::queue::LaunchId;

/// A launch of `norm_rope`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rotation {
    pub(crate) launch_id: LaunchId,
    /// The heads and their norm.
    pub(crate) heads: [Arg; 3],
    /// Angles and positions.
    pub(crate) angles: [Arg; 3],
    pub(crate) n_rows: usize,
    pub(crate) n_heads: usize,
    pub(crate) half: usize,
}
