//! Errors of the engine, by their reach: a load, a request, a step.

use std::borrow::Cow;

use diffulex_protocol::{ErrorCode, ServingError};

use crate::adapter_id::AdapterId;

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

/// A forward that failed, by how far the failure reaches.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The batch cannot be computed: its requests get the error, the engine goes on.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The device failed, and weights and cache on it may be lost: every request gets the error, the worker ends.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A batch that cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// A row has a token that the embedding does not.
    #[error("token id {id} is outside the vocabulary of {vocab_size}")]
    TokenOutsideVocabulary {
        /// Of the row.
        id: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// Rows have an adapter that is not loaded.
    #[error("adapter {0} is not loaded")]
    AdapterNotLoaded(AdapterId),
    /// The device has no memory left for the batch's activations.
    #[error("the device is out of memory: {needed} bytes are needed, {free} are free")]
    OutOfMemory {
        /// Bytes.
        needed: u64,
        /// Bytes.
        free: u64,
    },
    /// The batch has canvases and the network denoises none.
    #[error("this network denoises no canvases")]
    NoCanvases,
    /// The reference's tensor library refused an operation.
    #[error(transparent)]
    Reference(#[from] candle_core::Error),
}

impl BatchError {
    /// Fails if `id` is not a row of an embedding of `vocab_size` rows.
    pub(crate) fn check_id(id: u32, vocab_size: usize) -> Result<(), Self> {
        if (id as usize) < vocab_size { Ok(()) } else { Err(Self::TokenOutsideVocabulary { id, vocab_size }) }
    }
}

impl From<candle_core::Error> for StepError {
    fn from(error: candle_core::Error) -> Self {
        Self::Batch(error.into())
    }
}

/// A device that can no longer be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("device {device} failed in {operation}: {message}")]
pub struct DeviceError {
    /// Its name, as `--device` has it.
    pub device: String,
    /// The operation that found out.
    pub operation: &'static str,
    /// The driver's message.
    pub message: String,
}
