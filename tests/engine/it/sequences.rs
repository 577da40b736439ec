//! Sequences from outside: where blocks lie, what a step is about, and what a request knows of itself.

use std::collections::BTreeMap;

use diffulex_engine::models::LogitAlignment;
use diffulex_engine::sequence::{BlockStatus, Limits, PositionState, Sequence};
use diffulex_protocol::{FinishReason, SamplingParams};
use diffulex_strategies::{AnyStrategy, AttentionKind, BlockCandidates, Candidate, ModelTraits, StrategyKind, Value};

const MASK: u32 = 500;

fn strategy(kind: StrategyKind, values: &[(&'static str, Value<'static>)]) -> AnyStrategy {
    let model = ModelTraits {
        attention: AttentionKind::BlockCausal,
        is_shifted: false,
        may_edit: true,
        may_have_d2f: true,
        block_size: 4,
        buffer_size: None,
        max_model_len: 64,
        accept_threshold: None,
    };
    kind.make(&model).with(values.iter().copied()).expect("settings")
}

/// A request for `n_tokens` behind a prompt of `prompt_len` tokens, which count from 0.
fn sequence_with(kind: StrategyKind, values: &[(&'static str, Value<'static>)], sizes: [usize; 2]) -> Sequence {
    let [prompt_len, n_tokens] = sizes;
    let prompt: Vec<u32> = (0..prompt_len as u32).collect();
    let limits = Limits { end: prompt_len + n_tokens, reason: FinishReason::MaxNewTokensReached };
    let params = SamplingParams::default();
    Sequence::new(&prompt, limits, MASK, &[], params, strategy(kind, values), LogitAlignment::Same)
}

fn sequence(kind: StrategyKind, sizes: [usize; 2]) -> Sequence {
    sequence_with(kind, &[], sizes)
}

/// A candidate at each position that a step over `block` is about, with these confidences in turn.
fn candidates(sequence: &Sequence, block: usize, confidences: &[f32]) -> BlockCandidates {
    let start = sequence.geometry().block_range(block).start;
    let candidate = |(position, confidence): (usize, &f32)| Candidate {
        row: position - start,
        current: sequence.answer().draft(position),
        token: position as u32,
        confidence: *confidence,
        likeliest: (position as u32, *confidence),
        runners_up: Default::default(),
        score: *confidence,
        chance: 0.5,
    };
    let candidates =
        sequence.block(block).undecided().into_iter().zip(confidences.iter().cycle()).map(candidate).collect();
    BlockCandidates { block, candidates }
}

#[test]
fn blocks_lie_as_their_layout_says() {
    // Strategy, a prompt of 6 and an answer of 9: origin, blocks of prompt only, starts of the first blocks.
    let cases = [
        (StrategyKind::MultiBlock, 0, 1, [0, 4, 8, 12]),
        (StrategyKind::D2f, 6, 1, [0, 6, 10, 14]),
        (StrategyKind::SemiAutoregressive, 6, 0, [6, 10, 14, 15]),
        (StrategyKind::CanvasRenoise, 6, 2, [0, 4, 6, 10]),
    ];
    for (kind, origin, n_prompt_blocks, starts) in cases {
        let sequence = sequence(kind, [6, 9]);
        assert_eq!(
            (sequence.geometry().block_origin(), sequence.geometry().n_prompt_blocks()),
            (origin, n_prompt_blocks),
            "{kind:?}"
        );
        for (block, pair) in starts.windows(2).enumerate() {
            assert_eq!(sequence.geometry().block_range(block), pair[0]..pair[1], "{kind:?}");
            for position in pair[0]..pair[1] {
                assert_eq!(sequence.geometry().block_of(position), block, "{position} of {kind:?}");
            }
        }
    }
}

#[test]
fn a_position_sees_to_the_end_of_its_block_or_of_the_answer() {
    let visible = |kind| {
        let sequence = sequence(kind, [6, 8]);
        [0, 5].map(|position| sequence.visible_from(position))
    };
    assert_eq!(visible(StrategyKind::MultiBlock), [4, 8]);
    assert_eq!(visible(StrategyKind::D2f), [6, 6]);
    assert_eq!(visible(StrategyKind::SemiAutoregressive), [14, 14]);
    assert_eq!(visible(StrategyKind::CanvasRenoise), [1, 6], "a prompt under canvases sees nothing behind itself");
}

#[test]
fn a_whole_answer_is_open_from_the_start() {
    let sequence = sequence(StrategyKind::SemiAutoregressive, [6, 9]);
    assert_eq!((sequence.blocks().len(), sequence.answer().tokens().len()), (3, 15));
    assert_eq!((sequence.answer().frontier(), sequence.answer().final_end(), sequence.answer().end()), (6, 6, 15));
    assert_eq!(sequence.rows_of(&(0..3)), 0..15);
    assert_eq!(sequence.denoised(&(0..3)), 0..1);
}

#[test]
fn the_tail_of_a_prompt_shares_a_block_with_masks() {
    let sequence = sequence(StrategyKind::MultiBlock, [6, 8]);
    assert_eq!(sequence.blocks().len(), 2);
    assert_eq!(
        sequence.blocks().iter().map(|block| block.status).collect::<Vec<_>>(),
        [BlockStatus::Ready, BlockStatus::Active]
    );
    assert_eq!(sequence.block(1).undecided(), [6, 7]);
    assert_eq!(sequence.answer().n_given(0..8), 6);
    assert_eq!(sequence.answer().states()[5..7], [PositionState::Prompt, PositionState::Masked]);
    assert_eq!(sequence.answer().tokens()[4..], [4, 5, MASK, MASK]);
}

#[test]
fn what_the_client_gave_of_an_answer_is_never_written() {
    let sequence = sequence(StrategyKind::SemiAutoregressive, [2, 4]).with_given(&BTreeMap::from([(3, 9)]));
    assert_eq!(sequence.answer().tokens(), [0, 1, MASK, 9, MASK, MASK]);
    assert_eq!(sequence.block(0).undecided(), [2, 4, 5]);
    assert_eq!((sequence.answer().n_given(0..6), sequence.answer().confidences()[3]), (3, 1.0));
    let sequence = sequence.with_suffix(&[7, 8]);
    assert_eq!(sequence.answer().tokens()[6..], [7, 8]);
    assert_eq!((sequence.answer().n_given(0..8), sequence.rows_of(&(0..1)), sequence.visible_from(0)), (5, 0..8, 8));
}

#[test]
fn the_penalty_is_of_the_token_before_in_the_same_block() {
    let values = [("penalty_lambda", Value::Number(2.0))];
    let sequence = sequence_with(StrategyKind::BlockEdit, &values, [6, 8]);
    assert_eq!(sequence.penalty(6), Some((5, 2.0)), "the prompt's last token");
    assert_eq!(sequence.penalty(7), None, "a mask comes before");
    assert_eq!(sequence.penalty(4), None, "the first of its block");
    let without = self::sequence(StrategyKind::BlockEdit, [6, 8]);
    assert_eq!(without.penalty(6), None);
}

#[test]
fn confidences_are_those_of_the_step_that_wrote() {
    let mut sequence = sequence(StrategyKind::MultiBlock, [4, 4]);
    let prompt = sequence.step_blocks();
    sequence.advance(prompt, &[]).expect("a prompt");
    let blocks = sequence.step_blocks();
    assert_eq!(blocks, 1..2);
    let step = candidates(&sequence, 1, &[0.95, 0.3, 0.92, 0.2]);
    let change = sequence.advance(blocks, &[step]).expect("legal edits");
    assert_eq!((change.filled, change.is_visible, change.was_forced), (vec![0.95, 0.92], true, false));
    assert_eq!(sequence.answer().confidences(), [1.0, 1.0, 1.0, 1.0, 0.95, 0.0, 0.92, 0.0]);
    assert_eq!((sequence.answer().frontier(), sequence.blocks()[1].steps, sequence.blocks()[1].full_steps), (5, 1, 0));
    assert_eq!(sequence.answer().full_answer(), [4, 6]);
    assert_eq!(
        (sequence.decoding().nfe().prefill, sequence.decoding().nfe().denoise, sequence.decoding().nfe().charged()),
        (1, 1, 2)
    );
}

#[test]
fn a_step_that_writes_a_decided_position_is_an_error() {
    let mut sequence = sequence(StrategyKind::SemiAutoregressive, [2, 4]).with_given(&BTreeMap::from([(2, 9)]));
    let mut step = candidates(&sequence, 0, &[0.95]);
    step.candidates[0].row = 0;
    assert!(sequence.advance(0..1, &[step]).is_err(), "a given position");
}

#[test]
fn a_token_that_the_client_gave_ends_no_answer() {
    let params = SamplingParams { stop_token_ids: vec![9], ..SamplingParams::default() };
    let limits = Limits { end: 6, reason: FinishReason::MaxNewTokensReached };
    let strategy = strategy(StrategyKind::SemiAutoregressive, &[]);
    let mut sequence = Sequence::new(&[0, 1], limits, MASK, &[], params, strategy, LogitAlignment::Same)
        .with_given(&BTreeMap::from([(3, 9)]));
    let step = candidates(&sequence, 0, &[0.95]);
    sequence.advance(0..1, &[step]).expect("legal edits");
    assert_eq!(sequence.answer().end(), 6);
}

#[test]
fn a_token_that_the_client_gave_is_no_part_of_a_run() {
    // Behind the prompt: given tokens, of which `written` is one more.
    let end = |written: u32, given: [Option<u32>; 4]| {
        let given = (2..).zip(given).filter_map(|(position, token)| Some((position, token?))).collect();
        let params = SamplingParams { max_repetition_run: Some(2), ..SamplingParams::default() };
        let limits = Limits { end: 6, reason: FinishReason::MaxNewTokensReached };
        let strategy = strategy(StrategyKind::SemiAutoregressive, &[]);
        let mut sequence =
            Sequence::new(&[0, 1], limits, MASK, &[], params, strategy, LogitAlignment::Same).with_given(&given);
        let mut step = candidates(&sequence, 0, &[0.95]);
        step.candidates.iter_mut().for_each(|candidate| candidate.token = written);
        sequence.advance(0..1, &[step]).expect("legal edits");
        assert!(sequence.block(0).undecided().is_empty());
        sequence.answer().end()
    };
    assert_eq!(end(9, [Some(9), Some(9), Some(9), None]), 6);
    assert_eq!(end(9, [None, Some(9), None, Some(8)]), 6, "a given token between two of them");
    assert_eq!(end(9, [Some(9), None, None, Some(8)]), 5);
}

#[test]
fn what_the_client_gave_and_drafts_are_no_occurrences_in_the_answer() {
    let sequence = sequence(StrategyKind::SemiAutoregressive, [2, 4]).with_given(&BTreeMap::from([(3, 9)]));
    let occurrences = sequence.with_suffix(&[7, 9]).answer().occurrences();
    assert_eq!(occurrences, BTreeMap::from([(0, 0), (1, 0), (7, 0), (9, 0)]));

    let mut sequence = self::sequence(StrategyKind::BlockEdit, [4, 4]);
    let prompt = sequence.step_blocks();
    sequence.advance(prompt, &[]).expect("a prompt");
    let blocks = sequence.step_blocks();
    let step = candidates(&sequence, 1, &[0.95, 0.3]);
    sequence.advance(blocks, &[step]).expect("legal edits");
    let drafts: Vec<_> = (0..8).map(|position| sequence.answer().draft(position)).collect();
    assert_eq!(drafts[4..], [Some(4), None, Some(6), None]);
    assert_eq!(sequence.answer().occurrences(), (0..4).map(|token| (token, 0)).collect());
}

#[test]
fn what_is_found_needs_no_forward_and_what_is_lost_is_written_again() {
    let mut sequence = sequence(StrategyKind::MultiBlock, [8, 4]);
    sequence.blocks_mut().found_in_cache(1);
    assert_eq!((sequence.blocks().n_cached(), sequence.step_blocks()), (1, 1..2));
    sequence.blocks_mut().found_in_cache(0);
    assert_eq!((sequence.blocks().n_cached(), sequence.step_blocks()), (0, 0..2));
    sequence.advance(0..2, &[]).expect("the prompt");
    let blocks = sequence.step_blocks();
    assert_eq!((sequence.blocks().n_cached(), blocks.clone()), (2, 2..3));
    let step = candidates(&sequence, 2, &[0.95, 0.3]);
    sequence.advance(blocks, &[step]).expect("legal edits");
    sequence.blocks_mut().lose_cache();
    assert_eq!(sequence.blocks().n_cached(), 0);
    sequence.advance(0..2, &[]).expect("the prompt again");
    assert_eq!((sequence.blocks().n_cached(), sequence.answer().frontier()), (2, 9));
    assert_eq!(
        (sequence.decoding().nfe().prefill, sequence.decoding().nfe().denoise, sequence.decoding().nfe().rebuild),
        (1, 1, 1)
    );
}
