//! Errors of the driver in words.

use std::ffi::CStr;

use cudarc::driver::DriverError;

use crate::error::DeviceError;

/// An error of the driver in words.
pub(crate) fn failure(device: &str, operation: &'static str, error: DriverError) -> DeviceError {
    let text = |words: Result<&CStr, DriverError>| words.map(|words| words.to_string_lossy().into_owned());
    let message = match (text(error.error_name()), text(error.error_string())) {
        (Ok(name), Ok(words)) => format!("{name}: {words}"),
        _ => format!("CUDA error {}", error.0 as u32),
    };
    DeviceError { device: device.to_owned(), operation, message }
}
