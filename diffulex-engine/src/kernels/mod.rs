//! The operations a network is written against, and their bodies.
//!
//! [`Ops`] states the contract of each operation once. [`mod@reference`] is its slow, plainly right body (candle, f32, CPU);
//! [`cpu`] is the fast one. A network is generic over `Ops` and never asks where it runs; a new device is a new body.
//!
//! Every body computes a row of its result from that row's inputs alone, in an order that does not depend on how many
//! rows there are: what a request is answered must not depend on what else is in the batch.
//!
//! Never here: requests, blocks, pages' owners, strategies.

mod blocks;
pub mod cpu;
pub mod quantization;
pub mod reference;
pub mod routing;
mod summary;

use std::ops::Range;

use serde::Serialize;

use crate::error::StepError;
pub use blocks::{BlockType, Steps};
use quantization::MAX_INPUTS;
use routing::Routing;
pub(crate) use summary::largest;
pub use summary::{Look, Summary, Vocabulary};

/// A weight as a checkpoint stores it, row-major.
#[derive(Clone, Copy, Debug)]
pub enum WeightData<'a> {
    /// 32-bit floats, little-endian bytes.
    F32(&'a [u8]),
    /// bfloat16, little-endian bytes.
    Bf16(&'a [u8]),
    /// IEEE half, little-endian bytes.
    F16(&'a [u8]),
    /// Whole blocks of integers, as GGUF has them.
    Blocks(BlockType, &'a [u8]),
}

impl WeightData<'_> {
    /// How many values there are.
    pub fn n_values(&self) -> usize {
        match self {
            Self::F32(bytes) => bytes.len() / 4,
            Self::Bf16(bytes) | Self::F16(bytes) => bytes.len() / 2,
            Self::Blocks(kind, bytes) => bytes.len() / kind.n_bytes() * kind.n_values(),
        }
    }

    /// Some of the values, in order; whole blocks, where there are blocks.
    pub fn slice(&self, values: Range<usize>) -> Self {
        match self {
            Self::F32(bytes) => Self::F32(&bytes[4 * values.start..4 * values.end]),
            Self::Bf16(bytes) => Self::Bf16(&bytes[2 * values.start..2 * values.end]),
            Self::F16(bytes) => Self::F16(&bytes[2 * values.start..2 * values.end]),
            Self::Blocks(kind, bytes) => {
                let [start, end] = [values.start, values.end].map(|value| {
                    assert!(value.is_multiple_of(kind.n_values()), "{value} cuts a block of {}", kind.name());
                    value / kind.n_values() * kind.n_bytes()
                });
                Self::Blocks(*kind, &bytes[start..end])
            }
        }
    }

    /// As 32-bit floats, in order.
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

    /// What holds exactly these values, where that is held at all; f16 is held as 32-bit floats.
    pub fn weight_type(&self) -> WeightType {
        match self {
            Self::F32(_) | Self::F16(_) => WeightType::F32,
            Self::Bf16(_) => WeightType::Bf16,
            Self::Blocks(kind, _) => WeightType::Blocks(*kind),
        }
    }
}

/// How a matrix is held after loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// 32-bit floats.
    F32,
    /// bfloat16; what it is multiplied with is rounded to bfloat16 too, sums are 32-bit.
    Bf16,
    /// 8-bit integers with a scale per output; what it is multiplied with is rounded to 8 bits, too. See [`quantization`].
    Int8,
    /// 4-bit integers with a scale per output and [`quantization::GROUP`] inputs; what it is multiplied with is rounded to
    /// 8 bits.
    Int4,
    /// The integers and scales of such blocks, which is what the weight must be stored as; what they are multiplied with is
    /// rounded to 8 bits.
    Blocks(BlockType),
}

impl WeightType {
    /// Products are of integers.
    pub fn is_integer(self) -> bool {
        matches!(self, Self::Int8 | Self::Int4 | Self::Blocks(_))
    }

    /// How K and V are held beside weights held so, unless somebody says otherwise: as finely where weights are 32-bit
    /// floats, and otherwise in half the memory, which attention over a long context reads all of.
    pub fn kv_type(self) -> KvType {
        match self {
            Self::F32 => KvType::F32,
            Self::Bf16 | Self::Int8 | Self::Int4 | Self::Blocks(_) => KvType::Bf16,
        }
    }

    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::Blocks(kind) => kind.name(),
        }
    }

    /// Whether a weight of `n_in` inputs can be held so.
    fn check(self, data: WeightData<'_>, n_in: usize) -> Result<(), StepError> {
        match self {
            Self::Int8 | Self::Int4 if n_in > MAX_INPUTS => {
                Err(StepError(format!("{n_in} inputs are more than the {MAX_INPUTS} that sums of 32 bits hold")))
            }
            Self::Blocks(kind) if data.weight_type() != self => {
                Err(StepError(format!("is {}, which is not held as {}", data.weight_type().name(), kind.name())))
            }
            Self::Blocks(kind) if !n_in.is_multiple_of(kind.n_values()) => {
                Err(StepError(format!("{n_in} inputs are no whole blocks of {}", kind.name())))
            }
            Self::F32 | Self::Bf16 | Self::Int8 | Self::Int4 | Self::Blocks(_) => Ok(()),
        }
    }
}

/// How K and V are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum KvType {
    /// 32-bit floats.
    #[serde(rename = "float32")]
    F32,
    /// bfloat16, rounded when they are stored; scores and sums are 32-bit.
    #[serde(rename = "bfloat16")]
    Bf16,
}

impl KvType {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
        }
    }

    /// Bytes of a number.
    pub fn n_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Extent of one layer's KV cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheShape {
    /// Tokens it holds: pages times page size.
    pub n_slots: usize,
    /// Tokens of a page, a power of two: slots of a page are neighbours.
    pub page_size: usize,
    /// K (or V) heads.
    pub n_kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// How they are held.
    pub kv_type: KvType,
}

/// The rows of one sequence in a batch, and what they may look at.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceRows {
    /// Rows of the batch.
    pub rows: Range<usize>,
    /// Pages that hold the sequence's K/V: position `p` lies in slot `pages[p / page_size] * page_size + p % page_size`.
    pub pages: Vec<u32>,
    /// One per row: it sees positions `0..visible`.
    pub visible: Vec<u32>,
}

/// What attention needs to know beside its tensors.
#[derive(Clone, Copy, Debug)]
pub struct AttentionBatch<'a> {
    /// Every row of the batch belongs to exactly one.
    pub sequences: &'a [SequenceRows],
    /// Query heads; head `h` reads K/V head `h / (n_heads / n_kv_heads)`.
    pub n_heads: usize,
    /// Positions a row sees at most, counted back from the last one it may see; `None`: all of them.
    pub reach: Option<usize>,
    /// Factor on `q K^T`, as a rule `1 / sqrt(head_dim)`.
    pub scale: f32,
}

impl AttentionBatch<'_> {
    /// The first position that a row sees which may see `visible`.
    pub fn first(&self, visible: usize) -> usize {
        self.reach.map_or(0, |reach| visible.saturating_sub(reach))
    }
}

/// What an MLP does to its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
    GeluTanh,
}

/// Cosine and sine of every position and frequency, `[max_positions, half]` each.
///
/// Channel `i` of a head turns with channel `i + half`; channels from `2 * half` on pass through.
#[derive(Clone, Debug)]
pub struct RopeTable {
    /// Row-major cosines.
    pub cos: Vec<f32>,
    /// Row-major sines.
    pub sin: Vec<f32>,
    /// Number of frequencies.
    pub half: usize,
    /// Width of a head, at least `2 * half`.
    pub head_dim: usize,
}

impl RopeTable {
    /// Frequencies `theta^(-2i/d)` (RoFormer, section 3.2.2) over the first `d = rotary_dim` channels of a head, angles
    /// in f64 before they are rounded once.
    pub fn new(theta: f64, rotary_dim: usize, head_dim: usize, max_positions: usize) -> Self {
        let half = rotary_dim / 2;
        let (mut cos, mut sin) = (Vec::with_capacity(max_positions * half), Vec::with_capacity(max_positions * half));
        for position in 0..max_positions {
            for index in 0..half {
                // The frequency is rounded to f32 first, as every Python implementation does.
                let frequency = theta.powf(-2.0 * index as f64 / rotary_dim as f64) as f32;
                let angle = f64::from(position as f32 * frequency);
                cos.push(angle.cos() as f32);
                sin.push(angle.sin() as f32);
            }
        }
        Self { cos, sin, half, head_dim }
    }

    /// Frequencies `theta^(-2i/head_dim)` for the first `share` of the pairs of a head, and none for the others, which
    /// stay as they are (transformers' "proportional").
    pub fn proportional(theta: f64, share: f64, head_dim: usize, max_positions: usize) -> Self {
        let mut table = Self::new(theta, head_dim, head_dim, max_positions);
        let n_turning = (share * table.half as f64) as usize;
        for position in 0..max_positions {
            let still = position * table.half + n_turning..(position + 1) * table.half;
            table.cos[still.clone()].fill(1.0);
            table.sin[still].fill(0.0);
        }
        table
    }

    /// Nothing turns.
    pub fn none(head_dim: usize) -> Self {
        Self { cos: Vec::new(), sin: Vec::new(), half: 0, head_dim }
    }
}

/// `down(activation(gate(x)) * up(x))`, of matrices of a device.
#[derive(Clone, Debug)]
pub struct GatedMlp<M> {
    /// `[intermediate, hidden]`.
    pub gate: M,
    /// `[intermediate, hidden]`.
    pub up: M,
    /// `[hidden, intermediate]`.
    pub down: M,
    /// On the gate.
    pub activation: Activation,
}

impl<M> GatedMlp<M> {
    /// The MLP of every row.
    pub fn apply<O: Ops<Matrix = M>>(&self, ops: &O, x: &O::Tensor) -> Result<O::Tensor, StepError> {
        let [gate, up] = ops.linears(x, [(&self.gate, None), (&self.up, None)])?;
        ops.linear(&ops.gate(gate, &up, self.activation)?, &self.down, None)
    }
}

/// A row that is a sum of embeddings by weight; see [`Ops::blend`].
#[derive(Clone, Debug, PartialEq)]
pub struct Blend {
    /// Which row.
    pub row: u32,
    /// Tokens and their weights.
    pub parts: Vec<(u32, f32)>,
    /// The sum is brought to the length that the embeddings' lengths sum up to by the same weights.
    pub keeps_length: bool,
}

/// A blend that is shorter than this is left as it is: it points nowhere. DMax adds it to the length instead.
const LEAST_BLEND: f32 = 1e-6;

/// Norm of each head before rotation (qk-norm): its weight `[head_dim]` and epsilon.
pub type HeadNorm<'a, O> = Option<(&'a <O as Ops>::Vector, f32)>;

/// A matrix and its bias.
pub type Weighted<'a, O> = (&'a <O as Ops>::Matrix, Option<&'a <O as Ops>::Vector>);

/// The operations. Activations are f32 `[n_rows, width]`.
pub trait Ops: Send + Sync {
    /// Activations on this device.
    type Tensor;
    /// A weight `[n_out, n_in]` made ready for `linear` and `embed`.
    type Matrix: Send + Sync;
    /// A weight `[width]`.
    type Vector: Send + Sync;
    /// K and V of every layer and slot.
    type Cache: Send;

    /// Makes a matrix ready. `data` holds `n_out * n_in` values.
    fn matrix(
        &self,
        data: WeightData<'_>,
        n_out: usize,
        n_in: usize,
        hold: WeightType,
    ) -> Result<Self::Matrix, StepError>;

    /// Makes a vector ready.
    fn vector(&self, data: WeightData<'_>) -> Result<Self::Vector, StepError>;

    /// An empty cache, given the extent of each layer.
    fn cache(&self, layers: &[CacheShape]) -> Result<Self::Cache, StepError>;

    /// Values from the host, row-major; `width` divides their number.
    fn tensor(&self, values: &[f32], width: usize) -> Result<Self::Tensor, StepError>;

    /// Rows of `table` by id: `[ids.len(), n_in]`.
    fn embed(&self, table: &Self::Matrix, ids: &[u32]) -> Result<Self::Tensor, StepError>;

    /// Some rows become sums of rows of `table`, whatever they were: `sum w_i table[i]` over the parts `(i, w_i)`; where a
    /// blend says so, brought to the length `sum w_i |table[i]|`.
    fn blend(&self, x: &mut Self::Tensor, table: &Self::Matrix, blends: &[Blend]) -> Result<(), StepError>;

    /// `softmax(logits) table` per row: `[n_rows, n_in]`, where `logits` is `[n_rows, n_out]`.
    fn embed_mixed(&self, table: &Self::Matrix, logits: &Self::Tensor) -> Result<Self::Tensor, StepError>;

    /// `x * rsqrt(mean(x^2) + eps) * weight` per row.
    fn rms_norm(&self, x: &Self::Tensor, weight: &Self::Vector, eps: f32) -> Result<Self::Tensor, StepError>;

    /// `x W^T + bias`: `[n_rows, n_out]`.
    fn linear(
        &self,
        x: &Self::Tensor,
        weight: &Self::Matrix,
        bias: Option<&Self::Vector>,
    ) -> Result<Self::Tensor, StepError>
    where
        Self: Sized,
    {
        let [product] = self.linears(x, [(weight, bias)])?;
        Ok(product)
    }

    /// The same rows times several matrices, each with its bias.
    fn linears<const N: usize>(
        &self,
        x: &Self::Tensor,
        weights: [Weighted<'_, Self>; N],
    ) -> Result<[Self::Tensor; N], StepError>
    where
        Self: Sized;

    /// `x += y`.
    fn add(&self, x: &mut Self::Tensor, y: &Self::Tensor) -> Result<(), StepError>;

    /// `x[rows[i]] += y[i]`; no row is named twice.
    fn add_rows(&self, x: &mut Self::Tensor, rows: &[u32], y: &Self::Tensor) -> Result<(), StepError>;

    /// `x *= factor`.
    fn scale(&self, x: &mut Self::Tensor, factor: f32) -> Result<(), StepError>;

    /// `x = cap tanh(x / cap)`.
    fn soft_cap(&self, x: &mut Self::Tensor, cap: f32) -> Result<(), StepError>;

    /// Per head: norm over its whole width where there is one, then half-split rotation by the row's position.
    fn norm_rope(
        &self,
        x: &mut Self::Tensor,
        norm: HeadNorm<'_, Self>,
        rope: &RopeTable,
        positions: &[u32],
    ) -> Result<(), StepError>
    where
        Self: Sized;

    /// Writes K and V of every row to its slot of `layer`.
    fn store(
        &self,
        cache: &mut Self::Cache,
        layer: usize,
        k: &Self::Tensor,
        v: &Self::Tensor,
        slots: &[u32],
    ) -> Result<(), StepError>;

    /// `softmax(scale q K^T) V` over the cached positions each row may see: `[n_rows, n_heads * head_dim]`.
    fn attend(
        &self,
        q: &Self::Tensor,
        cache: &Self::Cache,
        layer: usize,
        batch: AttentionBatch<'_>,
    ) -> Result<Self::Tensor, StepError>;

    /// `activation(gate) * up`, element by element.
    fn gate(&self, gate: Self::Tensor, up: &Self::Tensor, activation: Activation) -> Result<Self::Tensor, StepError>;

    /// Per row, the weighted sum of the MLPs of the experts it is routed to: `[n_rows, hidden]`.
    ///
    /// `scores` are the router's logits `[n_rows, experts.len()]`; `routing` makes choices of them.
    fn experts(
        &self,
        x: &Self::Tensor,
        scores: &Self::Tensor,
        routing: &Routing,
        experts: &[GatedMlp<Self::Matrix>],
    ) -> Result<Self::Tensor, StepError>;

    /// Summaries of the rows of `x W^T`, with a soft cap where there is one.
    fn summarise(
        &self,
        x: &Self::Tensor,
        head: &Self::Matrix,
        soft_cap: Option<f32>,
        look: Look,
    ) -> Result<Vec<Summary>, StepError>;

    /// The named rows, in that order.
    fn select(&self, x: &Self::Tensor, rows: &[u32]) -> Result<Self::Tensor, StepError>;

    /// Appends a copy on the host, row-major.
    fn host_into(&self, x: &Self::Tensor, values: &mut Vec<f32>) -> Result<(), StepError>;

    /// A copy on the host, row-major.
    fn host(&self, x: &Self::Tensor) -> Result<Vec<f32>, StepError> {
        let mut values = Vec::new();
        self.host_into(x, &mut values)?;
        Ok(values)
    }
}

#[cfg(test)]
mod tests;
