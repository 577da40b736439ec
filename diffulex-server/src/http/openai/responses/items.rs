//! Items of a response: messages, and calls of functions.
//!
//! Without tools there is one message, which is open from the start. With tools an item begins with its first text or call.

use diffulex_protocol::ServingReply;
use serde::Serialize;

use super::head::Head;
use super::numbered::Numbered;
use crate::http::answer::parts::TokenLogprob;
use crate::http::answer::sse::{EventHead, Frames};
use crate::http::tools::calls::{Call, CallReader, Part, Piece};

/// The beginning of a call's id.
const ID_PREFIX: &str = "call_";

/// Where events go.
type Out<'a, 'b> = (&'a mut Numbered, &'b mut Frames);

/// An item of an answer.
pub(super) struct Item {
    id: String,
    content: Content,
}

enum Content {
    Message(String),
    Call(Call),
}

/// An item as it is written.
#[derive(Serialize)]
pub(super) struct ItemObject<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    status: &'static str,
    #[serde(flatten)]
    rest: Rest<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Rest<'a> {
    Message { role: &'static str, content: Vec<TextPart<'a>> },
    Call { call_id: &'a str, name: &'a str, arguments: &'a str },
}

#[derive(Serialize)]
struct TextPart<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
    annotations: [(); 0],
    logprobs: &'a [TokenLogprob],
}

impl<'a> TextPart<'a> {
    fn of(text: &'a str, logprobs: &'a [TokenLogprob]) -> Self {
        Self { kind: "output_text", text, annotations: [], logprobs }
    }
}

impl Item {
    fn new(rid: &str, index: usize, content: Content) -> Self {
        let kind = match content {
            Content::Message(_) => "msg",
            Content::Call(_) => "fc",
        };
        let id = if index == 0 { format!("{kind}_{rid}") } else { format!("{kind}_{rid}_{index}") };
        Self { id, content }
    }

    /// The item as it is written.
    pub(super) fn object<'a>(&'a self, status: &'static str, logprobs: &'a [TokenLogprob]) -> ItemObject<'a> {
        let (kind, rest) = match &self.content {
            Content::Message(text) => {
                ("message", Rest::Message { role: "assistant", content: vec![TextPart::of(text, logprobs)] })
            }
            Content::Call(Call { id, name, arguments, .. }) => {
                ("function_call", Rest::Call { call_id: id, name, arguments })
            }
        };
        ItemObject { id: &self.id, kind, status, rest }
    }

    /// The item before anything is in it.
    fn begun(&self) -> ItemObject<'_> {
        let object = self.object("in_progress", &[]);
        match object.rest {
            Rest::Message { role, .. } => ItemObject { rest: Rest::Message { role, content: Vec::new() }, ..object },
            Rest::Call { .. } => object,
        }
    }
}

/// The items of `reply`.
pub(super) fn of_reply(head: &Head, reply: &ServingReply) -> Vec<Item> {
    let parts = head.calls.as_ref().map(|form| form.parts(&reply.text, ID_PREFIX)).unwrap_or_default();
    if parts.is_empty() {
        return vec![Item::new(&head.rid, 0, Content::Message(reply.text.clone()))];
    }
    let content = |part| match part {
        Part::Text(text) => Content::Message(text),
        Part::Call(call) => Content::Call(call),
    };
    parts.into_iter().enumerate().map(|(index, part)| Item::new(&head.rid, index, content(part))).collect()
}

/// The items of a stream, and their events.
pub(super) struct Items {
    rid: String,
    /// Where tools are offered.
    reader: Option<CallReader>,
    /// In order; the last one may be open.
    all: Vec<Item>,
    is_open: bool,
    /// Deltas of the open item.
    delta: EventHead,
}

impl Items {
    /// None yet.
    pub(super) fn new(head: &Head) -> Self {
        let reader = head.calls.as_ref().map(|form| form.reader(ID_PREFIX));
        let delta = EventHead::new("response.output_text.delta", |_| ());
        Self { rid: head.rid.clone(), reader, all: Vec::new(), is_open: false, delta }
    }

    /// Those that have begun.
    pub(super) fn all(&self) -> &[Item] {
        &self.all
    }

    /// Before anything is written.
    pub(super) fn open(&mut self, out: &mut Out<'_, '_>) {
        if self.reader.is_none() {
            self.begin(Content::Message(String::new()), "completed", out);
        }
    }

    /// The next text of the answer, with the log-probabilities of its tokens.
    pub(super) fn text(&mut self, text: &str, logprobs: &[TokenLogprob], out: &mut Out<'_, '_>) {
        match &mut self.reader {
            None => {
                // Text held back (an incomplete character, a possible stop string) comes with a later event.
                if !text.is_empty() || !logprobs.is_empty() {
                    self.delta(text, logprobs, out);
                }
            }
            Some(reader) => {
                let pieces = reader.push(text);
                self.pieces(pieces, logprobs, out);
            }
        }
    }

    /// Writes what comes before a snapshot with `text`. The text that the snapshot's own delta has.
    pub(super) fn before_snapshot<'a>(&mut self, text: &'a str, out: &mut Out<'_, '_>) -> &'a str {
        if self.reader.is_none() {
            return text;
        }
        self.text(text, &[], out);
        ""
    }

    /// The beginning of deltas of the open item, and whether it is a message.
    pub(super) fn delta_head(&self) -> Option<(&EventHead, bool)> {
        let last = self.all.last().filter(|_| self.is_open)?;
        Some((&self.delta, matches!(last.content, Content::Message(_))))
    }

    /// The end of the answer.
    pub(super) fn finish(
        &mut self,
        reply: &ServingReply,
        status: &'static str,
        logprobs: &[TokenLogprob],
        out: &mut Out<'_, '_>,
    ) {
        match &mut self.reader {
            None => {
                // Without tools nothing is gathered on the way.
                if let Some(Item { content: Content::Message(text), .. }) = self.all.last_mut() {
                    text.clone_from(&reply.text);
                }
            }
            Some(reader) => {
                let pieces = reader.finish();
                self.pieces(pieces, &[], out);
                if self.all.is_empty() {
                    self.begin(Content::Message(String::new()), "completed", out);
                }
            }
        }
        let logprobs = if self.all.len() == 1 { logprobs } else { &[] };
        self.end(status, logprobs, out);
    }

    fn pieces(&mut self, pieces: Vec<Piece>, logprobs: &[TokenLogprob], out: &mut Out<'_, '_>) {
        let mut logprobs = Some(logprobs);
        for piece in pieces {
            match piece {
                Piece::Text(more) => {
                    if !matches!(self.delta_head(), Some((_, true))) {
                        self.begin(Content::Message(String::new()), "completed", out);
                    }
                    self.delta(&more, logprobs.take().unwrap_or_default(), out);
                    if let Some(Item { content: Content::Message(text), .. }) = self.all.last_mut() {
                        text.push_str(&more);
                    }
                }
                Piece::Begin(call) => self.begin(Content::Call(call), "completed", out),
                Piece::Arguments(more) => {
                    out.0.push_delta(&self.delta, out.1, |fields| fields.add("delta", &more));
                    if let Some(Item { content: Content::Call(call), .. }) = self.all.last_mut() {
                        call.arguments.push_str(&more);
                    }
                }
                Piece::End => self.end("completed", &[], out),
            }
        }
    }

    /// Begins an item, which ends the one before with `status`.
    fn begin(&mut self, content: Content, status: &'static str, out: &mut Out<'_, '_>) {
        self.end(status, &[], out);
        let index = self.all.len();
        let item = Item::new(&self.rid, index, content);
        let (name, is_message) = match &item.content {
            Content::Message(_) => ("response.output_text.delta", true),
            Content::Call(_) => ("response.function_call_arguments.delta", false),
        };
        self.delta = EventHead::new(name, |fields| {
            fields.add("item_id", &item.id);
            fields.add("output_index", &index);
            if is_message {
                fields.add("content_index", &0);
            }
        });
        out.0.push("response.output_item.added", out.1, |fields| {
            fields.add("output_index", &index);
            fields.add("item", &item.begun());
        });
        if is_message {
            out.0.push("response.content_part.added", out.1, |fields| {
                fields.add("item_id", &item.id);
                fields.add("output_index", &index);
                fields.add("content_index", &0);
                fields.add("part", &TextPart::of("", &[]));
            });
        }
        self.all.push(item);
        self.is_open = true;
    }

    fn delta(&self, text: &str, logprobs: &[TokenLogprob], out: &mut Out<'_, '_>) {
        out.0.push_delta(&self.delta, out.1, |fields| {
            fields.add("delta", text);
            fields.add("logprobs", logprobs);
        });
    }

    /// Ends the open item, if there is one.
    fn end(&mut self, status: &'static str, logprobs: &[TokenLogprob], out: &mut Out<'_, '_>) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let index = self.all.len() - 1;
        let item = &self.all[index];
        match &item.content {
            Content::Message(text) => {
                out.0.push("response.output_text.done", out.1, |fields| {
                    fields.add("item_id", &item.id);
                    fields.add("output_index", &index);
                    fields.add("content_index", &0);
                    fields.add("text", text);
                    fields.add("logprobs", logprobs);
                });
                out.0.push("response.content_part.done", out.1, |fields| {
                    fields.add("item_id", &item.id);
                    fields.add("output_index", &index);
                    fields.add("content_index", &0);
                    fields.add("part", &TextPart::of(text, logprobs));
                });
            }
            Content::Call(call) => out.0.push("response.function_call_arguments.done", out.1, |fields| {
                fields.add("item_id", &item.id);
                fields.add("output_index", &index);
                fields.add("name", &call.name);
                fields.add("arguments", &call.arguments);
            }),
        }
        out.0.push("response.output_item.done", out.1, |fields| {
            fields.add("output_index", &index);
            fields.add("item", &item.object(status, logprobs));
        });
    }
}
