//! The operations of a CUDA device: each is called by its name here and appended to the queue by [`super::operations`].

use crate::cuda::operands::matrix::Matrix;
use crate::cuda::operands::step::Step;
use crate::cuda::operands::tensor::Tensor;
use crate::cuda::operations::attention::Cache;
use crate::cuda::operations::experts::Experts;
use crate::cuda::operations::product::Group;
use crate::cuda::operations::rows::{Rope, Vector, bytes_of};
use crate::cuda::state::CudaOps;
use crate::error::{DeviceError, StepError};
use crate::memory::AvailableMemory;
use crate::routing::Routing;
use crate::{
    Activation, Attention, CacheShape, GatedMlp, Head, HeadNorm, MatrixBias, ModelBatch, Ops, RopeTable, RowList,
    RowScore, ScoreSpec, SelfConditioning, WeightData, WeightError, WeightType,
};

impl Ops for CudaOps {
    type Tensor = Tensor;
    type Matrix = Matrix;
    type Vector = Vector;
    type Group<const N: usize> = Group<N>;
    type Rope = Rope;
    type Experts = Experts;
    type Cache = Cache;
    type Step<'a> = Step<'a>;

    fn memory(&self) -> Result<Option<AvailableMemory>, DeviceError> {
        let memory = self.device.memory()?;
        let share = (memory.total as f64 * f64::from(self.memory_share)) as u64;
        let used = memory.total - memory.free;
        let source = format!("{}, --gpu-memory-utilization {}", memory.source, self.memory_share);
        Ok(Some(AvailableMemory { free: share.saturating_sub(used), source, ..memory }))
    }

    fn matrix(
        &self,
        data: WeightData<'_>,
        n_out: usize,
        n_in: usize,
        weight_type: WeightType,
    ) -> Result<Self::Matrix, WeightError> {
        weight_type.check(data, n_in)?;
        self.hold_matrix(data, n_out, n_in, weight_type)
    }

    fn vector(&self, data: WeightData<'_>) -> Result<Self::Vector, WeightError> {
        self.hold_vector(data)
    }

    fn group<const N: usize>(&self, members: [MatrixBias<Self>; N]) -> Result<Self::Group<N>, WeightError> {
        self.join(members)
    }

    fn rope(&self, table: RopeTable) -> Result<Self::Rope, WeightError> {
        self.hold_rope(&table)
    }

    fn layer_experts(&self, mlps: Vec<GatedMlp<Self>>, routing: Routing) -> Result<Self::Experts, WeightError> {
        self.stack_experts(mlps, routing)
    }

    fn cache(&self, layers: &[CacheShape]) -> Result<Self::Cache, WeightError> {
        self.hold_cache(layers)
    }

    fn begin<'a>(&self, batch: &'a ModelBatch) -> Result<Self::Step<'a>, StepError> {
        self.begin_step(batch)
    }

    fn tensor(&self, values: &[f32], width: usize) -> Result<Self::Tensor, StepError> {
        let bytes = bytes_of(values);
        let n_rows = values.len() / width;
        Ok(Tensor::new(self.upload(&bytes)?, n_rows, n_rows, width))
    }

    fn copy(&self, x: &Self::Tensor) -> Result<Self::Tensor, StepError> {
        let copy = self.tensor_of(x.n_rows, x.n_real, x.width)?;
        self.queue().copy(x.data.address(), copy.data.address(), 4 * x.len());
        Ok(copy)
    }

    fn zeros(&self, n_rows: usize, width: usize) -> Result<Self::Tensor, StepError> {
        let zeros = self.tensor_of(n_rows, n_rows, width)?;
        self.queue().clear(zeros.data.address(), 4 * zeros.len());
        Ok(zeros)
    }

    fn embed(&self, table: &Self::Matrix, step: &Self::Step<'_>) -> Result<Self::Tensor, StepError> {
        self.embed_ids(table, step)
    }

    fn blend(&self, x: &mut Self::Tensor, table: &Self::Matrix, step: &Self::Step<'_>) -> Result<(), StepError> {
        x.changes();
        self.blend_rows(x, table, step)
    }

    fn embed_softmax(&self, table: &Self::Matrix, logits: &Self::Tensor) -> Result<Self::Tensor, StepError> {
        self.mix(table, logits)
    }

    fn rms_norm(&self, x: &Self::Tensor, weight: &Self::Vector, eps: f32) -> Result<Self::Tensor, StepError> {
        self.norm_rows(x, weight, eps)
    }

    fn linear(
        &self,
        x: &Self::Tensor,
        weight: &Self::Matrix,
        bias: Option<&Self::Vector>,
    ) -> Result<Self::Tensor, StepError> {
        self.multiply(x, weight, bias)
    }

    fn linear_group<const N: usize>(
        &self,
        x: &Self::Tensor,
        group: &Self::Group<N>,
    ) -> Result<[Self::Tensor; N], StepError> {
        self.multiply_group(x, group)
    }

    fn add(&self, x: &mut Self::Tensor, y: &Self::Tensor) -> Result<(), StepError> {
        x.changes();
        self.add_tensors(x, y)
    }

    fn add_rows(
        &self,
        x: &mut Self::Tensor,
        step: &Self::Step<'_>,
        rows: RowList,
        y: &Self::Tensor,
    ) -> Result<(), StepError> {
        x.changes();
        self.add_listed(x, step.list(rows), y)
    }

    fn scale(&self, x: &mut Self::Tensor, factor: f32) -> Result<(), StepError> {
        x.changes();
        self.scale_values(x, factor)
    }

    fn soft_cap(&self, x: &mut Self::Tensor, cap: f32) -> Result<(), StepError> {
        x.changes();
        self.cap_values(x, cap)
    }

    fn norm_rope(
        &self,
        x: &mut Self::Tensor,
        norm: HeadNorm<'_, Self>,
        rope: &Self::Rope,
        step: &Self::Step<'_>,
    ) -> Result<(), StepError> {
        x.changes();
        self.norm_rope_rows(x, norm, rope, step)
    }

    fn store(
        &self,
        cache: &mut Self::Cache,
        layer: usize,
        k: &Self::Tensor,
        v: &Self::Tensor,
        step: &Self::Step<'_>,
    ) -> Result<(), StepError> {
        self.store_rows(cache, layer, k, v, step)
    }

    fn attend(
        &self,
        q: &Self::Tensor,
        cache: &Self::Cache,
        layer: usize,
        attention: Attention,
        step: &Self::Step<'_>,
    ) -> Result<Self::Tensor, StepError> {
        self.attend_rows(q, cache, layer, attention, step)
    }

    fn gate(&self, gate: Self::Tensor, up: &Self::Tensor, activation: Activation) -> Result<Self::Tensor, StepError> {
        self.gate_rows(gate, up, activation)
    }

    fn experts(
        &self,
        x: &Self::Tensor,
        logits: &Self::Tensor,
        experts: &Self::Experts,
    ) -> Result<Self::Tensor, StepError> {
        self.route(x, logits, experts)
    }

    fn score(
        &self,
        x: &Self::Tensor,
        head: &Head<'_, Self>,
        specs: &[ScoreSpec],
        conditioning: Option<SelfConditioning<'_, Self>>,
    ) -> Result<Vec<Option<RowScore>>, StepError> {
        self.score_rows(x, head, specs, conditioning)
    }

    fn select(&self, x: &Self::Tensor, step: &Self::Step<'_>, rows: RowList) -> Result<Self::Tensor, StepError> {
        self.select_rows(x, step.list(rows))
    }

    fn host_into(&self, x: &Self::Tensor, values: &mut Vec<f32>) -> Result<(), StepError> {
        for bytes in self.download(&[(&x.data, 4 * x.n_real * x.width)])? {
            values.extend(bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)));
        }
        Ok(())
    }
}
