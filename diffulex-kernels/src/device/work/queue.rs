//! The launches and copies of a step, in order, and the graphs of lists that come again.
//!
//! Operations append to a list. When the host needs a result, the list runs: as a graph if the same list ran before, otherwise one
//! entry after the other.
//!
//! Never here: operations.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::driver::{Extent, Graph, Transfer};
use crate::device::memory::arena::{Arena, Block};
use crate::device::memory::buffer::Buffer;
use crate::device::memory::device::Device;
use crate::device::memory::staging::Staging;
use crate::device::work::arg::Arg;
use crate::device::work::diagnostics::Diagnostics;
use crate::device::work::list::{Entry, List};
use crate::error::{BatchError, DeviceError, StepError};

/// A launch that was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchId {
    /// Number of lists that ran before.
    list: u64,
    entry: usize,
}

/// When a list ran, and its graph from the second time on.
#[derive(Default)]
struct Known {
    graph: Option<Box<dyn Graph>>,
    /// The device has recorded no graph of it, and will not.
    is_plain: bool,
    last_run: u64,
}

/// Lists that are remembered: as many as a server has numbers of rows that come again. Chosen by us; a graph of a few hundred
/// nodes takes some hundred kilobytes, so all of them fit in a tenth of the smallest card's memory.
const MAX_KNOWN: usize = 64;

/// Shorter lists run entry by entry: a graph gains nothing there. Chosen by us.
const LEAST_ENTRIES: usize = 8;

/// Staging memory that is handed out before the device is waited for. Chosen by us: steps use some kilobytes.
const MAX_STAGED: usize = 64 << 20;

/// Work of a device that has not started yet.
pub(crate) struct Queue {
    device: Arc<Device>,
    diagnostics: Diagnostics,
    arena: Arc<Mutex<Arena>>,
    /// The arena's allocations by address.
    chunks: HashMap<u64, Buffer>,
    staging: Staging,
    list: List,
    known: HashMap<List, Known>,
    n_runs: u64,
}

impl Queue {
    pub(crate) fn new(device: Arc<Device>, diagnostics: Diagnostics) -> Self {
        let arena = if diagnostics.is_apart { Arena::apart() } else { Arena::default() };
        Self {
            staging: Staging::new(device.driver.clone()),
            device,
            diagnostics,
            arena: Arc::new(Mutex::new(arena)),
            chunks: HashMap::new(),
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
        let needed = if self.diagnostics.is_apart { n_bytes.max(1) } else { Arena::growth(n_bytes) };
        let Some(chunk) = self.chunk(needed)? else {
            // The waiting launches belong to a batch that cannot be computed; no launch_id of theirs holds any more.
            self.list = List::default();
            self.n_runs += 1;
            let free = self.device.driver.memory()?.free;
            return Err(BatchError::OutOfMemory { needed: needed as u64, free }.into());
        };
        let address = chunk.address();
        self.chunks.insert(address, chunk);
        if self.diagnostics.is_apart {
            return Ok(Arena::alone(&self.arena, address, needed));
        }
        self.arena().grow(address, needed);
        Arena::take(&self.arena, n_bytes)
            .ok_or_else(|| BatchError::OutOfMemory { needed: needed as u64, free: 0 }.into())
    }

    /// An allocation for the arena; `None` if the device has not enough memory left. Graphs, which have device memory, too, give theirs
    /// up first: they can be recorded again.
    fn chunk(&mut self, n_bytes: usize) -> Result<Option<Buffer>, DeviceError> {
        let chunk = Buffer::alone(&self.device, n_bytes)?;
        if chunk.is_some() || self.known.values().all(|known| known.graph.is_none()) {
            return Ok(chunk);
        }
        // One may still run.
        self.device.driver.wait()?;
        self.known.clear();
        Buffer::alone(&self.device, n_bytes)
    }

    fn arena(&self) -> MutexGuard<'_, Arena> {
        self.arena.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails where what is about to be appended names memory that was dropped.
    fn assert_live(&self, what: &str, address: u64) {
        if self.diagnostics.is_apart {
            assert!(!self.arena().has_dropped(address), "{what} names memory that was dropped: {address:#x}");
        }
    }

    fn assert_args_live(&self, kernel: &str, args: &[Arg]) {
        for arg in args {
            if let Arg::Pointer(address) = arg {
                self.assert_live(kernel, *address);
            }
        }
    }

    /// Appends a launch.
    pub(crate) fn launch(&mut self, kernel: &'static str, extent: Extent, args: &[Arg]) -> LaunchId {
        self.assert_args_live(kernel, args);
        LaunchId { list: self.n_runs, entry: self.list.launch(kernel, extent, args) }
    }

    /// Changes arguments of a launch that is still waiting, from the `first` on; false if it has started.
    pub(crate) fn amend(&mut self, launch_id: LaunchId, first: usize, args: &[Arg]) -> bool {
        self.assert_args_live("a launch", args);
        launch_id.list == self.n_runs && self.list.amend(launch_id.entry, first, args)
    }

    /// Takes launches back, if they are the last entries, in this order.
    pub(crate) fn take_back<const N: usize>(&mut self, launch_ids: [LaunchId; N]) -> bool {
        launch_ids.iter().all(|launch_id| launch_id.list == self.n_runs)
            && self.list.take_back(launch_ids.map(|launch_id| launch_id.entry))
    }

    /// Number of entries that wait.
    #[cfg(test)]
    pub(crate) fn n_waiting(&self) -> usize {
        self.list.entries().len()
    }

    /// Appends an upload of `bytes`, which are copied now.
    pub(crate) fn upload(&mut self, to: u64, bytes: &[u8]) -> Result<(), StepError> {
        self.assert_live("an upload", to);
        if bytes.is_empty() {
            return Ok(());
        }
        if self.staging.used() > MAX_STAGED {
            self.finish()?;
        }
        let from = self.staging.take(bytes.len())?;
        self.staging.bytes_mut(from).copy_from_slice(bytes);
        self.list.push(Entry::Upload { to, from });
        Ok(())
    }

    /// Appends a copy from one place of the device to another.
    pub(crate) fn copy(&mut self, from: u64, to: u64, n_bytes: usize) {
        self.assert_live("a copy", from);
        self.assert_live("a copy", to);
        if n_bytes > 0 {
            self.list.push(Entry::Copy { from, to, n_bytes });
        }
    }

    /// Appends zeros.
    pub(crate) fn clear(&mut self, at: u64, n_bytes: usize) {
        self.assert_live("zeros", at);
        if n_bytes > 0 {
            self.list.push(Entry::Clear { at, n_bytes });
        }
    }

    /// Runs everything and returns the bytes of some ranges, `(address, n_bytes)`.
    pub(crate) fn download(&mut self, ranges: &[(u64, usize)]) -> Result<Vec<Vec<u8>>, StepError> {
        let mut places = Vec::with_capacity(ranges.len());
        for (from, n_bytes) in ranges {
            self.assert_live("a download", *from);
            let to = self.staging.take(*n_bytes)?;
            if *n_bytes > 0 {
                self.list.push(Entry::Download { from: *from, to });
            }
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

    /// Waits until the device is idle. Nothing may wait to be started.
    fn wait(&mut self) -> Result<(), DeviceError> {
        self.device.driver.wait()?;
        let dropped = self.arena().take_dropped();
        for address in dropped {
            self.chunks.remove(&address);
        }
        self.device.free_dropped();
        Ok(())
    }

    /// Starts the list.
    fn run(&mut self) -> Result<(), DeviceError> {
        let list = std::mem::take(&mut self.list);
        self.n_runs += 1;
        if list.entries().len() < LEAST_ENTRIES || self.diagnostics.is_synchronous {
            return self.start(&list);
        }
        let Some(known) = self.known.get(&list) else {
            self.start(&list)?;
            return self.remember(list);
        };
        let recorded = if known.graph.is_some() || known.is_plain {
            None
        } else {
            Some(self.device.driver.record(&mut || self.start(&list))?)
        };
        let n_runs = self.n_runs;
        let known = self.known.entry(list.clone()).or_default();
        known.last_run = n_runs;
        if let Some(graph) = recorded {
            known.is_plain = graph.is_none();
            known.graph = graph;
        }
        match &known.graph {
            // SAFETY: the list is the same, so its addresses are those of this step's blocks, and its staging memory is this step's.
            Some(graph) => unsafe { graph.launch() },
            None => self.start(&list),
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
        self.known.insert(list, Known { last_run: self.n_runs, ..Known::default() });
        Ok(())
    }

    /// Gives every entry to the driver.
    fn start(&self, list: &List) -> Result<(), DeviceError> {
        for entry in list.entries() {
            let started = self.start_entry(list, entry);
            if self.diagnostics.is_synchronous {
                started.and_then(|()| self.device.driver.wait()).map_err(|error| named(error, list, entry))?;
            } else {
                started?;
            }
        }
        Ok(())
    }

    fn start_entry(&self, list: &List, entry: &Entry) -> Result<(), DeviceError> {
        let driver = &self.device.driver;
        let transfer = match entry {
            Entry::Launch { kernel, extent, first_arg, n_args } => {
                let args = list.args(*first_arg, *n_args);
                // SAFETY: number and types of arguments are those of the kernel, and addresses are of live memory: each operation's test
                // runs it on the emulator, which checks both.
                return unsafe { driver.launch(kernel, *extent, args) };
            }
            Entry::Upload { to, from } => {
                Transfer::Upload { to: *to, from: self.staging.bytes(*from).as_ptr(), n_bytes: from.n_bytes }
            }
            Entry::Download { from, to } => {
                Transfer::Download { from: *from, to: self.staging.target(*to).cast(), n_bytes: to.n_bytes }
            }
            Entry::Copy { from, to, n_bytes } => Transfer::Copy { from: *from, to: *to, n_bytes: *n_bytes },
            Entry::Clear { at, n_bytes } => Transfer::Clear { at: *at, n_bytes: *n_bytes },
        };
        // SAFETY: ranges of the device are of live blocks. The staging memory stays, and is neither handed out again nor read before the
        // device was waited for.
        unsafe { driver.transfer(transfer) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Nothing may run any more when staging memory and graphs go; an error means that the device is gone.
        let _ = self.device.driver.wait();
    }
}

/// The error of an entry, with its kernel and arguments.
fn named(error: DeviceError, list: &List, entry: &Entry) -> DeviceError {
    match entry {
        Entry::Launch { kernel, extent: Extent { grid, block, shared }, first_arg, n_args } => {
            let args: Vec<String> = list.args(*first_arg, *n_args).iter().map(|arg| format!("{arg:#x}")).collect();
            let launch = format!(
                "grid {grid:?}, {block} threads, {shared} bytes of shared memory, arguments {}",
                args.join(" ")
            );
            DeviceError { operation: kernel, message: format!("{} ({launch})", error.message), ..error }
        }
        _ => DeviceError { message: format!("{} ({entry:x?})", error.message), ..error },
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::LEAST_ENTRIES;
    use crate::device::stub;
    use crate::device::work::diagnostics::Diagnostics;
    use crate::tests::{every_gpu, values};
    use crate::{Ops, cuda};

    const APART: Diagnostics = Diagnostics { is_synchronous: false, is_apart: true };

    #[test]
    fn nothing_is_appended_for_no_bytes() {
        let ops = stub::open(Diagnostics::default());
        let nothing = ops.zeros(0, 5).unwrap();
        drop((ops.copy(&nothing).unwrap(), ops.tensor(&[], 3).unwrap()));
        assert_eq!(ops.queue().n_waiting(), 0);
        assert_eq!(ops.host(&nothing).unwrap(), [0.0; 0]);
    }

    #[test]
    fn memory_that_was_dropped_is_refused_where_blocks_are_apart_and_freed_when_the_device_is_idle() {
        let ops = stub::open(APART);
        let free = || ops.device.driver.memory().unwrap().free;
        let (kept, dropped) = (ops.alloc(8).unwrap(), ops.alloc(8).unwrap());
        let before = free();
        let (to, from) = (kept.address(), dropped.address());
        ops.queue().clear(from, 8);
        ops.queue().copy(from, to, 8);
        drop(dropped);
        let refused = catch_unwind(AssertUnwindSafe(|| ops.queue().copy(from + 4, to, 4))).unwrap_err();
        let words = refused.downcast_ref::<String>().unwrap();
        assert!(words.contains("was dropped"), "{words}");
        // It is there until what was appended before has run.
        assert_eq!(ops.queue().download(&[(to, 8)]).unwrap(), [[0; 8]]);
        assert_eq!(free(), before + 8);
    }

    #[test]
    fn an_error_names_the_kernel_and_its_arguments_where_the_device_is_waited_for_each_time() {
        if every_gpu().is_none() || !diffulex_gpu_emulator::fail_launch(0) {
            return;
        }
        let ops = cuda::open_with(0, Diagnostics { is_synchronous: true, is_apart: false }).unwrap();
        let mut x = ops.tensor(&values(1, 30), 10).unwrap();
        ops.scale(&mut x, 2.0).unwrap();
        ops.soft_cap(&mut x, 0.5).unwrap();
        ops.scale(&mut x, 3.0).unwrap();
        diffulex_gpu_emulator::set_quiet(true);
        diffulex_gpu_emulator::fail_launch(2);
        let error = ops.host(&x).unwrap_err().to_string();
        diffulex_gpu_emulator::heal();
        diffulex_gpu_emulator::set_quiet(false);
        let number = format!("{:#x}", 0.5f32.to_bits());
        assert!(error.contains("cuda:0 failed in soft_cap: CUDA_ERROR_LAUNCH_FAILED"), "{error}");
        assert!(error.contains("grid [1, 1, 1], 256 threads") && error.contains(&number), "{error}");
    }

    /// A list that is long enough for a graph.
    fn run(ops: &impl Ops) {
        let x = ops.tensor(&values(1, 30), 10).unwrap();
        let copies: Vec<_> = (0..LEAST_ENTRIES).map(|_| ops.copy(&x).unwrap()).collect();
        ops.host(&copies[0]).unwrap();
    }

    #[test]
    fn a_list_that_comes_again_is_a_graph_unless_errors_are_to_name_a_kernel() {
        if every_gpu().is_none() || diffulex_gpu_emulator::counters().is_none() {
            return;
        }
        for (is_synchronous, n_graphs) in [(false, 2), (true, 0)] {
            let ops = cuda::open_with(0, Diagnostics { is_synchronous, is_apart: false }).unwrap();
            diffulex_gpu_emulator::reset_counters();
            (0..3).for_each(|_| run(&ops));
            assert_eq!(diffulex_gpu_emulator::counters().unwrap().graphs, n_graphs);
        }
    }

    #[test]
    fn activations_take_the_memory_of_graphs_where_there_is_no_other() {
        if every_gpu().is_none() || !diffulex_gpu_emulator::fail_alloc(0) {
            return;
        }
        let ops = cuda::open(0).unwrap();
        (0..3).for_each(|_| run(&ops));
        diffulex_gpu_emulator::fail_alloc(1);
        // More than the arena has.
        let large = ops.zeros(1 << 14, 1 << 10).unwrap();
        drop(large);
        // There are no graphs left to give up.
        diffulex_gpu_emulator::fail_alloc(1);
        let error = ops.zeros(1 << 15, 1 << 10).err().unwrap().to_string();
        assert!(error.contains("out of memory"), "{error}");
        diffulex_gpu_emulator::fail_alloc(0);
    }
}
