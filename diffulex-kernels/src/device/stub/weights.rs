//! Weights and the inputs of products, as numbers; layouts are those of `gpu/include/matrix.h`.

use crate::device::stub::memory::Memory;
use half::{bf16, f16};

/// `Kind` of matrix.h.
#[derive(Clone, Copy)]
pub(crate) struct Kind(pub(crate) u64);

impl Kind {
    /// The kind in a product's name.
    pub(crate) fn of_kernel(kernel: &str) -> Self {
        let kinds = ["f32", "bf16", "int8", "int4", "q8_0", "q4_k", "q6_k"];
        let kind = kinds.iter().position(|kind| kernel["product_".len()..].starts_with(kind));
        Self(kind.unwrap_or_else(|| panic!("{kernel} has no kind")) as u64)
    }
}

pub(crate) fn bf16s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<2>().0.iter().map(|two| bf16::from_le_bytes(*two).to_f32()).collect()
}

/// The rows of a weight `[n_out, n_in]`.
pub(crate) fn weights(memory: &Memory, at: u64, kind: Kind, n_out: usize, n_in: usize) -> Vec<Vec<f32>> {
    let data = memory.rest(at);
    (0..n_out).map(|out| (0..n_in).map(|input| weight(data, kind.0, [n_out, n_in], out, input)).collect()).collect()
}

/// `weight_at` of matrix.h.
fn weight(data: &[u8], kind: u64, [n_out, n_in]: [usize; 2], out: usize, input: usize) -> f32 {
    let n_chunks = n_in.div_ceil(64);
    let float = |data: &[u8]| f32::from_le_bytes([data[0], data[1], data[2], data[3]]);
    let half = |data: &[u8]| f16::from_le_bytes([data[0], data[1]]).to_f32();
    if kind == 0 {
        return float(&data[4 * (out * n_chunks * 64 + input)..]);
    }
    let n_quants = [0, 2048, 1024, 512, 1024, 512, 768][kind as usize];
    let chunk_bytes = n_quants + if kind > 2 { 64 } else { 0 };
    let (tile, o, k) = (out / 16, out % 16, input % 64);
    let chunk = &data[(tile * n_chunks + input / 64) * chunk_bytes..];
    if kind == 1 {
        let (lane, word) = (o % 8 * 4 + k % 8 / 2, o / 8 + k % 16 / 8 * 2);
        return bf16s(&chunk[2 * (k / 16 * 256 + lane * 8 + word * 2 + k % 2)..][..2])[0];
    }
    let (step, lane, word, byte) = (k / 32, o % 8 * 4 + k % 16 / 4, o / 8 + k % 32 / 16 * 2, k % 4);
    let units = &data[n_out.div_ceil(16) * n_chunks * chunk_bytes..];
    let eight = || f32::from(chunk[step * 512 + lane * 16 + word * 4 + byte] as i8);
    let low = || i32::from(chunk[lane * 16 + word * 4 + byte] >> (4 * step) & 15);
    let meta = |at: usize| &chunk[n_quants + 4 * o + at..];
    let unit = || &units[4 * ((tile * (n_chunks / 4) + input / 256) * 16 + o)..];
    match kind {
        2 => eight() * float(&units[4 * out..]),
        3 => ((low() ^ 8) - 8) as f32 * float(meta(0)),
        4 => half(meta(2 * step)) * eight(),
        5 => {
            let [factor, min_factor] = [0, 1].map(|at| f32::from(meta(2 * step + at)[0]));
            half(unit()) * factor * low() as f32 - half(&unit()[2..]) * min_factor
        }
        _ => {
            let high = i32::from(chunk[512 + lane * 8 + step * 4 + byte] >> (2 * word) & 3);
            float(unit()) * f32::from(meta(k / 16)[0] as i8) * (((low() | high << 4) ^ 32) - 32) as f32
        }
    }
}

/// Row `row` of the inputs of a product with such weights.
pub(crate) fn inputs(memory: &Memory, at: u64, scales: u64, kind: Kind, row: usize, n_in: usize) -> Vec<f32> {
    let stride = n_in.next_multiple_of(64);
    match kind.0 {
        0 => memory.floats(at + (4 * row * n_in) as u64, n_in),
        1 => bf16s(memory.bytes(at + (2 * row * stride) as u64, 2 * n_in)),
        _ => {
            let scale = memory.floats(scales + 4 * row as u64, 1)[0];
            memory.bytes(at + (row * stride) as u64, n_in).iter().map(|byte| f32::from(*byte as i8) * scale).collect()
        }
    }
}

/// A sum of products, as exact as a result can hold.
pub(crate) fn dot(x: &[f32], y: &[f32]) -> f32 {
    x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>() as f32
}
