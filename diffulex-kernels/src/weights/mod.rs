//! Weights: formats in checkpoints, and formats on a device.

use std::ops::Range;

mod blocks;
pub mod quantization;

pub use blocks::{BlockScales, BlockType};
use quantization::MAX_INPUTS;

use crate::cache::KvType;
use crate::error::DeviceError;

/// A weight as a checkpoint stores it, row-major.
#[derive(Clone, Copy, Debug)]
pub enum WeightData<'a> {
    /// 32-bit floats, little-endian bytes.
    F32(&'a [u8]),
    /// bfloat16, little-endian bytes.
    Bf16(&'a [u8]),
    /// IEEE half floats, little-endian bytes.
    F16(&'a [u8]),
    /// Whole GGUF blocks.
    Blocks(BlockType, &'a [u8]),
}

impl WeightData<'_> {
    /// Number of values.
    pub fn n_values(&self) -> usize {
        match self {
            Self::F32(bytes) => bytes.len() / 4,
            Self::Bf16(bytes) | Self::F16(bytes) => bytes.len() / 2,
            Self::Blocks(kind, bytes) => bytes.len() / kind.n_bytes() * kind.n_values(),
        }
    }

    /// A range of the values.
    ///
    /// # Panics
    /// If the range does not start and end at a block boundary.
    pub fn slice(&self, values: Range<usize>) -> Self {
        match self {
            Self::F32(bytes) => Self::F32(&bytes[4 * values.start..4 * values.end]),
            Self::Bf16(bytes) => Self::Bf16(&bytes[2 * values.start..2 * values.end]),
            Self::F16(bytes) => Self::F16(&bytes[2 * values.start..2 * values.end]),
            Self::Blocks(kind, bytes) => {
                let [start, end] = [values.start, values.end].map(|value| {
                    assert!(
                        value.is_multiple_of(kind.n_values()),
                        "{value} is not a multiple of the {} block size",
                        kind.name()
                    );
                    value / kind.n_values() * kind.n_bytes()
                });
                Self::Blocks(*kind, &bytes[start..end])
            }
        }
    }

    /// The first value that is NaN or infinite, with its index, or the first value of a block with such a scale.
    pub fn first_not_finite(&self) -> Option<(usize, f32)> {
        // Whole pieces are checked without branches; only the piece of a bad value is searched.
        const PIECE: usize = 1 << 14;
        fn search<const N: usize>(
            bytes: &[u8],
            is_bad: impl Fn([u8; N]) -> bool,
            value: impl Fn([u8; N]) -> f32,
        ) -> Option<(usize, f32)> {
            let values = bytes.as_chunks::<N>().0;
            let bad =
                values.chunks(PIECE).position(|piece| piece.iter().fold(false, |any, bytes| any | is_bad(*bytes)))?;
            let index = bad * PIECE + values[bad * PIECE..].iter().position(|bytes| is_bad(*bytes))?;
            Some((index, value(values[index])))
        }
        // All bits of the exponent are set.
        match self {
            Self::F32(bytes) => {
                search(bytes, |four| u32::from_le_bytes(four) & 0x7f80_0000 == 0x7f80_0000, f32::from_le_bytes)
            }
            Self::Bf16(bytes) => search(
                bytes,
                |two| u16::from_le_bytes(two) & 0x7f80 == 0x7f80,
                |two| half::bf16::from_le_bytes(two).to_f32(),
            ),
            Self::F16(bytes) => search(
                bytes,
                |two| u16::from_le_bytes(two) & 0x7c00 == 0x7c00,
                |two| half::f16::from_le_bytes(two).to_f32(),
            ),
            Self::Blocks(kind, bytes) => bytes.chunks_exact(kind.n_bytes()).enumerate().find_map(|(index, block)| {
                let bad = kind.scales(block).into_iter().find(|scale| !scale.is_finite())?;
                Some((index * kind.n_values(), bad.to_f32()))
            }),
        }
    }

    /// Converts to 32-bit floats, in order.
    pub fn to_f32(self) -> Vec<f32> {
        fn pairs(bytes: &[u8]) -> impl Iterator<Item = [u8; 2]> + '_ {
            bytes.as_chunks::<2>().0.iter().copied()
        }
        match self {
            Self::F32(bytes) => bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
            Self::Bf16(bytes) => pairs(bytes).map(|two| half::bf16::from_le_bytes(two).to_f32()).collect(),
            Self::F16(bytes) => pairs(bytes).map(|two| half::f16::from_le_bytes(two).to_f32()).collect(),
            Self::Blocks(kind, bytes) => kind.to_f32(bytes),
        }
    }

    /// The weight type that represents these values exactly; [`WeightType::F32`] for f16.
    pub fn weight_type(&self) -> WeightType {
        match self {
            Self::F32(_) | Self::F16(_) => WeightType::F32,
            Self::Bf16(_) => WeightType::Bf16,
            Self::Blocks(kind, _) => WeightType::Blocks(*kind),
        }
    }
}

/// Format of a matrix on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WeightType {
    /// 32-bit floats.
    F32,
    /// bfloat16. Products round their inputs to bfloat16; sums are 32-bit.
    Bf16,
    /// 8-bit integers with a scale per output. Products round their inputs to 8 bits; see [`quantization`].
    Int8,
    /// 4-bit integers with a scale per output and [`GROUP`](quantization::GROUP) inputs. Products round their inputs to 8 bits.
    Int4,
    /// GGUF blocks, unchanged: the checkpoint must store the weight in this format. Products round their inputs to 8 bits.
    Blocks(BlockType),
}

impl WeightType {
    /// Whether products multiply integers.
    pub fn is_integer(self) -> bool {
        matches!(self, Self::Int8 | Self::Int4 | Self::Blocks(_))
    }

    /// Default format of K and V beside such weights: 32-bit floats for 32-bit weights, and bfloat16 otherwise, because
    /// attention over a long context reads all of this memory.
    pub fn kv_type(self) -> KvType {
        match self {
            Self::F32 => KvType::F32,
            Self::Bf16 | Self::Int8 | Self::Int4 | Self::Blocks(_) => KvType::Bf16,
        }
    }

    /// Name in settings and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::Blocks(kind) => kind.name(),
        }
    }

    /// Checks that a weight of `n_in` inputs can be stored in this format.
    pub(crate) fn check(self, data: WeightData<'_>, n_in: usize) -> Result<(), WeightError> {
        match self {
            Self::Int8 | Self::Int4 if n_in > MAX_INPUTS => Err(WeightError::TooManyInputs { n_in }),
            Self::Blocks(kind) if data.weight_type() != self => {
                Err(WeightError::StoredOtherwise { stored: data.weight_type(), kind })
            }
            Self::Blocks(kind) if !n_in.is_multiple_of(kind.n_values()) => Err(WeightError::CutsBlocks { n_in, kind }),
            Self::F32 | Self::Bf16 | Self::Int8 | Self::Int4 | Self::Blocks(_) => Ok(()),
        }
    }
}

/// A weight, a table or a cache that cannot be stored on a device.
#[derive(Debug, thiserror::Error)]
pub enum WeightError {
    /// The matrix has more inputs than a 32-bit sum of products can hold.
    #[error("{n_in} inputs exceed the limit of {MAX_INPUTS} for integer weights")]
    TooManyInputs {
        /// Number of inputs.
        n_in: usize,
    },
    /// The weight type is a block type and the checkpoint stores another type.
    #[error("is {}, which cannot be converted to {}", stored.name(), kind.name())]
    StoredOtherwise {
        /// The weight's type in the checkpoint.
        stored: WeightType,
        /// The requested type.
        kind: BlockType,
    },
    /// The row length is not a multiple of the block size.
    #[error("{n_in} inputs is not a multiple of the {} block size ({})", kind.name(), kind.n_values())]
    CutsBlocks {
        /// Number of inputs.
        n_in: usize,
        /// The block type.
        kind: BlockType,
    },
    /// The device failed or has no memory left.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The reference's tensor library refused an operation.
    #[error("{0}")]
    Reference(String),
}
