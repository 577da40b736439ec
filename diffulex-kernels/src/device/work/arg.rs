//! Arguments of kernels.

use crate::device::memory::arena::Block;
use crate::device::memory::buffer::Buffer;

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Arg {
    Pointer(u64),
    I32(i32),
    F32(f32),
}

impl Arg {
    /// A pointer to nothing.
    pub(crate) const NULL: Self = Self::Pointer(0);

    /// Bits of the argument, in the driver's little-endian layout.
    pub(crate) fn bits(self) -> u64 {
        match self {
            Self::Pointer(address) => address,
            Self::I32(value) => u64::from(value as u32),
            Self::F32(value) => u64::from(value.to_bits()),
        }
    }
}

impl From<&Block> for Arg {
    fn from(block: &Block) -> Self {
        Self::Pointer(block.address())
    }
}

impl From<&Buffer> for Arg {
    fn from(buffer: &Buffer) -> Self {
        Self::Pointer(buffer.address())
    }
}

impl From<i32> for Arg {
    fn from(value: i32) -> Self {
        Self::I32(value)
    }
}

impl From<usize> for Arg {
    /// Sizes of tensors are below 2^31.
    fn from(value: usize) -> Self {
        Self::I32(value as i32)
    }
}

impl From<f32> for Arg {
    fn from(value: f32) -> Self {
        Self::F32(value)
    }
}
