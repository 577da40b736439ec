//! When another block opens.

use diffulex_strategies::{BlockProgress, StrategyKind, Value};

use crate::harness::{BLOCK_SIZE, strategy, strategy_with};

fn progress(n_filled: usize, n_drafts: usize) -> Option<BlockProgress> {
    Some(BlockProgress { n_filled, n_drafts, block_size: BLOCK_SIZE })
}

const MASKED: (usize, usize) = (7, 0);
const DRAFTED: (usize, usize) = (8, 1);
const SETTLED: (usize, usize) = (8, 0);

#[test]
fn a_block_is_complete_without_masks_and_settled_without_drafts() {
    let is = |(n_filled, n_drafts): (usize, usize)| {
        let progress = BlockProgress { n_filled, n_drafts, block_size: BLOCK_SIZE };
        (progress.is_complete(), progress.is_settled())
    };
    assert_eq!(is(MASKED), (false, false));
    assert_eq!(is((7, 1)), (false, false));
    assert_eq!(is(DRAFTED), (true, false));
    assert_eq!(is(SETTLED), (true, true));
}

#[test]
fn a_block_opens_when_the_newest_is_settled_and_the_buffer_has_room() {
    for name in ["multi_bd", "block_edit", "dmax"] {
        let strategy = strategy(name);
        let opens = |n_live, (n_filled, n_drafts)| strategy.opens_block(n_live, progress(n_filled, n_drafts), true);
        assert!(opens(1, SETTLED), "{name}");
        assert!(!opens(1, DRAFTED), "{name}: a draft may change");
        assert!(!opens(1, MASKED), "{name}");
        assert!(!opens(2, SETTLED), "{name}: the buffer is full");
        assert!(strategy.opens_block(0, None, true), "{name}");
        assert!(!strategy.opens_block(0, None, false), "{name}: the prompt is encoded first");
    }
}

#[test]
fn a_lower_threshold_opens_a_block_early() {
    let strategy = strategy_with("multi_bd", &[("add_block_threshold", Value::Number(0.5))]);
    let opens = |n_live, n_filled, n_drafts| strategy.opens_block(n_live, progress(n_filled, n_drafts), true);
    assert!(opens(1, 4, 0), "the threshold is inclusive");
    assert!(opens(1, 4, 4), "drafts count as filled");
    assert!(!opens(1, 3, 0));
    assert!(!opens(2, 4, 0), "the buffer is full");
}

#[test]
fn d2f_opens_its_first_block_in_the_forward_that_encodes_the_prompt() {
    let strategy = strategy("d2f");
    assert!(strategy.opens_block(0, None, false));
    assert!(strategy.opens_block(3, progress(1, 0), false), "a tenth of the newest is filled");
    assert!(!strategy.opens_block(3, progress(0, 0), false));
    assert!(!strategy.opens_block(4, progress(8, 0), false), "four blocks are in flight");
}

#[test]
fn a_canvas_opens_behind_one_that_is_decided() {
    let strategy = strategy("diffusion_gemma");
    let opens = |n_live, (n_filled, n_drafts)| strategy.opens_block(n_live, progress(n_filled, n_drafts), false);
    assert!(strategy.opens_block(0, None, false));
    assert!(opens(1, SETTLED));
    assert!(!opens(1, DRAFTED));
    assert!(!opens(2, SETTLED), "one is denoised and one is encoded");
    assert!(!opens(3, SETTLED));
}

#[test]
fn a_block_of_fast_dllm_v2_opens_when_the_one_before_has_no_masks() {
    let strategy = strategy("fast_dllm_v2");
    let opens = |n_live, (n_filled, n_drafts)| strategy.opens_block(n_live, progress(n_filled, n_drafts), false);
    assert!(strategy.opens_block(0, None, false));
    assert!(opens(1, SETTLED));
    assert!(!opens(1, MASKED));
    assert!(!opens(2, SETTLED));
}

#[test]
fn whole_answers_open_no_blocks() {
    for kind in StrategyKind::ALL.iter().filter(|kind| kind.layout() == diffulex_strategies::Layout::WholeAnswer) {
        assert!(!strategy(kind.name()).opens_block(0, None, true), "{}", kind.name());
    }
}
