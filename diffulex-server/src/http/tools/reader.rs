//! Calls in a text that comes in pieces.
//!
//! In: committed text, cut anywhere. Out: events, whose joined texts and arguments do not depend on the cuts. Text is held back while it may
//! belong to a call. What turns out not to be one is text again, byte for byte; white space and separators around calls are left out.
//! Never here: ids of calls.

mod cursor;
mod gemma;
mod parameters;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use self::cursor::{Cursor, Miss};
use super::definitions::Tool;
use super::forms::{Form, Notation};

/// Something read.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    /// Text outside of calls.
    Text(String),
    /// A call begins.
    Start {
        /// The tool.
        name: String,
    },
    /// A part of the JSON of its arguments.
    Arguments(String),
    /// It is complete. Missing where the text ends inside of it.
    End,
}

/// Reads calls of one answer.
#[derive(Debug)]
pub(super) struct Reader {
    form: &'static Form,
    /// Tools that are called. Other names are no calls.
    tools: Vec<Tool>,
    /// Names of those whose arguments are given while they are written, because nothing but a call can follow its beginning.
    kept: Vec<String>,
    /// Text that is not decided.
    held: String,
    state: State,
    /// Nothing but white space and separators came after a call.
    follows_call: bool,
    /// Where an object in `held` begins, and how far it is read.
    object: Option<(usize, Extent)>,
}

/// Place in the text.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Outside of calls.
    Text,
    /// After an item of a list.
    List,
    /// In the arguments of a call that has been begun.
    Arguments(Extent),
    /// After its arguments.
    Rest,
}

/// A call at the beginning of a text.
enum Found {
    /// All of it, with its arguments and its end.
    Whole(Written, usize),
    /// Its beginning, up to its arguments.
    Begun(String, usize),
}

struct Written {
    name: String,
    arguments: String,
}

impl Reader {
    pub(super) fn new(form: &'static Form, tools: Vec<Tool>, kept: Vec<String>) -> Self {
        Self { form, tools, kept, held: String::new(), state: State::Text, follows_call: false, object: None }
    }

    /// Reads on.
    pub(super) fn push(&mut self, text: &str) -> Vec<Event> {
        self.held.push_str(text);
        let mut events = Vec::new();
        while self.step(false, &mut events) {}
        events
    }

    /// Decides what is held back: the text is over.
    pub(super) fn finish(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while !self.held.is_empty() && self.step(true, &mut events) {}
        events
    }

    /// Reads one part. False if nothing can be decided before more text comes.
    fn step(&mut self, is_end: bool, events: &mut Vec<Event>) -> bool {
        match self.state {
            State::Text => self.text(is_end, events),
            State::List => self.list(is_end, events),
            State::Arguments(extent) => self.arguments(extent, events),
            State::Rest => self.rest(is_end),
        }
    }

    fn text(&mut self, is_end: bool, events: &mut Vec<Event>) -> bool {
        let candidate = self.candidate();
        let n_sure = self.text_before(candidate.unwrap_or(self.held.len()));
        if n_sure > 0 {
            self.give_text(n_sure, events);
        }
        let Some(at) = candidate.map(|at| at - n_sure) else {
            if !is_end || self.held.is_empty() {
                return false;
            }
            if self.follows_call && self.held.trim().is_empty() {
                self.drop_held(self.held.len());
            } else {
                self.give_text(self.held.len(), events);
            }
            return true;
        };
        match self.call(at, is_end) {
            Ok(found) => self.give_call(found, events),
            Err(Miss::Open) => return false,
            Err(Miss::Other) => {
                let first = self.held[at..].chars().next().map_or(0, char::len_utf8);
                self.give_text(at + first, events);
            }
        }
        true
    }

    /// After an item of a list: the next, or the end.
    fn list(&mut self, is_end: bool, events: &mut Vec<Event>) -> bool {
        let mut cursor = Cursor { text: &self.held, at: 0, is_end };
        cursor.skip_space();
        match cursor.literal("]") {
            Ok(()) => {
                let end = cursor.at;
                self.drop_held(end);
                self.state = State::Text;
                return true;
            }
            Err(Miss::Open) => return false,
            Err(Miss::Other) => {}
        }
        let next = match cursor.literal(",") {
            Ok(()) => {
                cursor.skip_space();
                let at = cursor.at;
                self.item(at, is_end)
            }
            Err(Miss::Open) => return false,
            Err(Miss::Other) => Err(Miss::Other),
        };
        match next {
            Ok(found) => self.give_call(found, events),
            Err(Miss::Open) => return false,
            // Something else has begun in the place of an item.
            Err(Miss::Other) => self.state = State::Text,
        }
        true
    }

    fn arguments(&mut self, mut extent: Extent, events: &mut Vec<Event>) -> bool {
        let end = extent.read(self.held.as_bytes());
        let n_bytes = end.unwrap_or(self.held.len());
        if n_bytes == 0 {
            return false;
        }
        events.push(Event::Arguments(self.held[..n_bytes].to_owned()));
        self.drop_held(n_bytes);
        self.state = State::Arguments(extent.from(0));
        if end.is_some() {
            events.push(Event::End);
            self.state = State::Rest;
        }
        true
    }

    /// After arguments that were given: the end of the object, and of the form.
    fn rest(&mut self, is_end: bool) -> bool {
        let mut cursor = Cursor { text: &self.held, at: 0, is_end };
        let mut end = || {
            cursor.skip_space();
            // White space before nothing is text.
            let has_closing = !self.form.is_list && !self.form.closing.is_empty();
            let closing = |cursor: &mut Cursor<'_>| cursor.token(self.form.closing);
            cursor.literal("}").and_then(|()| if has_closing { closing(&mut cursor) } else { Ok(()) })
        };
        match end() {
            Err(Miss::Open) => return false,
            Ok(()) => {
                let end = cursor.at;
                self.state = if self.form.is_list { State::List } else { State::Text };
                self.drop_held(end);
            }
            // An answer that was cut, or one that is not as it was promised.
            Err(Miss::Other) => {
                self.state = State::Text;
                let is_cut = is_end && format!("}}{}", self.form.closing).starts_with(&without_space(&self.held));
                if is_cut {
                    self.drop_held(self.held.len());
                }
            }
        }
        true
    }

    /// Where the next call may begin.
    fn candidate(&self) -> Option<usize> {
        let Form { opening, opening_may_miss, is_list, .. } = *self.form;
        let bare = if is_list { '[' } else { '{' };
        let may_begin = |(at, character): &(usize, char)| {
            let rest = &self.held[*at..];
            opening_may_miss && *character == bare || rest.starts_with(opening) || opening.starts_with(rest)
        };
        self.held.char_indices().find(may_begin).map(|(at, _)| at)
    }

    /// Bytes before `end` that are text whatever follows: all but white space at the end, and the separator right after a call.
    fn text_before(&self, end: usize) -> usize {
        let before = &self.held[..end];
        let separator = self.form.separator.trim();
        let is_between = self.follows_call && [separator, ""].contains(&before.trim());
        if is_between { 0 } else { before.trim_end().len() }
    }

    /// The call that begins at `at` of what is held.
    fn call(&mut self, at: usize, is_end: bool) -> Result<Found, Miss> {
        let form = self.form;
        let mut cursor = Cursor { text: &self.held, at, is_end };
        if cursor.takes(form.opening)? {
            cursor.skip_space();
        } else if !form.opening_may_miss {
            return Err(Miss::Other);
        }
        if form.is_list {
            cursor.literal("[")?;
            cursor.skip_space();
        }
        let at = cursor.at;
        self.item(at, is_end)
    }

    /// The call whose name and arguments begin at `at`.
    fn item(&mut self, at: usize, is_end: bool) -> Result<Found, Miss> {
        let mut cursor = Cursor { text: &self.held, at, is_end };
        let (name, arguments) = match self.form.notation {
            Notation::Json => return self.object(at, is_end),
            Notation::Gemma => gemma::call(&mut cursor)?,
            Notation::Parameters => parameters::call(&mut cursor, &self.tools)?,
        };
        if !self.is_tool(&name) {
            return Err(Miss::Other);
        }
        let arguments = Value::Object(arguments).to_string();
        self.closed(Written { name, arguments }, cursor.at, is_end)
    }

    /// The call that is a JSON object, which begins at `at`.
    fn object(&mut self, at: usize, is_end: bool) -> Result<Found, Miss> {
        let mut cursor = Cursor { text: &self.held, at, is_end };
        match cursor.name() {
            Ok(name) if !self.is_tool(&name) => return Err(Miss::Other),
            Ok(name) if self.kept.contains(&name) => match cursor.key() {
                Ok(()) => return Ok(Found::Begun(name, cursor.at)),
                Err(Miss::Other) => {}
                Err(Miss::Open) => return Err(Miss::Open),
            },
            // What has no opening is a call by its first key; other objects may have another order.
            Err(Miss::Other) if self.form.opening_may_miss => return Err(Miss::Other),
            Ok(_) | Err(Miss::Other) => {}
            Err(Miss::Open) => return Err(Miss::Open),
        }
        let n_held = self.held.len();
        let (start, mut extent) = self.object.filter(|(start, _)| *start == at).unwrap_or((at, Extent::default()));
        if !self.held[start..].starts_with('{') {
            return Err(if start < n_held || is_end { Miss::Other } else { Miss::Open });
        }
        let Some(length) = extent.read(&self.held.as_bytes()[start..]) else {
            self.object = Some((start, extent));
            return Err(if is_end { Miss::Other } else { Miss::Open });
        };
        match Written::of(&self.held[start..start + length]).filter(|written| self.is_tool(&written.name)) {
            Some(written) if self.form.is_list => Ok(Found::Whole(written, start + length)),
            Some(written) => self.closed(written, start + length, is_end),
            None => Err(Miss::Other),
        }
    }

    /// A call whose arguments end at `at`, with its closing.
    fn closed(&self, written: Written, at: usize, is_end: bool) -> Result<Found, Miss> {
        let mut cursor = Cursor { text: &self.held, at, is_end };
        if !self.form.closing.is_empty() {
            cursor.skip_space();
        }
        if cursor.takes(self.form.closing)? {
            return Ok(Found::Whole(written, cursor.at));
        }
        // The end of the answer ends the call, too.
        let is_cut = is_end && self.form.closing.starts_with(cursor.rest());
        if is_cut { Ok(Found::Whole(written, self.held.len())) } else { Err(Miss::Other) }
    }

    fn is_tool(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }

    fn give_call(&mut self, found: Found, events: &mut Vec<Event>) {
        self.follows_call = true;
        match found {
            Found::Begun(name, end) => {
                events.push(Event::Start { name });
                self.drop_held(end);
                self.state = State::Arguments(Extent::default());
            }
            Found::Whole(Written { name, arguments }, end) => {
                events.extend([Event::Start { name }, Event::Arguments(arguments), Event::End]);
                self.drop_held(end);
                self.state = if self.form.is_list { State::List } else { State::Text };
            }
        }
    }

    fn give_text(&mut self, n_bytes: usize, events: &mut Vec<Event>) {
        let text = &self.held[..n_bytes];
        match events.last_mut() {
            Some(Event::Text(last)) => last.push_str(text),
            Some(_) | None => events.push(Event::Text(text.to_owned())),
        }
        self.drop_held(n_bytes);
        self.follows_call = false;
    }

    fn drop_held(&mut self, n_bytes: usize) {
        self.held.drain(..n_bytes);
        self.object = None;
    }
}

impl Written {
    /// The call that `object` is.
    fn of(object: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Object<'a> {
            name: String,
            #[serde(borrow, alias = "parameters")]
            arguments: Option<&'a RawValue>,
        }
        let Object { name, arguments } = serde_json::from_str(object).ok()?;
        let arguments = match arguments.map(RawValue::get) {
            None | Some("null") => "{}".to_owned(),
            Some(json) if json.starts_with('{') => json.to_owned(),
            // JSON in a string, as OpenAI's clients have it.
            Some(json) => {
                let json: String = serde_json::from_str(json).ok()?;
                serde_json::from_str::<serde_json::Map<_, _>>(&json).ok()?;
                json
            }
        };
        Some(Self { name, arguments })
    }
}

/// How far a JSON object is read. Only its end is looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Extent {
    /// Bytes that are read.
    n_bytes: usize,
    /// Objects and lists that are open.
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
}

impl Extent {
    /// Reads the bytes of `text` that are not read yet. Where the object ends.
    fn read(&mut self, text: &[u8]) -> Option<usize> {
        for byte in &text[self.n_bytes..] {
            self.n_bytes += 1;
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_in_string => self.is_escaped = true,
                b'"' => self.is_in_string = !self.is_in_string,
                _ if self.is_in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.n_bytes);
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// The same with `n_bytes` read of a text.
    fn from(self, n_bytes: usize) -> Self {
        Self { n_bytes, ..self }
    }
}

fn without_space(text: &str) -> String {
    text.chars().filter(|character| !character.is_whitespace()).collect()
}

#[cfg(test)]
mod tests;
