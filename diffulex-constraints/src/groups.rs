//! Words that most states of an automaton do not tell apart, walked as one.
//!
//! Inside a string nearly every word leads on, and its number of characters says where to, not its letters. A language that counts
//! characters has thousands of such states, and a walk over all words from each of them takes seconds. So bytes that all such states
//! treat alike are one class, and words of the same classes are one path. Where another state tells bytes of a class apart, as behind
//! the end of the string, the words from there on are walked one by one.

use std::collections::HashMap;
use std::ops::Range;

use crate::dfa::{DEAD, Dfa};
use crate::vocabulary::{NO_WORD, Spelling};

/// A state is wide if more bytes than these lead on. Chosen by us: digits and letters are wide; what may follow some first bytes of a
/// character, at most 48 bytes, is not, as few words begin there and classes should not tell the bytes inside a character apart.
const WIDE: usize = 48;

/// Fewest wide states for which groups are made. Chosen by us: that takes as long as a few walks.
const MANY: usize = 16;

/// In place of a state: it depends on the byte.
const MIXED: u32 = DEAD - 1;

/// A trie over classes of bytes.
pub(crate) struct Groups<'a> {
    dfa: &'a Dfa,
    spelling: &'a Spelling,
    /// By state, then by class of bytes: the state after each of its bytes, [`DEAD`] or [`MIXED`].
    next: Vec<u32>,
    n_classes: usize,
    /// Each before its children, without the root.
    nodes: Vec<Group>,
    /// Nodes of the spelling, by group.
    members: Vec<u32>,
}

/// A node: words and beginnings of words with the same classes.
struct Group {
    class: u8,
    /// Bytes before the last one.
    depth: u32,
    /// The first node after its children.
    after: u32,
    members: Range<u32>,
    has_words: bool,
}

impl<'a> Groups<'a> {
    /// `None`: there are too few wide states for groups to save time.
    pub(crate) fn new(dfa: &'a Dfa, spelling: &'a Spelling) -> Option<Self> {
        let wide: Vec<&[u32]> = dfa.rows().filter(|row| dfa.n_bytes(row) > WIDE).collect();
        if wide.len() < MANY {
            return None;
        }
        let (class_of, n_classes) = classes(&wide);
        let mut next = Vec::with_capacity(dfa.rows().len() * n_classes);
        for row in dfa.rows() {
            let begin = next.len();
            next.resize(begin + n_classes, None);
            for (&class, &state) in class_of.iter().zip(row) {
                let known = &mut next[begin + usize::from(class)];
                *known = Some(if known.is_none_or(|known| known == state) { state } else { MIXED });
            }
        }
        let next = next.into_iter().map(|state| state.unwrap_or(DEAD)).collect();
        let mut groups = Self { dfa, spelling, next, n_classes, nodes: Vec::new(), members: Vec::new() };
        groups.fill(&class_of);
        Some(groups)
    }

    fn fill(&mut self, class_of: &[u8]) {
        let mut buckets: Vec<Vec<u32>> = vec![Vec::new(); self.n_classes];
        let mut open: Vec<usize> = Vec::new();
        // Nodes that are still to be added, the next one last: class, depth, members.
        let mut pending: Vec<(u8, u32, Vec<u32>)> = Vec::new();
        let mut parents: Vec<Option<u32>> = vec![None];
        let mut depth = 0;
        loop {
            for child in parents.iter().flat_map(|&parent| self.spelling.children(parent)) {
                buckets[usize::from(class_of[self.dfa.class(self.spelling.byte(child))])].push(child);
            }
            for (class, bucket) in buckets.iter_mut().enumerate().rev().filter(|(_, bucket)| !bucket.is_empty()) {
                pending.push((class as u8, depth, std::mem::take(bucket)));
            }
            let Some((class, at, members)) = pending.pop() else { break };
            self.close(&mut open, at);
            open.push(self.nodes.len());
            let begin = self.members.len() as u32;
            self.members.extend(&members);
            let has_words = members.iter().any(|&member| self.spelling.word(member) != NO_WORD);
            let members_range = begin..self.members.len() as u32;
            self.nodes.push(Group { class, depth: at, after: 0, members: members_range, has_words });
            parents = members.into_iter().map(Some).collect();
            depth = at + 1;
        }
        self.close(&mut open, 0);
    }

    fn close(&mut self, open: &mut Vec<usize>, depth: u32) {
        let n_nodes = self.nodes.len() as u32;
        for node in open.drain(depth as usize..) {
            self.nodes[node].after = n_nodes;
        }
    }

    /// Places of [`Self::walk`]: one for each word, then one for each group.
    pub(crate) fn n_places(&self) -> usize {
        self.spelling.n_words() + self.nodes.len()
    }

    /// Calls `found` with each word or group that leads from a state to a state, by its place, and the latter. A word that leads
    /// there is found once: by itself or in one group.
    pub(crate) fn walk(&self, state: u32, mut found: impl FnMut(usize, u32)) {
        let mut states = vec![state; self.spelling.depth() + 1];
        let n_words = self.spelling.n_words();
        let mut at = 0;
        while let Some(node) = self.nodes.get(at) {
            let depth = node.depth as usize;
            match self.next[states[depth] as usize * self.n_classes + usize::from(node.class)] {
                DEAD => at = node.after as usize,
                MIXED => {
                    for &member in self.members_of(node) {
                        let step = |state, byte| self.dfa.step(state, byte);
                        self.spelling.walk_from(member, &mut states, step, |word, next| found(word as usize, next));
                    }
                    at = node.after as usize;
                }
                next => {
                    states[depth + 1] = next;
                    if node.has_words {
                        found(n_words + at, next);
                    }
                    at += 1;
                }
            }
        }
    }

    /// From sums by place to sums by word: each word gets what its group has.
    pub(crate) fn spread(&self, sums: &mut Vec<u128>) {
        let of_groups = sums.split_off(self.spelling.n_words());
        for (node, of_group) in self.nodes.iter().zip(of_groups).filter(|(node, _)| node.has_words) {
            for word in self.members_of(node).iter().map(|&member| self.spelling.word(member)) {
                if word != NO_WORD {
                    sums[word as usize] = sums[word as usize].wrapping_add(of_group);
                }
            }
        }
    }

    fn members_of(&self, node: &Group) -> &[u32] {
        &self.members[node.members.start as usize..node.members.end as usize]
    }
}

/// The classes of bytes that no row tells apart, by the automaton's class of bytes, and their number.
fn classes(rows: &[&[u32]]) -> (Vec<u8>, usize) {
    let mut class_of = vec![0_u8; rows.first().map_or(0, |row| row.len())];
    let mut n_classes = 1;
    for row in rows {
        let mut first = vec![None; n_classes];
        let is_told_apart = |(&class, &next): (&u8, &u32)| *first[usize::from(class)].get_or_insert(next) != next;
        if !class_of.iter().zip(*row).any(is_told_apart) {
            continue;
        }
        let mut index_of: HashMap<(u8, u32), u8> = HashMap::new();
        for (class, &next) in class_of.iter_mut().zip(*row) {
            // No more than the automaton's own classes, which are at most 256.
            let index = index_of.len() as u8;
            *class = *index_of.entry((*class, next)).or_insert(index);
        }
        n_classes = index_of.len();
    }
    (class_of, n_classes)
}
