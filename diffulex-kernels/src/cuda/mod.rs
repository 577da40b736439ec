//! NVIDIA GPUs, through the CUDA driver.
//!
//! Kernels are CUDA C in `diffulex-kernels/gpu`, compiled to PTX by `scripts/ptx` and embedded; the driver compiles them for
//! the card when the engine starts. Nothing else is needed at build time or run time. docs/gpu.md describes the whole.
//!
//! Operations append to a queue; results travel to the host only where [`Ops::score`] and [`Ops::host_into`] need them.

#![expect(unsafe_code, reason = "calls of the CUDA driver")]

mod arena;
mod attention;
mod buffer;
mod device;
mod embed;
mod experts;
mod holdings;
mod matrix;
mod nvml;
mod padding;
mod product;
mod queue;
mod rotation;
mod rows;
mod score;
mod staging;
mod step;
mod tensor;
mod tiles;
mod words;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arena::Block;
use buffer::Buffer;
use device::Device;
use nvml::Nvml;
use queue::{Arg, Extent, Queue, Ticket};

use super::routing::Routing;
use super::{
    Activation, Attention, CacheShape, GatedMlp, Head, HeadNorm, HoldError, ModelBatch, Ops, Recipe, RopeTable,
    RowList, Scored, SelfConditioning, WeightData, WeightType, Weighted,
};
use crate::error::{DeviceError, StepError};
use crate::memory::Room;

/// A CUDA device.
pub struct CudaOps {
    device: Arc<Device>,
    /// Share of the memory that weights and the KV pool may take.
    memory_share: f32,
    queue: Mutex<Queue>,
    score: score::Memory,
}

/// How a device is used, by all programs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceUse {
    /// Bytes of its memory that nothing has taken.
    pub free_bytes: u64,
    /// Share of the last moments in which a kernel ran, 0 to 1; `None` where nothing tells.
    pub busy: Option<f32>,
}

impl CudaOps {
    /// Number of CUDA devices; none where there is no driver.
    pub fn n_devices() -> usize {
        device::n_devices()
    }

    /// Opens device `index`; weights and the KV pool may take `memory_share` of its memory.
    pub fn new(index: usize, memory_share: f32) -> Result<Self, DeviceError> {
        let device = Device::open(index)?;
        let queue = Mutex::new(Queue::new(device.clone()));
        Ok(Self { device, memory_share, queue, score: score::Memory::default() })
    }

    /// Name, card and compute capability, for people.
    pub fn describe(&self) -> Result<String, DeviceError> {
        self.device.describe()
    }

    /// Reads how the device is used, from any thread and at any time; `None` where it does not tell.
    pub fn monitor(&self) -> impl Fn() -> Option<DeviceUse> + Send + use<> {
        let device = Arc::clone(&self.device);
        let nvml = device.place().and_then(Nvml::open);
        move || {
            // A device that fails ends the worker where it is needed; here, it only does not tell.
            let free_bytes = device.memory().ok()?.free;
            Some(DeviceUse { free_bytes, busy: nvml.as_ref().and_then(Nvml::utilization) })
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a launch of `kernel` with its arguments, in its order.
    fn launch(&self, kernel: &'static str, grid: [usize; 3], block: u32, shared: u32, args: &[Arg]) -> Ticket {
        let grid = grid.map(|n| n as u32);
        self.queue().launch(kernel, Extent { grid, block, shared }, args)
    }

    /// Device memory of this step; its bytes are undefined.
    fn alloc(&self, n_bytes: usize) -> Result<Block, StepError> {
        self.queue().alloc(n_bytes)
    }

    /// Appends an upload of `bytes`, which are copied now, into a block of their own.
    fn upload(&self, bytes: &[u8]) -> Result<Block, StepError> {
        let mut queue = self.queue();
        let block = queue.alloc(bytes.len())?;
        if !bytes.is_empty() {
            queue.upload(block.address(), bytes)?;
        }
        Ok(block)
    }

    /// Runs everything that waits and returns the first bytes of some blocks.
    fn download(&self, blocks: &[(&Block, usize)]) -> Result<Vec<Vec<u8>>, StepError> {
        let ranges: Vec<(u64, usize)> = blocks.iter().map(|(block, n_bytes)| (block.address(), *n_bytes)).collect();
        self.queue().download(&ranges)
    }

    /// Memory that stays, with these bytes.
    fn hold(&self, bytes: &[u8]) -> Result<Buffer, HoldError> {
        let buffer = self.device.hold(bytes.len())?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }
}

impl Ops for CudaOps {
    type Tensor = tensor::Tensor;
    type Matrix = matrix::Matrix;
    type Vector = rows::Vector;
    type Group<const N: usize> = product::Group<N>;
    type Rope = rows::Rope;
    type Experts = experts::Experts;
    type Cache = attention::Cache;
    type Step<'a> = step::Step<'a>;

    fn memory(&self) -> Result<Option<Room>, DeviceError> {
        let room = self.device.memory()?;
        let share = (room.total as f64 * f64::from(self.memory_share)) as u64;
        let used = room.total - room.free;
        let source = format!("{}, --gpu-memory-utilization {}", room.source, self.memory_share);
        Ok(Some(Room { free: share.saturating_sub(used), source, ..room }))
    }

    fn matrix(
        &self,
        data: WeightData<'_>,
        n_out: usize,
        n_in: usize,
        hold: WeightType,
    ) -> Result<Self::Matrix, HoldError> {
        hold.check(data, n_in)?;
        self.hold_matrix(data, n_out, n_in, hold)
    }

    fn vector(&self, data: WeightData<'_>) -> Result<Self::Vector, HoldError> {
        self.hold_vector(data)
    }

    fn group<const N: usize>(&self, members: [Weighted<Self>; N]) -> Result<Self::Group<N>, HoldError> {
        self.join(members)
    }

    fn rope(&self, table: RopeTable) -> Result<Self::Rope, HoldError> {
        self.hold_rope(&table)
    }

    fn experts(&self, mlps: Vec<GatedMlp<Self>>, routing: Routing) -> Result<Self::Experts, HoldError> {
        self.stack_experts(mlps, routing)
    }

    fn cache(&self, layers: &[CacheShape]) -> Result<Self::Cache, HoldError> {
        self.hold_cache(layers)
    }

    fn begin<'a>(&self, batch: &'a ModelBatch) -> Result<Self::Step<'a>, StepError> {
        self.begin_step(batch)
    }

    fn tensor(&self, values: &[f32], width: usize) -> Result<Self::Tensor, StepError> {
        let bytes = rows::bytes_of(values);
        let n_rows = values.len() / width;
        Ok(tensor::Tensor::new(self.upload(&bytes)?, n_rows, n_rows, width))
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

    fn embed_mixed(&self, table: &Self::Matrix, logits: &Self::Tensor) -> Result<Self::Tensor, StepError> {
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

    fn linears<const N: usize>(
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

    fn routed(
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
        recipes: &[Recipe],
        conditioning: Option<SelfConditioning<'_, Self>>,
    ) -> Result<Vec<Option<Scored>>, StepError> {
        self.score_rows(x, head, recipes, conditioning)
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
