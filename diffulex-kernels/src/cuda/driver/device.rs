//! A CUDA device: its context, one stream and the compiled kernels.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CUdevice_attribute_enum, CUfunction_attribute_enum, CUresult};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DriverError, result, sys};
use cudarc::nvrtc::Ptx;

use crate::cuda::driver::holdings::Holdings;
use crate::cuda::driver::nvml::BusPlace;
use crate::cuda::driver::staging::Pinned;
use crate::error::DeviceError;
use crate::memory::AvailableMemory;

/// PTX of the kernels, by source file; `scripts/ptx` makes it.
const MODULES: &[&str] = &[
    include_str!("../../../gpu/ptx/attention_bf16.ptx"),
    include_str!("../../../gpu/ptx/attention_f32.ptx"),
    include_str!("../../../gpu/ptx/embed.ptx"),
    include_str!("../../../gpu/ptx/experts.ptx"),
    include_str!("../../../gpu/ptx/heads.ptx"),
    include_str!("../../../gpu/ptx/product_bf16.ptx"),
    include_str!("../../../gpu/ptx/product_f32.ptx"),
    include_str!("../../../gpu/ptx/product_int.ptx"),
    include_str!("../../../gpu/ptx/rows.ptx"),
    include_str!("../../../gpu/ptx/score.ptx"),
    include_str!("../../../gpu/ptx/score_cut.ptx"),
];

/// Shared memory that a block may ask for: what every device from compute capability 8.0 on has (8.6, 8.9 and 12.0 have
/// the least).
const MAX_SHARED: i32 = 99 << 10;

/// Pieces in which weights travel: large enough for the bus, small beside a tensor. Chosen by us.
const PIECE: usize = 8 << 20;

/// A device with its kernels.
pub(crate) struct Device {
    name: String,
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
    functions: HashMap<String, CudaFunction>,
    /// Memory of buffers.
    pub(crate) holdings: Holdings,
    /// Through which bytes travel to buffers; made when it is first needed.
    pinned: Mutex<Option<Pinned>>,
}

/// Number of CUDA devices; 0 without a driver.
pub(crate) fn n_devices() -> usize {
    // SAFETY: loads and unloads the driver's library, whose constructors may run anywhere.
    if !unsafe { sys::is_culib_present() } {
        return 0;
    }
    CudaContext::device_count().map_or(0, |n| usize::try_from(n).unwrap_or(0))
}

impl Device {
    /// Opens device `index` and loads the kernels.
    pub(crate) fn open(index: usize) -> Result<Arc<Self>, DeviceError> {
        let name = format!("cuda:{index}");
        let failed = |operation, error| failure(&name, operation, error);
        let n_devices = n_devices();
        if index >= n_devices {
            let message = format!("{n_devices} CUDA devices are present");
            return Err(DeviceError { device: name, operation: "open", message });
        }
        let context = CudaContext::new(index).map_err(|error| failed("open", error))?;
        let stream = context.new_stream().map_err(|error| failed("open", error))?;
        let mut functions = HashMap::new();
        for text in MODULES {
            let module = context.load_module(Ptx::from_src(*text)).map_err(|error| failed("load kernels", error))?;
            for kernel in kernels(text) {
                let function = module.load_function(kernel).map_err(|error| failed("load kernels", error))?;
                let most_shared = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                function.set_attribute(most_shared, MAX_SHARED).map_err(|error| failed("load kernels", error))?;
                functions.insert(kernel.to_owned(), function);
            }
        }
        let (holdings, pinned) = (Holdings::default(), Mutex::default());
        Ok(Arc::new(Self { name, context, stream, functions, holdings, pinned }))
    }

    /// Device name as in `--device`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Name, card and compute capability, for people.
    pub(crate) fn describe(&self) -> Result<String, DeviceError> {
        let name = self.check("describe", self.context.name())?;
        let (major, minor) = self.check("describe", self.context.compute_capability())?;
        Ok(format!("{} ({name}, compute capability {major}.{minor})", self.name))
    }

    /// Free and total memory.
    pub(crate) fn memory(&self) -> Result<AvailableMemory, DeviceError> {
        let (free, total) = self.check("read free memory", self.context.mem_get_info())?;
        Ok(AvailableMemory { free: free as u64, total: total as u64, source: self.name.clone(), is_dedicated: true })
    }

    /// PCI bus place; `None` if the driver does not report it.
    pub(crate) fn place(&self) -> Option<BusPlace> {
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

    /// The kernel called `name`.
    pub(crate) fn function(&self, name: &'static str) -> Result<&CudaFunction, DeviceError> {
        self.functions.get(name).ok_or_else(|| DeviceError {
            device: self.name.clone(),
            operation: "launch",
            message: format!("kernel {name} not found in the embedded PTX"),
        })
    }

    /// A driver's error as this device's.
    pub(crate) fn check<T>(&self, operation: &'static str, result: Result<T, DriverError>) -> Result<T, DeviceError> {
        result.map_err(|error| failure(&self.name, operation, error))
    }

    /// Memory of the driver; its bytes are undefined. `None` where the device has no such memory left.
    pub(crate) fn allocate(&self, n_bytes: usize) -> Result<Option<u64>, DeviceError> {
        self.check("allocate", self.context.bind_to_thread())?;
        // SAFETY: no memory is touched.
        match unsafe { result::malloc_sync(n_bytes.max(1)) } {
            Ok(address) => Ok(Some(address)),
            Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Ok(None),
            Err(error) => Err(failure(&self.name, "allocate", error)),
        }
    }

    /// Gives memory of [`Device::allocate`] back. Nothing may use it any more.
    pub(crate) fn free(&self, address: u64) {
        // SAFETY: the address is of an allocation that nothing else frees; the caller answers for what runs.
        self.context.record_err(unsafe { result::free_sync(address) });
    }

    /// Copies `bytes` to a range of a buffer, a piece at a time.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check("copy to the device", self.context.bind_to_thread())?;
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let pinned = match &mut *pinned {
            Some(pinned) => pinned,
            none => none.insert(self.check("allocate pinned memory", Pinned::new(PIECE))?),
        };
        for (index, piece) in bytes.chunks(PIECE).enumerate() {
            pinned.bytes_mut()[..piece.len()].copy_from_slice(piece);
            let to = address + (index * PIECE) as u64;
            // SAFETY: the caller has checked the range; the pinned bytes stay until the stream has read them, just below.
            let copied =
                unsafe { result::memcpy_htod_async(to, &pinned.bytes()[..piece.len()], self.stream.cu_stream()) };
            self.check("copy to the device", copied)?;
            self.check("copy to the device", self.stream.synchronize())?;
        }
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Nothing may run any more when memory goes; an error means that the context is gone, and the memory with it.
        self.context.record_err(self.context.bind_to_thread());
        self.context.record_err(self.stream.synchronize());
        self.holdings.free_all(|address| self.free(address));
    }
}

fn failure(device: &str, operation: &'static str, error: DriverError) -> DeviceError {
    let text = |words: Result<&std::ffi::CStr, DriverError>| words.map(|words| words.to_string_lossy().into_owned());
    let message = match (text(error.error_name()), text(error.error_string())) {
        (Ok(name), Ok(words)) => format!("{name}: {words}"),
        _ => format!("CUDA error {}", error.0 as u32),
    };
    DeviceError { device: device.to_owned(), operation, message }
}

/// Names of the kernels in a PTX text.
fn kernels(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.split(".entry ").skip(1).filter_map(|rest| rest.split(['(', '\n', ' ']).next())
}
