//! Operations on rows of activations: norms, gates, rotations, rounding for products, and element by element.
//!
//! Kernels: `gpu/rows.cu` and `gpu/heads.cu`.

use super::CudaOps;
use super::attention::Cache;
use super::device::Buffer;
use super::queue::{Arg, Ticket};
use super::step::{DeviceList, Step};
use super::tensor::{Form, Prepared, Tensor};
use crate::error::StepError;
use crate::kernels::{Activation, HeadNorm, HoldError, KvType, RopeTable, WeightData};

/// A weight `[width]`.
pub struct Vector {
    pub(super) data: Buffer,
    pub(super) width: usize,
}

/// Angles of every position.
pub struct Rope {
    cos: Buffer,
    sin: Buffer,
    half: usize,
    head_dim: usize,
}

/// Threads of a block that has a row.
const ROW_THREADS: u32 = 512;

/// Bytes of shared memory of a block that reduces over its threads: a word per warp.
pub(super) const REDUCTION: u32 = 4 * 32;

/// Values of a block that goes through an array, and its threads.
pub(super) const FLAT: usize = 1024;
pub(super) const FLAT_THREADS: u32 = 256;

/// Heads of a block, a warp each, and its threads.
const HEADS: usize = 4;
const HEAD_THREADS: u32 = 128;

/// Rows of form 0 are not rounded.
const NOT_ROUNDED: [Arg; 3] = [Arg::I32(0), Arg::NULL, Arg::NULL];

/// Little-endian bytes.
pub(super) fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

impl CudaOps {
    pub(super) fn hold_vector(&self, data: WeightData<'_>) -> Result<Vector, HoldError> {
        Ok(Vector { data: self.hold(&bytes_of(&data.to_f32()))?, width: data.n_values() })
    }

    pub(super) fn hold_rope(&self, table: &RopeTable) -> Result<Rope, HoldError> {
        let (cos, sin) = (self.hold(&bytes_of(&table.cos))?, self.hold(&bytes_of(&table.sin))?);
        Ok(Rope { cos, sin, half: table.half, head_dim: table.head_dim })
    }

    /// Writes the rounded rows of `x`, in a launch of its own.
    pub(super) fn prepare_rows(&self, x: &Tensor, form: Form, to: Prepared) -> Result<(), StepError> {
        let args = [x.into(), x.width.into(), Arg::I32(form as i32), Arg::Pointer(to.rows), Arg::Pointer(to.scales)];
        self.launch_rows("prepare_rows", x.n_rows, &args);
        Ok(())
    }

    /// The launch can write the rounded rows, too.
    pub(super) fn norm_rows(&self, x: &Tensor, weight: &Vector, eps: f32) -> Result<Tensor, StepError> {
        assert_eq!(x.width, weight.width, "a norm's weight");
        let room = self.room(x.n_rows, x.width)?;
        let mut out = self.tensor_of(x.n_rows, x.n_real, x.width)?;
        let args = [x.into(), Arg::NULL, (&weight.data).into(), (&out).into(), x.width.into(), eps.into()];
        let ticket = self.launch_rows("rms_norm", x.n_rows, &[&args[..], &NOT_ROUNDED].concat());
        if let Some(ticket) = ticket {
            out.made_by(ticket, args.len(), room);
        }
        Ok(out)
    }

    /// As [`CudaOps::norm_rows`], in place of `gate`.
    pub(super) fn gate_rows(
        &self,
        mut gate: Tensor,
        up: &Tensor,
        activation: Activation,
    ) -> Result<Tensor, StepError> {
        let room = self.room(gate.n_rows, gate.width)?;
        let activation = match activation {
            Activation::Silu => 0,
            Activation::GeluTanh => 1,
        };
        let args = [(&gate).into(), up.into(), gate.width.into(), Arg::I32(activation)];
        let ticket = self.launch_rows("gate", gate.n_rows, &[&args[..], &NOT_ROUNDED].concat());
        gate.changes();
        if let Some(ticket) = ticket {
            gate.made_by(ticket, args.len(), room);
        }
        Ok(gate)
    }

    pub(super) fn add_tensors(&self, x: &mut Tensor, y: &Tensor) -> Result<(), StepError> {
        assert_eq!((x.n_rows, x.width), (y.n_rows, y.width), "extents of a sum");
        self.launch_flat("add", x.len(), &[(&*x).into(), y.into(), x.len().into()]);
        Ok(())
    }

    pub(super) fn add_listed(&self, x: &mut Tensor, rows: DeviceList, y: &Tensor) -> Result<(), StepError> {
        let args = [(&*x).into(), y.into(), Arg::Pointer(rows.address), x.width.into()];
        self.launch_listed("add_rows", rows.n_padded, x.width, &args);
        Ok(())
    }

    pub(super) fn scale_values(&self, x: &mut Tensor, factor: f32) -> Result<(), StepError> {
        self.launch_flat("scale", x.len(), &[(&*x).into(), x.len().into(), factor.into()]);
        Ok(())
    }

    pub(super) fn cap_values(&self, x: &mut Tensor, cap: f32) -> Result<(), StepError> {
        self.launch_flat("soft_cap", x.len(), &[(&*x).into(), x.len().into(), cap.into()]);
        Ok(())
    }

    pub(super) fn select_rows(&self, x: &Tensor, rows: DeviceList) -> Result<Tensor, StepError> {
        let out = self.tensor_of(rows.n_padded, rows.n_real, x.width)?;
        let args = [x.into(), (&out).into(), Arg::Pointer(rows.address), x.width.into()];
        self.launch_listed("select_rows", rows.n_padded, x.width, &args);
        Ok(out)
    }

    pub(super) fn norm_rope_rows(
        &self,
        x: &mut Tensor,
        norm: HeadNorm<'_, Self>,
        rope: &Rope,
        step: &Step<'_>,
    ) -> Result<(), StepError> {
        let n_heads = x.width / rope.head_dim;
        let (weight, eps) = norm.map_or((Arg::NULL, 0.0), |(weight, eps)| ((&weight.data).into(), eps));
        let args = [
            (&*x).into(),
            weight,
            eps.into(),
            (&rope.cos).into(),
            (&rope.sin).into(),
            Arg::Pointer(step.positions),
            x.n_rows.into(),
            n_heads.into(),
            rope.head_dim.into(),
            rope.half.into(),
        ];
        self.launch_heads("norm_rope", x.n_rows * n_heads, &args);
        Ok(())
    }

    pub(super) fn store_rows(
        &self,
        cache: &mut Cache,
        layer: usize,
        k: &Tensor,
        v: &Tensor,
        step: &Step<'_>,
    ) -> Result<(), StepError> {
        let layer = cache.layer(layer);
        let n_kv_heads = layer.shape.n_kv_heads;
        let args = [
            k.into(),
            v.into(),
            Arg::Pointer(step.slots),
            (&layer.k).into(),
            (&layer.v).into(),
            k.n_rows.into(),
            n_kv_heads.into(),
            layer.shape.head_dim.into(),
            layer.stride().into(),
            Arg::I32(i32::from(layer.shape.kv_type == KvType::Bf16)),
        ];
        self.launch_heads("store_rows", k.n_rows * n_kv_heads, &args);
        Ok(())
    }

    /// A block a row; none where there are no rows.
    fn launch_rows(&self, kernel: &'static str, n_rows: usize, args: &[Arg]) -> Option<Ticket> {
        (n_rows > 0).then(|| self.launch(kernel, [n_rows, 1, 1], ROW_THREADS, REDUCTION, args))
    }

    fn launch_flat(&self, kernel: &'static str, n_values: usize, args: &[Arg]) {
        if n_values > 0 {
            self.launch(kernel, [n_values.div_ceil(FLAT), 1, 1], FLAT_THREADS, 0, args);
        }
    }

    /// Blocks for each listed row.
    pub(super) fn launch_listed(&self, kernel: &'static str, n_rows: usize, width: usize, args: &[Arg]) {
        if n_rows > 0 {
            self.launch(kernel, [n_rows, width.div_ceil(FLAT), 1], FLAT_THREADS, 0, args);
        }
    }

    fn launch_heads(&self, kernel: &'static str, n_heads: usize, args: &[Arg]) {
        if n_heads > 0 {
            self.launch(kernel, [n_heads.div_ceil(HEADS), 1, 1], HEAD_THREADS, 0, args);
        }
    }
}
