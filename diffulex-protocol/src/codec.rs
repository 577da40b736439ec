//! Bytes of commands and events: MessagePack maps with named keys.
//!
//! A frame is refused by its size before it is read, by its depth while it is read, and by bytes left over after it.
//! Only typed structs are built; unknown keys are skipped, so an older side can read a newer one.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{EventBatch, ServingCommand, ServingEvent};

/// Changes when an old and a new side can no longer talk.
pub const PROTOCOL_VERSION: u32 = 1;

/// Largest frame in bytes. Chosen by us: a prompt of a million ids is 5 MB; the HTTP body cap is lower.
pub const MAX_FRAME_BYTES: usize = 16 * 1024 * 1024;

/// Deepest nesting. Chosen by us: our own messages nest 5 deep, rmp-serde's default of 1024 invites stack abuse.
const MAX_DEPTH: usize = 32;

/// Why bytes are not a message.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// Larger than [`MAX_FRAME_BYTES`].
    #[error("frame of {len} bytes is over the limit of {MAX_FRAME_BYTES}")]
    TooLarge {
        /// Its length.
        len: usize,
    },
    /// Not a message we know.
    #[error("malformed message: {0}")]
    Malformed(#[from] rmp_serde::decode::Error),
    /// A message, and something after it.
    #[error("{extra} bytes follow the message")]
    TrailingBytes {
        /// How many.
        extra: u64,
    },
    /// A message that cannot be written, such as one over the size limit.
    #[error("cannot encode message: {0}")]
    Encode(#[from] rmp_serde::encode::Error),
}

/// A command as bytes.
pub fn encode_command(command: &ServingCommand) -> Result<Vec<u8>, CodecError> {
    encode(command)
}

/// A command from bytes.
pub fn decode_command(bytes: &[u8]) -> Result<ServingCommand, CodecError> {
    decode(bytes)
}

/// A batch of events as bytes.
pub fn encode_batch(batch: &EventBatch) -> Result<Vec<u8>, CodecError> {
    encode(batch)
}

/// A batch of events from bytes. A single event, as Diffulex's worker sends it, is a batch of incarnation 0.
pub fn decode_batch(bytes: &[u8]) -> Result<EventBatch, CodecError> {
    match decode::<EventBatch>(bytes) {
        Ok(batch) => Ok(batch),
        Err(CodecError::Malformed(batch_error)) => match decode::<ServingEvent>(bytes) {
            Ok(event) => Ok(EventBatch { incarnation: 0, events: vec![event] }),
            Err(_) => Err(CodecError::Malformed(batch_error)),
        },
        Err(error) => Err(error),
    }
}

/// One event as bytes, the form Diffulex's worker sends.
pub fn encode_event(event: &ServingEvent) -> Result<Vec<u8>, CodecError> {
    encode(event)
}

fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    let bytes = rmp_serde::to_vec_named(message)?;
    if bytes.len() > MAX_FRAME_BYTES {
        return Err(CodecError::TooLarge { len: bytes.len() });
    }
    Ok(bytes)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    if bytes.len() > MAX_FRAME_BYTES {
        return Err(CodecError::TooLarge { len: bytes.len() });
    }
    let mut reader = rmp_serde::Deserializer::new(std::io::Cursor::new(bytes));
    reader.set_max_depth(MAX_DEPTH);
    let message = T::deserialize(&mut reader)?;
    let extra = bytes.len() as u64 - reader.position();
    if extra > 0 {
        return Err(CodecError::TrailingBytes { extra });
    }
    Ok(message)
}
