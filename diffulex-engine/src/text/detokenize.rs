//! Committed ids to text, a piece at a time, never splitting a character.
//!
//! Bytes that are no whole character decode to U+FFFD, and only the last one can still become something else: all before
//! it is final. So a push gives the text of everything so far, less what was given before, less a trailing U+FFFD.

use super::TextModel;

/// Ids kept when old ones are dropped. An unfinished character spans at most 3 tokens of a byte each; the others stand
/// before it because some decoders treat the first token of a text specially. Chosen by us.
const KEPT_IDS: usize = 8;

/// Old ids are dropped when there are this many, so that a push costs no more than decoding them. Chosen by us.
const MAX_IDS: usize = 32;

/// Incremental detokeniser of one answer. Its pushes joined are `decode` of all ids.
#[derive(Debug, Default)]
pub struct Detokenizer {
    /// The newest ids.
    ids: Vec<u32>,
    /// Bytes of their text that were given.
    given: usize,
}

impl Detokenizer {
    /// Takes ids that are final and returns the text that is now whole.
    pub fn push(&mut self, text: &TextModel, ids: &[u32]) -> String {
        let mut out = String::new();
        for id in ids {
            self.ids.push(*id);
            let whole = text.decode(&self.ids);
            let is_final = whole.strip_suffix(char::REPLACEMENT_CHARACTER).unwrap_or(&whole);
            // A special token in the middle may shorten nothing, but a decoder's own cleaning could.
            if let Some(fresh) = is_final.get(self.given..) {
                out.push_str(fresh);
                self.given = is_final.len();
            }
            if self.ids.len() >= MAX_IDS {
                let held = whole.len() - self.given;
                self.ids.drain(..self.ids.len() - KEPT_IDS);
                self.given = text.decode(&self.ids).len().saturating_sub(held);
            }
        }
        out
    }

    /// The text still held back; nothing follows it.
    pub fn finish(&mut self, text: &TextModel) -> String {
        let whole = text.decode(&self.ids);
        let rest = whole.get(self.given..).unwrap_or_default().to_owned();
        self.given = whole.len();
        rest
    }
}
