//! How tokens are spelled.

use std::ops::Range;

/// In place of the word of an id that has no bytes.
pub(crate) const NO_WORD: u32 = u32::MAX;

/// The bytes of each token. Built once for each tokenizer: about 20 bytes for each byte of a token that no other token shares.
#[derive(Debug)]
pub struct Vocabulary {
    /// In place of any token but the first of an answer.
    plain: Spelling,
    /// As the first token; `None`: as anywhere else.
    at_start: Option<Spelling>,
    ends: Vec<u32>,
    n_rows: usize,
}

impl Vocabulary {
    /// A vocabulary. `tokens[id]` has the bytes of a token; `None`: never part of a text (special tokens, the mask, unused ids).
    /// A token without bytes is never part of a text, either, except as the first.
    /// `at_start` has the tokens that are spelled differently as the first of an answer. `ends` have no bytes, whatever `tokens`
    /// has. `n_rows` is the number of rows of the output head: ids from there on are ignored.
    pub fn new(
        tokens: &[Option<Box<[u8]>>],
        at_start: &[(u32, Option<Box<[u8]>>)],
        ends: &[u32],
        n_rows: usize,
    ) -> Self {
        let mut spelled: Vec<Option<&[u8]>> = tokens.iter().take(n_rows).map(Option::as_deref).collect();
        spelled.resize(n_rows, None);
        let mut first = spelled.clone();
        for (id, bytes) in at_start {
            if let Some(token) = first.get_mut(*id as usize) {
                *token = bytes.as_deref();
            }
        }
        let ends: Vec<u32> = ends.iter().copied().filter(|&id| (id as usize) < n_rows).collect();
        for &id in &ends {
            spelled[id as usize] = None;
            first[id as usize] = None;
        }
        for token in &mut spelled {
            *token = token.filter(|bytes| !bytes.is_empty());
        }
        let at_start = (!at_start.is_empty()).then(|| Spelling::new(&first));
        Self { plain: Spelling::new(&spelled), at_start, ends, n_rows }
    }

    /// Rows of the output head.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// The end tokens, each below [`Self::n_rows`].
    pub(crate) fn ends(&self) -> &[u32] {
        &self.ends
    }

    pub(crate) fn plain(&self) -> &Spelling {
        &self.plain
    }

    /// The spelling of first tokens, if it differs.
    pub(crate) fn at_start(&self) -> Option<&Spelling> {
        self.at_start.as_ref()
    }
}

/// Distinct byte strings, words, of which each has one id or more.
#[derive(Debug)]
pub(crate) struct Spelling {
    /// The nodes of the trie of all words, each before its children, without the root.
    nodes: Vec<Node>,
    /// Of each id; or [`NO_WORD`].
    word_of: Vec<u32>,
    /// The ids, by word.
    ids: Vec<u32>,
    /// Where the ids of each word begin, and where those of the last end.
    id_starts: Vec<u32>,
    /// Length of the longest word, in bytes.
    depth: usize,
    /// Whether the first word has no bytes.
    has_empty: bool,
}

/// A node of a trie.
#[derive(Debug)]
struct Node {
    byte: u8,
    /// Bytes before this one.
    depth: u32,
    /// The first node after its children.
    after: u32,
    /// The word that ends here, or [`NO_WORD`].
    word: u32,
}

impl Spelling {
    /// `spelled[id]` has the bytes of an id; `None`: it has none.
    pub(crate) fn new(spelled: &[Option<&[u8]>]) -> Self {
        let mut sorted: Vec<(&[u8], u32)> =
            spelled.iter().zip(0..).filter_map(|(bytes, id)| Some(((*bytes)?, id))).collect();
        sorted.sort_unstable();
        let mut spelling = Self {
            nodes: Vec::new(),
            word_of: vec![NO_WORD; spelled.len()],
            ids: sorted.iter().map(|(_, id)| *id).collect(),
            id_starts: Vec::new(),
            depth: sorted.iter().map(|(bytes, _)| bytes.len()).max().unwrap_or(0),
            has_empty: sorted.first().is_some_and(|(bytes, _)| bytes.is_empty()),
        };
        let mut open: Vec<usize> = Vec::new();
        let mut last: Option<&[u8]> = None;
        for (at, &(bytes, id)) in (0_u32..).zip(&sorted) {
            if last != Some(bytes) {
                spelling.id_starts.push(at);
                spelling.push_word(bytes, last.unwrap_or_default(), &mut open);
                last = Some(bytes);
            }
            spelling.word_of[id as usize] = spelling.id_starts.len() as u32 - 1;
        }
        spelling.close(&mut open, 0);
        spelling.id_starts.push(sorted.len() as u32);
        spelling
    }

    /// Adds the nodes of the word that was counted last. `open` has the nodes of the word before.
    fn push_word(&mut self, bytes: &[u8], before: &[u8], open: &mut Vec<usize>) {
        let n_shared = bytes.iter().zip(before).take_while(|(a, b)| a == b).count();
        self.close(open, n_shared);
        for (depth, &byte) in bytes.iter().enumerate().skip(n_shared) {
            open.push(self.nodes.len());
            self.nodes.push(Node { byte, depth: depth as u32, after: 0, word: NO_WORD });
        }
        if let Some(&node) = open.last() {
            self.nodes[node].word = self.id_starts.len() as u32 - 1;
        }
    }

    fn close(&mut self, open: &mut Vec<usize>, depth: usize) {
        let n_nodes = self.nodes.len() as u32;
        for node in open.drain(depth..) {
            self.nodes[node].after = n_nodes;
        }
    }

    pub(crate) fn n_words(&self) -> usize {
        self.id_starts.len() - 1
    }

    /// The word of an id, or [`NO_WORD`].
    pub(crate) fn word_of(&self, id: u32) -> u32 {
        self.word_of[id as usize]
    }

    pub(crate) fn ids(&self, word: u32) -> &[u32] {
        &self.ids[self.id_starts[word as usize] as usize..self.id_starts[word as usize + 1] as usize]
    }

    /// The words of some ids, with their indices in `ids` as ids.
    pub(crate) fn of(&self, ids: &[Option<u32>]) -> Self {
        let word_of = |id: &Option<u32>| id.map_or(NO_WORD, |id| self.word_of(id)) as usize;
        let mut bytes_of: Vec<Option<Vec<u8>>> = vec![None; self.n_words()];
        for id in ids {
            if let Some(bytes) = bytes_of.get_mut(word_of(id)) {
                *bytes = Some(Vec::new());
            }
        }
        let mut path = Vec::with_capacity(self.depth);
        for node in &self.nodes {
            path.truncate(node.depth as usize);
            path.push(node.byte);
            if let Some(Some(bytes)) = bytes_of.get_mut(node.word as usize) {
                bytes.clone_from(&path);
            }
        }
        let spelled: Vec<Option<&[u8]>> = ids.iter().map(|id| bytes_of.get(word_of(id))?.as_deref()).collect();
        Self::new(&spelled)
    }

    /// Length of the longest word, in bytes.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// The nodes behind a node, or behind the root.
    pub(crate) fn children(&self, parent: Option<u32>) -> impl Iterator<Item = u32> + '_ {
        let (first, end) = match parent {
            None => (0, self.nodes.len() as u32),
            Some(parent) => (parent + 1, self.nodes[parent as usize].after),
        };
        let is_child = move |node: &u32| *node < end;
        std::iter::successors(Some(first).filter(is_child), move |node| {
            Some(self.nodes[*node as usize].after).filter(is_child)
        })
    }

    /// The last byte of a node.
    pub(crate) fn byte(&self, node: u32) -> u8 {
        self.nodes[node as usize].byte
    }

    /// The word that ends at a node, or [`NO_WORD`].
    pub(crate) fn word(&self, node: u32) -> u32 {
        self.nodes[node as usize].word
    }

    /// Calls `found` with each word that leads from a state to a state, and the latter. `step` returns the state after a byte;
    /// `None`: there is none.
    pub(crate) fn walk(&self, state: u32, step: impl Fn(u32, u8) -> Option<u32>, mut found: impl FnMut(u32, u32)) {
        if self.has_empty {
            found(0, state);
        }
        let mut states = vec![state; self.depth + 1];
        self.walk_nodes(0..self.nodes.len(), &mut states, step, found);
    }

    /// As [`Self::walk`], of the words that begin as a node does. `states` has the states before each byte of the node.
    pub(crate) fn walk_from(
        &self,
        node: u32,
        states: &mut [u32],
        step: impl Fn(u32, u8) -> Option<u32>,
        found: impl FnMut(u32, u32),
    ) {
        self.walk_nodes(node as usize..self.nodes[node as usize].after as usize, states, step, found);
    }

    fn walk_nodes(
        &self,
        range: Range<usize>,
        states: &mut [u32],
        step: impl Fn(u32, u8) -> Option<u32>,
        mut found: impl FnMut(u32, u32),
    ) {
        let nodes = &self.nodes[..range.end];
        let mut at = range.start;
        while let Some(node) = nodes.get(at) {
            let depth = node.depth as usize;
            match step(states[depth], node.byte) {
                Some(next) => {
                    states[depth + 1] = next;
                    if node.word != NO_WORD {
                        found(node.word, next);
                    }
                    at += 1;
                }
                None => at = node.after as usize,
            }
        }
    }
}
