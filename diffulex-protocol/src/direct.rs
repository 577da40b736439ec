//! Event batches read without a detour, where they are laid out as our own worker writes them.
//!
//! serde reads a map tagged by a key inside it by keeping a copy of all of it, because the tag may come last; of a
//! snapshot that is some hundred values. Here the events of which there are many are read straight into their structs,
//! key by key in the order they are declared in. An event of any other kind or layout (another version's, Diffulex's own)
//! is left to serde, so that what this module reads, serde reads alike. Never here: errors, limits.

use compact_str::CompactString;
use serde::Deserialize;

use crate::{EventBatch, FinishReason, NfeCounts, ServingBufferSnapshot, ServingDelta, ServingEvent, ServingReply};

/// Deepest nesting of an event that is left to serde: two less than a batch's, which lies around it.
const MAX_EVENT_DEPTH: usize = super::codec::MAX_DEPTH - 2;

/// Items a list has room for at once, whatever its length says. Chosen by us: several windows.
const MAX_ROOM: usize = 1024;

/// A batch; `None` where it is not laid out as ours, or not the whole of `bytes`.
pub(crate) fn read_batch(bytes: &[u8]) -> Option<EventBatch> {
    let mut cursor = Cursor { rest: bytes };
    let mut fields = Fields::open(&mut cursor)?;
    if fields.field::<&str>("type")? != "batch" {
        return None;
    }
    let batch = EventBatch { incarnation: fields.field("incarnation")?, events: fields.field("events")? };
    fields.close()?;
    cursor.rest.is_empty().then_some(batch)
}

/// Bytes that are still to be read.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    rest: &'a [u8],
}

/// A value as it stands in MessagePack, in the forms that our own side writes.
trait Read<'a>: Sized {
    /// `None` where something else stands there.
    fn read(cursor: &mut Cursor<'a>) -> Option<Self>;
}

/// A map whose keys are read in order.
struct Fields<'c, 'a> {
    cursor: &'c mut Cursor<'a>,
    n_left: usize,
}

impl<'c, 'a> Fields<'c, 'a> {
    fn open(cursor: &'c mut Cursor<'a>) -> Option<Self> {
        let n_left = cursor.length(0x80, None, 0xde)?;
        Some(Self { cursor, n_left })
    }

    /// The value of the next key, which is to be `name`.
    fn field<T: Read<'a>>(&mut self, name: &str) -> Option<T> {
        let mut ahead = *self.cursor;
        if self.n_left == 0 || ahead.text_bytes()? != name.as_bytes() {
            return None;
        }
        *self.cursor = ahead;
        self.n_left -= 1;
        T::read(self.cursor)
    }

    /// The value of the next key if that is `name`, otherwise the default: a key that is left out where it says nothing.
    fn field_or_default<T: Read<'a> + Default>(&mut self, name: &str) -> Option<T> {
        let is_there = self.n_left > 0 && Cursor { ..*self.cursor }.text_bytes()? == name.as_bytes();
        if is_there { self.field(name) } else { Some(T::default()) }
    }

    fn close(self) -> Option<()> {
        (self.n_left == 0).then_some(())
    }
}

impl<'a> Cursor<'a> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    /// The length of a list, map (`fixed` + at most 15) or text (+ at most 31): in its first byte, or in the one byte
    /// after `in_u8`, the two after `in_u16`, the four after the byte that follows that.
    fn length(&mut self, fixed: u8, in_u8: Option<u8>, in_u16: u8) -> Option<usize> {
        let n_fixed = if in_u8.is_some() { 32 } else { 16 };
        let first = self.byte()?;
        if (fixed..fixed + n_fixed).contains(&first) {
            Some(usize::from(first - fixed))
        } else if Some(first) == in_u8 {
            self.byte().map(usize::from)
        } else if first == in_u16 {
            self.bytes().map(|bytes| usize::from(u16::from_be_bytes(bytes)))
        } else if first == in_u16 + 1 {
            self.bytes().map(|bytes| u32::from_be_bytes(bytes) as usize)
        } else {
            None
        }
    }

    fn text_bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.length(0xa0, Some(0xd9), 0xda)?;
        let (text, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(text)
    }
}

impl<'a> Read<'a> for &'a str {
    fn read(cursor: &mut Cursor<'a>) -> Option<Self> {
        std::str::from_utf8(cursor.text_bytes()?).ok()
    }
}

impl Read<'_> for String {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        <&str>::read(cursor).map(Self::from)
    }
}

impl Read<'_> for CompactString {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        <&str>::read(cursor).map(Self::from)
    }
}

impl Read<'_> for u64 {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        match cursor.byte()? {
            small @ 0..0x80 => Some(small.into()),
            0xcc => cursor.byte().map(Self::from),
            0xcd => cursor.bytes().map(|bytes| u16::from_be_bytes(bytes).into()),
            0xce => cursor.bytes().map(|bytes| u32::from_be_bytes(bytes).into()),
            0xcf => cursor.bytes().map(Self::from_be_bytes),
            _ => None,
        }
    }
}

impl Read<'_> for u32 {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        u64::read(cursor)?.try_into().ok()
    }
}

impl Read<'_> for f32 {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        (cursor.byte()? == 0xca).then_some(())?;
        cursor.bytes().map(Self::from_be_bytes)
    }
}

impl Read<'_> for f64 {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        (cursor.byte()? == 0xcb).then_some(())?;
        cursor.bytes().map(Self::from_be_bytes)
    }
}

impl Read<'_> for bool {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        match cursor.byte()? {
            0xc2 => Some(false),
            0xc3 => Some(true),
            _ => None,
        }
    }
}

impl<'a, T: Read<'a>> Read<'a> for Option<T> {
    fn read(cursor: &mut Cursor<'a>) -> Option<Self> {
        match cursor.rest.split_first()? {
            (0xc0, rest) => {
                cursor.rest = rest;
                Some(None)
            }
            _ => T::read(cursor).map(Some),
        }
    }
}

impl<'a, T: Read<'a>> Read<'a> for Vec<T> {
    fn read(cursor: &mut Cursor<'a>) -> Option<Self> {
        let length = cursor.length(0x90, None, 0xdc)?;
        let mut items = Self::with_capacity(length.min(MAX_ROOM));
        for _ in 0..length {
            items.push(T::read(cursor)?);
        }
        Some(items)
    }
}

impl Read<'_> for FinishReason {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        let name: serde::de::value::StrDeserializer<'_, serde::de::value::Error> =
            serde::de::IntoDeserializer::into_deserializer(<&str>::read(cursor)?);
        Self::deserialize(name).ok()
    }
}

impl Read<'_> for NfeCounts {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        let mut fields = Fields::open(cursor)?;
        let counts = Self {
            denoise: fields.field("denoise")?,
            prefill: fields.field("prefill")?,
            commit: fields.field("commit")?,
            rebuild: fields.field("rebuild")?,
        };
        fields.close().map(|()| counts)
    }
}

impl Read<'_> for ServingEvent {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        let mut ahead = *cursor;
        if let Some(event) = read_event(&mut ahead) {
            *cursor = ahead;
            return Some(event);
        }
        let mut reader = rmp_serde::Deserializer::new(&mut cursor.rest);
        reader.set_max_depth(MAX_EVENT_DEPTH);
        Self::deserialize(&mut reader).ok()
    }
}

fn read_event(cursor: &mut Cursor<'_>) -> Option<ServingEvent> {
    let mut fields = Fields::open(cursor)?;
    let event = match fields.field("type")? {
        "delta" => ServingEvent::Delta(read_delta(&mut fields)?),
        "buffer_snapshot" => ServingEvent::BufferSnapshot(Box::new(read_snapshot(&mut fields)?)),
        "reply" => ServingEvent::Reply(Box::new(read_reply(&mut fields)?)),
        _ => return None,
    };
    fields.close().map(|()| event)
}

fn read_delta(fields: &mut Fields<'_, '_>) -> Option<ServingDelta> {
    Some(ServingDelta {
        rid: fields.field("rid")?,
        token_offset: fields.field("token_offset")?,
        text: fields.field("text")?,
        token_ids: fields.field("token_ids")?,
        nfe: fields.field("nfe")?,
        finished: fields.field("finished")?,
        engine_decode_time_s: fields.field("engine_decode_time_s")?,
        engine_decode_tokens: fields.field("engine_decode_tokens")?,
        engine_decode_tps: fields.field("engine_decode_tps")?,
        seq: fields.field("seq")?,
        confidences: fields.field_or_default("confidences")?,
    })
}

fn read_snapshot(fields: &mut Fields<'_, '_>) -> Option<ServingBufferSnapshot> {
    Some(ServingBufferSnapshot {
        rid: fields.field("rid")?,
        token_offset: fields.field("token_offset")?,
        absolute_start: fields.field("absolute_start")?,
        absolute_end: fields.field("absolute_end")?,
        text: fields.field("text")?,
        token_ids: fields.field("token_ids")?,
        nfe: fields.field("nfe")?,
        finished: fields.field("finished")?,
        engine_decode_time_s: fields.field("engine_decode_time_s")?,
        engine_decode_tokens: fields.field("engine_decode_tokens")?,
        engine_decode_tps: fields.field("engine_decode_tps")?,
        seq: fields.field("seq")?,
        committed_len: fields.field("committed_len")?,
        committed_text: fields.field("committed_text")?,
        mask_positions: fields.field("mask_positions")?,
        pieces: fields.field("pieces")?,
        confidences: fields.field("confidences")?,
        block_size: fields.field("block_size")?,
    })
}

fn read_reply(fields: &mut Fields<'_, '_>) -> Option<ServingReply> {
    Some(ServingReply {
        rid: fields.field("rid")?,
        text: fields.field("text")?,
        token_ids: fields.field("token_ids")?,
        nfe: fields.field("nfe")?,
        finish_reason: fields.field("finish_reason")?,
        full_text: fields.field("full_text")?,
        full_token_ids: fields.field("full_token_ids")?,
        engine_decode_time_s: fields.field("engine_decode_time_s")?,
        engine_decode_tokens: fields.field("engine_decode_tokens")?,
        engine_decode_tps: fields.field("engine_decode_tps")?,
        finished: fields.field("finished")?,
        prompt_tokens: fields.field("prompt_tokens")?,
        given_tokens: fields.field_or_default("given_tokens")?,
        cached_tokens: fields.field("cached_tokens")?,
        nfe_counts: fields.field("nfe_counts")?,
        queue_time_s: fields.field("queue_time_s")?,
        confidences: fields.field_or_default("confidences")?,
        seed: fields.field_or_default("seed")?,
        preemptions: fields.field("preemptions")?,
    })
}
