//! The fast bodies for a CPU: packed weights, one thread pool, vector code chosen at run time.

#![expect(unsafe_code, reason = "vector instructions, reads past the bounds checks, and a pool that lends closures")]

mod attention;
mod experts;
mod isa;
mod ops;
pub(crate) mod packing;
mod pool;
mod probe;
mod product;
mod rows;
mod score;
mod state;

pub use attention::CpuCache;
pub use experts::CpuExperts;
#[cfg(test)]
pub(crate) use isa::simd::Simd;
pub use packing::matrix::PackedMatrix;
pub use probe::ProbeError;
pub use rows::{Buffers, Rows};
pub use state::CpuOps;
