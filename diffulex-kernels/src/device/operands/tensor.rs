//! Activations on the device, and the rounded copies of them that products read.
//!
//! What is known of a tensor's values, so that launches can be joined (rounded copies, the launch that made it, an addition that waits), is
//! forgotten when an operation asks where to write: [`Tensor::write`] is the only way to a pointer for a kernel that changes it.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;

use crate::device::memory::arena::Block;
use crate::device::operands::step::DeviceList;
use crate::device::state::DeviceOps;
use crate::device::work::arg::Arg;
use crate::device::work::queue::LaunchId;
use crate::error::StepError;

/// Inputs of a product are padded with zeros to a multiple of this, so that whole 16-byte copies fetch them.
pub(crate) const STRIDE: usize = 64;

/// Input format of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// bfloat16, `[n_rows, stride]`.
    Bf16 = 1,
    /// int8, `[n_rows, stride]`, and a scale per row.
    Int8 = 2,
}

/// Rounded rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prepared {
    pub(crate) rows: u64,
    /// `[n_rows]`; of int8 only.
    pub(crate) scales: u64,
}

/// Memory for rounded rows of either form.
pub(crate) struct RoundedRows {
    block: Block,
    scales_at: u64,
}

impl RoundedRows {
    fn of(&self) -> Prepared {
        let rows = self.block.address();
        Prepared { rows, scales: rows + self.scales_at }
    }
}

/// The launch that made a tensor, if it can write the rounded rows, too: its arguments from `first` on are the form, the rows and
/// the scales.
struct Producer {
    launch_id: LaunchId,
    first: usize,
    /// Taken before the launch, so that nothing the launch reads can lie here.
    room: RoundedRows,
}

/// Activations, `[n_rows, width]`, row-major 32-bit floats.
pub struct Tensor {
    data: Arc<Block>,
    /// Rows in memory, padding included. Operations compute all of them.
    pub(crate) n_rows: usize,
    /// Rows that mean something; the first ones.
    pub(crate) n_real: usize,
    pub(crate) width: usize,
    producer: OnceCell<Producer>,
    /// The form that the producer was asked for.
    asked: Cell<Option<Form>>,
    prepared: [OnceCell<RoundedRows>; 2],
    /// The launch that added something to this tensor last, and what: a norm that follows takes its place.
    pub(crate) addition: RefCell<Option<(LaunchId, Arc<Block>)>>,
}

impl Tensor {
    pub(crate) fn new(data: Block, n_rows: usize, n_real: usize, width: usize) -> Self {
        let (producer, asked, prepared, addition) = Default::default();
        Self { data: Arc::new(data), n_rows, n_real, width, producer, asked, prepared, addition }
    }

    /// The number of its values, padding included.
    pub(crate) fn len(&self) -> usize {
        self.n_rows * self.width
    }

    /// Address for launches and copies that read it.
    pub(crate) fn address(&self) -> u64 {
        self.data.address()
    }

    /// Its memory, for who keeps it until a launch that reads it is appended.
    pub(crate) fn memory(&self) -> Arc<Block> {
        self.data.clone()
    }

    /// Pointer for launches that read it.
    pub(crate) fn read(&self) -> Arg {
        Arg::Pointer(self.address())
    }

    /// Pointer for launches that write it. Drops the rounded copies: they would be those of the old values.
    pub(crate) fn write(&mut self) -> Arg {
        self.producer = OnceCell::new();
        self.asked = Cell::new(None);
        self.prepared = Default::default();
        self.addition = RefCell::default();
        self.read()
    }

    /// `launch_id` made this tensor and can write its rounded rows to `room`.
    pub(crate) fn made_by(&mut self, launch_id: LaunchId, first: usize, room: RoundedRows) {
        self.producer = OnceCell::from(Producer { launch_id, first, room });
    }
}

impl DeviceOps {
    /// Memory for a tensor.
    pub(crate) fn tensor_of(&self, n_rows: usize, n_real: usize, width: usize) -> Result<Tensor, StepError> {
        Ok(Tensor::new(self.alloc(4 * n_rows * width)?, n_rows, n_real, width))
    }

    /// The rows of `x` in a list, in its order; zeros for those of padding.
    pub(crate) fn select_listed(&self, x: &Tensor, rows: DeviceList) -> Result<Tensor, StepError> {
        let mut out = self.tensor_of(rows.n_padded, rows.n_real, x.width)?;
        let args = [x.read(), out.write(), Arg::Pointer(rows.address), x.width.into()];
        self.launch_listed("select_rows", rows.n_padded, x.width, &args);
        Ok(out)
    }

    /// Memory for the rounded rows of `n_rows` rows, in either form.
    pub(crate) fn room(&self, n_rows: usize, width: usize) -> Result<RoundedRows, StepError> {
        let stride = width.next_multiple_of(STRIDE);
        let scales_at = (n_rows * stride).next_multiple_of(256);
        let n_bytes = (2 * n_rows * stride).max(scales_at + 4 * n_rows);
        Ok(RoundedRows { block: self.alloc(n_bytes)?, scales_at: scales_at as u64 })
    }

    /// The rounded rows of `x`: written by the launch that made it, if that is still waiting, or by one of its own.
    pub(crate) fn prepared(&self, x: &Tensor, form: Form) -> Result<Prepared, StepError> {
        if let Some(producer) = x.producer.get() {
            let Prepared { rows, scales, .. } = producer.room.of();
            let args = [Arg::I32(form as i32), Arg::Pointer(rows), Arg::Pointer(scales)];
            let is_there = x.asked.get() == Some(form)
                || x.asked.get().is_none() && self.queue().amend(producer.launch_id, producer.first, &args);
            if is_there {
                x.asked.set(Some(form));
                return Ok(producer.room.of());
            }
        }
        let cell = &x.prepared[form as usize - 1];
        if let Some(room) = cell.get() {
            return Ok(room.of());
        }
        let room = self.room(x.n_rows, x.width)?;
        let prepared = room.of();
        let args = [
            x.read(),
            x.width.into(),
            Arg::I32(form as i32),
            Arg::Pointer(prepared.rows),
            Arg::Pointer(prepared.scales),
        ];
        self.launch_rows("prepare_rows", x.n_rows, &args);
        // Nobody else has set it: the cell is not shared between threads.
        Ok(cell.get_or_init(|| room).of())
    }
}
