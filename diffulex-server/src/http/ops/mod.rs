//! Routes of who runs the server or looks at it: health, models, adapters, profiles, documents, the playground.

pub(in crate::http) mod admin;
pub(in crate::http) mod health;
pub(in crate::http) mod models;
pub(in crate::http) mod not_implemented;
pub(in crate::http) mod openapi;
pub(in crate::http) mod playground;
pub(in crate::http) mod profile;
