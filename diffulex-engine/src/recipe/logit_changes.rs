//! Changes of a request's logits: the client's bias and penalties, end tokens that would come too early, and the penalty of
//! the edit rule `joint`.
//!
//! In: a sequence between two steps. Out: [`LogitChange`]s for the recipe of each position. They depend on the request's own
//! state only, which every step reads as it was before: not on the batch, on preemption or on how a prompt is cut. Never here:
//! how logits are changed.

use crate::kernels::{LogitChange, SampleableTokens};
use crate::sequence::Sequence;

/// Added to the logit of a token that may not come yet. Chosen by us: far below every logit, and finite, because bodies
/// multiply logits.
const SUPPRESSED: f32 = -1e9;

/// Changes of the logits of one request in one step.
#[derive(Debug)]
pub struct LogitChanges {
    /// At every position: each token once, ascending.
    everywhere: Vec<LogitChange>,
    /// End tokens, which are suppressed before [`Answer::min_end`](crate::sequence::Answer::min_end).
    early: Vec<u32>,
}

impl LogitChanges {
    /// Changes for the next step of `sequence`.
    pub fn of(sequence: &Sequence, vocabulary: SampleableTokens) -> Self {
        let params = sequence.answer().params();
        let biased = |(token, bias): &(u32, f32)| LogitChange { bias: *bias, ..LogitChange::none(*token) };
        let mut everywhere: Vec<LogitChange> = params.logit_bias.iter().map(biased).collect();
        let (presence, frequency) = (params.presence_penalty, params.frequency_penalty);
        let repetition = params.repetition_penalty.unwrap_or(1.0);
        if presence != 0.0 || frequency != 0.0 || repetition != 1.0 {
            let biases = std::mem::take(&mut everywhere);
            let mut biases = biases.into_iter().peekable();
            for (token, n_written) in sequence.answer().occurrences() {
                while let Some(other) = biases.next_if(|other| other.token < token) {
                    everywhere.push(other);
                }
                let change = biases.next_if(|other| other.token == token).unwrap_or(LogitChange::none(token));
                let penalty = if n_written > 0 { presence + frequency * n_written as f32 } else { 0.0 };
                everywhere.push(LogitChange { repetition, penalty, ..change });
            }
            everywhere.extend(biases);
        }
        let can_come = |token: &u32| vocabulary.has(*token as usize);
        let early = if params.min_tokens == 0 {
            Vec::new()
        } else {
            sequence.answer().stop_ids().iter().copied().filter(can_come).collect()
        };
        Self { everywhere, early }
    }

    /// Changes at `position`: each token once, ascending.
    pub fn at(&self, sequence: &Sequence, position: usize) -> Vec<LogitChange> {
        let mut changes = self.everywhere.clone();
        if position < sequence.answer().min_end() {
            for token in &self.early {
                change_of(&mut changes, *token).bias += SUPPRESSED;
            }
        }
        if let Some((token, penalty)) = sequence.penalty(position) {
            change_of(&mut changes, token).penalty += penalty;
        }
        changes
    }
}

/// The change of `token` among `changes`, which has none at first.
fn change_of(changes: &mut Vec<LogitChange>, token: u32) -> &mut LogitChange {
    let place = changes.binary_search_by_key(&token, |change| change.token).unwrap_or_else(|place| {
        changes.insert(place, LogitChange::none(token));
        place
    });
    &mut changes[place]
}

#[cfg(test)]
mod tests {
    use diffulex_protocol::{FinishReason, SamplingParams};
    use diffulex_strategies::{AnyStrategy, AttentionKind, BlockCandidates, Candidate, ModelTraits, StrategyKind};
    use proptest::prelude::*;

    use super::*;
    use crate::alignment::LogitAlignment;
    use crate::sequence::Limits;

    const N_TOKENS: u32 = 12;
    const END: u32 = 3;
    const BLOCK_SIZE: usize = 8;

    fn strategy(kind: StrategyKind, attention: AttentionKind) -> AnyStrategy {
        kind.make(&ModelTraits {
            attention,
            is_shifted: false,
            may_edit: true,
            may_have_d2f: true,
            block_size: BLOCK_SIZE,
            buffer_size: None,
            max_model_len: 64,
            accept_threshold: Some(0.5),
        })
    }

    /// An answer of one block after `prompt`.
    fn sequence(strategy: AnyStrategy, prompt: &[u32], params: &SamplingParams) -> Sequence {
        let limits = Limits { end: prompt.len() + BLOCK_SIZE, reason: FinishReason::MaxNewTokensReached };
        Sequence::new(prompt, limits, N_TOKENS, &[END], params.clone(), strategy, LogitAlignment::Same)
    }

    /// `sequence` with some of its first positions decided, with `tokens` in turn.
    fn decided(mut sequence: Sequence, tokens: &[u32], sure: &[bool]) -> Sequence {
        while sequence.blocks().is_empty() || sequence.block(sequence.blocks().len() - 1).undecided().is_empty() {
            let blocks = sequence.step_blocks();
            sequence.advance(blocks, &[]).expect("the prompt is encoded");
        }
        let blocks = sequence.step_blocks();
        let index = sequence.denoised(&blocks).start;
        let start = sequence.geometry().block_start(index);
        let of_position = |(place, position): (usize, usize)| {
            let confidence = if sure[place % sure.len()] { 0.9 } else { 0.1 };
            Candidate {
                row: position - start,
                current: None,
                token: tokens[place % tokens.len()],
                confidence,
                likeliest: (tokens[place % tokens.len()], confidence),
                runners_up: Default::default(),
                score: confidence,
                chance: 0.5,
            }
        };
        let candidates = sequence.block(index).undecided().into_iter().enumerate().map(of_position).collect();
        sequence.advance(blocks, &[BlockCandidates { block: index, candidates }]).expect("a step");
        sequence
    }

    /// A logit changed by the definition, with a count of its own: vLLM's order, bias, repetition, frequency and presence.
    fn plainly(sequence: &Sequence, position: usize, token: u32, logit: f32) -> f32 {
        use crate::sequence::PositionState::{Filled, Prompt};
        let params = sequence.answer().params();
        let given = (0..sequence.answer().tokens().len())
            .any(|at| sequence.answer().states()[at] == Prompt && sequence.answer().tokens()[at] == token);
        let end = sequence.answer().end();
        let n_written = (sequence.answer().prompt_len()..end.min(sequence.answer().tokens().len()))
            .filter(|at| sequence.answer().states()[*at] == Filled && sequence.answer().tokens()[*at] == token)
            .count();
        let mut bias = params.logit_bias.iter().find(|(id, _)| *id == token).map_or(0.0, |(_, bias)| *bias);
        if token == END && position < sequence.answer().prompt_len() + params.min_tokens as usize {
            bias += SUPPRESSED;
        }
        let mut logit = logit + bias;
        let repetition = params.repetition_penalty.unwrap_or(1.0);
        if given || n_written > 0 {
            logit = if logit > 0.0 { logit / repetition } else { logit * repetition };
        }
        if n_written > 0 {
            logit -= params.presence_penalty + params.frequency_penalty * n_written as f32;
        }
        logit
    }

    proptest! {
        #[test]
        fn changes_are_those_of_the_definition(
            prompt in prop::collection::vec(0..N_TOKENS, 1..20),
            tokens in prop::collection::vec(0..N_TOKENS, 1..9),
            sure in prop::collection::vec(any::<bool>(), 1..9),
            logits in prop::collection::vec(-8.0f32..8.0, N_TOKENS as usize),
            penalties in (-2.0f32..2.0, -2.0f32..2.0, 0.5f32..2.0),
            bias in prop::collection::btree_map(0..N_TOKENS, -100.0f32..100.0, 0..5),
            min_tokens in 0u32..8,
            kind in 0..3,
            given in prop::collection::vec(prop::option::of(0..N_TOKENS), 0..BLOCK_SIZE),
            suffix in prop::collection::vec(0..N_TOKENS, 0..4),
        ) {
            let (presence_penalty, frequency_penalty, repetition_penalty) = penalties;
            let params = SamplingParams {
                presence_penalty,
                frequency_penalty,
                repetition_penalty: Some(repetition_penalty),
                logit_bias: bias.into_iter().collect(),
                min_tokens,
                ..SamplingParams::default()
            };
            let sequence = match kind {
                0 => sequence(strategy(StrategyKind::MultiBlock, AttentionKind::BlockCausal), &prompt, &params),
                // Its decided positions are drafts.
                1 => sequence(strategy(StrategyKind::BlockEdit, AttentionKind::BlockCausal), &prompt, &params),
                _ => sequence(strategy(StrategyKind::SemiAutoregressive, AttentionKind::Full), &prompt, &params)
                    .with_given(&(prompt.len()..).zip(&given).filter_map(|(at, token)| Some((at, (*token)?))).collect())
                    .with_suffix(&suffix),
            };
            let sequence = decided(sequence, &tokens, &sure);
            let vocabulary = SampleableTokens { n_sampleable: N_TOKENS as usize, mask_token_id: None };
            let all = LogitChanges::of(&sequence, vocabulary);
            for position in prompt.len()..prompt.len() + BLOCK_SIZE {
                let changes = all.at(&sequence, position);
                prop_assert!(changes.is_sorted_by(|a, b| a.token < b.token));
                for (token, logit) in (0..).zip(&logits) {
                    let change = changes.iter().find(|change| change.token == token);
                    let changed = change.map_or(*logit, |change| change.apply(*logit));
                    prop_assert_eq!(changed, plainly(&sequence, position, token, *logit));
                }
            }
        }
    }
}
