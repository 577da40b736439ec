//! Parrot's controllers: the engines that register here, and this server as an engine of another controller.
//!
//! Never here: routes.

pub mod engines;
pub mod registration;
