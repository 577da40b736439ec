//! Operations on rows. (ATTEND)
use super::CudaOps;
use super::attention::Cache;
use super::device::Buffer;
use super::step::{DeviceList, Step};
use super::tensor::{Form, Prepared, Tensor};
use crate::error::StepError;
use crate::kernels::{Activation, HeadNorm, HoldError, RopeTable, WeightData};

/// A weight `[width]`.
pub struct Vector {
    pub(super) data: Buffer,
    pub(super) width: usize,
}

/// Angles of every position.
pub struct Rope {}

impl CudaOps {
    pub(super) fn hold_vector(&self, _data: WeightData<'_>) -> Result<Vector, HoldError> {
        unimplemented!()
    }

    pub(super) fn hold_rope(&self, _table: &RopeTable) -> Result<Rope, HoldError> {
        unimplemented!()
    }

    /// Writes the rounded rows of `x`, in a launch of its own.
    pub(super) fn prepare_rows(&self, _x: &Tensor, _form: Form, _to: Prepared) -> Result<(), StepError> {
        unimplemented!()
    }

    /// Takes `self.room(..)` before its output and tells the output with `made_by` (see tensor.rs).
    pub(super) fn norm_rows(&self, _x: &Tensor, _weight: &Vector, _eps: f32) -> Result<Tensor, StepError> {
        unimplemented!()
    }

    pub(super) fn add_tensors(&self, _x: &mut Tensor, _y: &Tensor) -> Result<(), StepError> {
        unimplemented!()
    }

    pub(super) fn add_listed(&self, _x: &mut Tensor, _rows: DeviceList, _y: &Tensor) -> Result<(), StepError> {
        unimplemented!()
    }

    pub(super) fn scale_values(&self, _x: &mut Tensor, _factor: f32) -> Result<(), StepError> {
        unimplemented!()
    }

    pub(super) fn cap_values(&self, _x: &mut Tensor, _cap: f32) -> Result<(), StepError> {
        unimplemented!()
    }

    pub(super) fn norm_rope_rows(
        &self,
        _x: &mut Tensor,
        _norm: HeadNorm<'_, Self>,
        _rope: &Rope,
        _step: &Step<'_>,
    ) -> Result<(), StepError> {
        unimplemented!()
    }

    pub(super) fn store_rows(
        &self,
        _cache: &mut Cache,
        _layer: usize,
        _k: &Tensor,
        _v: &Tensor,
        _step: &Step<'_>,
    ) -> Result<(), StepError> {
        unimplemented!()
    }

    pub(super) fn gate_rows(&self, _gate: Tensor, _up: &Tensor, _activation: Activation) -> Result<Tensor, StepError> {
        unimplemented!()
    }

    pub(super) fn select_rows(&self, _x: &Tensor, _rows: DeviceList) -> Result<Tensor, StepError> {
        unimplemented!()
    }
}
