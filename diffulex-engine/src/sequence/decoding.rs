//! The strategy of a request and what it has done so far.
//!
//! Never here: positions, blocks.

use diffulex_protocol::{LabelScores, NfeCounts};
use diffulex_strategies::{
    AnyStrategy, BlockCandidates, BlockProgress, BlockView, Candidate, Proposal, Requirements, StepRows,
};

use super::constrained::Constrained;
use super::labels::Labels;
use super::scoring::Scoring;
use super::step::ForwardKind;
use crate::alignment::LogitAlignment;

/// Steps without a change before the watchdog forces a token: one can be a legal pause of a gated rule.
const MAX_IDLE_STEPS: u32 = 2;

/// The strategy of a request, its forwards and its idle steps.
#[derive(Debug)]
pub struct Decoding {
    strategy: AnyStrategy,
    requirements: Requirements,
    alignment: LogitAlignment,
    /// The text that is scored instead of written.
    scoring: Option<Scoring>,
    /// Tokens that are scored instead of an answer.
    labels: Option<Labels>,
    /// The languages that parts of the answer, or the whole, must belong to.
    constraints: Vec<Constrained>,
    nfe: NfeCounts,
    /// Steps in a row that changed nothing.
    n_idle_steps: u32,
}

impl Decoding {
    pub(super) fn new(strategy: AnyStrategy, alignment: LogitAlignment) -> Self {
        let requirements = strategy.requirements();
        Self {
            strategy,
            requirements,
            alignment,
            scoring: None,
            labels: None,
            constraints: Vec::new(),
            nfe: NfeCounts::default(),
            n_idle_steps: 0,
        }
    }

    /// The same for a text that is scored instead of written.
    pub(super) fn scoring(self, text: &[u32]) -> Self {
        Self { scoring: Some(Scoring::new(text)), ..self }
    }

    /// The same, scoring `labels` instead of writing an answer.
    pub(super) fn choosing(self, labels: &[u32]) -> Self {
        Self { labels: Some(Labels::new(labels)), ..self.unguided() }
    }

    /// The same for an answer that must belong to languages.
    pub(super) fn constrained(self, constraints: Vec<Constrained>) -> Self {
        Self { constraints, ..self }
    }

    /// The same without guidance.
    pub(super) fn unguided(mut self) -> Self {
        self.requirements.guidance = None;
        self
    }

    /// Needs of the strategy.
    pub fn requirements(&self) -> &Requirements {
        &self.requirements
    }

    /// Divisor of the logits of a block after `n_steps` steps.
    pub fn temperature(&self, n_steps: usize) -> f32 {
        self.strategy.temperature(n_steps)
    }

    /// The position whose row of logits predicts `position`, which was not given by the client.
    pub fn predicting_position(&self, position: usize) -> usize {
        match self.alignment {
            LogitAlignment::Same => position,
            // In Dream the first row predicts its own position.
            LogitAlignment::Next => position.saturating_sub(1),
        }
    }

    /// Forwards so far.
    pub fn nfe(&self) -> NfeCounts {
        self.nfe
    }

    /// The text that is scored instead of written, if there is one.
    pub fn scored(&self) -> Option<&Scoring> {
        self.scoring.as_ref()
    }

    /// Tokens that are scored instead of an answer, if there are any.
    pub fn labels(&self) -> Option<&Labels> {
        self.labels.as_ref()
    }

    /// The languages that the answer must belong to: of the whole, or each of a part.
    pub fn constraints(&self) -> &[Constrained] {
        &self.constraints
    }

    /// The one that `position` belongs to, if any.
    pub fn constraint_at(&self, position: usize) -> Option<&Constrained> {
        self.constraints.iter().find(|constraint| constraint.positions().contains(&position))
    }

    /// The same, to note what it did.
    pub(super) fn constraint_at_mut(&mut self, position: usize) -> Option<&mut Constrained> {
        self.constraints.iter_mut().find(|constraint| constraint.positions().contains(&position))
    }

    /// Records the scores of the labels.
    pub(super) fn note_label_scores(&mut self, scores: LabelScores) {
        if let Some(labels) = &mut self.labels {
            labels.note(scores);
        }
    }

    /// Records the scores of the positions that this step decides.
    pub(super) fn note_scores(&mut self, candidates: &[BlockCandidates]) {
        if let Some(scoring) = &mut self.scoring {
            scoring.note(candidates);
        }
    }

    /// Charges a forward.
    pub(super) fn count(&mut self, kind: ForwardKind) {
        match kind {
            ForwardKind::Denoise | ForwardKind::Score => self.nfe.denoise += 1,
            ForwardKind::Rebuild => self.nfe.rebuild += 1,
            ForwardKind::Prefill => self.nfe.prefill += 1,
            ForwardKind::Commit => self.nfe.commit += 1,
        }
    }

    /// Notes a step with `n_changes`. True if it is the watchdog's turn to force one.
    pub(super) fn is_stuck(&mut self, n_changes: usize) -> bool {
        let is_idle = n_changes == 0 && !self.requirements.may_pause();
        self.n_idle_steps = if is_idle { self.n_idle_steps + 1 } else { 0 };
        if self.n_idle_steps < MAX_IDLE_STEPS {
            return false;
        }
        self.n_idle_steps = 0;
        true
    }

    /// Rows of a block that the next step forwards and decides.
    pub(super) fn focus(&self, masked: &[bool], has_stale_kv: bool) -> StepRows {
        self.strategy.step_rows(masked, has_stale_kv)
    }

    /// Whether a block opens after `n_live` blocks in flight, the last of which has the progress `newest`.
    pub(super) fn opens_block(&self, n_live: usize, newest: Option<BlockProgress>, is_all_cached: bool) -> bool {
        self.strategy.opens_block(n_live, newest, is_all_cached)
    }

    /// Edits of one block.
    pub(super) fn step(&self, view: &BlockView<'_>) -> Proposal {
        self.strategy.step(view)
    }

    /// The edit that writes `candidate` whatever the rules say.
    pub(super) fn force(&self, candidate: &Candidate) -> Proposal {
        self.strategy.force(candidate)
    }
}
