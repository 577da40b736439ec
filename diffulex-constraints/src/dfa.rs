//! Automata over bytes.

use std::collections::HashMap;

use regex_automata::dfa::Automaton as _;
use regex_automata::dfa::dense;
use regex_automata::util::primitives::StateID;
use regex_automata::{Anchored, Input, MatchKind};

use crate::nfa::expression;
use crate::{ConstraintError, Language};

/// Limit of a table of states, and of the sets that determinisation keeps, in bytes. Chosen by us: with it `[ab]*a[ab]{24}` is
/// refused within about a second, and every automaton of [`crate::Automaton`]'s number of states fits.
const BYTES_LIMIT: usize = 16 << 20;

/// In place of a state from which no text can be completed.
pub(crate) const DEAD: u32 = u32::MAX;

/// Rounds of merging states. Chosen by us: one round merges all states that differ in nothing but how determinisation reached
/// them, others the common ends of alternatives.
const N_MERGES: usize = 32;

/// A deterministic automaton over bytes without states from which no text can be completed. The first state is 0.
#[derive(Debug)]
pub(crate) struct Dfa {
    /// By state, then by class of bytes.
    next: Vec<u32>,
    is_accepting: Vec<bool>,
    class_of: [u8; 256],
    n_classes: usize,
}

impl Dfa {
    /// The automaton of a language.
    ///
    /// # Errors
    /// If the language is empty, or a limit is exceeded.
    pub(crate) fn new(language: &Language) -> Result<Self, ConstraintError> {
        let nfa = expression(language)?;
        let config = dense::Config::new()
            .accelerate(false)
            .match_kind(MatchKind::All)
            .start_kind(regex_automata::dfa::StartKind::Anchored)
            .dfa_size_limit(Some(BYTES_LIMIT))
            .determinize_size_limit(Some(BYTES_LIMIT));
        let dense = dense::Builder::new().configure(config).build_from_nfa(&nfa).map_err(|_| too_large())?;
        let mut dfa = Self::read(&dense).ok_or_else(too_large)?;
        dfa.trim();
        if dfa.next.is_empty() {
            return Err(ConstraintError::new("no text satisfies the constraint"));
        }
        for _ in 0..N_MERGES {
            if !dfa.merge() {
                break;
            }
        }
        Ok(dfa)
    }

    /// The states that are reached from the start; `None` if the automaton has none to start in.
    fn read(dense: &dense::DFA<Vec<u32>>) -> Option<Self> {
        let classes = dense.byte_classes();
        let class_of: [u8; 256] = std::array::from_fn(|byte| classes.get(byte as u8));
        let n_classes = class_of.iter().max().map_or(1, |&last| usize::from(last) + 1);
        let mut byte_of = vec![0; n_classes];
        for byte in (0..=255_u8).rev() {
            byte_of[usize::from(class_of[usize::from(byte)])] = byte;
        }
        let start = dense.start_state_forward(&Input::new("").anchored(Anchored::Yes)).ok()?;
        let mut index_of: HashMap<StateID, u32> = HashMap::from([(start, 0)]);
        let mut states = vec![start];
        let mut dfa = Self { next: Vec::new(), is_accepting: Vec::new(), class_of, n_classes };
        while let Some(&state) = states.get(dfa.is_accepting.len()) {
            dfa.is_accepting.push(dense.is_match_state(dense.next_eoi_state(state)));
            for &byte in &byte_of {
                let next = dense.next_state(state, byte);
                let next = if dense.is_dead_state(next) {
                    DEAD
                } else {
                    *index_of.entry(next).or_insert_with(|| {
                        states.push(next);
                        states.len() as u32 - 1
                    })
                };
                dfa.next.push(next);
            }
        }
        Some(dfa)
    }

    fn n_states(&self) -> usize {
        self.is_accepting.len()
    }

    /// Removes the states from which no accepting state is reached.
    fn trim(&mut self) {
        let mut before: Vec<Vec<u32>> = vec![Vec::new(); self.n_states()];
        for (state, row) in (0..).zip(self.next.chunks(self.n_classes)) {
            for &next in row.iter().filter(|&&next| next != DEAD) {
                let states = &mut before[next as usize];
                if states.last() != Some(&state) {
                    states.push(state);
                }
            }
        }
        let mut is_live = self.is_accepting.clone();
        let mut open: Vec<u32> = (0..).zip(&is_live).filter(|(_, is_live)| **is_live).map(|(state, _)| state).collect();
        while let Some(state) = open.pop() {
            for &state in &before[state as usize] {
                if !std::mem::replace(&mut is_live[state as usize], true) {
                    open.push(state);
                }
            }
        }
        let mut index_of = vec![DEAD; self.n_states()];
        let live = (0..self.n_states()).filter(|&state| is_live[state]).collect::<Vec<_>>();
        for (index, &state) in (0..).zip(&live) {
            index_of[state] = index;
        }
        // The start is the first state: if it is not live, nothing is.
        self.keep(&live, &index_of);
    }

    /// Makes one state of those with equal rows; returns whether there were any.
    fn merge(&mut self) -> bool {
        let mut index_of = Vec::with_capacity(self.n_states());
        let mut kept = Vec::new();
        let mut seen: HashMap<(bool, &[u32]), u32> = HashMap::new();
        for (state, row) in self.next.chunks(self.n_classes).enumerate() {
            let index = *seen.entry((self.is_accepting[state], row)).or_insert_with(|| {
                kept.push(state);
                kept.len() as u32 - 1
            });
            index_of.push(index);
        }
        let is_smaller = kept.len() < self.n_states();
        self.keep(&kept, &index_of);
        is_smaller
    }

    /// Keeps some states; `index_of` has the new index of each old one, or [`DEAD`].
    fn keep(&mut self, states: &[usize], index_of: &[u32]) {
        let renamed = |next: &u32| index_of.get(*next as usize).copied().unwrap_or(DEAD);
        self.next = states
            .iter()
            .flat_map(|state| &self.next[state * self.n_classes..(state + 1) * self.n_classes])
            .map(renamed)
            .collect();
        self.is_accepting = states.iter().map(|&state| self.is_accepting[state]).collect();
    }

    /// The state after a byte; `None`: no text of the language goes on so.
    pub(crate) fn step(&self, state: u32, byte: u8) -> Option<u32> {
        Some(self.next[state as usize * self.n_classes + self.class(byte)]).filter(|&next| next != DEAD)
    }

    /// The states after each class of bytes, or [`DEAD`], state by state.
    pub(crate) fn rows(&self) -> std::slice::ChunksExact<'_, u32> {
        self.next.chunks_exact(self.n_classes)
    }

    /// How many bytes lead on in a row.
    pub(crate) fn n_bytes(&self, row: &[u32]) -> usize {
        (0..=255).filter(|&byte| row[self.class(byte)] != DEAD).count()
    }

    /// The class of a byte.
    pub(crate) fn class(&self, byte: u8) -> usize {
        usize::from(self.class_of[usize::from(byte)])
    }

    /// Whether a text of the language ends here.
    pub(crate) fn is_accepting(&self, state: u32) -> bool {
        self.is_accepting[state as usize]
    }

    /// One flag for each state.
    pub(crate) fn flags(&self, value: bool) -> Vec<bool> {
        vec![value; self.n_states()]
    }
}

fn too_large() -> ConstraintError {
    ConstraintError::new(format!(
        "the constraint is too complex: its automaton takes more than {} MB",
        BYTES_LIMIT >> 20
    ))
}
