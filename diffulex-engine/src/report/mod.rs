//! Reports: events of requests, profiles, the load of the device.
//!
//! Never here: decisions about tokens.

pub(crate) mod device_load;
pub mod emit;
pub mod profile;
