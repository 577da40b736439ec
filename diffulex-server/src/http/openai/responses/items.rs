//! Items of a response: thoughts, messages, and calls of functions.
//!
//! Where an answer is text alone there is one message, which is open from the start. Otherwise an item begins with its first part.

use diffulex_protocol::ServingReply;
use serde::Serialize;

use super::head::Head;
use super::numbered::Numbered;
use crate::http::answer::parts::{Fields, TokenLogprob};
use crate::http::answer::sse::{EventHead, Frames};
use crate::http::content::part::{Call, Part, Piece};
use crate::http::content::reader::ContentReader;

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
    Thoughts(String),
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
    /// OpenAI's summaries are of thoughts that it does not show.
    Thoughts {
        summary: [(); 0],
        content: Vec<ThoughtPart<'a>>,
    },
    Message {
        role: &'static str,
        content: Vec<TextPart<'a>>,
    },
    Call {
        call_id: &'a str,
        name: &'a str,
        arguments: &'a str,
    },
}

#[derive(Serialize)]
struct ThoughtPart<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
}

impl<'a> ThoughtPart<'a> {
    fn of(text: &'a str) -> Self {
        Self { kind: "reasoning_text", text }
    }
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
            Content::Thoughts(_) => "rs",
            Content::Message(_) => "msg",
            Content::Call(_) => "fc",
        };
        let id = if index == 0 { format!("{kind}_{rid}") } else { format!("{kind}_{rid}_{index}") };
        Self { id, content }
    }

    /// The item as it is written.
    pub(super) fn object<'a>(&'a self, status: &'static str, logprobs: &'a [TokenLogprob]) -> ItemObject<'a> {
        let (kind, rest) = match &self.content {
            Content::Thoughts(text) => {
                ("reasoning", Rest::Thoughts { summary: [], content: vec![ThoughtPart::of(text)] })
            }
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
            Rest::Thoughts { summary, .. } => {
                ItemObject { rest: Rest::Thoughts { summary, content: Vec::new() }, ..object }
            }
            Rest::Call { .. } => object,
        }
    }
}

/// The items of `reply`.
pub(super) fn of_reply(head: &Head, reply: &ServingReply) -> Vec<Item> {
    let mut parts = head.content.parts(&reply.text, ID_PREFIX).0;
    if parts.is_empty() {
        parts.push(Part::Text(String::new()));
    }
    let content = |part| match part {
        Part::Thought(text) => Content::Thoughts(text),
        Part::Text(text) => Content::Message(text),
        Part::Call(call) => Content::Call(call),
    };
    parts.into_iter().enumerate().map(|(index, part)| Item::new(&head.rid, index, content(part))).collect()
}

/// The items of a stream, and their events.
pub(super) struct Items {
    rid: String,
    reader: ContentReader,
    /// Nothing but text can come.
    is_text_alone: bool,
    /// In order; the last one may be open.
    all: Vec<Item>,
    is_open: bool,
    /// Probabilities of text that is held back, before any item has begun.
    held_logprobs: Vec<TokenLogprob>,
    /// Deltas of the open item.
    delta: EventHead,
}

impl Items {
    /// None yet.
    pub(super) fn new(head: &Head) -> Self {
        Self {
            rid: head.rid.clone(),
            reader: head.content.reader(ID_PREFIX),
            is_text_alone: head.content.is_text_alone(),
            all: Vec::new(),
            is_open: false,
            held_logprobs: Vec::new(),
            delta: EventHead::new("response.output_text.delta", |_| ()),
        }
    }

    /// Those that have begun.
    pub(super) fn all(&self) -> &[Item] {
        &self.all
    }

    /// Before anything is written.
    pub(super) fn open(&mut self, out: &mut Out<'_, '_>) {
        if self.is_text_alone {
            self.begin(Content::Message(String::new()), "completed", out);
        }
    }

    /// The next text of the answer, with the log-probabilities of its tokens.
    pub(super) fn text(&mut self, text: &str, logprobs: &[TokenLogprob], out: &mut Out<'_, '_>) {
        let pieces = self.reader.push(text);
        self.pieces(pieces, logprobs, out);
    }

    /// Writes what comes before a snapshot with `text` and `logprobs`. The text and the log-probabilities that the snapshot's own delta
    /// has.
    pub(super) fn before_snapshot(
        &mut self,
        text: &str,
        logprobs: Vec<TokenLogprob>,
        out: &mut Out<'_, '_>,
    ) -> (String, Vec<TokenLogprob>) {
        let mut pieces = self.reader.push(text);
        let own = pieces.pop_if(|piece| matches!(piece, Piece::Text(_)));
        self.pieces(pieces, &[], out);
        if let Some(Piece::Text(text)) = own {
            self.begin_message(out);
            self.grow(&text);
            return (text, [std::mem::take(&mut self.held_logprobs), logprobs].concat());
        }
        if self.all.is_empty() {
            self.held_logprobs.extend(logprobs);
            return (String::new(), Vec::new());
        }
        (String::new(), logprobs)
    }

    /// The beginning of deltas of the open item, and whether it is a message.
    pub(super) fn delta_head(&self) -> Option<(&EventHead, bool)> {
        self.open_content().map(|content| (&self.delta, matches!(content, Content::Message(_))))
    }

    /// The end of the answer.
    pub(super) fn finish(&mut self, status: &'static str, logprobs: &[TokenLogprob], out: &mut Out<'_, '_>) {
        let pieces = self.reader.finish();
        self.pieces(pieces, &[], out);
        if self.all.is_empty() {
            self.begin(Content::Message(String::new()), "completed", out);
        }
        let logprobs = if self.all.len() == 1 { logprobs } else { &[] };
        self.end(status, logprobs, out);
    }

    fn pieces(&mut self, pieces: Vec<Piece>, logprobs: &[TokenLogprob], out: &mut Out<'_, '_>) {
        let mut logprobs = logprobs;
        for piece in pieces {
            match piece {
                Piece::Thought(more) => {
                    if !matches!(self.open_content(), Some(Content::Thoughts(_))) {
                        self.begin(Content::Thoughts(String::new()), "completed", out);
                    }
                    self.delta(&more, &[], out);
                }
                Piece::Text(more) => {
                    self.begin_message(out);
                    let held = std::mem::take(&mut self.held_logprobs);
                    self.delta(&more, &[held.as_slice(), std::mem::take(&mut logprobs)].concat(), out);
                }
                Piece::Begin(call) => self.begin(Content::Call(call), "completed", out),
                Piece::Arguments(more) => self.delta(&more, &[], out),
                Piece::End => self.end("completed", &[], out),
            }
        }
        // Probabilities come before their text where that is held back.
        if logprobs.is_empty() {
            return;
        }
        match self.open_content() {
            Some(Content::Message(_)) => self.delta("", logprobs, out),
            None if self.all.is_empty() => self.held_logprobs.extend_from_slice(logprobs),
            Some(_) | None => {}
        }
    }

    /// Adds to the open item.
    fn delta(&mut self, more: &str, logprobs: &[TokenLogprob], out: &mut Out<'_, '_>) {
        let is_message = matches!(self.open_content(), Some(Content::Message(_)));
        out.0.push_delta(&self.delta, out.1, |fields| {
            fields.add("delta", more);
            if is_message {
                fields.add("logprobs", logprobs);
            }
        });
        self.grow(more);
    }

    /// Adds to the open item what is written already.
    fn grow(&mut self, more: &str) {
        match self.all.last_mut().map(|item| &mut item.content) {
            Some(Content::Thoughts(text) | Content::Message(text) | Content::Call(Call { arguments: text, .. })) => {
                text.push_str(more);
            }
            None => {}
        }
    }

    fn open_content(&self) -> Option<&Content> {
        self.all.last().filter(|_| self.is_open).map(|item| &item.content)
    }

    /// Begins a message, unless one is open.
    fn begin_message(&mut self, out: &mut Out<'_, '_>) {
        if !matches!(self.open_content(), Some(Content::Message(_))) {
            self.begin(Content::Message(String::new()), "completed", out);
        }
    }

    /// Begins an item, which ends the one before with `status`.
    fn begin(&mut self, content: Content, status: &'static str, out: &mut Out<'_, '_>) {
        self.end(status, &[], out);
        if !matches!(content, Content::Message(_)) {
            self.held_logprobs.clear();
        }
        let index = self.all.len();
        let item = Item::new(&self.rid, index, content);
        let (name, has_parts) = match &item.content {
            Content::Thoughts(_) => ("response.reasoning_text.delta", true),
            Content::Message(_) => ("response.output_text.delta", true),
            Content::Call(_) => ("response.function_call_arguments.delta", false),
        };
        self.delta = EventHead::new(name, |fields| {
            fields.add("item_id", &item.id);
            fields.add("output_index", &index);
            if has_parts {
                fields.add("content_index", &0);
            }
        });
        out.0.push("response.output_item.added", out.1, |fields| {
            fields.add("output_index", &index);
            fields.add("item", &item.begun());
        });
        let part = |out: &mut Out<'_, '_>, part: &dyn Fn(&mut Fields<'_>)| {
            out.0.push("response.content_part.added", out.1, |fields| {
                fields.add("item_id", &item.id);
                fields.add("output_index", &index);
                fields.add("content_index", &0);
                part(fields);
            });
        };
        match &item.content {
            Content::Thoughts(_) => part(out, &|fields| fields.add("part", &ThoughtPart::of(""))),
            Content::Message(_) => part(out, &|fields| fields.add("part", &TextPart::of("", &[]))),
            Content::Call(_) => {}
        }
        self.all.push(item);
        self.is_open = true;
    }

    /// Ends the open item, if there is one.
    fn end(&mut self, status: &'static str, logprobs: &[TokenLogprob], out: &mut Out<'_, '_>) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let index = self.all.len() - 1;
        let item = &self.all[index];
        let place = |fields: &mut Fields<'_>| {
            fields.add("item_id", &item.id);
            fields.add("output_index", &index);
        };
        match &item.content {
            Content::Thoughts(text) => {
                out.0.push("response.reasoning_text.done", out.1, |fields| {
                    place(fields);
                    fields.add("content_index", &0);
                    fields.add("text", text);
                });
                out.0.push("response.content_part.done", out.1, |fields| {
                    place(fields);
                    fields.add("content_index", &0);
                    fields.add("part", &ThoughtPart::of(text));
                });
            }
            Content::Message(text) => {
                out.0.push("response.output_text.done", out.1, |fields| {
                    place(fields);
                    fields.add("content_index", &0);
                    fields.add("text", text);
                    fields.add("logprobs", logprobs);
                });
                out.0.push("response.content_part.done", out.1, |fields| {
                    place(fields);
                    fields.add("content_index", &0);
                    fields.add("part", &TextPart::of(text, logprobs));
                });
            }
            Content::Call(call) => out.0.push("response.function_call_arguments.done", out.1, |fields| {
                place(fields);
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
