//! Bytes of commands and events: MessagePack maps with named keys.
//!
//! A frame is refused by its size before it is read, by its depth while it is read, and by bytes left over after it.
//! Only typed structs are built; unknown keys are skipped, so an older side can read a newer one. The settings under
//! `decoding` are the exception: one that would not act must not go unnoticed.
//!
//! Batches of events are most of what travels. Laid out as our own worker writes them they are read straight into their
//! structs (`messagepack`), all else by serde.

use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserializer, Serialize};

use crate::messagepack::{Cursor, MAX_DEPTH};
use crate::{ErrorCode, EventBatch, ServingCommand, ServingError, ServingEvent, ServingGenerate};

/// Changes when an old and a new side can no longer talk.
pub const PROTOCOL_VERSION: u32 = 2;

/// Largest frame in bytes. Chosen by us: a prompt of a million ids is 5 MB; the HTTP body cap is lower.
pub const MAX_FRAME_BYTES: usize = 16 * 1024 * 1024;

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

/// The error for the request of a `generate` that [`decode_command`] could not read: every request whose id arrives ends in
/// an event. `None` if the bytes are not a `generate`, or name no request.
pub fn refusal(bytes: &[u8], error: &CodecError) -> Option<ServingError> {
    let Heading { kind, rid } = Heading::of(bytes);
    let rid = rid.filter(|_| kind.as_deref() == Some("generate"))?;
    // Read once more, as what it says it is: that tells which field is at fault.
    let (param, message) = match serde_path_to_error::deserialize::<_, ServingGenerate>(&mut reader(bytes)) {
        Ok(_) => (None, error.to_string()),
        Err(error) => {
            let path = error.path().to_string();
            let param = path.strip_prefix("sampling_params.").unwrap_or(&path).to_owned();
            (Some(param.clone()).filter(|param| param != "."), format!("{param}: {}", error.inner()))
        }
    };
    Some(ServingError { rid, message, code: ErrorCode::InvalidRequest, param })
}

/// The request that a message names, where it can be read that far.
pub(crate) fn request_of(bytes: &[u8]) -> Option<String> {
    Heading::of(bytes).rid
}

/// The type and request of a message.
#[derive(Default)]
struct Heading {
    kind: Option<String>,
    rid: Option<String>,
}

impl Heading {
    fn of(bytes: &[u8]) -> Self {
        let mut heading = Self::default();
        // The rest may be damaged, and is not read: an error of the reader's then, which changes nothing.
        let _ = reader(bytes).deserialize_map(HeadingKeys(&mut heading));
        heading
    }
}

struct HeadingKeys<'h>(&'h mut Heading);

impl<'de> Visitor<'de> for HeadingKeys<'_> {
    type Value = ();

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("a message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while self.0.kind.is_none() || self.0.rid.is_none() {
            match map.next_key::<String>()?.as_deref() {
                Some("type") => self.0.kind = Some(map.next_value()?),
                Some("rid") => self.0.rid = Some(map.next_value()?),
                Some(_) => drop(map.next_value::<IgnoredAny>()?),
                None => break,
            }
        }
        Ok(())
    }
}

/// A batch of events as bytes.
pub fn encode_batch(batch: &EventBatch) -> Result<Vec<u8>, CodecError> {
    encode(batch)
}

/// A batch of events from bytes. A single event, as Diffulex's worker sends it, is a batch of incarnation 0.
pub fn decode_batch(bytes: &[u8]) -> Result<EventBatch, CodecError> {
    if bytes.len() > MAX_FRAME_BYTES {
        return Err(CodecError::TooLarge { len: bytes.len() });
    }
    match Cursor::read_all(bytes) {
        Some(batch) => Ok(batch),
        // Also when it is no message at all: serde knows what to say.
        None => decode_batch_plain(bytes),
    }
}

fn decode_batch_plain(bytes: &[u8]) -> Result<EventBatch, CodecError> {
    match decode::<EventBatch>(bytes) {
        Ok(batch) => Ok(batch),
        Err(CodecError::Malformed(batch_error)) => match decode::<ServingEvent>(bytes) {
            Ok(event) => Ok(EventBatch { incarnation: 0, events: vec![event] }),
            Err(_) => Err(CodecError::Malformed(batch_error)),
        },
        Err(error) => Err(error),
    }
}

fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, CodecError> {
    let bytes = rmp_serde::to_vec_named(message)?;
    if bytes.len() > MAX_FRAME_BYTES {
        return Err(CodecError::TooLarge { len: bytes.len() });
    }
    Ok(bytes)
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    if bytes.len() > MAX_FRAME_BYTES {
        return Err(CodecError::TooLarge { len: bytes.len() });
    }
    let mut reader = reader(bytes);
    let message = T::deserialize(&mut reader)?;
    let extra = bytes.len() as u64 - reader.position();
    if extra > 0 {
        return Err(CodecError::TrailingBytes { extra });
    }
    Ok(message)
}

fn reader(bytes: &[u8]) -> rmp_serde::Deserializer<rmp_serde::decode::ReadReader<std::io::Cursor<&[u8]>>> {
    let mut reader = rmp_serde::Deserializer::new(std::io::Cursor::new(bytes));
    reader.set_max_depth(MAX_DEPTH);
    reader
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::{
        EngineStats, ErrorCode, FinishReason, HeldContext, Histogram, ServingBufferSnapshot, ServingDelta,
        ServingError, ServingReply,
    };

    fn read_batch(bytes: &[u8]) -> Option<EventBatch> {
        Cursor::read_all(bytes)
    }

    fn delta() -> impl Strategy<Value = ServingEvent> {
        let parts =
            (".{0,40}", ".{0,20}", vec(any::<u32>(), 0..20), any::<u32>(), option::of(0.0..1e9), vec(0f32..1.0, 0..20));
        parts.prop_map(|(rid, text, token_ids, seq, engine_decode_tps, confidences)| {
            let nfe = seq / 2;
            let finished = seq % 2 == 0;
            ServingEvent::Delta(ServingDelta {
                rid,
                text,
                token_ids,
                nfe,
                finished,
                engine_decode_tps,
                seq,
                confidences,
                ..Default::default()
            })
        })
    }

    fn snapshot() -> impl Strategy<Value = ServingEvent> {
        let position = (any::<u32>(), option::of(".{0,30}"), 0f32..1.0);
        let parts = (".{0,40}", ".{0,60}", ".{0,20}", any::<u32>(), vec(position, 0..40));
        parts.prop_map(|(rid, text, committed_text, seq, positions)| {
            let masked = (0..).zip(&positions).filter(|(_, (_, piece, _))| piece.is_none());
            ServingEvent::BufferSnapshot(Box::new(ServingBufferSnapshot {
                rid,
                token_offset: seq / 3,
                absolute_start: seq / 2,
                absolute_end: seq,
                text,
                token_ids: positions.iter().map(|(id, _, _)| *id).collect(),
                seq,
                committed_text,
                mask_positions: masked.map(|(index, _)| index).collect(),
                pieces: positions.iter().map(|(_, piece, _)| piece.as_deref().map(Into::into)).collect(),
                confidences: positions.iter().map(|(_, _, confidence)| *confidence).collect(),
                block_size: 8,
                ..Default::default()
            }))
        })
    }

    fn end() -> impl Strategy<Value = ServingEvent> {
        let reason = proptest::sample::select(FinishReason::ALL.to_vec());
        let parts = (".{0,40}", ".{0,60}", vec(any::<u32>(), 0..20), any::<u64>(), reason, any::<bool>());
        parts.prop_map(|(rid, text, token_ids, seed, finish_reason, is_error)| {
            if is_error {
                let param = Some(text.clone()).filter(|text| text.len() % 2 == 0);
                return ServingEvent::Error(ServingError { rid, message: text, code: ErrorCode::TooLarge, param });
            }
            ServingEvent::Reply(Box::new(ServingReply {
                rid,
                text,
                nfe: 3,
                finish_reason,
                full_text: String::new(),
                full_token_ids: token_ids.clone(),
                engine_decode_time_s: 0.5,
                engine_decode_tokens: token_ids.len() as u32,
                token_ids,
                engine_decode_tps: None,
                finished: true,
                prompt_tokens: 4,
                given_tokens: (seed % 3) as u32,
                cached_tokens: 0,
                nfe_counts: Default::default(),
                queue_time_s: 0.25,
                confidences: Vec::new(),
                alternatives: if seed % 5 == 0 { vec![vec![(7, 0.5)], Vec::new()] } else { Vec::new() },
                end_token: (seed % 3 == 0).then_some((3, 0.5)),
                prompt_scores: (seed % 7 == 0)
                    .then(|| crate::PromptScores { log_probabilities: vec![-0.5], ..Default::default() }),
                seed: Some(seed).filter(|seed| seed % 2 == 0),
                preemptions: 0,
                context: (seed % 3 == 0).then_some(HeldContext { held: 32, grows: true }),
                embedding: vec![0.25; (seed % 3) as usize],
            }))
        })
    }

    fn heartbeat() -> impl Strategy<Value = ServingEvent> {
        any::<u64>().prop_map(|steps| {
            let steps_per_block = Histogram::new(&[1.0, 2.0]);
            ServingEvent::Heartbeat { stats: Box::new(EngineStats { steps, steps_per_block, ..Default::default() }) }
        })
    }

    fn batch() -> impl Strategy<Value = EventBatch> {
        let events = vec(prop_oneof![delta(), snapshot(), end(), heartbeat()], 0..6);
        (any::<u64>(), events).prop_map(|(incarnation, events)| EventBatch { incarnation, events })
    }

    proptest! {
        #[test]
        fn our_own_batches_are_read_directly_and_alike(batch in batch()) {
            let bytes = encode_batch(&batch).unwrap();
            let direct = read_batch(&bytes);
            prop_assert_eq!(direct.as_ref(), Some(&batch));
            prop_assert_eq!(decode_batch_plain(&bytes).unwrap(), batch);
        }

        #[test]
        fn what_is_damaged_reads_as_it_does_plainly(
            batch in batch(),
            damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..3),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = encode_batch(&batch).unwrap();
            prop_assert!(read_batch(&bytes[..cut.index(bytes.len())]).is_none());
            bytes.push(0xc0);
            prop_assert!(read_batch(&bytes).is_none());
            bytes.pop();
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(direct) = read_batch(&bytes) {
                let plain = decode_batch_plain(&bytes).unwrap();
                // Written out, so that a NaN equals itself.
                prop_assert_eq!(encode_batch(&direct).unwrap(), encode_batch(&plain).unwrap());
            }
        }
    }

    #[test]
    fn events_whose_type_comes_later_are_read_too() {
        let event = serde_json::json!({"rid": "r", "seq": 3, "text": "x", "type": "delta"});
        let batch = serde_json::json!({"events": [event], "incarnation": 2, "type": "batch"});
        let bytes = rmp_serde::to_vec_named(&batch).unwrap();
        assert!(read_batch(&bytes).is_none());
        let delta = ServingDelta { rid: "r".to_owned(), seq: 3, text: "x".to_owned(), ..Default::default() };
        let want = EventBatch { incarnation: 2, events: vec![ServingEvent::Delta(delta)] };
        assert_eq!(decode_batch(&bytes).unwrap(), want);
    }
}
