//! What can go wrong in the engine, by how far it reaches: a load, a request, a step.

use diffulex_protocol::{ErrorCode, ServingError};

/// A model folder or a configuration that cannot be served. Names what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LoadError(pub String);

impl LoadError {
    /// An error that says `what` about the thing called `name`.
    pub fn of(name: impl std::fmt::Display, what: impl std::fmt::Display) -> Self {
        Self(format!("{name}: {what}"))
    }

    /// With the place `place` before it, unless it says so itself.
    #[must_use]
    pub fn at(self, place: &str) -> Self {
        if self.0.starts_with(place) { self } else { Self::of(place, self) }
    }
}

/// A request that cannot be served; nothing else is disturbed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct RequestError {
    /// For people; names the field and the limit.
    pub message: String,
    /// For programs.
    pub code: ErrorCode,
    /// The field at fault.
    pub param: Option<&'static str>,
}

impl RequestError {
    /// The client's fault, in field `param`.
    pub fn invalid(param: &'static str, message: impl Into<String>) -> Self {
        Self { message: message.into(), code: ErrorCode::InvalidRequest, param: Some(param) }
    }

    /// Could never fit this server.
    pub fn too_large(param: &'static str, message: impl Into<String>) -> Self {
        Self { message: message.into(), code: ErrorCode::TooLarge, param: Some(param) }
    }

    /// Ours.
    pub fn engine(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: ErrorCode::EngineFailed, param: None }
    }

    /// As the event that ends request `rid`.
    pub fn into_event(self, rid: String) -> ServingError {
        ServingError { rid, message: self.message, code: self.code, param: self.param.map(str::to_owned) }
    }
}

/// A forward that failed: every request of its batch gets an error, the engine goes on.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StepError(pub String);

impl From<candle_core::Error> for StepError {
    fn from(error: candle_core::Error) -> Self {
        Self(error.to_string())
    }
}
