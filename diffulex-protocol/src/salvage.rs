//! A batch of events of which some cannot be read: the others, and an end for each request that one of them names.
//!
//! A worker of another version may send what this side does not know. What is lost with such an event is part of one
//! answer, so that the request it belongs to ends with an error, and nothing else does. Never here: whole batches.

use serde::de::IgnoredAny;

use crate::codec::{self, MAX_FRAME_BYTES};
use crate::{ErrorCode, EventBatch, ServingError, ServingEvent};

/// The rest of a damaged batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Salvaged {
    /// Its readable events, and in the place of each other that names a request an error.
    pub batch: EventBatch,
    /// The requests of those errors.
    pub ended: Vec<String>,
    /// Events that cannot be read.
    pub n_unreadable: u64,
    /// Why the first of them cannot.
    pub reason: String,
}

/// Reads what can be read of a frame that [`codec::decode_batch`] refuses; `None` where not even its outlines are those of a
/// batch.
pub fn salvage(bytes: &[u8]) -> Option<Salvaged> {
    if bytes.len() > MAX_FRAME_BYTES {
        return None;
    }
    let (incarnation, events) = outlines(bytes)?;
    let batch = EventBatch { incarnation, events: Vec::with_capacity(events.len()) };
    let mut salvaged = Salvaged { batch, ended: Vec::new(), n_unreadable: 0, reason: String::new() };
    for event in events {
        salvaged.add(event);
    }
    Some(salvaged)
}

impl Salvaged {
    fn add(&mut self, bytes: &[u8]) {
        let reason = match codec::decode::<ServingEvent>(bytes) {
            Ok(event) => return self.batch.events.push(event),
            Err(error) => error.to_string(),
        };
        if let Some((_, rid)) = codec::heading(bytes) {
            let message = format!("an event of the worker about this request cannot be read: {reason}");
            self.batch.events.push(ServingEvent::Error(ServingError::new(
                rid.as_str(),
                ErrorCode::EngineFailed,
                message.as_str(),
            )));
            self.ended.push(rid);
        }
        if self.n_unreadable == 0 {
            self.reason = reason;
        }
        self.n_unreadable += 1;
    }
}

/// The incarnation of a batch, and the bytes of each of its events.
fn outlines(mut rest: &[u8]) -> Option<(u64, Vec<&[u8]>)> {
    let (mut incarnation, mut events) = (None, None);
    for _ in 0..rmp::decode::read_map_len(&mut rest).ok()? {
        match codec::next::<String>(&mut rest)?.as_str() {
            codec::INCARNATION => incarnation = codec::next(&mut rest),
            codec::EVENTS => {
                let n_events = rmp::decode::read_array_len(&mut rest).ok()?;
                events = (0..n_events).map(|_| outline(&mut rest)).collect::<Option<_>>();
            }
            _ => drop(codec::next::<IgnoredAny>(&mut rest)?),
        }
    }
    incarnation.zip(events).filter(|_| rest.is_empty())
}

/// The bytes of the next value.
fn outline<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let bytes = *rest;
    codec::next::<IgnoredAny>(rest)?;
    bytes.get(..bytes.len() - rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EngineStats, FinishReason, ServingReply};

    fn reply(rid: &str) -> ServingEvent {
        ServingEvent::Reply(Box::new(ServingReply::new(rid, FinishReason::EosTokenGenerated)))
    }

    /// The frame of `events` in which the first `text` begins with another letter.
    fn damaged(events: Vec<ServingEvent>, text: &str) -> Vec<u8> {
        let mut bytes = codec::encode_batch(&EventBatch { incarnation: 7, events }).expect("encodes");
        let at = bytes.windows(text.len()).position(|window| window == text.as_bytes()).expect("it is there");
        bytes[at] = b'X';
        bytes
    }

    #[test]
    fn an_event_that_cannot_be_read_is_an_error_of_its_request() {
        let bytes = damaged(vec![reply("one"), reply("two")], "eos_token_generated");
        assert!(codec::decode_batch(&bytes).is_err());
        let salvaged = salvage(&bytes).expect("outlines");
        let [ServingEvent::Error(error), rest] = &salvaged.batch.events[..] else { panic!("{salvaged:?}") };
        assert_eq!((error.rid.as_str(), error.code), ("one", ErrorCode::EngineFailed));
        assert!(error.message.contains("Xos_token_generated"), "{}", error.message);
        assert_eq!((rest, salvaged.batch.incarnation), (&reply("two"), 7));
        assert_eq!((salvaged.ended.as_slice(), salvaged.n_unreadable), (["one".to_owned()].as_slice(), 1));
    }

    #[test]
    fn an_event_that_names_no_request_is_counted_and_left_out() {
        let heartbeat = ServingEvent::Heartbeat { stats: Box::new(EngineStats::default()) };
        let salvaged = salvage(&damaged(vec![heartbeat, reply("two")], "heartbeat")).expect("outlines");
        assert_eq!((salvaged.batch.events.as_slice(), salvaged.n_unreadable), ([reply("two")].as_slice(), 1));
        assert!(salvaged.ended.is_empty());
    }

    #[test]
    fn what_is_no_batch_is_left_alone() {
        let bytes = damaged(vec![reply("one")], "incarnation");
        assert_eq!(salvage(&bytes), None);
        let whole = codec::encode_batch(&EventBatch { incarnation: 7, events: vec![reply("one")] }).expect("encodes");
        for end in 0..whole.len() {
            assert_eq!(salvage(&whole[..end]), None, "{end}");
        }
    }
}
