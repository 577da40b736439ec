//! The functions that the emulator exports beside the driver's (`emulator/control.cpp`).
#![expect(unsafe_code, reason = "calls into a C++ library")]

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

use libloading::Library;

/// Counts of the driver's calls; those of copies and kernels when they have run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    /// Kernels that were launched one by one.
    pub kernels: u64,
    /// Kernels that ran as parts of graphs.
    pub kernels_of_graphs: u64,
    /// Launches of graphs.
    pub graphs: u64,
    /// Copies from the host to the device.
    pub uploads: u64,
    /// Their bytes.
    pub uploaded_bytes: u64,
    /// Bytes of the largest.
    pub largest_upload: u64,
    /// Copies from the device to the host.
    pub downloads: u64,
    /// Their bytes.
    pub downloaded_bytes: u64,
    /// Bytes of the largest.
    pub largest_download: u64,
    /// Copies within the device.
    pub device_copies: u64,
    /// Memory that was set to a value.
    pub memsets: u64,
    /// Allocations of device memory.
    pub allocations: u64,
}

/// Loads of one kernel from one allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loads {
    /// Its name.
    pub kernel: String,
    /// Where the allocation begins.
    pub address: u64,
    /// Launches of the kernel that have loaded from it.
    pub n_launches: u64,
    /// Bytes they have loaded, those loaded several times counted so often.
    pub n_bytes: u64,
}

/// As in C++.
#[derive(Clone, Copy)]
#[repr(C)]
struct RawLoads {
    kernel: [c_char; 64],
    address: u64,
    n_launches: u64,
    n_bytes: u64,
}

/// Room for the longest text about a failure.
const MAX_FAILURE: usize = 1024;

/// The loaded library's functions.
pub(crate) struct Functions {
    counters: unsafe extern "C" fn(*mut Counters),
    reset_counters: unsafe extern "C" fn(),
    loads: unsafe extern "C" fn(*mut RawLoads, usize) -> usize,
    fail_launch: unsafe extern "C" fn(u64),
    fail_alloc: unsafe extern "C" fn(u64),
    fail_init: unsafe extern "C" fn(i32),
    fail_instantiate: unsafe extern "C" fn(u64),
    set_memory: unsafe extern "C" fn(u64),
    set_seed: unsafe extern "C" fn(u64),
    set_quiet: unsafe extern "C" fn(bool),
    run_ptx: unsafe extern "C" fn(bool),
    set_jitter: unsafe extern "C" fn(u64),
    heal: unsafe extern "C" fn(),
    failure: unsafe extern "C" fn(*mut c_char, usize),
}

impl Functions {
    /// Those of the library that the first call loads; none where it was not built.
    pub(crate) fn get() -> Option<&'static Self> {
        static LOADED: OnceLock<Option<Functions>> = OnceLock::new();
        LOADED.get_or_init(Self::load).as_ref()
    }

    /// As [`Functions::get`], but none on a real GPU.
    pub(crate) fn emulated() -> Option<&'static Self> {
        if crate::is_real() { None } else { Self::get() }
    }

    fn load() -> Option<Self> {
        let path = crate::library_path()?;
        // SAFETY: the library is ours; its constructors register kernels and touch nothing else.
        let library = match unsafe { Library::new(&path) } {
            Ok(library) => library,
            Err(error) => panic!("{}: {error}", path.display()),
        };
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: `control.cpp` defines the function with the field's type.
                match unsafe { library.get($name) } {
                    Ok(function) => *function,
                    Err(error) => panic!("{}: {error}", path.display()),
                }
            };
        }
        let functions = Self {
            counters: function!("emulator_counters"),
            reset_counters: function!("emulator_reset_counters"),
            loads: function!("emulator_loads"),
            fail_launch: function!("emulator_fail_launch"),
            fail_alloc: function!("emulator_fail_alloc"),
            fail_init: function!("emulator_fail_init"),
            fail_instantiate: function!("emulator_fail_instantiate"),
            set_memory: function!("emulator_set_memory"),
            set_seed: function!("emulator_set_seed"),
            set_quiet: function!("emulator_set_quiet"),
            run_ptx: function!("emulator_run_ptx"),
            set_jitter: function!("emulator_set_jitter"),
            heal: function!("emulator_heal"),
            failure: function!("emulator_failure"),
        };
        // A library that is loaded under the name libcuda.so is the one that later loads by this name get.
        std::mem::forget(library);
        Some(functions)
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        // SAFETY: the structure has the same fields on both sides.
        unsafe { (self.counters)(&raw mut counters) };
        counters
    }

    pub(crate) fn reset_counters(&self) {
        // SAFETY: takes nothing.
        unsafe { (self.reset_counters)() }
    }

    pub(crate) fn loads(&self) -> Vec<Loads> {
        // SAFETY: writes nothing where there is no room.
        let n = unsafe { (self.loads)(std::ptr::null_mut(), 0) };
        let mut raw = vec![RawLoads { kernel: [0; 64], address: 0, n_launches: 0, n_bytes: 0 }; n];
        // SAFETY: there is room for `n`, and this thread is the only one that adds to its own.
        let n = unsafe { (self.loads)(raw.as_mut_ptr(), n) }.min(n);
        let owned = raw[..n].iter().map(|raw| {
            // SAFETY: the name ends in a zero byte within its array.
            let kernel = unsafe { CStr::from_ptr(raw.kernel.as_ptr()) }.to_string_lossy().into_owned();
            Loads { kernel, address: raw.address, n_launches: raw.n_launches, n_bytes: raw.n_bytes }
        });
        owned.collect()
    }

    pub(crate) fn fail_launch(&self, n: u64) {
        // SAFETY: takes a number.
        unsafe { (self.fail_launch)(n) }
    }

    pub(crate) fn fail_alloc(&self, n: u64) {
        // SAFETY: takes a number.
        unsafe { (self.fail_alloc)(n) }
    }

    pub(crate) fn fail_init(&self, error: i32) {
        // SAFETY: takes a number.
        unsafe { (self.fail_init)(error) }
    }

    pub(crate) fn fail_instantiate(&self, n: u64) {
        // SAFETY: takes a number.
        unsafe { (self.fail_instantiate)(n) }
    }

    pub(crate) fn set_memory(&self, n_bytes: u64) {
        // SAFETY: takes a number.
        unsafe { (self.set_memory)(n_bytes) }
    }

    pub(crate) fn set_seed(&self, seed: u64) {
        // SAFETY: takes a number.
        unsafe { (self.set_seed)(seed) }
    }

    pub(crate) fn set_quiet(&self, is_quiet: bool) {
        // SAFETY: takes a boolean.
        unsafe { (self.set_quiet)(is_quiet) }
    }

    pub(crate) fn run_ptx(&self, runs_ptx: bool) {
        // SAFETY: takes a boolean.
        unsafe { (self.run_ptx)(runs_ptx) }
    }

    pub(crate) fn set_jitter(&self, seed: u64) {
        // SAFETY: takes a number.
        unsafe { (self.set_jitter)(seed) }
    }

    pub(crate) fn heal(&self) {
        // SAFETY: takes nothing.
        unsafe { (self.heal)() }
    }

    pub(crate) fn failure(&self) -> String {
        let mut text = vec![0; MAX_FAILURE];
        // SAFETY: writes at most as many bytes as there is room for, the last one a zero.
        unsafe { (self.failure)(text.as_mut_ptr(), text.len()) };
        // SAFETY: see above.
        unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned()
    }
}
