//! From sequences to recipes, and from scored rows to candidates.

use std::collections::BTreeMap;

use diffulex_strategies::{BlockCandidates, Candidate, MAX_TOP_K};

use crate::error::RequestError;
use crate::kernels::{Recipe, Scored, Vocabulary};
use crate::logit_changes::LogitChanges;
use crate::randomness::{DrawKey, Randomness};
use crate::scheduler::{Scheduled, Ticket};
use crate::sequence::Sequence;

/// An undecided position, which a row of a forward predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which request.
    pub ticket: Ticket,
    /// Which of its blocks.
    pub block: usize,
    /// Index into the block.
    pub row: usize,
}

/// The key of everything drawn for `position` in the next step.
pub fn draw_key(sequence: &Sequence, position: usize) -> DrawKey {
    let step = sequence.blocks()[sequence.block_of(position)].steps;
    DrawKey { seed: sequence.params().seed.unwrap_or_default(), position, step }
}

/// How the row `row` of a forward is scored, which predicts `position`; without guidance.
pub fn recipe(
    sequence: &Sequence,
    position: usize,
    row: u32,
    changes: &LogitChanges,
    vocabulary: Vocabulary,
    randomness: &dyn Randomness,
) -> Recipe {
    let params = sequence.params();
    Recipe {
        strategy_temperature: sequence.temperature(sequence.block_of(position)),
        changes: changes.at(sequence, position),
        temperature: params.temperature,
        top_k: params.top_k,
        top_p: params.top_p,
        min_p: params.min_p,
        draw: randomness.draw(draw_key(sequence, position)),
        score: sequence.score(),
        n_likeliest: sequence.n_likeliest(),
        ..Recipe::greedy(row, vocabulary)
    }
}

/// Candidates of each request by block, or the error of the request. There is one candidate for each of `owners`, which lists
/// the positions of a block together.
pub fn candidates(
    requests: &BTreeMap<Ticket, Scheduled>,
    owners: &[Wanted],
    scored: Vec<Option<Scored>>,
    randomness: &dyn Randomness,
) -> BTreeMap<Ticket, Result<Vec<BlockCandidates>, RequestError>> {
    let mut all = BTreeMap::new();
    for (wanted, scored) in owners.iter().zip(scored) {
        let Some(Scheduled { sequence, .. }) = requests.get(&wanted.ticket) else { continue };
        let entry = all.entry(wanted.ticket).or_insert_with(|| Ok(Vec::<BlockCandidates>::new()));
        let Ok(blocks) = entry else { continue };
        let position = sequence.block_range(wanted.block).start + wanted.row;
        let Some(scored) = scored else {
            *entry = Err(RequestError::engine(format!("the network's output at position {position} is not a number")));
            continue;
        };
        let candidate = candidate(sequence, wanted.row, position, &scored, randomness);
        match blocks.last_mut() {
            Some(last) if last.block == wanted.block => last.candidates.push(candidate),
            Some(_) | None => blocks.push(BlockCandidates { block: wanted.block, candidates: vec![candidate] }),
        }
    }
    all
}

fn candidate(
    sequence: &Sequence,
    row: usize,
    position: usize,
    scored: &Scored,
    randomness: &dyn Randomness,
) -> Candidate {
    let Scored { token, confidence, score, likeliest: [likeliest, others @ ..], .. } = *scored;
    let runners_up: [(u32, f32); MAX_TOP_K - 1] = others;
    let chance = randomness.chance(draw_key(sequence, position));
    Candidate { row, current: sequence.draft(position), token, confidence, likeliest, runners_up, score, chance }
}
