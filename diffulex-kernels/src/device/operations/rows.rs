//! Operations on rows of activations: norms, gates, rotations, rounding for products, and element by element.
//!
//! Kernels: `gpu/rows.cu` and `gpu/heads.cu`.

use std::cell::RefCell;

use crate::device::memory::buffer::Buffer;
use crate::device::operands::rotation::Rotation;
use crate::device::operands::step::Step;
use crate::device::operands::tensor::Tensor;
use crate::device::operations::attention::Cache;
use crate::device::state::DeviceOps;
use crate::device::work::arg::Arg;
use crate::error::StepError;
use crate::{Activation, CacheShape, HeadNorm, KvType, RopeTable, WeightData, WeightError};

/// A weight `[width]`.
pub struct Vector {
    pub(crate) data: Buffer,
    pub(crate) width: usize,
}

/// Angles of every position.
pub struct Rope {
    cos: Buffer,
    sin: Buffer,
    half: usize,
    head_dim: usize,
}

/// Rows of form 0 are not rounded.
const NOT_ROUNDED: [Arg; 3] = [Arg::I32(0), Arg::NULL, Arg::NULL];

/// Little-endian bytes.
pub(crate) fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Makes a vector ready.
pub(crate) fn vector(ops: &DeviceOps, data: WeightData<'_>) -> Result<Vector, WeightError> {
    Ok(Vector { data: ops.hold(&bytes_of(&data.to_f32()))?, width: data.n_values() })
}

/// Makes a table of angles ready.
pub(crate) fn rope(ops: &DeviceOps, table: &RopeTable) -> Result<Rope, WeightError> {
    let (cos, sin) = (ops.hold(&bytes_of(&table.cos))?, ops.hold(&bytes_of(&table.sin))?);
    Ok(Rope { cos, sin, half: table.half, head_dim: table.head_dim })
}

/// The launch can write the rounded rows, too, and takes the place of an addition to `x` where that is the last that waits.
pub(crate) fn rms_norm(ops: &DeviceOps, x: &Tensor, weight: &Vector, eps: f32) -> Result<Tensor, StepError> {
    assert_eq!(x.width, weight.width, "a norm's weight");
    let room = ops.room(x.n_rows, x.width)?;
    let mut out = ops.tensor_of(x.n_rows, x.n_real, x.width)?;
    // Kept until the launch is appended, so that its memory is not handed out above.
    let addition = x.addition.take();
    let added = addition.filter(|(launch_id, _)| ops.queue().take_back([*launch_id]));
    let y = added.as_ref().map_or(Arg::NULL, |(_, y)| (&**y).into());
    // With an addition, `x` becomes what the launch in its place would have made it.
    let args = [x.read(), y, (&weight.data).into(), out.write(), x.width.into(), eps.into()];
    let launch_id = ops.launch_rows("rms_norm", x.n_rows, &[&args[..], &NOT_ROUNDED].concat());
    if let Some(launch_id) = launch_id {
        out.made_by(launch_id, args.len(), room);
    }
    Ok(out)
}

/// In place of `gate`; rounds rows as [`rms_norm`] does.
pub(crate) fn gate(
    ops: &DeviceOps,
    mut gate: Tensor,
    up: &Tensor,
    activation: Activation,
) -> Result<Tensor, StepError> {
    let room = ops.room(gate.n_rows, gate.width)?;
    let activation = match activation {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
    };
    let args = [gate.write(), up.read(), gate.width.into(), Arg::I32(activation)];
    let n_rows = gate.n_rows.min(up.n_rows);
    let launch_id = ops.launch_rows("gate", n_rows, &[&args[..], &NOT_ROUNDED].concat());
    // They may be padded differently.
    let launch_id = launch_id.filter(|_| n_rows == gate.n_rows);
    if let Some(launch_id) = launch_id {
        gate.made_by(launch_id, args.len(), room);
    }
    Ok(gate)
}

/// A norm that follows takes its place.
pub(crate) fn add(ops: &DeviceOps, x: &mut Tensor, y: &Tensor) -> Result<(), StepError> {
    assert_eq!((x.n_real, x.width), (y.n_real, y.width), "extents of a sum");
    // They may be padded differently.
    let n_values = x.len().min(y.len());
    let launch_id = ops.launch_flat("add", n_values, &[x.write(), y.read(), n_values.into()]);
    let is_whole = x.n_rows == y.n_rows;
    x.addition = RefCell::new(launch_id.filter(|_| is_whole).map(|launch_id| (launch_id, y.memory())));
    Ok(())
}

/// A store that follows takes its place.
pub(crate) fn norm_rope(
    ops: &DeviceOps,
    x: &mut Tensor,
    norm: HeadNorm<'_, DeviceOps>,
    rope: &Rope,
    step: &Step<'_>,
) -> Result<(), StepError> {
    let n_heads = x.width / rope.head_dim;
    let (weight, eps) = norm.map_or((Arg::NULL, 0.0), |(weight, eps)| ((&weight.data).into(), eps));
    let heads = [x.write(), weight, eps.into()];
    let angles = [(&rope.cos).into(), (&rope.sin).into(), Arg::Pointer(step.positions)];
    let sizes = [x.n_rows.into(), n_heads.into(), rope.head_dim.into(), rope.half.into()];
    let launch_id = ops.launch_heads("norm_rope", x.n_rows * n_heads, &[&heads[..], &angles, &sizes].concat());
    if let Some(launch_id) = launch_id {
        let rotation = Rotation { launch_id, heads, angles, n_rows: x.n_rows, n_heads, half: rope.half };
        let [_, last] = step.rotations.take();
        step.rotations.replace([last, Some(rotation)]);
    }
    Ok(())
}

/// Takes the place of the rotations of q and k, where they are the last that waits: one launch instead of three, with the
/// same bits.
pub(crate) fn store(
    ops: &DeviceOps,
    cache: &mut Cache,
    layer: usize,
    k: &Tensor,
    v: &Tensor,
    step: &Step<'_>,
) -> Result<(), StepError> {
    let layer = cache.layer(layer);
    let CacheShape { n_kv_heads, head_dim, kv_type, .. } = layer.shape;
    let is_bf16 = Arg::I32(i32::from(kv_type == KvType::Bf16));
    let to = [Arg::Pointer(step.slots), (&layer.k).into(), (&layer.v).into(), k.n_rows.into()];
    if let [Some(of_q), Some(of_k)] = step.rotations.take()
        && of_k.heads[0] == k.read()
        && (of_k.n_rows, of_k.n_heads) == (k.n_rows, n_kv_heads)
        && (of_q.angles, of_q.n_rows) == (of_k.angles, of_k.n_rows)
        && ops.queue().take_back([of_q.launch_id, of_k.launch_id])
    {
        let sizes = [of_q.n_heads.into(), n_kv_heads.into(), head_dim.into(), of_k.half.into()];
        let cached = [layer.stride().into(), is_bf16];
        let args = [&of_q.heads[..], &of_k.heads, &[v.read()], &of_k.angles, &to, &sizes, &cached].concat();
        ops.launch_heads("norm_rope_store", k.n_rows * (of_q.n_heads + n_kv_heads), &args);
        return Ok(());
    }
    let sizes = [n_kv_heads.into(), head_dim.into(), layer.stride().into(), is_bf16];
    let args = [&[k.read(), v.read()], &to[..], &sizes].concat();
    ops.launch_heads("store_rows", k.n_rows * n_kv_heads, &args);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::operands::padding::NONE;
    use crate::device::operands::tensor::{Form, Prepared};
    use crate::quantization::{quantize_int8, scale_int8};
    use crate::tests::{every_gpu, values};
    use crate::{ModelBatch, Ops, RowList};

    fn f32_weight(ops: &DeviceOps, values: &[f32]) -> Vector {
        ops.vector(WeightData::F32(&bytes_of(values))).unwrap()
    }

    /// Rows `[n_rows, stride]` and scales of `values`, rounded on the host.
    fn rounded(values: &[f32], width: usize, form: Form) -> (Vec<u8>, Vec<f32>) {
        let stride = width.next_multiple_of(64);
        let (mut bytes, mut scales) = (Vec::new(), Vec::new());
        for row in values.chunks(width) {
            let start = bytes.len();
            match form {
                Form::Bf16 => bytes.extend(row.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes())),
                Form::Int8 => {
                    let scale = scale_int8(row);
                    scales.push(scale);
                    bytes.extend(quantize_int8(row, scale).map(|value| value as u8));
                }
            }
            bytes.resize(start + stride * if form == Form::Bf16 { 2 } else { 1 }, 0);
        }
        (bytes, scales)
    }

    /// Rows and scales that `prepared` points to.
    fn read(ops: &DeviceOps, prepared: Prepared, [n_rows, width]: [usize; 2], form: Form) -> (Vec<u8>, Vec<f32>) {
        let n_bytes = n_rows * width.next_multiple_of(64) * if form == Form::Bf16 { 2 } else { 1 };
        let n_scales = if form == Form::Int8 { n_rows } else { 0 };
        let mut read = ops.queue().download(&[(prepared.rows, n_bytes), (prepared.scales, 4 * n_scales)]).unwrap();
        let scales = read.pop().unwrap();
        let scales = scales.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
        (read.pop().unwrap(), scales)
    }

    #[test]
    fn rows_are_rounded_as_a_product_takes_them_by_whatever_makes_them() {
        let Some(ops) = every_gpu() else { return };
        for (n_rows, width) in [(1, 1), (3, 24), (5, 151), (2, 1100)] {
            let mut host = values(1, n_rows * width);
            // The last row is zeros, and stays so.
            host[(n_rows - 1) * width..].fill(0.0);
            let up = ops.tensor(&values(2, n_rows * width), width).unwrap();
            let weight = f32_weight(&ops, &values(3, width));
            let x = || ops.tensor(&host, width).unwrap();
            for form in [Form::Bf16, Form::Int8] {
                let gated = ops.gate(x(), &up, Activation::Silu).unwrap();
                for tensor in [x(), ops.rms_norm(&x(), &weight, 1e-6).unwrap(), gated] {
                    let prepared = ops.prepared(&tensor, form).unwrap();
                    let want = rounded(&ops.host(&tensor).unwrap(), width, form);
                    assert_eq!(read(&ops, prepared, [n_rows, width], form), want, "{n_rows} rows of {width}, {form:?}");
                }
                // Once the launch has run, rounding is a launch of its own.
                let normed = ops.rms_norm(&x(), &weight, 1e-6).unwrap();
                let want = rounded(&ops.host(&normed).unwrap(), width, form);
                let prepared = ops.prepared(&normed, form).unwrap();
                assert_eq!(read(&ops, prepared, [n_rows, width], form), want);
            }
        }
    }

    #[test]
    fn an_int8_row_with_what_is_not_a_number_has_a_scale_that_is_none() {
        let Some(ops) = every_gpu() else { return };
        let width = 100;
        let mut host = values(1, 3 * width);
        (host[7], host[width + 99]) = (f32::NAN, f32::NEG_INFINITY);
        let x = ops.tensor(&host, width).unwrap();
        let (_, scales) = read(&ops, ops.prepared(&x, Form::Int8).unwrap(), [3, width], Form::Int8);
        assert_eq!(scales.iter().map(|scale| scale.is_finite()).collect::<Vec<_>>(), [false, false, true]);
    }

    #[test]
    fn a_norm_that_follows_an_addition_makes_one_launch_of_both() {
        let Some(ops) = every_gpu() else { return };
        for (n_rows, width) in [(1, 3), (4, 700)] {
            let weight = f32_weight(&ops, &values(3, width));
            let y = || ops.tensor(&values(2, n_rows * width), width).unwrap();
            let run = |is_apart: bool| {
                let mut x = ops.tensor(&values(1, n_rows * width), width).unwrap();
                let mut sums = Vec::new();
                ops.add(&mut x, &y()).unwrap();
                if is_apart {
                    ops.host_into(&x, &mut sums).unwrap();
                }
                let before = ops.queue().n_waiting();
                let normed = ops.rms_norm(&x, &weight, 1e-6).unwrap();
                assert_eq!(ops.queue().n_waiting() - before, usize::from(is_apart));
                (ops.host(&x).unwrap(), ops.host(&normed).unwrap())
            };
            assert_eq!(run(false), run(true));
        }
    }

    #[test]
    fn a_store_that_follows_rotations_makes_one_launch_of_all() {
        let Some(ops) = every_gpu() else { return };
        for (n_heads, n_kv_heads, head_dim, half, kv_type) in
            [(4, 2, 24, 12, KvType::Bf16), (3, 1, 7, 2, KvType::Bf16), (2, 2, 130, 0, KvType::F32)]
        {
            let (n_rows, n_positions) = (5, 9);
            let table =
                RopeTable { cos: values(1, n_positions * half), sin: values(2, n_positions * half), half, head_dim };
            let rope = ops.rope(table).unwrap();
            let batch = ModelBatch {
                ids: vec![0; n_rows],
                positions: vec![3, 8, 0, 2, 2],
                // One row is not stored, as those of padding.
                slots: vec![6, 0, 3, NONE, 1],
                ..ModelBatch::default()
            };
            let shape = CacheShape { n_slots: 8, page_size: 4, n_kv_heads, head_dim, kv_type };
            let q_norm = f32_weight(&ops, &values(3, head_dim));
            let tensor = |seed, n_heads| {
                let width = n_heads * head_dim;
                let mut host = values(seed, n_rows * width);
                host[width] = if seed == 6 { f32::INFINITY } else { host[width] };
                ops.tensor(&host, width).unwrap()
            };
            let run = |is_apart: bool| {
                let step = ops.begin(&batch).unwrap();
                let mut cache = ops.cache(&[shape]).unwrap();
                let (mut q, mut k, v) = (tensor(4, n_heads), tensor(5, n_kv_heads), tensor(6, n_kv_heads));
                let before = ops.queue().n_waiting();
                ops.norm_rope(&mut q, Some((&q_norm, 1e-6)), &rope, &step).unwrap();
                ops.norm_rope(&mut k, None, &rope, &step).unwrap();
                if is_apart {
                    ops.queue().finish().unwrap();
                }
                ops.store(&mut cache, 0, &k, &v, &step).unwrap();
                assert_eq!(ops.queue().n_waiting() - if is_apart { 0 } else { before }, 1);
                let layer = cache.layer(0);
                let cached = [&layer.k, &layer.v].map(|buffer| (buffer.address(), buffer.n_bytes()));
                (ops.host(&q).unwrap(), ops.host(&k).unwrap(), ops.queue().download(&cached).unwrap())
            };
            assert_eq!(run(false), run(true));
        }
    }

    #[test]
    fn padding_of_lists_selects_and_adds_nothing() {
        let Some(ops) = every_gpu() else { return };
        let (n_rows, width) = (11, 1030);
        let host = values(1, n_rows * width);
        for n_listed in [0, 1, 3, 5, 9, 11] {
            let listed: Vec<u32> = (0..n_listed).map(|index| (7 * index + 2) % n_rows as u32).collect();
            let batch = ModelBatch { state_rows: listed.clone(), ..ModelBatch::default() };
            let step = ops.begin(&batch).unwrap();
            let mut x = ops.tensor(&host, width).unwrap();
            let selected = ops.select(&x, &step, RowList::States).unwrap();
            ops.add_rows(&mut x, &step, RowList::States, &selected).unwrap();
            let rows = listed.iter().map(|row| *row as usize);
            let want: Vec<f32> = rows.clone().flat_map(|row| &host[row * width..(row + 1) * width]).copied().collect();
            assert_eq!(ops.host(&selected).unwrap(), want);
            let mut doubled = host.clone();
            for row in rows {
                doubled[row * width..(row + 1) * width].iter_mut().for_each(|value| *value *= 2.0);
            }
            assert_eq!(ops.host(&x).unwrap(), doubled);
        }
    }
}
