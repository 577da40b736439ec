//! Weights on the device, in the layout that `gpu/include/matrix.h` describes, which is made a piece at a time while a weight travels.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::thread;

use half::{bf16, f16};

use crate::device::memory::buffer::Buffer;
use crate::device::operands::tensor::{Form, STRIDE};
use crate::device::state::DeviceOps;
use crate::device::work::arg::Arg;
use crate::quantization::{quantize_int4, quantize_int8, scale_int4, scale_int8};
use crate::{BlockType, WeightData, WeightError, WeightType};

/// A weight `[n_out, n_in]`.
pub struct Matrix {
    pub(crate) weight_type: WeightType,
    pub(crate) n_out: usize,
    pub(crate) n_in: usize,
    pub(crate) data: Buffer,
}

impl Matrix {
    /// Arguments of `weight_at` of matrix.h before the place of a weight.
    pub(crate) fn as_args(&self) -> [Arg; 4] {
        [Arg::I32(kind(self.weight_type)), (&self.data).into(), self.n_out.into(), self.n_in.into()]
    }
}

/// Outputs of a chunk; [`STRIDE`] inputs each.
pub(crate) const OUTPUTS: usize = 16;

/// Chunks that share a word per output where blocks have 256 inputs.
pub(crate) const CHUNKS_PER_UNIT: usize = 4;

/// Bytes of a word per output of a chunk.
const WORDS: usize = 4 * OUTPUTS;

/// Bytes that are rearranged at a time: as much as travels in one copy. Chosen by us.
const PIECE: usize = 8 << 20;

/// The inputs that products with such weights take; none where they take 32-bit floats.
pub(crate) fn form(weight_type: WeightType) -> Option<Form> {
    match weight_type {
        WeightType::F32 => None,
        WeightType::Bf16 => Some(Form::Bf16),
        WeightType::Int8 | WeightType::Int4 | WeightType::Blocks(_) => Some(Form::Int8),
    }
}

/// `Kind` of matrix.h.
pub(crate) fn kind(weight_type: WeightType) -> i32 {
    match weight_type {
        WeightType::F32 => 0,
        WeightType::Bf16 => 1,
        WeightType::Int8 => 2,
        WeightType::Int4 => 3,
        WeightType::Blocks(BlockType::Q8_0) => 4,
        WeightType::Blocks(BlockType::Q4K) => 5,
        WeightType::Blocks(BlockType::Q6K) => 6,
    }
}

/// Sizes of matrix.h, in bytes.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Chunks of a row.
    n_chunks: usize,
    /// Integers or bf16 of a chunk.
    quants: usize,
    /// Size of a chunk: the quants and the words after them.
    chunk: usize,
    /// Words after all chunks, per tile of outputs.
    units: usize,
}

impl Layout {
    fn new(weight_type: WeightType, n_in: usize) -> Self {
        let n_chunks = n_in.div_ceil(STRIDE);
        let n_shared = n_chunks / CHUNKS_PER_UNIT;
        let (quants, meta, n_units) = match weight_type {
            WeightType::F32 => (0, 0, 0),
            WeightType::Bf16 => (2048, 0, 0),
            WeightType::Int8 => (1024, 0, 1),
            WeightType::Int4 => (512, WORDS, 0),
            WeightType::Blocks(BlockType::Q8_0) => (1024, WORDS, 0),
            WeightType::Blocks(BlockType::Q4K) => (512, WORDS, n_shared),
            WeightType::Blocks(BlockType::Q6K) => (768, WORDS, n_shared),
        };
        Self { n_chunks, quants, chunk: quants + meta, units: n_units * WORDS }
    }

    /// The chunks of a tile of outputs.
    fn tile(self) -> usize {
        self.n_chunks * self.chunk
    }
}

/// Bytes of `chunk` and `unit` in shared memory that a product of `gpu/include/product.h` reads for 16 outputs and 64 inputs.
pub(crate) fn slice_bytes(weight_type: WeightType) -> usize {
    let shared = matches!(weight_type, WeightType::Blocks(BlockType::Q4K | BlockType::Q6K));
    Layout::new(weight_type, STRIDE).chunk + if shared { WORDS } else { 0 }
}

/// A row in its weight type: the words of operand A, four bytes each, and their scales.
struct Row {
    /// bf16, or integers of a byte each; whole chunks.
    bytes: Vec<u8>,
    /// A word per chunk, or none.
    meta: Vec<[u8; 4]>,
    /// Words after all chunks.
    units: Vec<[u8; 4]>,
}

impl Row {
    fn new(data: WeightData<'_>, weight_type: WeightType, n_chunks: usize) -> Self {
        let (bytes, meta, units) = match (weight_type, data) {
            (WeightType::Bf16, WeightData::Bf16(bytes)) => (bytes.to_vec(), Vec::new(), Vec::new()),
            (WeightType::Blocks(kind), WeightData::Blocks(_, bytes)) => blocks(kind, bytes),
            (WeightType::Int8, _) => {
                let values = data.to_f32();
                let scale = scale_int8(&values);
                let bytes = quantize_int8(&values, scale).map(|value| value as u8).collect();
                (bytes, Vec::new(), vec![scale.to_le_bytes()])
            }
            (WeightType::Int4, _) => {
                let values = data.to_f32();
                let scales: Vec<f32> = values.chunks(STRIDE).map(scale_int4).collect();
                let groups = values.chunks(STRIDE).zip(&scales);
                let bytes =
                    groups.flat_map(|(group, scale)| quantize_int4(group, *scale)).map(|value| value as u8).collect();
                (bytes, scales.iter().map(|scale| scale.to_le_bytes()).collect(), Vec::new())
            }
            // F32 has no chunks, and blocks are held as nothing else.
            _ => {
                let bytes = data.to_f32().into_iter().flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect();
                (bytes, Vec::new(), Vec::new())
            }
        };
        let mut row = Self { bytes, meta, units };
        row.bytes.resize(n_chunks * STRIDE * if weight_type == WeightType::Bf16 { 2 } else { 1 }, 0);
        row
    }
}

/// Integers and scales of a row of blocks, as they are.
fn blocks(kind: BlockType, bytes: &[u8]) -> (Vec<u8>, Vec<[u8; 4]>, Vec<[u8; 4]>) {
    let (mut values, mut meta, mut units) = (Vec::new(), Vec::new(), Vec::new());
    // They were halves.
    let half = |value: f32| f16::from_f32(value).to_le_bytes();
    let mut before = None;
    for block in bytes.chunks_exact(kind.n_bytes()) {
        values.extend(kind.values(block).map(|value| value as u8));
        let block_scales = kind.block_scales(block);
        match kind {
            // A chunk has two.
            BlockType::Q8_0 => match before.take() {
                None => {
                    before = Some(meta.len());
                    let [low, high] = half(block_scales.scale);
                    meta.push([low, high, 0, 0]);
                }
                Some(at) => meta[at][2..].copy_from_slice(&half(block_scales.scale)),
            },
            BlockType::Q4K => {
                let pairs =
                    block_scales.factors.as_chunks::<2>().0.iter().zip(block_scales.min_factors.as_chunks::<2>().0);
                let words = pairs.map(|([a, b], [min_a, min_b])| [*a as u8, *min_a as u8, *b as u8, *min_b as u8]);
                meta.extend(words.take(CHUNKS_PER_UNIT));
                let ([a, b], [c, d]) = (half(block_scales.scale), half(block_scales.min));
                units.push([a, b, c, d]);
            }
            BlockType::Q6K => {
                meta.extend(block_scales.factors.as_chunks::<4>().0.iter().map(|four| four.map(|factor| factor as u8)));
                units.push(block_scales.scale.to_le_bytes());
            }
        }
    }
    (values, meta, units)
}

/// The word of operand A that has word `word` of a row's chunk, counted in bytes from the chunk's start, for output `out` of 16.
fn place(out: usize, word: usize) -> usize {
    let lane = out % 8 * 4 + word % 4;
    word / 8 * 512 + lane * 16 + (out / 8 + word % 8 / 4 * 2) * 4
}

/// Writes output `out` of a tile to the tile's chunks and units.
fn write_row(row: &Row, weight_type: WeightType, out: usize, layout: Layout, chunks: &mut [u8], units: &mut [u8]) {
    let row_chunks = row.bytes.chunks_exact(row.bytes.len() / layout.n_chunks);
    for (index, (chunk, bytes)) in chunks.chunks_exact_mut(layout.chunk).zip(row_chunks).enumerate() {
        for (word, bytes) in bytes.as_chunks::<4>().0.iter().enumerate() {
            let (step, at) = (word / 8, place(out, word % 8));
            match weight_type {
                WeightType::Int4 | WeightType::Blocks(BlockType::Q4K) => {
                    for (to, byte) in chunk[at..].iter_mut().zip(bytes) {
                        *to |= (byte & 0xf) << (4 * step);
                    }
                }
                WeightType::Blocks(BlockType::Q6K) => {
                    // Two bits more, beside those of the lane's other words.
                    let (lane, register) = (at / 16, at % 16 / 4);
                    let high = 512 + lane * 8 + step * 4;
                    for (index, byte) in bytes.iter().enumerate() {
                        chunk[at + index] |= (byte & 0xf) << (4 * step);
                        chunk[high + index] |= (byte >> 4 & 3) << (2 * register);
                    }
                }
                _ => chunk[at + step * 512..][..4].copy_from_slice(bytes),
            }
        }
        if let Some(word) = row.meta.get(index) {
            chunk[layout.quants + 4 * out..][..4].copy_from_slice(word);
        }
    }
    for (words, word) in units.chunks_exact_mut(WORDS).zip(&row.units) {
        words[4 * out..][..4].copy_from_slice(word);
    }
}

/// Runs `work` on disjoint parts of `bytes`, `len` each, on all threads of the machine.
fn in_parallel(bytes: &mut [u8], len: usize, work: impl Fn(usize, &mut [u8]) + Sync) {
    let n_parts = bytes.len() / len;
    let n_threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(n_parts).max(1);
    let per_thread = n_parts.div_ceil(n_threads).max(1);
    let run = |first: usize, bytes: &mut [u8]| {
        for (index, part) in bytes.chunks_exact_mut(len).enumerate() {
            work(first + index, part);
        }
    };
    if n_threads == 1 {
        return run(0, bytes);
    }
    thread::scope(|scope| {
        for (index, bytes) in bytes.chunks_mut(per_thread * len).enumerate() {
            let run = &run;
            scope.spawn(move || run(index * per_thread, bytes));
        }
    });
}

/// Makes a weight ready. No more than a piece of it is rearranged in memory at a time.
pub(crate) fn matrix(
    ops: &DeviceOps,
    data: WeightData<'_>,
    n_out: usize,
    n_in: usize,
    weight_type: WeightType,
) -> Result<Matrix, WeightError> {
    let data_of = |out: usize| data.slice(out * n_in..(out + 1) * n_in);
    let layout = Layout::new(weight_type, n_in);
    let buffer = if weight_type == WeightType::F32 {
        let row_bytes = 4 * layout.n_chunks * STRIDE;
        let buffer = ops.device.hold(n_out * row_bytes)?;
        for rows in pieces(n_out, row_bytes) {
            let mut piece = vec![0; rows.len() * row_bytes];
            in_parallel(&mut piece, row_bytes, |row, to| {
                for (to, value) in to.as_chunks_mut().0.iter_mut().zip(data_of(rows.start + row).to_f32()) {
                    *to = value.to_le_bytes();
                }
            });
            buffer.write(rows.start * row_bytes, &piece)?;
        }
        buffer
    } else {
        let n_tiles = n_out.div_ceil(OUTPUTS);
        let (tile_bytes, units_at) = (layout.tile(), n_tiles * layout.tile());
        let part = tile_bytes + layout.units;
        let buffer = ops.device.hold(n_tiles * part)?;
        for tiles in pieces(n_tiles, part) {
            let mut piece = vec![0; tiles.len() * part];
            in_parallel(&mut piece, part, |tile, to| {
                let (chunks, units) = to.split_at_mut(tile_bytes);
                let first = (tiles.start + tile) * OUTPUTS;
                for out in first..n_out.min(first + OUTPUTS) {
                    let row = Row::new(data_of(out), weight_type, layout.n_chunks);
                    write_row(&row, weight_type, out - first, layout, chunks, units);
                }
            });
            // Units are stored after all chunks.
            let mut units = Vec::with_capacity(tiles.len() * layout.units);
            for tile in 0..tiles.len() {
                units.extend_from_slice(&piece[tile * part + tile_bytes..][..layout.units]);
                piece.copy_within(tile * part..tile * part + tile_bytes, tile * tile_bytes);
            }
            buffer.write(tiles.start * tile_bytes, &piece[..tiles.len() * tile_bytes])?;
            if !units.is_empty() {
                buffer.write(units_at + tiles.start * layout.units, &units)?;
            }
        }
        buffer
    };
    Ok(Matrix { weight_type, n_out, n_in, data: buffer })
}

/// `0..n` in ranges of about a piece, where each takes `n_bytes`.
fn pieces(n: usize, n_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let step = (PIECE / n_bytes.max(1)).max(1);
    (0..n).step_by(step).map(move |start| start..n.min(start + step))
}
