//! Boundaries of accept and edit rules.

use diffulex_strategies::{AcceptRule, Edit, Value};

use crate::harness::{block, candidate, masks, strategy_with};

#[test]
fn a_threshold_that_keeps_is_inclusive_and_falls_back_to_the_best() {
    let strategy = strategy_with("semi_ar", &[("accept_threshold", Value::Number(0.5))]);
    let rows = |confidences: &[f32]| -> Vec<usize> {
        let rule = strategy.requirements().accept.expect("a rule");
        assert_eq!(rule.name(), "threshold_keep");
        rule.accept(&block(&masks(confidences))).iter().map(|candidate| candidate.row).collect()
    };
    assert_eq!(rows(&[0.4, 0.5, 0.6]), [1, 2]);
    assert_eq!(rows(&[0.1, 0.3, 0.2]), [1]);
}

#[test]
fn the_best_of_a_run_must_be_above_0_4() {
    let rule = AcceptRule::of_name("hierarchy").expect("a rule");
    // Two runs beside the best: rows 2 and 4.
    let candidates = [candidate(0, None, 0.8), candidate(2, None, 0.4), candidate(4, None, 0.41)];
    let rows: Vec<usize> = rule.accept(&block(&candidates)).iter().map(|candidate| candidate.row).collect();
    assert_eq!(rows, [0, 4]);
}

#[test]
fn joint_replaces_above_its_threshold_only() {
    let strategy = strategy_with("block_edit", &[("edit_threshold", Value::Number(0.5))]);
    let drafts = [candidate(0, Some(1), 0.5), candidate(1, Some(1), 0.51)];
    assert_eq!(strategy.step(&block(&drafts)).edits, [Edit::draft(&drafts[1])]);
}

#[test]
fn remask_doubts_below_its_threshold_only() {
    let values = [("edit_rule", Value::Text("remask")), ("remask_threshold", Value::Number(0.5))];
    let strategy = strategy_with("block_edit", &values);
    // One draft at the threshold and one below it, which is up again with the mask: the two best of these are written.
    let candidates = [candidate(0, Some(1), 0.5), candidate(1, Some(1), 0.49), candidate(2, None, 0.3)];
    let proposal = strategy.step(&block(&candidates));
    assert_eq!(proposal.edits, [Edit::draft(&candidates[1]), Edit::draft(&candidates[2])]);
}
