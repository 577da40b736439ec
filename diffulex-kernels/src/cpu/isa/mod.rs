//! Instruction sets: vectors, and loops over values compiled for each set.

#[cfg(target_arch = "aarch64")]
pub(crate) mod arm;
pub(crate) mod bf16;
pub(crate) mod sets;
pub(crate) mod simd;
pub(crate) mod vector;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;
