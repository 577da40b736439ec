//! Quantized weights of GGUF files: blocks of small integers with scales, and the numbers that they represent.
//!
//! A row of a matrix is a whole number of blocks, and a block consists of groups of integers. Layouts are those of llama.cpp
//! (ggml-common.h and ggml-quants.c).

/// Block type, by llama.cpp's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockType {
    /// 32 integers of 8 bits and a scale.
    Q8_0,
    /// 256 integers of 4 bits; for every 32 a scale and a minimum, of 6 bits each.
    Q4K,
    /// 256 integers of 6 bits; for every 16 a scale of 8 bits.
    Q6K,
}

/// Number of integers in the largest block.
const MOST_VALUES: usize = 256;

/// Scales of a block. An integer q of group `g` represents `q * scale * factors[g] - min * min_factors[g]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockScales {
    /// The block's scale.
    pub scale: f32,
    /// Each group's factor of the scale; 1 if the block is one group.
    pub factors: [i8; BlockType::MOST_GROUPS],
    /// The block's minimum; 0 if it has none.
    pub min: f32,
    /// Each group's factor of the minimum.
    pub min_factors: [i8; BlockType::MOST_GROUPS],
}

impl BlockType {
    /// All types.
    pub const ALL: [Self; 3] = [Self::Q8_0, Self::Q4K, Self::Q6K];

    /// Maximum number of groups in a block.
    pub const MOST_GROUPS: usize = 16;

    /// llama.cpp's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// Number of integers in a block.
    pub const fn n_values(self) -> usize {
        match self {
            Self::Q8_0 => 32,
            Self::Q4K | Self::Q6K => MOST_VALUES,
        }
    }

    /// Size of a block in bytes.
    pub const fn n_bytes(self) -> usize {
        match self {
            Self::Q8_0 => 2 + 32,
            Self::Q4K => 2 + 2 + 12 + 128,
            Self::Q6K => 128 + 64 + 16 + 2,
        }
    }

    /// Number of integers in a group.
    pub const fn group(self) -> usize {
        match self {
            Self::Q8_0 | Self::Q4K => 32,
            Self::Q6K => 16,
        }
    }

    /// The integers of `block`, in order; those of Q4_K are 0 to 15, of Q6_K -32 to 31.
    pub fn values(self, block: &[u8]) -> impl Iterator<Item = i8> {
        let mut values = [0; MOST_VALUES];
        match self {
            Self::Q8_0 => {
                for (value, byte) in values.iter_mut().zip(&block[2..34]) {
                    *value = *byte as i8;
                }
            }
            // 32 bytes hold 64 integers: first the lower halves, then the upper ones.
            Self::Q4K => {
                for (values, bytes) in values.chunks_exact_mut(64).zip(block[16..144].chunks_exact(32)) {
                    let (low, high) = values.split_at_mut(32);
                    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
                        (*low, *high) = ((byte & 0xf) as i8, (byte >> 4) as i8);
                    }
                }
            }
            // Of 128 integers, 64 bytes hold the lower four bits, as above but 64 apart, and 32 bytes two bits more.
            Self::Q6K => {
                let halves = block[..128].chunks_exact(64).zip(block[128..192].chunks_exact(32));
                for (values, (low, high)) in values.chunks_exact_mut(128).zip(halves) {
                    for (index, value) in values.iter_mut().enumerate() {
                        let low = low[index % 64] >> (4 * (index / 64)) & 0xf;
                        let high = high[index % 32] >> (2 * (index / 32)) & 3;
                        *value = (low | high << 4) as i8 - 32;
                    }
                }
            }
        }
        values.into_iter().take(self.n_values())
    }

    /// The numbers that everything in `block` is multiplied with: its scale and its minimum, or its scale twice.
    pub fn scales(self, block: &[u8]) -> [half::f16; 2] {
        let half = |at: usize| half::f16::from_le_bytes([block[at], block[at + 1]]);
        match self {
            Self::Q8_0 => [half(0); 2],
            Self::Q4K => [half(0), half(2)],
            Self::Q6K => [half(208); 2],
        }
    }

    /// The scales and minima of `block`.
    pub fn block_scales(self, block: &[u8]) -> BlockScales {
        let [scale, min] = self.scales(block).map(half::f16::to_f32);
        let none = [0; Self::MOST_GROUPS];
        match self {
            Self::Q8_0 => BlockScales { scale, factors: [1; Self::MOST_GROUPS], min: 0.0, min_factors: none },
            // Scales and minima of the first four groups are the lower six bits of eight bytes; those of the others have
            // their lower four bits in four bytes more, and two in what the first eight left over.
            Self::Q4K => {
                let bytes = &block[4..16];
                let (mut factors, mut min_factors) = (none, none);
                for group in 0..4 {
                    factors[group] = (bytes[group] & 63) as i8;
                    min_factors[group] = (bytes[group + 4] & 63) as i8;
                    factors[group + 4] = (bytes[group + 8] & 0xf | bytes[group] >> 6 << 4) as i8;
                    min_factors[group + 4] = (bytes[group + 8] >> 4 | bytes[group + 4] >> 6 << 4) as i8;
                }
                BlockScales { scale, factors, min, min_factors }
            }
            Self::Q6K => {
                let mut factors = none;
                for (factor, byte) in factors.iter_mut().zip(&block[192..208]) {
                    *factor = *byte as i8;
                }
                BlockScales { scale, factors, min: 0.0, min_factors: none }
            }
        }
    }

    /// Dequantizes whole blocks.
    pub fn to_f32(self, blocks: &[u8]) -> Vec<f32> {
        let mut numbers = Vec::with_capacity(blocks.len() / self.n_bytes() * self.n_values());
        for block in blocks.chunks_exact(self.n_bytes()) {
            let BlockScales { scale, factors, min, min_factors } = self.block_scales(block);
            numbers.extend(self.values(block).enumerate().map(|(index, value)| {
                let group = index / self.group();
                scale * f32::from(factors[group]) * f32::from(value) - min * f32::from(min_factors[group])
            }));
        }
        numbers
    }
}
