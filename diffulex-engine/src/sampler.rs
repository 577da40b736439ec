//! From sequences to recipes, and from scored rows to candidates.

use std::collections::BTreeMap;

use diffulex_protocol::SamplingParams;
use diffulex_strategies::{BlockCandidates, Candidate, MAX_TOP_K, Score};

use crate::error::RequestError;
use crate::kernels::{self, MAX_LIKELIEST, RowScore, SampleableTokens, ScoreSpec};
use crate::logit_changes::LogitChanges;
use crate::randomness::{DrawKey, Randomness};
use crate::scheduler::{Scheduled, Ticket};
use crate::sequence::Sequence;

// Candidates have what clients may ask for and what strategies look at.
const _: () = assert!(SamplingParams::MAX_TOP_LOGPROBS as usize <= MAX_LIKELIEST && MAX_TOP_K <= MAX_LIKELIEST);

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

/// A strategy's score, in the kernels' words.
fn score_of(score: Score) -> kernels::Score {
    match score {
        Score::Probability => kernels::Score::Probability,
        Score::Margin => kernels::Score::Margin,
        Score::NegativeEntropy => kernels::Score::NegativeEntropy,
    }
}

/// How the row `row` of a forward is scored, which predicts `position`; without guidance.
pub fn recipe(
    sequence: &Sequence,
    position: usize,
    row: u32,
    changes: &LogitChanges,
    vocabulary: SampleableTokens,
    randomness: &dyn Randomness,
) -> ScoreSpec {
    let params = sequence.params();
    ScoreSpec {
        strategy_temperature: sequence.temperature(sequence.block_of(position)),
        changes: changes.at(sequence, position),
        temperature: params.temperature,
        top_k: params.top_k,
        top_p: params.top_p,
        min_p: params.min_p,
        draw: randomness.draw(draw_key(sequence, position)),
        score: score_of(sequence.score()),
        n_likeliest: sequence.n_likeliest(),
        asked: sequence.known(position).into_iter().collect(),
        ..ScoreSpec::greedy(row, vocabulary)
    }
}

/// Candidates of each request by block, or the error of the request. There is one candidate for each of `owners`, which lists
/// the positions of a block together.
pub fn candidates(
    requests: &BTreeMap<Ticket, Scheduled>,
    owners: &[Wanted],
    scored: Vec<Option<RowScore>>,
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
    scored: &RowScore,
    randomness: &dyn Randomness,
) -> Candidate {
    let RowScore { token, confidence, score, likeliest, ref runners_up, .. } = *scored;
    let runners_up = runners_up.clone();
    // A known token is ranked by nothing, so its score is what was asked for.
    let known = sequence.known(position).zip(scored.log_probabilities.first().copied());
    let (token, confidence, score) = known.map_or((token, confidence, score), |(token, log)| (token, log.exp(), log));
    let chance = randomness.chance(draw_key(sequence, position));
    Candidate { row, current: sequence.draft(position), token, confidence, likeliest, runners_up, score, chance }
}

#[cfg(test)]
mod tests {
    use diffulex_protocol::{FinishReason, SamplingParams};
    use diffulex_strategies::{AttentionKind, ModelTraits, StrategyKind};

    use super::*;
    use crate::alignment::LogitAlignment;
    use crate::kernels::Draw;
    use crate::randomness::Seeded;
    use crate::sequence::Limits;

    const VOCABULARY: SampleableTokens = SampleableTokens { n_sampleable: 12, mask_token_id: None };

    /// Every field of a recipe comes from the request or its strategy, and none has the value it has by default.
    #[test]
    fn a_recipe_says_all_that_the_request_and_its_strategy_ask_for() {
        let params = SamplingParams {
            temperature: 0.75,
            top_k: Some(7),
            top_p: Some(0.5),
            min_p: Some(0.25),
            top_logprobs: 3,
            presence_penalty: 1.0,
            seed: Some(11),
            ..SamplingParams::default()
        };
        let model = ModelTraits {
            attention: AttentionKind::Canvas,
            is_shifted: false,
            may_edit: true,
            may_have_d2f: false,
            block_size: 4,
            buffer_size: None,
            max_model_len: 64,
            accept_threshold: None,
        };
        let strategy = StrategyKind::CanvasRenoise.make(&model);
        let limits = Limits { end: 8, reason: FinishReason::MaxNewTokensReached };
        let mut sequence =
            Sequence::new(&[5; 4], limits, 12, &[], params.clone(), strategy.clone(), LogitAlignment::Same);
        let blocks = sequence.step_blocks();
        assert!(blocks.clone().any(|block| sequence.is_canvas(block)), "{blocks:?}");
        let changes = LogitChanges::of(&sequence, VOCABULARY);
        let made = recipe(&sequence, 5, 9, &changes, VOCABULARY, &Seeded);
        let draw = Seeded.draw(DrawKey { seed: 11, position: 5, step: 0 });
        assert_ne!(draw, Draw::Uniform(0.0));
        let expected = ScoreSpec {
            row: 9,
            strategy_temperature: 0.8,
            guidance: None,
            changes: changes.at(&sequence, 5),
            vocabulary: VOCABULARY,
            temperature: 0.75,
            top_k: Some(7),
            top_p: Some(0.5),
            min_p: Some(0.25),
            draw,
            score: kernels::Score::NegativeEntropy,
            n_likeliest: 3,
            asked: Vec::new(),
            classes: None,
            conditions: None,
        };
        assert_eq!(made, expected);
    }
}
