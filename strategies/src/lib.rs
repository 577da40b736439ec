//! Decoding strategies of diffusion language models.
//!
//! A strategy sees small host arrays (which positions of a block are filled, what the network would write at the masked
//! ones, and how sure it is) and proposes [`Edit`]s. It cannot reach a scheduler, a cache or a tensor: **a strategy
//! proposes, the engine commits.**
//!
//! - [`view`]: what a rule may look at. [`edit`]: what it may propose.
//! - [`accept`]: the accept rules of the field by name.
//! - [`multi_block`]: block diffusion with one to several blocks in flight.

pub mod accept;
pub mod edit;
pub mod multi_block;
pub mod view;

pub use accept::AcceptRule;
pub use edit::Edit;
pub use multi_block::{MultiBlock, MultiBlockConfig};
pub use view::{BlockCandidates, BlockView, Candidate, Progress};
