//! The launches and copies of a step, in order, and the graphs of lists that come again.
//!
//! Operations append to a list. When the host needs a result, the list runs: as a CUDA graph if the same list ran before,
//! otherwise one entry after the other. Two lists are the same if kernels, grids, arguments and places of copies are; the
//! contents of index lists are not part of them, as they travel through staging memory.
//!
//! Never here: operations.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, DriverError, result};

use crate::cuda::driver::arena::{Arena, Block};
use crate::cuda::driver::buffer::Buffer;
use crate::cuda::driver::device::Device;
use crate::cuda::driver::staging::{Place, Staging};
use crate::error::{BatchError, DeviceError, StepError};

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Arg {
    Pointer(u64),
    I32(i32),
    F32(f32),
}

impl Arg {
    /// A pointer to nothing.
    pub(crate) const NULL: Self = Self::Pointer(0);

    /// Bits of the argument, in the driver's little-endian layout.
    fn bits(self) -> u64 {
        match self {
            Self::Pointer(address) => address,
            Self::I32(value) => u64::from(value as u32),
            Self::F32(value) => u64::from(value.to_bits()),
        }
    }
}

impl From<&Block> for Arg {
    fn from(block: &Block) -> Self {
        Self::Pointer(block.address())
    }
}

impl From<&Buffer> for Arg {
    fn from(buffer: &Buffer) -> Self {
        Self::Pointer(buffer.address())
    }
}

impl From<i32> for Arg {
    fn from(value: i32) -> Self {
        Self::I32(value)
    }
}

impl From<usize> for Arg {
    /// Sizes of tensors are below 2^31.
    fn from(value: usize) -> Self {
        Self::I32(value as i32)
    }
}

impl From<f32> for Arg {
    fn from(value: f32) -> Self {
        Self::F32(value)
    }
}

/// The most arguments of a kernel.
const MAX_ARGS: usize = 32;

/// Extent of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Extent {
    pub(crate) grid: [u32; 3],
    /// Threads of a block.
    pub(crate) block: u32,
    /// Bytes of dynamic shared memory of a block.
    pub(crate) shared: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Entry {
    Launch { kernel: &'static str, extent: Extent, first_arg: usize, n_args: usize },
    Upload { to: u64, from: Place },
    Download { from: u64, to: Place },
    Copy { from: u64, to: u64, n_bytes: usize },
    Clear { at: u64, n_bytes: usize },
}

/// A list of work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct List {
    entries: Vec<Entry>,
    /// Arguments of all launches, one after the other.
    args: Vec<u64>,
}

/// When a list ran, and its graph from the second time on.
struct Known {
    graph: Option<Graph>,
    last_run: u64,
}

struct Graph(CudaGraph);

// SAFETY: a graph is only used behind the queue's lock, by one thread at a time, as the driver asks.
unsafe impl Send for Graph {}

/// Lists that are remembered: as many as a server has numbers of rows that come again. Chosen by us; a graph of a few hundred
/// nodes takes some hundred kilobytes.
const MAX_KNOWN: usize = 64;

/// Shorter lists run entry by entry: a graph gains nothing there. Chosen by us.
const LEAST_ENTRIES: usize = 8;

/// Staging memory that is handed out before the device is waited for. Chosen by us: steps use some kilobytes.
const MAX_STAGED: usize = 64 << 20;

/// Marks an entry that is still waiting, so that it can be amended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchId {
    list: u64,
    entry: usize,
}

/// Work of a device that has not started yet.
pub(crate) struct Queue {
    device: Arc<Device>,
    arena: Arc<Mutex<Arena>>,
    /// The arena's allocations.
    chunks: Vec<Buffer>,
    staging: Staging,
    list: List,
    known: HashMap<List, Known>,
    n_runs: u64,
}

impl Queue {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        Self {
            device,
            arena: Arc::default(),
            chunks: Vec::new(),
            staging: Staging::default(),
            list: List::default(),
            known: HashMap::new(),
            n_runs: 0,
        }
    }

    /// Device memory for a tensor; its bytes are undefined.
    pub(crate) fn alloc(&mut self, n_bytes: usize) -> Result<Block, StepError> {
        if let Some(block) = Arena::take(&self.arena, n_bytes) {
            return Ok(block);
        }
        let needed = Arena::growth(n_bytes);
        let Some(chunk) = Buffer::new(&self.device, needed)? else {
            // The waiting launches belong to a batch that cannot be computed; no launch_id of theirs holds any more.
            self.list = List::default();
            self.n_runs += 1;
            let free = self.device.memory()?.free;
            return Err(BatchError::OutOfMemory { needed: needed as u64, free }.into());
        };
        self.arena.lock().unwrap_or_else(PoisonError::into_inner).grow(chunk.address(), chunk.n_bytes());
        self.chunks.push(chunk);
        Arena::take(&self.arena, n_bytes)
            .ok_or_else(|| BatchError::OutOfMemory { needed: needed as u64, free: 0 }.into())
    }

    /// Appends a launch.
    pub(crate) fn launch(&mut self, kernel: &'static str, extent: Extent, args: &[Arg]) -> LaunchId {
        assert!(args.len() <= MAX_ARGS, "{kernel} has {} arguments", args.len());
        let first_arg = self.list.args.len();
        self.list.args.extend(args.iter().map(|arg| arg.bits()));
        self.list.entries.push(Entry::Launch { kernel, extent, first_arg, n_args: args.len() });
        LaunchId { list: self.n_runs, entry: self.list.entries.len() - 1 }
    }

    /// Changes arguments of a launch that is still waiting, from the `first` on; false if it has started.
    pub(crate) fn amend(&mut self, launch_id: LaunchId, first: usize, args: &[Arg]) -> bool {
        if launch_id.list != self.n_runs {
            return false;
        }
        let Some(Entry::Launch { first_arg, n_args, .. }) = self.list.entries.get(launch_id.entry) else {
            return false;
        };
        assert!(first + args.len() <= *n_args, "{} arguments from {first} of {n_args}", args.len());
        for (index, arg) in args.iter().enumerate() {
            self.list.args[first_arg + first + index] = arg.bits();
        }
        true
    }

    /// Takes launches back, if they are the last entries, in this order.
    pub(crate) fn take_back<const N: usize>(&mut self, launch_ids: [LaunchId; N]) -> bool {
        let Some(first) = self.list.entries.len().checked_sub(N) else { return false };
        let are_last =
            |(index, launch_id): (usize, LaunchId)| launch_id == LaunchId { list: self.n_runs, entry: first + index };
        if !launch_ids.into_iter().enumerate().all(are_last) {
            return false;
        }
        for entry in self.list.entries.drain(first..).rev() {
            if let Entry::Launch { first_arg, .. } = entry {
                self.list.args.truncate(first_arg);
            }
        }
        true
    }

    /// Number of entries that wait.
    #[cfg(test)]
    pub(crate) fn n_waiting(&self) -> usize {
        self.list.entries.len()
    }

    /// Appends an upload of `bytes`, which are copied now.
    pub(crate) fn upload(&mut self, to: u64, bytes: &[u8]) -> Result<(), StepError> {
        self.bind()?;
        if self.staging.used() > MAX_STAGED {
            self.finish()?;
        }
        let from = self.device.check("allocate pinned memory", self.staging.take(bytes.len()))?;
        self.staging.bytes_mut(from).copy_from_slice(bytes);
        self.list.entries.push(Entry::Upload { to, from });
        Ok(())
    }

    /// Appends a copy from one place of the device to another.
    pub(crate) fn copy(&mut self, from: u64, to: u64, n_bytes: usize) {
        self.list.entries.push(Entry::Copy { from, to, n_bytes });
    }

    /// Appends zeros.
    pub(crate) fn clear(&mut self, at: u64, n_bytes: usize) {
        self.list.entries.push(Entry::Clear { at, n_bytes });
    }

    /// Runs everything and returns the bytes of some ranges, `(address, n_bytes)`.
    pub(crate) fn download(&mut self, ranges: &[(u64, usize)]) -> Result<Vec<Vec<u8>>, StepError> {
        self.bind()?;
        let mut places = Vec::with_capacity(ranges.len());
        for (from, n_bytes) in ranges {
            let to = self.device.check("allocate pinned memory", self.staging.take(*n_bytes))?;
            self.list.entries.push(Entry::Download { from: *from, to });
            places.push(to);
        }
        self.run()?;
        self.wait()?;
        let bytes = places.into_iter().map(|place| self.staging.bytes(place).to_vec()).collect();
        self.staging.reset();
        Ok(bytes)
    }

    /// Runs everything and waits until the device is idle.
    pub(crate) fn finish(&mut self) -> Result<(), DeviceError> {
        self.run()?;
        self.wait()?;
        self.staging.reset();
        Ok(())
    }

    fn bind(&self) -> Result<(), DeviceError> {
        self.device.check("bind the context", self.device.context.bind_to_thread())
    }

    /// Waits until the device is idle. Nothing may wait to be started.
    fn wait(&self) -> Result<(), DeviceError> {
        self.device.check("wait for the device", self.device.stream.synchronize())?;
        self.device.holdings.free_dropped(|address| self.device.free(address));
        Ok(())
    }

    /// Starts the list.
    fn run(&mut self) -> Result<(), DeviceError> {
        self.bind()?;
        let list = std::mem::take(&mut self.list);
        self.n_runs += 1;
        if list.entries.len() < LEAST_ENTRIES {
            return self.start(&list);
        }
        match self.known.get(&list).map(|known| known.graph.is_some()) {
            None => {
                self.start(&list)?;
                return self.remember(list);
            }
            Some(false) => {
                let graph = self.capture(&list)?;
                self.known.insert(list.clone(), Known { graph: Some(graph), last_run: self.n_runs });
            }
            Some(true) => {}
        }
        let Some(known) = self.known.get_mut(&list) else { return Ok(()) };
        known.last_run = self.n_runs;
        match &known.graph {
            Some(Graph(graph)) => self.device.check("launch a graph", graph.launch()),
            None => Ok(()),
        }
    }

    /// Keeps a list that ran once, in place of the one that ran longest ago where there are many.
    fn remember(&mut self, list: List) -> Result<(), DeviceError> {
        if self.known.len() >= MAX_KNOWN
            && let Some(oldest) =
                self.known.iter().min_by_key(|(_, known)| known.last_run).map(|(list, _)| list.clone())
        {
            // Its graph may still run.
            self.wait()?;
            self.known.remove(&oldest);
        }
        self.known.insert(list, Known { graph: None, last_run: self.n_runs });
        Ok(())
    }

    /// Records the list instead of starting it.
    fn capture(&self, list: &List) -> Result<Graph, DeviceError> {
        let stream = &self.device.stream;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.device.check("record a graph", stream.begin_capture(mode))?;
        let started = self.start(list);
        let ended = stream.end_capture(CUgraphInstantiate_flags(0));
        started?;
        match self.device.check("record a graph", ended)? {
            Some(graph) => Ok(Graph(graph)),
            None => Err(DeviceError {
                device: self.device.name().to_owned(),
                operation: "record a graph",
                message: "nothing was recorded".to_owned(),
            }),
        }
    }

    /// Gives every entry to the stream.
    fn start(&self, list: &List) -> Result<(), DeviceError> {
        for entry in &list.entries {
            match entry {
                Entry::Launch { kernel, extent, first_arg, n_args } => {
                    let args = &list.args[*first_arg..first_arg + n_args];
                    self.start_kernel(kernel, *extent, args)?;
                }
                _ => self.device.check("copy", self.start_copy(entry))?,
            }
        }
        Ok(())
    }

    fn start_kernel(&self, kernel: &'static str, extent: Extent, args: &[u64]) -> Result<(), DeviceError> {
        let function = self.device.function(kernel)?;
        let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
        for (pointer, arg) in pointers.iter_mut().zip(args) {
            *pointer = std::ptr::from_ref(arg).cast_mut().cast();
        }
        let Extent { grid: [x, y, z], block, shared } = extent;
        // SAFETY: each pointer is to eight bytes, at least as many as the kernel's argument has; the driver copies them before it
        // returns. Number and types of arguments are those of the kernel, and addresses are of live memory: each operation's test
        // runs it on the emulator, which checks both.
        let started = unsafe {
            result::launch_kernel(
                function.cu_function(),
                (x, y, z),
                (block, 1, 1),
                shared,
                self.device.stream.cu_stream(),
                &mut pointers[..args.len()],
            )
        };
        self.device.check("launch", started).map_err(|error| DeviceError { operation: kernel, ..error })
    }

    fn start_copy(&self, entry: &Entry) -> Result<(), DriverError> {
        let stream = self.device.stream.cu_stream();
        match entry {
            Entry::Launch { .. } => Ok(()),
            // SAFETY: the range of the device is of a live block; the staging memory stays and keeps the bytes until the device
            // was waited for.
            Entry::Upload { to, from } => unsafe { result::memcpy_htod_async(*to, self.staging.bytes(*from), stream) },
            Entry::Download { from, to } => {
                let place = self.staging.target(*to);
                // SAFETY: as above; nothing reads the staging memory before the device was waited for.
                unsafe { result::memcpy_dtoh_async(&mut *place, *from, stream) }
            }
            // SAFETY: both ranges are of live blocks.
            Entry::Copy { from, to, n_bytes } => unsafe { result::memcpy_dtod_async(*to, *from, *n_bytes, stream) },
            // SAFETY: the range is of a live block.
            Entry::Clear { at, n_bytes } => unsafe { result::memset_d8_async(*at, 0, *n_bytes, stream) },
        }
    }
}
