//! Errors of the engine, by their reach: a load, a request, and those of a step.

use std::borrow::Cow;

use diffulex_protocol::{ErrorCode, ServingError};

pub use crate::kernels::{BatchError, DeviceError, StepError};

/// A model folder or a configuration that cannot be served. Names what was expected and what was found.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}{what}", places.iter().map(|place| format!("{place}: ")).collect::<String>())]
pub struct LoadError {
    /// The folder, file, tensor, field or option at fault, from the outside in; empty where `what` names it.
    pub places: Vec<String>,
    /// The problem.
    pub what: String,
}

impl LoadError {
    /// An error that says `what`, which names the thing at fault.
    pub fn new(what: impl Into<String>) -> Self {
        Self { places: Vec::new(), what: what.into() }
    }

    /// An error that says `what` about the thing called `name`.
    pub fn of(name: impl std::fmt::Display, what: impl std::fmt::Display) -> Self {
        Self { places: vec![name.to_string()], what: what.to_string() }
    }

    /// With the place `place` before it, unless it says so itself.
    #[must_use]
    pub fn at(mut self, place: &str) -> Self {
        if !self.places.first().unwrap_or(&self.what).starts_with(place) {
            self.places.insert(0, place.to_owned());
        }
        self
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
    pub param: Option<Cow<'static, str>>,
}

impl RequestError {
    /// The client's fault, in field `param`.
    pub fn invalid(param: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { message: message.into(), code: ErrorCode::InvalidRequest, param: Some(param.into()) }
    }

    /// Could never fit this server.
    pub fn too_large(param: &'static str, message: impl Into<String>) -> Self {
        Self { message: message.into(), code: ErrorCode::TooLarge, param: Some(param.into()) }
    }

    /// The model's context of `max_model_len` cannot hold field `param`; `problem` says how large that is. The first sentence is
    /// OpenAI's: clients recognise an overflow by it, and make the prompt shorter.
    pub fn context_length(param: &'static str, max_model_len: usize, problem: impl std::fmt::Display) -> Self {
        let message = format!("This model's maximum context length is {max_model_len} tokens. {param}: {problem}");
        Self { message, code: ErrorCode::ContextLengthExceeded, param: Some(param.into()) }
    }

    /// The engine's fault.
    pub fn engine(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: ErrorCode::EngineFailed, param: None }
    }

    /// As the event that ends request `rid`.
    pub fn into_event(self, rid: String) -> ServingError {
        ServingError { rid, message: self.message, code: self.code, param: self.param.map(Cow::into_owned) }
    }
}
