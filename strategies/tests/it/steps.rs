//! Steps of strategies on blocks of a few candidates.

use diffulex_strategies::{AnyStrategy, BlockView, Edit, Proposal, StepRows, StrategyKind, Value};

use crate::harness::{BLOCK_SIZE, block, candidate, masks, model, strategy, strategy_with};
use diffulex_strategies::AttentionKind;

#[test]
fn accepted_candidates_are_written_for_good() {
    let candidates = masks(&[0.95, 0.3, 0.92]);
    for name in ["multi_bd", "semi_ar", "d2f", "fast_dllm_v2"] {
        let proposal = strategy(name).step(&block(&candidates));
        assert_eq!(proposal.edits, [Edit::fill(&candidates[0]), Edit::fill(&candidates[2])], "{name}");
        assert!(proposal.settles, "{name}");
    }
    // Its schedule writes all that is left at the last step.
    let last = BlockView { step: 63, ..block(&candidates) };
    let all = Proposal::fill(&candidates);
    assert_eq!(all.edits.len(), 3);
    assert_eq!(strategy("diffusion_generate").step(&last), all);
}

#[test]
fn block_edit_writes_drafts() {
    let candidates = masks(&[0.95, 0.3]);
    let proposal = strategy("block_edit").step(&block(&candidates));
    assert_eq!(proposal, Proposal { edits: vec![Edit::draft(&candidates[0])], settles: false });
}

#[test]
fn a_forced_candidate_is_a_draft_where_the_strategy_writes_drafts() {
    let forced = candidate(3, None, 0.1);
    for kind in StrategyKind::ALL {
        let strategy = strategy(kind.name());
        let edit = if strategy.requirements().writes_drafts { Edit::draft(&forced) } else { Edit::fill(&forced) };
        assert_eq!(strategy.force(&forced), Proposal { edits: vec![edit], settles: false }, "{}", kind.name());
    }
}

/// `semi_ar` for a model with or without shifted logits.
fn semi_ar(is_shifted: bool, kv_reuse: &'static str) -> AnyStrategy {
    let strategy = StrategyKind::SemiAutoregressive.make(&model(AttentionKind::Full, is_shifted));
    strategy.with([("kv_reuse", Value::Text(kv_reuse))]).expect("taken")
}

#[test]
fn a_block_with_shifted_logits_and_stale_kv_begins_with_its_first_position_alone() {
    let masked = [true; BLOCK_SIZE];
    let candidates = masks(&[0.1, 0.95]);
    let whole = 0..BLOCK_SIZE;
    for (is_shifted, kv_reuse, is_alone) in
        [(true, "prefix", true), (true, "dual", true), (true, "none", false), (false, "prefix", false)]
    {
        let strategy = semi_ar(is_shifted, kv_reuse);
        let decided = if is_alone { 0..1 } else { whole.clone() };
        assert_eq!(strategy.step_rows(&masked, false), StepRows { forwarded: whole.clone(), decided }, "{kv_reuse}");
        let row = usize::from(!is_alone);
        assert_eq!(strategy.step(&block(&candidates)).edits, [Edit::fill(&candidates[row])], "{is_shifted} {kv_reuse}");
    }
}

#[test]
fn a_block_whose_first_position_is_written_is_decided_whole() {
    let mut masked = [true; BLOCK_SIZE];
    masked[0] = false;
    assert_eq!(semi_ar(true, "prefix").step_rows(&masked, true), StepRows::whole(BLOCK_SIZE));
    let candidates = [candidate(1, None, 0.1), candidate(2, None, 0.95)];
    assert_eq!(semi_ar(true, "prefix").step(&block(&candidates)).edits, [Edit::fill(&candidates[1])]);
}

#[test]
fn a_canvas_is_sure_below_its_threshold_only() {
    let values = [
        ("confidence_threshold", Value::Number(0.25)),
        ("stability_threshold", Value::Integer(0)),
        ("denoising_steps", Value::Integer(10)),
    ];
    let canvases = strategy_with("diffusion_gemma", &values);
    // The score is the negative entropy.
    let settles = |entropy: f32| {
        let mut candidates = masks(&[0.5, 0.5]);
        candidates.iter_mut().for_each(|candidate| candidate.score = -entropy);
        canvases.step(&block(&candidates)).settles
    };
    assert!(settles(0.24));
    assert!(!settles(0.25));
}

#[test]
fn saber_counts_only_written_positions_as_established() {
    // A mean of 0.9 over the one position that was ever written; over all eight it would be 0.1125.
    let written = [0.9, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let mut candidates = masks(&[0.9, 0.5, 0.6, 0.7, 0.4, 0.3, 0.2, 0.1]);
    candidates[0].current = Some(0);
    let view = BlockView { written_confidences: &written, last_confidences: &written, ..block(&candidates) };
    let proposal = strategy("saber").step(&view);
    let n_written = proposal.edits.iter().filter(|edit| matches!(edit, Edit::Draft { .. })).count();
    assert_eq!(n_written, 2, "the two best, as none is above the mean");
}

#[test]
fn saber_writes_above_the_mean_only() {
    let written = [0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let mut candidates = masks(&[0.5, 0.5, 0.6, 0.7, 0.1, 0.1, 0.1, 0.1]);
    candidates[0].current = Some(0);
    let view = BlockView { written_confidences: &written, last_confidences: &written, ..block(&candidates) };
    let drafts: Vec<Edit> = strategy("saber").step(&view).edits.into_iter().take(2).collect();
    assert_eq!(drafts, [Edit::draft(&candidates[2]), Edit::draft(&candidates[3])]);
}

#[test]
fn saber_masks_half_of_its_least_number_again() {
    let saber = strategy_with("saber", &[("min_accept_tokens", Value::Integer(4))]);
    let candidates = masks(&[0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]);
    let proposal = saber.step(&block(&candidates));
    let masked_again: Vec<usize> = proposal
        .edits
        .iter()
        .filter_map(|edit| if let Edit::Mask { row } = edit { Some(*row) } else { None })
        .collect();
    // Confidences were 0 in the step before, so the least confident of the four has risen least.
    assert_eq!(masked_again, [2, 3]);
}
