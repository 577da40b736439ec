//! For tests: an NVIDIA GPU on machines that have none.
//!
//! [`install`] loads a `libcuda.so` that runs the CUDA kernels, compiled for the CPU, and checks every access of theirs to
//! memory. Whoever loads CUDA by name afterwards, as cudarc does, gets this one. `docs/gpu.md` describes it.
//!
//! Counts and planted faults belong to the calling thread: tests that run side by side do not see each other's.

mod library;

use std::path::PathBuf;

use library::Functions;
pub use library::{Counters, Loads};

/// Whether the emulator was built: on 64-bit x86 with Linux.
#[must_use]
pub fn is_available() -> bool {
    !env!("EMULATED_CUDA").is_empty()
}

/// Whether tests run on a real GPU: the variable `DIFFULEX_GPU` is set.
#[must_use]
pub fn is_real() -> bool {
    std::env::var_os("DIFFULEX_GPU").is_some()
}

/// Makes the emulator this process's CUDA driver, unless [`is_real`]. Returns whether there is a device to test on; where there
/// is none, says on standard error that a test is left out.
///
/// # Panics
/// Where the library cannot be loaded.
#[must_use]
pub fn install() -> bool {
    if is_real() {
        return true;
    }
    let is_installed = Functions::get().is_some();
    if !is_installed {
        eprintln!("left out: this test needs a GPU, and the emulator needs 64-bit x86 with Linux");
    }
    is_installed
}

/// The emulator's `libcuda.so`, for a process that is to have it as its driver: set `LD_PRELOAD` to this path.
///
/// It is the variable `DIFFULEX_EMULATED_CUDA` where that is set. With `DIFFULEX_EMULATOR_CHECKS=0` it is the library without
/// checks, which runs kernels several times faster.
#[must_use]
pub fn library_path() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("DIFFULEX_EMULATED_CUDA") {
        return Some(path.into());
    }
    let is_checked = std::env::var_os("DIFFULEX_EMULATOR_CHECKS").is_none_or(|value| value != "0");
    if is_checked { built("checked") } else { fast_library_path() }
}

/// The library without checks, which runs kernels several times faster.
#[must_use]
pub fn fast_library_path() -> Option<PathBuf> {
    built("fast")
}

fn built(folder: &str) -> Option<PathBuf> {
    is_available().then(|| PathBuf::from(env!("EMULATED_CUDA")).join(folder).join("libcuda.so"))
}

/// Counts of this thread's work since the last [`reset_counters`]; none on a real GPU.
#[must_use]
pub fn counters() -> Option<Counters> {
    Functions::emulated().map(Functions::counters)
}

/// Bytes that this thread's kernels have loaded from each allocation since the last [`reset_counters`]; none on a real GPU.
///
/// Each load of each thread of a kernel counts, so the sum is a multiple of the allocation's size where it is read several
/// times. The library without checks counts nothing.
#[must_use]
pub fn loads() -> Option<Vec<Loads>> {
    Functions::emulated().map(Functions::loads)
}

/// Starts [`counters`] and [`loads`] again from zero.
pub fn reset_counters() {
    if let Some(functions) = Functions::emulated() {
        functions.reset_counters();
    }
}

/// Makes the `n`-th kernel that this thread runs from now on fail with `CUDA_ERROR_LAUNCH_FAILED`; 1 is the next, 0 none.
/// Every later call of this thread fails with the same error, until [`heal`]. Returns false on a real GPU, where nothing can be
/// planted.
pub fn fail_launch(n: u64) -> bool {
    Functions::emulated().map(|functions| functions.fail_launch(n)).is_some()
}

/// Makes the `n`-th allocation of device memory of this thread from now on fail with `CUDA_ERROR_OUT_OF_MEMORY`; as
/// [`fail_launch`].
pub fn fail_alloc(n: u64) -> bool {
    Functions::emulated().map(|functions| functions.fail_alloc(n)).is_some()
}

/// Makes the driver refuse to start on this thread with an error of `CUresult`, such as 803; 0 takes the fault back. As [`fail_launch`].
pub fn fail_init(error: i32) -> bool {
    Functions::emulated().map(|functions| functions.fail_init(error)).is_some()
}

/// Makes the `n`-th instantiation of a graph of this thread from now on fail with `CUDA_ERROR_OUT_OF_MEMORY`; as [`fail_launch`].
pub fn fail_instantiate(n: u64) -> bool {
    Functions::emulated().map(|functions| functions.fail_instantiate(n)).is_some()
}

/// Sets the size of the device's memory, for the whole process.
pub fn set_memory(n_bytes: u64) -> bool {
    Functions::emulated().map(|functions| functions.set_memory(n_bytes)).is_some()
}

/// Sets the seed of the order in which threads and blocks of this thread's kernels run from now on.
pub fn set_seed(seed: u64) -> bool {
    Functions::emulated().map(|functions| functions.set_seed(seed)).is_some()
}

/// Sets whether failures of this thread's kernels are printed on standard error; they are by default.
pub fn set_quiet(is_quiet: bool) {
    if let Some(functions) = Functions::emulated() {
        functions.set_quiet(is_quiet);
    }
}

/// Sets whether modules that this thread loads from now on run as their PTX, or as the kernels' sources compiled for the CPU. The
/// variable `DIFFULEX_EMULATOR_KERNELS` (`source`, `ptx`) sets it for all threads; the sources are the default.
pub fn run_ptx(runs_ptx: bool) -> bool {
    Functions::emulated().map(|functions| functions.run_ptx(runs_ptx)).is_some()
}

/// Sets how results of PTX vary that the ISA leaves open (sums of tensor cores, `ex2.approx`, `rcp.approx`), for the whole process;
/// 0 for the results nearest to the true ones. The variable `DIFFULEX_EMULATOR_JITTER` sets it for a process.
pub fn set_jitter(seed: u64) -> bool {
    Functions::emulated().map(|functions| functions.set_jitter(seed)).is_some()
}

/// Ends the error state that a failed kernel of this thread has left.
pub fn heal() {
    if let Some(functions) = Functions::emulated() {
        functions.heal();
    }
}

/// The last failure of a kernel of this thread: the broken rule, and where.
#[must_use]
pub fn failure() -> Option<String> {
    Functions::emulated().map(Functions::failure).filter(|text| !text.is_empty())
}
