//! Edit rules: they select the drafts to replace or to mask again, and decide when a block settles.
//!
//! E1 and E2 are numbers of the project's literature survey. E5, `renoise`, is part of `diffusion_gemma`; E3 and E4 do not fit
//! blocks of fixed length and logits of one forward (docs/decisions/0003-edit-rules-that-are-not-there.md).

use crate::accept::{AcceptRule, best_scored};
use crate::contract::edit::{Edit, Proposal};
use crate::contract::setting::{Field, Overrides, Setting, SettingError, SettingFields, Value};
use crate::contract::view::{BlockView, Candidate};

/// The rule by name.
pub(crate) const EDIT_RULE: Setting =
    Setting::choice("edit_rule", &["joint", "remask", "renoise"], "Edit rule (renoise for diffusion_gemma only)");

/// See [`EditRule::Joint`].
pub(crate) const EDIT_THRESHOLD: Setting =
    Setting::number("edit_threshold", "P", 0.0, 1.0, "Confidence above which joint replaces a written token");

/// See [`EditRule::Joint`]. The maximum is chosen by us, one per position of the longest block: without a limit, tokens could
/// replace each other forever.
pub(crate) const MAX_POST_EDIT_STEPS: Setting = Setting::count(
    "max_post_edit_steps",
    0,
    64,
    "Maximum number of forwards over a block without masks in which joint may still replace tokens",
);

/// See [`EditRule::Joint`]. The maximum is chosen by us: a logit lowered by 10000 is never the largest, and results stay finite.
pub(crate) const PENALTY_LAMBDA: Setting = Setting::number(
    "penalty_lambda",
    "LAMBDA",
    0.0,
    1e4,
    "Penalty that joint subtracts from the logit of the preceding token",
);

/// See [`EditRule::Remask`].
pub(crate) const REMASK_THRESHOLD: Setting =
    Setting::number("remask_threshold", "P", 0.0, 1.0, "Confidence below which remask may mask a written token again");

/// An edit rule with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EditRule {
    /// E1, LLaDA2.1's joint threshold (its generate; SGLang's JointThreshold): in addition to the accepted masks, each draft is
    /// replaced if another token is predicted with a confidence above the threshold. A block settles when a forward over the
    /// full block changes nothing, or after `max_post_edit_steps`.
    Joint {
        /// In [0, 1], exclusive.
        edit_threshold: f32,
        /// Maximum number of forwards over a block without masks.
        max_post_edit_steps: usize,
        /// Repetition penalty, 0 or more, subtracted from the logit of the token one row before; 0: none (SGLang's
        /// JointThreshold; LLaDA2.1's generate has none).
        penalty_lambda: f32,
    },
    /// E2, dInfer's hierarchy_remask: drafts that are now predicted with a confidence below the threshold are reopened and
    /// compete with the masks; reopened drafts that are not accepted are masked again. Each step leaves fewer masks. A block
    /// settles when it is full.
    Remask {
        /// In [0, 1], exclusive.
        remask_threshold: f32,
    },
}

impl EditRule {
    /// Returns `joint` with the defaults of LLaDA2.1's generate (`editing_threshold`, `max_post_steps`). SGLang and Diffulex have
    /// no penalty by default either.
    pub fn joint() -> Self {
        Self::Joint { edit_threshold: 0.9, max_post_edit_steps: 16, penalty_lambda: 0.0 }
    }

    /// Returns `remask` with the default of dInfer's hierarchy decoder and Diffulex.
    pub fn remask() -> Self {
        Self::Remask { remask_threshold: 0.4 }
    }

    fn fields(&mut self) -> SettingFields<'_> {
        match self {
            Self::Joint { edit_threshold, max_post_edit_steps, penalty_lambda } => vec![
                (&EDIT_THRESHOLD, Field::Number(edit_threshold)),
                (&MAX_POST_EDIT_STEPS, Field::Count(max_post_edit_steps)),
                (&PENALTY_LAMBDA, Field::Number(penalty_lambda)),
            ],
            Self::Remask { remask_threshold } => vec![(&REMASK_THRESHOLD, Field::Number(remask_threshold))],
        }
    }

    /// Takes the rule's name and its settings from `overrides`. Refuses settings of the other rule.
    pub fn set(&mut self, overrides: &mut Overrides<'_>) -> Result<(), SettingError> {
        match overrides.take(&EDIT_RULE)?.and_then(Value::text) {
            Some(name) if name == self.name() => {}
            Some("joint") => *self = Self::joint(),
            Some("remask") => *self = Self::remask(),
            Some(other) => {
                let what = format!("must be one of joint, remask, got {other:?}");
                return Err(SettingError::refused(EDIT_RULE.name, what));
            }
            None => {}
        }
        overrides.apply(self.fields())?;
        let of_rules = [&EDIT_THRESHOLD, &MAX_POST_EDIT_STEPS, &PENALTY_LAMBDA, &REMASK_THRESHOLD];
        match of_rules.into_iter().find(|setting| overrides.has(setting)) {
            Some(other) => {
                Err(SettingError::refused(other.name, format!("does not apply to the edit rule {}", self.name())))
            }
            None => Ok(()),
        }
    }

    /// Returns the rule's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Joint { .. } => "joint",
            Self::Remask { .. } => "remask",
        }
    }

    /// Returns the repetition penalty, 0 if the rule has none.
    pub fn penalty_lambda(&self) -> f32 {
        match self {
            Self::Joint { penalty_lambda, .. } => *penalty_lambda,
            Self::Remask { .. } => 0.0,
        }
    }

    /// Returns the edits of this step; `accept` is the rule for masks.
    pub fn propose(&self, accept: &AcceptRule, block: &BlockView<'_>) -> Proposal {
        let (masked, drafts): (Vec<Candidate>, Vec<Candidate>) =
            block.candidates.iter().cloned().partition(|candidate| candidate.current.is_none());
        match *self {
            // A block without edit steps left may still wait for the preceding block to settle.
            Self::Joint { max_post_edit_steps, .. } if masked.is_empty() && block.full_steps >= max_post_edit_steps => {
                Proposal { edits: Vec::new(), settles: true }
            }
            Self::Joint { edit_threshold, max_post_edit_steps, .. } => {
                let accepted = accept.accept(&BlockView { candidates: &masked, ..*block });
                let is_replaced =
                    |draft: &Candidate| draft.current != Some(draft.token) && draft.confidence > edit_threshold;
                let is_full = accepted.len() == masked.len();
                let n_full_steps = block.full_steps + usize::from(masked.is_empty());
                let written = accepted.iter().chain(drafts.iter().filter(|draft| is_replaced(draft)));
                let edits: Vec<Edit> = written.map(Edit::draft).collect();
                let settles = is_full && (edits.is_empty() || n_full_steps >= max_post_edit_steps);
                Proposal { edits, settles }
            }
            Self::Remask { remask_threshold } => {
                let doubtful: Vec<Candidate> =
                    drafts.into_iter().filter(|draft| draft.confidence < remask_threshold).collect();
                let mut open = [masked.as_slice(), doubtful.as_slice()].concat();
                open.sort_by_key(|candidate| candidate.row);
                let mut accepted = accept.accept(&BlockView { candidates: &open, ..*block });
                // One more write than reopened drafts leaves fewer masks than before.
                if accepted.len() <= doubtful.len() {
                    accepted = best_scored(&open, doubtful.len() + 1);
                }
                let stays = |candidate: &Candidate| accepted.iter().any(|accepted| accepted.row == candidate.row);
                let taken_back =
                    doubtful.iter().filter(|draft| !stays(draft)).map(|draft| Edit::Mask { row: draft.row });
                let settles = accepted.len() == open.len();
                Proposal { edits: taken_back.chain(accepted.iter().map(Edit::draft)).collect(), settles }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accept::Threshold;
    use crate::contract::view::BlockProgress;

    /// `(draft or None, predicted token, its confidence)` of each row.
    type Row = (Option<u32>, u32, f32);

    fn propose(rule: EditRule, rows: &[Row], full_steps: usize) -> Proposal {
        let candidates = Candidate::plain_block(rows);
        let n_filled = rows.iter().filter(|(current, ..)| current.is_some()).count();
        rule.propose(
            &AcceptRule::Threshold(Threshold::default()),
            &BlockView {
                full_steps,
                ..BlockView::first(BlockProgress { n_filled, n_drafts: n_filled, block_size: rows.len() }, &candidates)
            },
        )
    }

    /// The rows after the proposal, `_` for a mask.
    fn picture(rows: &[Row], proposal: &Proposal) -> String {
        let mut tokens: Vec<Option<u32>> = rows.iter().map(|(current, ..)| *current).collect();
        for edit in &proposal.edits {
            match *edit {
                Edit::Fill { row, token, .. } | Edit::Draft { row, token, .. } => tokens[row] = Some(token),
                Edit::Mask { row } => tokens[row] = None,
            }
        }
        tokens.iter().map(|token| token.map_or("_".to_owned(), |token| token.to_string())).collect()
    }

    const ROWS: [Row; 4] = [(Some(5), 5, 0.99), (None, 6, 0.95), (Some(7), 8, 0.6), (None, 9, 0.3)];

    fn joint(edit_threshold: f32) -> EditRule {
        EditRule::Joint { edit_threshold, max_post_edit_steps: 2, penalty_lambda: 0.0 }
    }

    #[test]
    fn joint_fills_and_replaces_in_one_step() {
        let proposal = propose(joint(0.0), &ROWS, 0);
        assert_eq!((picture(&ROWS, &proposal).as_str(), proposal.settles), ("568_", false));
        let proposal = propose(joint(0.7), &ROWS, 0);
        assert_eq!(picture(&ROWS, &proposal), "567_");
    }

    #[test]
    fn joint_stays_when_a_full_forward_changes_nothing_or_after_the_last() {
        let same = [(Some(5), 5, 0.99), (Some(6), 7, 0.2)];
        assert_eq!(propose(joint(0.7), &same, 0), Proposal { edits: Vec::new(), settles: true });
        let other = [(Some(5), 5, 0.99), (Some(6), 7, 0.8)];
        assert!(!propose(joint(0.7), &other, 0).settles);
        let last = propose(joint(0.7), &other, 1);
        assert_eq!((picture(&other, &last).as_str(), last.settles), ("57", true));
        assert_eq!(propose(joint(0.7), &other, 2), Proposal { edits: Vec::new(), settles: true }, "it waits");
        // A token that was just filled has not been revised yet.
        let filling = [(Some(5), 5, 0.99), (None, 6, 0.95)];
        assert!(!propose(joint(0.7), &filling, 0).settles);
        let unlooked = EditRule::Joint { edit_threshold: 0.7, max_post_edit_steps: 0, penalty_lambda: 0.0 };
        assert!(propose(unlooked, &filling, 0).settles);
    }

    #[test]
    fn remask_takes_doubtful_drafts_back() {
        let rule = EditRule::Remask { remask_threshold: 0.4 };
        // One draft is reopened, so two positions are written: the confident mask, and the better of the other two.
        let rows = [(Some(5), 5, 0.99), (None, 6, 0.95), (Some(7), 8, 0.35), (None, 9, 0.3)];
        assert_eq!(picture(&rows, &propose(rule, &rows, 0)), "568_");
        let rows = [(Some(5), 5, 0.99), (None, 6, 0.95), (Some(7), 8, 0.25), (None, 9, 0.3)];
        assert_eq!(picture(&rows, &propose(rule, &rows, 0)), "56_9");
    }

    proptest::proptest! {
        #[test]
        fn every_step_of_remask_leaves_fewer_masks(
            rows in proptest::collection::vec((proptest::option::of(0u32..9), 0u32..9, 0.0f32..1.0), 1..33),
            remask_threshold in 0.0f32..1.0,
        ) {
            let n_masked = rows.iter().filter(|(current, ..)| current.is_none()).count();
            proptest::prop_assume!(n_masked > 0);
            let proposal = propose(EditRule::Remask { remask_threshold }, &rows, 0);
            let left = picture(&rows, &proposal).matches('_').count();
            proptest::prop_assert!(left < n_masked);
            proptest::prop_assert_eq!(proposal.settles, left == 0);
        }
    }
}
