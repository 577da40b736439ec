//! Requests and answers as Diffulex's own front end and worker send them: one MessagePack map each, with `type` among its keys.
//!
//! For tools that read or write Diffulex's messages; nothing of this server sends them.

use serde::{Deserialize, Serialize};

use crate::codec::{self, CodecError};
use crate::{
    ProfileStart, SamplingParams, ServingBufferSnapshot, ServingDelta, ServingError, ServingReply, StreamMode,
};

/// A command of Diffulex's front end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is the ServingCommand of its name")]
pub enum Command {
    Generate(Box<Generate>),
    Abort { rid: String },
    Shutdown,
    ProfileStart(ProfileStart),
    ProfileStop,
}

/// Diffulex's request, with text that its worker tokenises.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each is the field of its name in ServingGenerate")]
pub struct Generate {
    pub rid: String,
    /// The prompt.
    pub input: Input,
    pub sampling_params: SamplingParams,
    pub stream: bool,
    pub stream_mode: StreamMode,
    pub user: Option<String>,
    pub created_time: f64,
}

/// The input of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Input {
    /// Text or token ids.
    Prompt {
        /// Used as it is.
        prompt: Prompt,
    },
    /// Messages for the chat template.
    Chat {
        /// Maps of `role` and `content`.
        messages: Vec<std::collections::BTreeMap<String, String>>,
    },
}

/// Text or token ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// Text.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

/// An event of Diffulex's worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is the ServingEvent of its name")]
pub enum Event {
    Delta(ServingDelta),
    BufferSnapshot(Box<ServingBufferSnapshot>),
    Reply(Box<ServingReply>),
    Error(ServingError),
    ProfileReply {
        ok: bool,
        #[serde(default)]
        message: Option<String>,
        #[serde(default)]
        paths: Vec<String>,
    },
}

/// A command as Diffulex's front end writes it.
pub fn encode_command(command: &Command) -> Result<Vec<u8>, CodecError> {
    encode(command)
}

/// A command of Diffulex's front end.
pub fn decode_command(bytes: &[u8]) -> Result<Command, CodecError> {
    codec::decode(bytes)
}

/// An event as Diffulex's worker writes it, with the keys that this crate adds.
pub fn encode_event(event: &Event) -> Result<Vec<u8>, CodecError> {
    encode(event)
}

/// An event of Diffulex's worker.
pub fn decode_event(bytes: &[u8]) -> Result<Event, CodecError> {
    codec::decode(bytes)
}

/// With lists of numbers as lists.
fn encode(message: &impl Serialize) -> Result<Vec<u8>, CodecError> {
    let mut bytes = Vec::new();
    message.serialize(&mut rmp_serde::Serializer::new(&mut bytes).with_struct_map().with_human_readable())?;
    Ok(bytes)
}
