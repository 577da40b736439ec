//! Thoughts in a text that comes in pieces.
//!
//! In: committed text, cut anywhere. Out: what is thought and what is text, whose joined contents do not depend on the cuts. Thoughts are one
//! block at the beginning of an answer; white space around them is left out. An answer without the block is text, byte for byte, and so
//! are marks behind it.

use super::parser::Marks;

/// How thoughts are told from the text of an answer.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) struct ReasoningForm {
    pub(super) marks: &'static Marks,
    /// The answer begins within the block.
    pub(super) is_open: bool,
    /// Thoughts are a part of the answer.
    pub(super) is_shown: bool,
}

/// Something read.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::http) enum Told {
    Thought(String),
    Text(String),
}

/// Reads one answer.
#[derive(Debug)]
pub(in crate::http) struct ReasoningReader {
    form: ReasoningForm,
    /// Text that is not decided.
    held: String,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Before the first character that is no white space, or within what may be the opening.
    Start,
    /// After the opening, within what may be the label.
    Label,
    /// Before the first thought.
    Lead,
    Thoughts,
    /// Between the closing and the first text.
    Gap,
    Text,
}

impl ReasoningForm {
    /// Qwen's.
    #[cfg(test)]
    pub(in crate::http) fn think(is_open: bool) -> Self {
        let marks = super::parser::ReasoningParser::Qwen3.marks().expect("Qwen's");
        Self { marks, is_open, is_shown: true }
    }

    /// Tokens of the thoughts at the beginning of the answer `ids`, with their marks: up to the one that ends the closing mark, or all where
    /// the answer ends before it.
    pub(in crate::http) fn n_tokens(self, ids: &[u32], decode: impl Fn(&[u32]) -> String) -> u32 {
        let Marks { opening, closing, .. } = self.marks;
        if !self.is_open && !decode(ids).trim_start().starts_with(opening) {
            return 0;
        }
        let ends: Vec<usize> = (1..=ids.len()).collect();
        let n_before = ends.partition_point(|end| !decode(&ids[..*end]).contains(closing));
        (n_before + 1).min(ids.len()) as u32
    }

    /// A reader of one answer.
    pub(in crate::http) fn reader(self) -> ReasoningReader {
        ReasoningReader { form: self, held: String::new(), state: State::Start }
    }
}

impl ReasoningReader {
    /// Reads on.
    pub(in crate::http) fn push(&mut self, text: &str) -> Vec<Told> {
        self.held.push_str(text);
        self.read(false)
    }

    /// Decides what is held back: the answer is over.
    pub(in crate::http) fn finish(&mut self) -> Vec<Told> {
        self.read(true)
    }

    fn read(&mut self, is_end: bool) -> Vec<Told> {
        let mut told = Vec::new();
        while self.step(is_end, &mut told) {}
        if !self.form.is_shown {
            told.retain(|part| matches!(part, Told::Text(_)));
        }
        told
    }

    /// Reads one part. False if nothing can be decided before more text comes.
    fn step(&mut self, is_end: bool, told: &mut Vec<Told>) -> bool {
        match self.state {
            State::Start => self.start(is_end),
            State::Label => self.label(is_end),
            State::Lead => self.skip_space(State::Thoughts),
            State::Thoughts => self.thoughts(is_end, told),
            State::Gap => self.skip_space(State::Text),
            State::Text => {
                if !self.held.is_empty() {
                    told.push(Told::Text(std::mem::take(&mut self.held)));
                }
                false
            }
        }
    }

    fn start(&mut self, is_end: bool) -> bool {
        let text = self.held.trim_start();
        let opening = self.form.marks.opening;
        if let Some(rest) = text.strip_prefix(opening) {
            self.held = rest.to_owned();
            self.state = State::Label;
            return true;
        }
        if opening.starts_with(text) && !is_end {
            return false;
        }
        self.state = if self.form.is_open { State::Label } else { State::Text };
        true
    }

    fn label(&mut self, is_end: bool) -> bool {
        let label = self.form.marks.label;
        if let Some(rest) = self.held.strip_prefix(label) {
            self.held = rest.to_owned();
        } else if label.starts_with(&self.held) && !is_end {
            return false;
        }
        self.state = State::Lead;
        true
    }

    fn skip_space(&mut self, next: State) -> bool {
        self.held.drain(..self.held.len() - self.held.trim_start().len());
        if self.held.is_empty() {
            return false;
        }
        self.state = next;
        true
    }

    fn thoughts(&mut self, is_end: bool, told: &mut Vec<Told>) -> bool {
        let closing = self.form.marks.closing;
        let end = self.held.find(closing);
        let n_sure = match end {
            Some(end) => end,
            None if is_end => self.held.len(),
            None => self.held.len() - tail_that_begins(&self.held, closing),
        };
        let n_given = self.held[..n_sure].trim_end().len();
        if n_given > 0 {
            told.push(Told::Thought(self.held[..n_given].to_owned()));
        }
        match end {
            Some(end) => {
                self.held.drain(..end + closing.len());
                self.state = State::Gap;
            }
            None if is_end => self.held.clear(),
            None => drop(self.held.drain(..n_given)),
        }
        end.is_some()
    }
}

/// Bytes of the longest end of `text` that is the beginning of `mark`.
fn tail_that_begins(text: &str, mark: &str) -> usize {
    let longest = mark.len().min(text.len() + 1) - 1;
    (1..=longest).rev().find(|n| text.as_bytes().ends_with(&mark.as_bytes()[..*n])).unwrap_or(0)
}

#[cfg(test)]
mod tests;
