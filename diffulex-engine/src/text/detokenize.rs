//! Committed ids to text, a piece at a time, never splitting a character.

use super::TextModel;

/// Ids kept before the unread ones: a decoder may treat the first token of a text specially (a leading space), so new
/// ids are always decoded behind some old ones. 4 is chosen by us; byte-level tokenizers need 0.
const CONTEXT: usize = 4;

/// Longest run of tokens held back as an unfinished character. UTF-8 takes at most 4 bytes, so 3 tokens can be
/// incomplete; more is not a character in the making but bytes that are none.
const MAX_HELD: usize = 3;

/// Incremental detokeniser of one answer. Its pushes joined are `decode` of all ids.
#[derive(Debug, Default)]
pub struct Detokenizer {
    /// Context, then ids whose text is not out yet.
    ids: Vec<u32>,
    /// Where the second part begins.
    unread: usize,
}

impl Detokenizer {
    /// Takes ids that are final and returns the text that is now whole.
    pub fn push(&mut self, text: &TextModel, ids: &[u32]) -> String {
        let mut out = String::new();
        for id in ids {
            self.ids.push(*id);
            let whole = text.decode(&self.ids);
            let incomplete = whole.ends_with(char::REPLACEMENT_CHARACTER);
            if !incomplete || self.ids.len() - self.unread > MAX_HELD {
                out.push_str(&self.take(text, whole));
            }
        }
        out
    }

    /// The text still held back; nothing follows it.
    pub fn finish(&mut self, text: &TextModel) -> String {
        let whole = text.decode(&self.ids);
        self.take(text, whole)
    }

    fn take(&mut self, text: &TextModel, whole: String) -> String {
        let old = text.decode(&self.ids[..self.unread]);
        let fresh = whole.strip_prefix(&old).map_or(whole.clone(), str::to_owned);
        self.ids.drain(..self.ids.len().saturating_sub(CONTEXT));
        self.unread = self.ids.len();
        fresh
    }
}
