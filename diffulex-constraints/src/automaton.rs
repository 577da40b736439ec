//! Automata whose edges are classes of tokens.

mod compile;
#[cfg(test)]
mod tests;

/// In place of the distance of a state from which no token leads to the end of a text.
const FAR: u32 = u32::MAX;

/// An edge of an automaton: a class of tokens, and the state that they lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edge {
    pub(crate) class: u32,
    pub(crate) next: u32,
}

/// A deterministic automaton over tokens.
///
/// Tokens that lead from each state to the same state are one class. An answer is followed by end tokens up to its limit; an answer
/// that reaches its limit needs none.
#[derive(Debug)]
pub struct Automaton {
    /// The class of each row of the head.
    class_of: Vec<u32>,
    /// Tokens of each class.
    sizes: Vec<u32>,
    /// The first token of each class; 0 for a class without tokens.
    representatives: Vec<u32>,
    /// By state, then by class.
    edges: Vec<Edge>,
    /// Where the edges of each state begin, and where those of the last end.
    edge_starts: Vec<u32>,
    /// Fewest tokens from each state to the end of a text.
    distances: Vec<u32>,
}

impl Automaton {
    /// The state before the first token.
    pub const START: u32 = 0;
    /// The class of tokens that are never allowed.
    pub const NEVER: u32 = 0;
    /// The class of all end tokens.
    pub const END: u32 = 1;

    /// Number of states.
    pub fn n_states(&self) -> usize {
        self.distances.len()
    }

    /// Number of classes; [`Self::NEVER`] and [`Self::END`] included.
    pub fn n_classes(&self) -> usize {
        self.sizes.len()
    }

    /// Memory in bytes.
    pub fn n_bytes(&self) -> usize {
        let words = [&self.class_of, &self.sizes, &self.representatives, &self.edge_starts, &self.distances];
        size_of::<Self>()
            + self.edges.capacity() * size_of::<Edge>()
            + words.map(|words| words.capacity() * size_of::<u32>()).iter().sum::<usize>()
    }

    /// The class of each row of the head.
    pub fn class_of(&self) -> &[u32] {
        &self.class_of
    }

    /// Tokens of a class.
    pub fn class_size(&self, class: u32) -> usize {
        self.sizes[class as usize] as usize
    }

    /// The first token of a class.
    pub(crate) fn representative(&self, class: u32) -> u32 {
        self.representatives[class as usize]
    }

    /// The class of a token; [`Self::NEVER`] for ids that no row of the head has.
    pub(crate) fn class(&self, token: u32) -> u32 {
        self.class_of.get(token as usize).copied().unwrap_or(Self::NEVER)
    }

    /// All edges of a state.
    pub(crate) fn edges(&self, state: u32) -> &[Edge] {
        let state = state as usize;
        &self.edges[self.edge_starts[state] as usize..self.edge_starts[state + 1] as usize]
    }

    /// The edges that a row may take from a state. `only`: the class of the row's token, if it is decided. `may_end`: whether an
    /// end token may be the first one here.
    pub(crate) fn open_edges(&self, state: u32, only: Option<u32>, may_end: bool) -> &[Edge] {
        let edges = self.edges(state);
        // The end token is the first class that has edges.
        let n_closed =
            edges.first().map_or(0, |edge| usize::from(!may_end && edge.class == Self::END && edge.next != state));
        let edges = &edges[n_closed..];
        match only {
            None => edges,
            Some(class) => match edges.binary_search_by_key(&class, |edge| edge.class) {
                Ok(at) => &edges[at..=at],
                Err(_) => &[],
            },
        }
    }

    /// The state after a token; `None`: not allowed here.
    pub fn next(&self, state: u32, token: u32) -> Option<u32> {
        self.open_edges(state, Some(self.class(token)), true).first().map(|edge| edge.next)
    }

    /// Whether the text up to a state belongs to the language, or the answer is over.
    pub fn is_accepting(&self, state: u32) -> bool {
        self.distances[state as usize] == 0
    }

    /// Tokens of the shortest answer, without the end token.
    pub fn shortest(&self) -> usize {
        self.distances[Self::START as usize] as usize
    }

    /// Whether some answer has these tokens in these rows; `None`: undecided. `rows` reach to the limit of the answer, and the
    /// first row that may hold an end token is `may_end_from`.
    pub fn fits(&self, rows: &[Option<u32>], may_end_from: usize) -> bool {
        let n_decided = rows.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        let mut reached = vec![false; self.n_states()];
        reached[Self::START as usize] = true;
        let mut row = 0;
        while row < n_decided {
            let only = rows[row].map(|token| self.class(token));
            let may_end = row >= may_end_from;
            let is_alike = |other: &Option<u32>, at: usize| other.is_none() && (at >= may_end_from) == may_end;
            let n_alike = match only {
                Some(_) => 1,
                None => (row..n_decided).take_while(|&at| is_alike(&rows[at], at)).count(),
            };
            reached = repeat(reached, n_alike, |from| self.after(from, only, may_end));
            row += n_alike;
        }
        let ends = self.completable(rows.len() - n_decided, may_end_from.saturating_sub(n_decided));
        reached.iter().zip(ends).any(|(is_reached, can_end)| *is_reached && can_end)
    }

    /// The states after a row.
    fn after(&self, from: &[bool], only: Option<u32>, may_end: bool) -> Vec<bool> {
        let mut reached = vec![false; from.len()];
        for (state, _) in (0..).zip(from).filter(|(_, is_reached)| **is_reached) {
            for edge in self.open_edges(state, only, may_end) {
                reached[edge.next as usize] = true;
            }
        }
        reached
    }

    /// For each state, whether an answer can be completed in `n_rest` undecided rows, of which the first `n_closed` may not hold
    /// the first end token.
    pub(crate) fn completable(&self, n_rest: usize, n_closed: usize) -> Vec<bool> {
        let n_closed = n_closed.min(n_rest);
        let set = self.distances.iter().map(|&distance| distance as usize <= n_rest - n_closed).collect();
        repeat(set, n_closed, |to| {
            let leads_on = |state| self.open_edges(state, None, false).iter().any(|edge| to[edge.next as usize]);
            (0..self.n_states() as u32).map(leads_on).collect()
        })
    }
}

/// `step` done `n` times, in fewer steps where sets come back.
fn repeat(mut set: Vec<bool>, n: usize, step: impl Fn(&[bool]) -> Vec<bool>) -> Vec<bool> {
    let (mut n_left, mut mark, mut n_since, mut n_next_mark) = (n, set.clone(), 0, 1);
    while n_left > 0 {
        set = step(&set);
        n_left -= 1;
        n_since += 1;
        if set == mark {
            n_left %= n_since;
        }
        if n_since == n_next_mark {
            (mark, n_since, n_next_mark) = (set.clone(), 0, 2 * n_next_mark);
        }
    }
    set
}
