//! A CUDA device behind the operations: its context, one stream, and its kernels.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{
    CUdevice_attribute_enum, CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode, is_culib_present,
};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, DriverError, result};

use crate::cuda::failure::failure;
use crate::cuda::modules::{Modules, Texts};
use crate::cuda::nvml::{BusPlace, Nvml};
use crate::device::driver::{Driver, Extent, Graph, MAX_ARGS, Transfer};
use crate::error::DeviceError;
use crate::memory::AvailableMemory;

/// A CUDA device.
pub(crate) struct Cuda {
    name: String,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    modules: Modules,
    /// Opened when the load is first asked for; `None` where the machine has no such library.
    nvml: OnceLock<Option<Nvml>>,
}

impl Cuda {
    /// Number of CUDA devices; 0 without a driver. Fails if there is a driver that does not start, or that reports no device.
    pub(crate) fn n_devices() -> Result<usize, DeviceError> {
        // SAFETY: loads and unloads the driver's library, whose constructors may run anywhere.
        if !unsafe { is_culib_present() } {
            return Ok(0);
        }
        let n = CudaContext::device_count().map_err(|error| failure("cuda", "start the driver", error))?;
        Ok(usize::try_from(n).unwrap_or(0))
    }

    /// Opens device `index` and loads the kernels that every model needs.
    pub(crate) fn open(index: usize, texts: Texts) -> Result<Self, DeviceError> {
        let name = format!("cuda:{index}");
        let n_devices = Self::n_devices()?;
        if index >= n_devices {
            let message = format!("{n_devices} CUDA devices are present");
            return Err(DeviceError { device: name, operation: "open", message });
        }
        let context = CudaContext::new(index).map_err(|error| failure(&name, "open", error))?;
        let stream = context.new_stream().map_err(|error| failure(&name, "open", error))?;
        let modules = Modules::new(&name, &context, texts)?;
        Ok(Self { name, context, stream, modules, nvml: OnceLock::new() })
    }

    /// PCI bus place; `None` if the driver does not report it.
    fn place(&self) -> Option<BusPlace> {
        use CUdevice_attribute_enum::{
            CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
        };

        let attribute = |attribute| u32::try_from(self.context.attribute(attribute).ok()?).ok();
        Some(BusPlace {
            domain: attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            bus: attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            device: attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        })
    }

    /// A driver's error as this device's.
    fn check<T>(&self, operation: &'static str, result: Result<T, DriverError>) -> Result<T, DeviceError> {
        result.map_err(|error| failure(&self.name, operation, error))
    }

    fn bind(&self) -> Result<(), DeviceError> {
        self.check("bind the context", self.context.bind_to_thread())
    }
}

impl Driver for Cuda {
    fn name(&self) -> &str {
        &self.name
    }

    /// Name, card and compute capability.
    fn describe(&self) -> Result<String, DeviceError> {
        let name = self.check("describe", self.context.name())?;
        let (major, minor) = self.check("describe", self.context.compute_capability())?;
        Ok(format!("{} ({name}, compute capability {major}.{minor})", self.name))
    }

    fn memory(&self) -> Result<AvailableMemory, DeviceError> {
        let (free, total) = self.check("read free memory", self.context.mem_get_info())?;
        Ok(AvailableMemory { free: free as u64, total: total as u64, source: self.name.clone(), is_dedicated: true })
    }

    fn busy(&self) -> Option<f32> {
        self.nvml.get_or_init(|| self.place().and_then(Nvml::open)).as_ref().and_then(Nvml::utilization)
    }

    fn prepare(&self, kernels: &[&'static str]) {
        self.modules.prepare(kernels);
    }

    fn alloc(&self, n_bytes: usize) -> Result<Option<u64>, DeviceError> {
        self.bind()?;
        // SAFETY: no memory is touched.
        match unsafe { result::malloc_sync(n_bytes) } {
            Ok(address) => Ok(Some(address)),
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Ok(None),
            Err(error) => Err(failure(&self.name, "allocate", error)),
        }
    }

    unsafe fn free(&self, address: u64) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: the address is of an allocation that nothing else frees; the caller answers for what runs.
        self.context.record_err(unsafe { result::free_sync(address) });
    }

    fn pin(&self, n_bytes: usize) -> Result<NonNull<u8>, DeviceError> {
        self.bind()?;
        // SAFETY: allocates; 0 asks for ordinary pinned memory.
        let start = self.check("allocate pinned memory", unsafe { result::malloc_host(n_bytes, 0) })?.cast::<u8>();
        // SAFETY: the allocation has `n_bytes` bytes, which nobody else uses yet.
        unsafe { start.write_bytes(0, n_bytes) };
        NonNull::new(start).ok_or_else(|| DeviceError {
            device: self.name.clone(),
            operation: "allocate pinned memory",
            message: "the driver returned nothing".to_owned(),
        })
    }

    unsafe fn unpin(&self, start: NonNull<u8>, _: usize) {
        // It may be dropped by any thread.
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: it came from `malloc_host` and is freed once.
        self.context.record_err(unsafe { result::free_host(start.as_ptr().cast()) });
    }

    unsafe fn transfer(&self, transfer: Transfer) -> Result<(), DeviceError> {
        self.bind()?;
        let stream = self.stream.cu_stream();
        let operation = match transfer {
            Transfer::Upload { .. } => "copy to the device",
            Transfer::Download { .. } => "copy from the device",
            Transfer::Copy { .. } => "copy",
            Transfer::Clear { .. } => "clear memory",
        };
        // SAFETY: the caller answers for all ranges, and that the host's memory stays and is not touched until the stream was waited for.
        let started = unsafe {
            match transfer {
                Transfer::Upload { to, from, n_bytes } => {
                    result::memcpy_htod_async(to, slice::from_raw_parts(from, n_bytes), stream)
                }
                Transfer::Download { from, to, n_bytes } => {
                    result::memcpy_dtoh_async(slice::from_raw_parts_mut(to, n_bytes), from, stream)
                }
                Transfer::Copy { from, to, n_bytes } => result::memcpy_dtod_async(to, from, n_bytes, stream),
                Transfer::Clear { at, n_bytes } => result::memset_d8_async(at, 0, n_bytes, stream),
            }
        };
        self.check(operation, started)
    }

    unsafe fn launch(&self, kernel: &'static str, extent: Extent, args: &[u64]) -> Result<(), DeviceError> {
        self.bind()?;
        let function = self.modules.function(kernel)?;
        let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
        for (pointer, arg) in pointers.iter_mut().zip(args) {
            *pointer = std::ptr::from_ref(arg).cast_mut().cast();
        }
        let Extent { grid: [x, y, z], block, shared } = extent;
        // SAFETY: each pointer is to eight bytes, at least as many as the kernel's argument has; the driver copies them before it
        // returns. The caller answers for the arguments.
        let started = unsafe {
            result::launch_kernel(
                function.cu_function(),
                (x, y, z),
                (block, 1, 1),
                shared,
                self.stream.cu_stream(),
                &mut pointers[..args.len()],
            )
        };
        self.check(kernel, started)
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.bind()?;
        self.check("wait for the device", self.stream.synchronize())
    }

    fn record(
        &self,
        start: &mut dyn FnMut() -> Result<(), DeviceError>,
    ) -> Result<Option<Box<dyn Graph>>, DeviceError> {
        self.bind()?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.check("record a graph", self.stream.begin_capture(mode))?;
        let started = start();
        let ended = self.stream.end_capture(CUgraphInstantiate_flags(0));
        started?;
        match ended {
            Ok(Some(graph)) => Ok(Some(Box::new(Recorded { graph, device: self.name.clone() }))),
            // Nothing has run, so nothing is lost.
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Ok(None),
            Err(error) => Err(failure(&self.name, "record a graph", error)),
            Ok(None) => Err(DeviceError {
                device: self.name.clone(),
                operation: "record a graph",
                message: "nothing was recorded".to_owned(),
            }),
        }
    }
}

struct Recorded {
    graph: CudaGraph,
    device: String,
}

// SAFETY: a graph is only used behind the queue's lock, by one thread at a time, as the driver asks.
unsafe impl Send for Recorded {}

impl Graph for Recorded {
    unsafe fn launch(&self) -> Result<(), DeviceError> {
        self.graph.launch().map_err(|error| failure(&self.device, "launch a graph", error))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::device::memory::staging::Pinned;
    use crate::device::{DeviceOps, Diagnostics};
    use crate::tests::{bytes, product, values};
    use crate::{Ops, WeightData, WeightType};

    /// A device with these kernels; `None` where there is neither one nor an emulator.
    fn cuda(texts: Texts) -> Option<Result<Cuda, DeviceError>> {
        diffulex_gpu_emulator::install().then(|| Cuda::open(0, texts))
    }

    #[test]
    fn a_driver_that_does_not_start_is_an_error_and_not_a_machine_without_one() {
        if !diffulex_gpu_emulator::install() || !diffulex_gpu_emulator::fail_init(803) {
            return;
        }
        let [counted, opened] = [Cuda::n_devices().map(|_| ()), Cuda::open(0, Texts::embedded()).map(|_| ())];
        diffulex_gpu_emulator::fail_init(0);
        for error in [counted, opened].map(|result| result.unwrap_err().to_string()) {
            assert!(error.contains("start the driver: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), "{error}");
        }
        assert_eq!(Cuda::n_devices().unwrap(), 1);
    }

    #[test]
    fn only_the_modules_of_a_models_weights_are_loaded() {
        const ALWAYS: [&str; 5] = ["embed", "heads", "rows", "score", "score_cut"];
        let Some(cuda) = cuda(Texts::embedded()) else { return };
        let cuda = Arc::new(cuda.unwrap());
        assert_eq!(cuda.modules.loaded(), ALWAYS);
        let ops = DeviceOps::new(cuda.clone(), Diagnostics::default());
        let data = bytes(&values(1, 12));
        let weight = ops.matrix(WeightData::F32(&data), 3, 4, WeightType::Bf16).unwrap();
        product(&ops, &values(2, 4), 4, &weight);
        let mut loaded = cuda.modules.loaded();
        loaded.retain(|name| !ALWAYS.contains(name));
        assert_eq!(loaded, ["product_bf16"]);
    }

    #[test]
    fn kernels_of_a_folder_take_the_place_of_the_embedded_ones() {
        let folder = tempfile::tempdir().unwrap();
        let error = Texts::of_folder(folder.path(), "cuda:0").err().unwrap().to_string();
        assert!(error.contains("DIFFULEX_PTX") && error.contains("has no file"), "{error}");
        let rows = include_str!("../../gpu/ptx/rows.ptx").replace(".version 8.0", ".version 99.0");
        std::fs::write(folder.path().join("rows.ptx"), rows).unwrap();
        let Some(cuda) = cuda(Texts::of_folder(folder.path(), "cuda:0").unwrap()) else { return };
        // Newer PTX than any driver takes.
        let error = cuda.err().unwrap().to_string();
        assert!(error.contains("cuda:0 failed in load kernels: CUDA_ERROR_UNSUPPORTED_PTX_VERSION"), "{error}");
    }

    #[test]
    fn pinned_memory_may_be_dropped_by_any_thread() {
        let Some(cuda) = cuda(Texts::embedded()) else { return };
        let cuda: Arc<dyn Driver> = Arc::new(cuda.unwrap());
        let pinned = Pinned::new(cuda.clone(), 100).unwrap();
        thread::spawn(move || drop(pinned)).join().unwrap();
        // An error of that thread would be reported by the next call.
        cuda.wait().unwrap();
    }
}
