//! NVIDIA's management library (NVML), which comes with the driver: how busy a device is.
//!
//! Loaded at run time. A machine without it, or a device that it does not know, reports nothing; neither is an error.

use std::ffi::{CString, c_int, c_uint};

use libloading::Library;

/// The library's name on Linux.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// `NVML_SUCCESS`.
const SUCCESS: c_int = 0;

/// `nvmlDevice_t`, a pointer that only the library reads.
type Handle = usize;

/// `nvmlUtilization_t`: per cent of the last sampling period in which a kernel ran, and in which memory was read or written.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

type GetUtilization = unsafe extern "C" fn(Handle, *mut Utilization) -> c_int;

/// A device as NVML knows it.
pub(crate) struct Nvml {
    library: Library,
    utilization: GetUtilization,
    device: Handle,
}

/// The place of a device on the machine's buses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BusPlace {
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
}

impl BusPlace {
    /// Bus id in NVML's format.
    fn text(self) -> String {
        let Self { domain, bus, device } = self;
        format!("{domain:08x}:{bus:02x}:{device:02x}.0")
    }
}

impl Nvml {
    /// The device at `place`; `None` where NVML, or its knowledge of the device, is missing.
    pub(crate) fn open(place: BusPlace) -> Option<Self> {
        let place = CString::new(place.text()).ok()?;
        // SAFETY: the constructors of the driver's library may run anywhere.
        let library = unsafe { Library::new(LIBRARY) }.ok()?;
        // SAFETY: the types are those of nvml.h; the functions are called while the library is loaded.
        let (initialize, handle_of, utilization) = unsafe {
            (
                *library.get::<unsafe extern "C" fn() -> c_int>("nvmlInit_v2").ok()?,
                *library
                    .get::<unsafe extern "C" fn(*const std::ffi::c_char, *mut Handle) -> c_int>(
                        "nvmlDeviceGetHandleByPciBusId_v2",
                    )
                    .ok()?,
                *library.get::<GetUtilization>("nvmlDeviceGetUtilizationRates").ok()?,
            )
        };
        // SAFETY: it takes nothing, and may be called any number of times.
        if unsafe { initialize() } != SUCCESS {
            return None;
        }
        let mut nvml = Self { library, utilization, device: 0 };
        // SAFETY: the text ends in a zero, and the handle is written before the call returns.
        let found = unsafe { handle_of(place.as_ptr(), &raw mut nvml.device) };
        (found == SUCCESS).then_some(nvml)
    }

    /// Recent share of time that the device was busy, 0 to 1; `None` if it is not reported, as for a part of a card.
    pub(crate) fn utilization(&self) -> Option<f32> {
        let mut rates = Utilization::default();
        // SAFETY: the handle is of this library, and the rates are written before the call returns.
        let told = unsafe { (self.utilization)(self.device, &raw mut rates) };
        (told == SUCCESS).then(|| rates.gpu.min(100) as f32 / 100.0)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: the type is that of nvml.h; it takes nothing, and ends what `open` began.
        if let Ok(shut_down) = unsafe { self.library.get::<unsafe extern "C" fn() -> c_int>("nvmlShutdown") } {
            // SAFETY: as above. An error leaves nothing to do.
            unsafe { shut_down() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_written_as_nvml_reads_it() {
        let place = BusPlace { domain: 0, bus: 0x3b, device: 0 };
        assert_eq!(place.text(), "00000000:3b:00.0");
        assert_eq!(BusPlace { domain: 0x1_0000, bus: 1, device: 31 }.text(), "00010000:01:1f.0");
    }

    #[test]
    fn a_device_that_nobody_knows_reports_nothing() {
        assert!(Nvml::open(BusPlace { domain: u32::MAX, bus: 255, device: 31 }).is_none());
    }
}
