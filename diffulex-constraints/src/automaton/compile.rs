//! From automata over bytes to automata over tokens.

use std::collections::HashMap;

use super::{Automaton, Edge, FAR};
use crate::dfa::Dfa;
use crate::groups::Groups;
use crate::vocabulary::{NO_WORD, Spelling};
use crate::{ConstraintError, Language, Vocabulary};

/// Most states. Chosen by us: twice a schema of 20 fields, each of at most 50 characters.
const STATES_LIMIT: usize = 8_000;

/// Most edges. Chosen by us, as the states: a step of the dynamic programme costs about a nanosecond for each.
const EDGES_LIMIT: usize = 500_000;

impl Automaton {
    /// The automaton of a language.
    ///
    /// # Errors
    /// If no text of these tokens belongs to the language, or if a limit is exceeded.
    pub fn compile(language: &Language, vocabulary: &Vocabulary) -> Result<Self, ConstraintError> {
        let dfa = Dfa::new(language)?;
        if n_reached_by_bytes(&dfa, vocabulary) > STATES_LIMIT {
            return Err(too_many_states());
        }
        let groups = Groups::new(&dfa, vocabulary.plain());
        let mut can_stop = dfa.flags(true);
        loop {
            let reached = Reached::new(&dfa, vocabulary, groups.as_ref(), &can_stop)?;
            let automaton = with_edges(&reached, vocabulary)?;
            if automaton.distances[Automaton::START as usize] == FAR {
                return Err(ConstraintError::new("no sequence of tokens satisfies the constraint"));
            }
            let mut is_done = true;
            for (&state, &distance) in reached.states.iter().zip(&automaton.distances) {
                // The bytes to an end of the text exist, but no token ends where it must.
                if distance == FAR {
                    can_stop[state as usize] = false;
                    is_done = false;
                }
            }
            if is_done {
                return Ok(automaton);
            }
        }
    }
}

fn too_many_states() -> ConstraintError {
    ConstraintError::new(format!("the constraint is too complex: its automaton has more than {STATES_LIMIT} states"))
}

/// How many states are reached by words of one byte. Most vocabularies have all of those, so that what has too many states is refused
/// before all words are walked from thousands of them.
fn n_reached_by_bytes(dfa: &Dfa, vocabulary: &Vocabulary) -> usize {
    let bytes = |spelling: &Spelling| -> Vec<u8> {
        let words = spelling.children(None).filter(|&node| spelling.word(node) != NO_WORD);
        words.map(|node| spelling.byte(node)).collect()
    };
    let (first, plain) = (bytes(vocabulary.at_start().unwrap_or(vocabulary.plain())), bytes(vocabulary.plain()));
    let mut is_reached = dfa.flags(false);
    let mut open = vec![0];
    let mut bytes = &first;
    let mut n_reached = 0;
    while let Some(state) = open.pop() {
        for next in bytes.iter().filter_map(|&byte| dfa.step(state, byte)) {
            if !std::mem::replace(&mut is_reached[next as usize], true) {
                n_reached += 1;
                open.push(next);
            }
        }
        bytes = &plain;
    }
    n_reached
}

/// The states of an automaton over bytes that are reached by whole tokens, and the class of each token.
struct Reached<'a> {
    dfa: &'a Dfa,
    /// The states over bytes; index: state over tokens.
    states: Vec<u32>,
    /// The state over tokens of each state over bytes; [`FAR`]: none.
    index_of: Vec<u32>,
    /// The class of each token, classes in the order of their first tokens.
    class_of: Vec<u32>,
    n_classes: usize,
}

impl<'a> Reached<'a> {
    /// `can_stop`: the states over bytes at which a token may end.
    fn new(
        dfa: &'a Dfa,
        vocabulary: &Vocabulary,
        groups: Option<&Groups<'_>>,
        can_stop: &[bool],
    ) -> Result<Self, ConstraintError> {
        let index_of = can_stop.iter().map(|_| FAR).collect();
        let mut reached = Self { dfa, states: vec![0], index_of, class_of: Vec::new(), n_classes: 0 };
        let plain = vocabulary.plain();
        let mut sums_at_start = Vec::new();
        if let Some(first) = vocabulary.at_start() {
            // Nothing leads back to the start: behind it, tokens are spelled otherwise.
            sums_at_start = vec![0; first.n_words()];
            reached.add(0, can_stop, &mut sums_at_start, |state, found| walk(first, dfa, state, found));
        } else {
            reached.index_of[0] = 0;
        }
        let mut sums = vec![0; groups.map_or(plain.n_words(), Groups::n_places)];
        let mut at = usize::from(vocabulary.at_start().is_some());
        while at < reached.states.len() {
            if reached.states.len() > STATES_LIMIT {
                return Err(too_many_states());
            }
            reached.add(at as u32, can_stop, &mut sums, |state, found| match groups {
                Some(groups) => groups.walk(state, found),
                None => walk(plain, dfa, state, found),
            });
            at += 1;
        }
        if let Some(groups) = groups {
            groups.spread(&mut sums);
        }
        reached.classify(vocabulary, &sums, &sums_at_start);
        Ok(reached)
    }

    /// Adds what each word does in a state to the sum of its place, and the states behind. `walk` calls its second argument with each
    /// place and the state that it leads to.
    fn add(
        &mut self,
        index: u32,
        can_stop: &[bool],
        sums: &mut [u128],
        walk: impl FnOnce(u32, &mut dyn FnMut(usize, u32)),
    ) {
        let (mut last, mut hash) = (FAR, 0);
        walk(self.states[index as usize], &mut |place, next| {
            if !can_stop[next as usize] {
                return;
            }
            // Most words of a state lead to the same one.
            if next != last {
                if self.index_of[next as usize] == FAR {
                    self.index_of[next as usize] = self.states.len() as u32;
                    self.states.push(next);
                }
                last = next;
                hash = pair_hash(index, self.index_of[next as usize]);
            }
            sums[place] = sums[place].wrapping_add(hash);
        });
    }

    fn classify(&mut self, vocabulary: &Vocabulary, sums: &[u128], sums_at_start: &[u128]) {
        let mut is_end = vec![false; vocabulary.n_rows()];
        for &end in vocabulary.ends() {
            is_end[end as usize] = true;
        }
        let sum_of =
            |sums: &[u128], spelling: &Spelling, id| sums.get(spelling.word_of(id) as usize).copied().unwrap_or(0);
        let mut class_of_sum: HashMap<u128, u32> = HashMap::from([(0, Automaton::NEVER)]);
        let mut n_classes = Automaton::END + 1;
        self.class_of = (0..)
            .zip(is_end)
            .map(|(id, is_end)| {
                if is_end {
                    return Automaton::END;
                }
                let first = vocabulary.at_start().map_or(0, |first| sum_of(sums_at_start, first, id));
                let sum = sum_of(sums, vocabulary.plain(), id).wrapping_add(first);
                *class_of_sum.entry(sum).or_insert_with(|| {
                    n_classes += 1;
                    n_classes - 1
                })
            })
            .collect();
        self.n_classes = n_classes as usize;
    }
}

fn walk(spelling: &Spelling, dfa: &Dfa, state: u32, found: &mut dyn FnMut(usize, u32)) {
    spelling.walk(state, |state, byte| dfa.step(state, byte), |word, next| found(word as usize, next));
}

/// 128 bits for a state and the state after it: two rounds of SplitMix64's finaliser. Equal sums of such numbers over a few
/// thousand states mean equal pairs, except with a probability below 1e-25.
fn pair_hash(state: u32, next: u32) -> u128 {
    let pair = (u64::from(state) << 32) | u64::from(next);
    let mix = |seed: u64| {
        let mut bits = pair.wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    };
    let (high, low) = (mix(0x2545_f491_4f6c_dd1d), mix(1));
    (u128::from(mix(high ^ low.rotate_left(32))) << 64) | u128::from(low)
}

fn with_edges(reached: &Reached<'_>, vocabulary: &Vocabulary) -> Result<Automaton, ConstraintError> {
    let mut sizes = vec![0; reached.n_classes];
    let mut representatives = vec![0; reached.n_classes];
    for (token, &class) in reached.class_of.iter().enumerate().rev() {
        sizes[class as usize] += 1;
        representatives[class as usize] = token as u32;
    }
    // What the first token of a class does, all of them do.
    let plain = short_spelling(vocabulary.plain(), &representatives);
    let first = vocabulary.at_start().map(|first| short_spelling(first, &representatives));
    let n_texts = reached.states.len() as u32;
    let has_ends = !vocabulary.ends().is_empty();
    let (mut edges, mut edge_starts) = (Vec::new(), vec![0]);
    for (index, &state) in (0..).zip(&reached.states) {
        let begin = edges.len();
        if has_ends && reached.dfa.is_accepting(state) {
            edges.push(Edge { class: Automaton::END, next: n_texts });
        }
        let spelling = first.as_ref().filter(|_| index == Automaton::START).unwrap_or(&plain);
        spelling.walk(
            state,
            |state, byte| reached.dfa.step(state, byte),
            |word, next| {
                let next = reached.index_of[next as usize];
                if next != FAR {
                    edges.extend(spelling.ids(word).iter().map(|&class| Edge { class, next }));
                }
            },
        );
        edges[begin..].sort_unstable();
        edge_starts.push(edges.len() as u32);
        if edges.len() > EDGES_LIMIT {
            return Err(ConstraintError::new(format!(
                "the constraint is too complex: its automaton has more than {EDGES_LIMIT} edges"
            )));
        }
    }
    if has_ends {
        edges.push(Edge { class: Automaton::END, next: n_texts });
        edge_starts.push(edges.len() as u32);
    }
    let class_of = reached.class_of.clone();
    let mut automaton = Automaton { class_of, sizes, representatives, edges, edge_starts, distances: Vec::new() };
    automaton.edges.shrink_to_fit();
    let accepting = (0..).zip(&reached.states).filter(|(_, state)| reached.dfa.is_accepting(**state));
    let accepting: Vec<u32> = accepting.map(|(index, _)| index).chain(has_ends.then_some(n_texts)).collect();
    automaton.distances = distances(&automaton, &accepting);
    Ok(automaton)
}

/// The spelling of each class by its first token.
fn short_spelling(spelling: &Spelling, representatives: &[u32]) -> Spelling {
    let with_bytes = |class: usize| class > Automaton::END as usize;
    let ids = representatives.iter().enumerate();
    spelling.of(&ids.map(|(class, &id)| with_bytes(class).then_some(id)).collect::<Vec<_>>())
}

/// Fewest tokens from each state to an accepting one.
fn distances(automaton: &Automaton, accepting: &[u32]) -> Vec<u32> {
    let n_states = automaton.edge_starts.len() - 1;
    let mut before = vec![Vec::new(); n_states];
    for state in 0..n_states as u32 {
        for edge in automaton.edges(state).iter().filter(|edge| edge.class != Automaton::END) {
            let states: &mut Vec<u32> = &mut before[edge.next as usize];
            // Edges of a state come together.
            if states.last() != Some(&state) {
                states.push(state);
            }
        }
    }
    let mut distances = vec![FAR; n_states];
    for &state in accepting {
        distances[state as usize] = 0;
    }
    let mut layer = accepting.to_vec();
    let mut distance = 0;
    while !layer.is_empty() {
        distance += 1;
        let mut next_layer = Vec::new();
        for state in layer.iter().flat_map(|&state| &before[state as usize]) {
            if distances[*state as usize] == FAR {
                distances[*state as usize] = distance;
                next_layer.push(*state);
            }
        }
        layer = next_layer;
    }
    distances
}
