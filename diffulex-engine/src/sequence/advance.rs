//! The outcome of a forward: edits are applied, K/V that were written are noted, blocks settle, an end token is found.

use std::ops::Range;

use diffulex_strategies::{BlockCandidates, BlockView, Edit, Input, KvReuse, Layout, Proposal};

use super::{BlockStatus, Context, ForwardKind, PositionState, Scratch, Sequence};
use crate::error::RequestError;

/// Steps that may change nothing before the watchdog forces a token: one can be a legal pause of a gated rule.
const MAX_IDLE_STEPS: u32 = 2;

/// Effects of one step on a request.
#[derive(Clone, Debug, PartialEq)]
pub struct StepChange {
    /// The purpose of the forward.
    pub kind: ForwardKind,
    /// Confidence of each position decided below the limit.
    pub filled: Vec<f32>,
    /// Denoise steps of each block that was decided.
    pub block_steps: Vec<usize>,
    /// The watchdog had to force a token.
    pub was_forced: bool,
    /// A token below the limit changed, or can change no more.
    pub is_visible: bool,
}

impl Sequence {
    /// Takes the outcome of a forward over `blocks`: `candidates` of each block that is not decided, in order.
    ///
    /// The runner has written the K/V of all of `blocks`, so those that were decided before are cached now.
    pub fn advance(
        &mut self,
        blocks: Range<usize>,
        candidates: &[BlockCandidates],
    ) -> Result<StepChange, RequestError> {
        let kind = self.forward_kind(&blocks);
        match kind {
            ForwardKind::Denoise | ForwardKind::Score => self.nfe.denoise += 1,
            ForwardKind::Rebuild => self.nfe.rebuild += 1,
            ForwardKind::Prefill => self.nfe.prefill += 1,
            ForwardKind::Commit => self.nfe.commit += 1,
        }
        let mut change =
            StepChange { kind, filled: Vec::new(), block_steps: Vec::new(), was_forced: false, is_visible: false };
        // Every decision is taken on the state before this step, so the order of blocks does not matter.
        let mut proposals: Vec<(usize, Proposal)> = Vec::with_capacity(candidates.len());
        for BlockCandidates { block: index, candidates } in
            candidates.iter().filter(|block| !block.candidates.is_empty())
        {
            let view = BlockView {
                progress: self.progress(*index),
                previous: index.checked_sub(1).map(|previous| self.progress(previous)),
                step: self.blocks[*index].steps,
                full_steps: self.blocks[*index].full_steps,
                unchanged_steps: self.blocks[*index].unchanged_steps,
                last_confidences: &self.positions.last_confidences[self.block_range(*index)],
                written_confidences: &self.positions.written_confidences[self.block_range(*index)],
                candidates,
            };
            proposals.push((*index, self.strategy.step(&view)));
        }
        self.note_confidences(candidates);
        self.note_scores(candidates);
        let settles = |index: usize, proposal: &Proposal| proposal.settles && self.progress(index).is_complete();
        let n_proposed: usize = proposals
            .iter()
            .map(|(index, proposal)| proposal.edits.len() + usize::from(settles(*index, proposal)))
            .sum();
        let n_changes = n_proposed + self.note_written(blocks);
        let is_idle = n_changes == 0 && !self.declared.may_pause();
        self.n_idle_steps = if is_idle { self.n_idle_steps + 1 } else { 0 };
        if self.n_idle_steps >= MAX_IDLE_STEPS {
            proposals = vec![self.forced(candidates)?];
            self.n_idle_steps = 0;
            change.was_forced = true;
        }
        for (index, proposal) in &proposals {
            let was_full = self.progress(*index).is_complete();
            let range = self.block_range(*index);
            let before = self.positions.tokens[range.clone()].to_vec();
            for edit in &proposal.edits {
                self.apply(*index, *edit, &mut change)?;
            }
            if self.params.top_logprobs > 0 {
                self.note_alternatives(*index, &proposal.edits, candidates);
            }
            let is_unchanged = was_full && before == self.positions.tokens[range];
            let block = &mut self.blocks[*index];
            block.steps += 1;
            block.full_steps += usize::from(was_full);
            block.unchanged_steps = if is_unchanged { block.unchanged_steps + 1 } else { 0 };
        }
        self.settle(&proposals, &mut change);
        self.note_stop();
        self.note_repetition();
        Ok(change)
    }

    /// Records the confidences of this step, for the next step to compare with.
    fn note_confidences(&mut self, candidates: &[BlockCandidates]) {
        for BlockCandidates { block, candidates } in candidates {
            let start = self.block_start(*block);
            for candidate in candidates {
                self.positions.last_confidences[start + candidate.row] = candidate.confidence;
            }
        }
    }

    /// Records the likeliest tokens of the positions of block `index` that `edits` wrote.
    fn note_alternatives(&mut self, index: usize, edits: &[Edit], candidates: &[BlockCandidates]) {
        let n_wanted = self.params.top_logprobs as usize;
        let Some(block) = candidates.iter().find(|block| block.block == index) else { return };
        for edit in edits {
            let (row, is_written) = match edit {
                Edit::Fill { row, .. } | Edit::Draft { row, .. } => (*row, true),
                Edit::Mask { row } => (*row, false),
            };
            let candidate = block.candidates.iter().find(|candidate| candidate.row == row).filter(|_| is_written);
            let alternatives = candidate.map(|candidate| {
                let likeliest = std::iter::once(candidate.likeliest).chain(candidate.runners_up.iter().copied());
                likeliest.take(n_wanted).filter(|(_, probability)| *probability > 0.0).collect()
            });
            let position = self.block_start(index) + row;
            self.positions.alternatives[position] = alternatives.unwrap_or_default();
        }
    }

    /// Records the K/V that a forward over `blocks` wrote. Returns the number of blocks that progressed by it.
    fn note_written(&mut self, blocks: Range<usize>) -> usize {
        let mut n_changes = self.note_context(&blocks);
        for index in blocks {
            let range = self.block_range(index);
            match self.blocks[index].status {
                BlockStatus::Ready => {
                    self.blocks[index].status = BlockStatus::Cached;
                    n_changes += 1;
                }
                BlockStatus::Active => {
                    let restored = self.restored(index).map(<[Input]>::to_vec);
                    n_changes += usize::from(restored.is_some());
                    if self.focus(index).forwarded.len() == range.len() {
                        let written = restored.unwrap_or_else(|| self.positions.inputs[range].to_vec());
                        self.blocks[index].scratch = Scratch::Kept(written);
                    }
                }
                BlockStatus::Cached => {}
            }
        }
        n_changes
    }

    /// Records a forward over all positions whose K/V the next steps reuse. Returns 1 if it restored lost K/V.
    fn note_context(&mut self, blocks: &Range<usize>) -> usize {
        if self.declared.kv_reuse == KvReuse::None {
            return 0;
        }
        let Some(block) = self.first_open().filter(|_| self.rows_of(blocks).len() == self.positions.tokens.len())
        else {
            return 0;
        };
        let lost = self.lost_context().map(<[Input]>::to_vec);
        let n_changes = usize::from(lost.is_some());
        self.context = Context::Kept { block, inputs: lost.unwrap_or_else(|| self.positions.inputs.clone()) };
        n_changes
    }

    /// The best candidate for a mask of the first block that has one.
    fn forced(&self, candidates: &[BlockCandidates]) -> Result<(usize, Proposal), RequestError> {
        candidates
            .iter()
            .find_map(|BlockCandidates { block, candidates }| {
                let masked = candidates.iter().rev().filter(|candidate| candidate.current.is_none());
                let best = masked.max_by(|a, b| a.confidence.total_cmp(&b.confidence))?;
                Some((*block, self.strategy.force(best)))
            })
            .ok_or_else(|| RequestError::engine("decoding made no progress and has no candidate to force"))
    }

    fn apply(&mut self, index: usize, edit: Edit, change: &mut StepChange) -> Result<(), RequestError> {
        let (row, state, token, confidence, input) = match edit {
            Edit::Fill { row, token, confidence } => {
                (row, PositionState::Filled, token, confidence, Input::Token(token))
            }
            Edit::Draft { row, token, confidence, input } => (row, PositionState::Draft, token, confidence, input),
            Edit::Mask { row } => {
                (row, PositionState::Masked, self.mask_token_id, 0.0, Input::Token(self.mask_token_id))
            }
        };
        let range = self.block_range(index);
        let position = range.start + row;
        if !range.contains(&position) || self.positions.states[position].is_decided() {
            return Err(RequestError::engine(format!("illegal edit: position {position} may not be written")));
        }
        self.positions.states[position] = state;
        self.positions.tokens[position] = token;
        self.positions.inputs[position] = input;
        self.positions.confidences[position] = confidence;
        if state != PositionState::Masked {
            self.positions.written_confidences[position] = confidence;
        }
        change.is_visible |= position < self.limits.end;
        if state == PositionState::Filled {
            self.count_filled(position, change);
        }
        Ok(())
    }

    fn count_filled(&self, position: usize, change: &mut StepChange) {
        if position < self.limits.end {
            change.filled.push(self.positions.confidences[position]);
        }
    }

    /// Drafts that may stay are decided, and blocks that are decided become `Ready`, as long as everything before them is
    /// at least that.
    fn settle(&mut self, proposals: &[(usize, Proposal)], change: &mut StepChange) {
        let (_, active) = match self.layout() {
            Layout::BlockCausal | Layout::PromptFirst | Layout::Canvases => self.window(),
            // No K/V are kept, so a decided block needs no further forward.
            Layout::WholeAnswer => {
                for (index, proposal) in proposals {
                    if proposal.settles && self.progress(*index).is_complete() {
                        self.decide_drafts(*index, change);
                    }
                }
                let full = proposals.iter().map(|(index, _)| *index).filter(|index| self.progress(*index).is_settled());
                change.block_steps.extend(full.map(|index| self.blocks[index].steps));
                return;
            }
        };
        for index in active {
            let progress = self.progress(index);
            let proposal = proposals.iter().find(|(stepped, _)| *stepped == index).map(|(_, proposal)| proposal);
            let may_stay = progress.n_drafts == 0 || proposal.is_some_and(|proposal| proposal.settles);
            if !progress.is_complete() || !may_stay {
                break;
            }
            self.decide_drafts(index, change);
            // The K/V are final if this forward read the final tokens and all K/V before it were final.
            let is_final =
                proposal.is_some_and(|proposal| proposal.edits.is_empty()) && self.n_cached_blocks() == index;
            self.blocks[index].status = if is_final { BlockStatus::Cached } else { BlockStatus::Ready };
            self.blocks[index].scratch = Scratch::Never;
            change.block_steps.push(self.blocks[index].steps);
        }
    }

    /// Decides the drafts of block `index` as they are.
    fn decide_drafts(&mut self, index: usize, change: &mut StepChange) {
        for position in self.block_range(index) {
            if self.positions.states[position] == PositionState::Draft {
                self.positions.states[position] = PositionState::Filled;
                self.positions.inputs[position] = Input::Token(self.positions.tokens[position]);
                self.count_filled(position, change);
                change.is_visible |= position < self.limits.end;
            }
        }
    }

    /// Finds the first end token and drops the blocks after its own.
    fn note_stop(&mut self) {
        let generated = self.stops_from..self.positions.states.len().min(self.limits.end);
        self.first_stop = generated.clone().find(|position| {
            self.positions.states[*position] == PositionState::Filled
                && self.stop_ids.contains(&self.positions.tokens[*position])
        });
        match (self.first_stop, self.layout()) {
            (Some(stop), Layout::BlockCausal | Layout::PromptFirst | Layout::Canvases) => {
                let last = self.block_of(stop);
                self.blocks.truncate(last + 1);
                self.positions.truncate(self.block_start(last + 1));
            }
            // Positions attend to the whole answer, so the masks after the end token stay.
            (Some(_), Layout::WholeAnswer) | (None, _) => {}
        }
    }

    /// Finds the first run of equal tokens of the length that ends the answer, in the text that is final. A token that the client
    /// gave is no part of a run.
    fn note_repetition(&mut self) {
        let Some(max) = self.params.max_repetition_run else { return };
        let (mut run, mut last) = (0, None);
        for position in self.geometry.prompt_len..self.final_end() {
            let written = Some(self.positions.tokens[position])
                .filter(|_| self.positions.states[position] == PositionState::Filled);
            run = if written.is_some() && written == last { run + 1 } else { u32::from(written.is_some()) };
            last = written;
            if run >= max {
                self.repetition_end = Some(position + 1);
                return;
            }
        }
    }

    /// Skips steps that write nothing whatever the network predicts, under [`Layout::WholeAnswer`] with more steps than positions
    /// to fill. Their forwards would read the same inputs as the one before, so the answer does not change, and there are no more
    /// forwards than positions to fill. `chance` is the number drawn for a position at a step of its block.
    pub fn pass_idle_steps(&mut self, chance: impl Fn(usize, usize) -> f32) {
        let Some(rule) = self.declared.accept.filter(|rule| rule.may_pause()) else { return };
        let Some(index) = self.first_open().filter(|_| self.layout() == Layout::WholeAnswer) else { return };
        let Some(n_steps) = rule.denoising_steps() else { return };
        let range = self.block_range(index);
        let n_to_fill =
            self.positions.states[range.clone()].iter().filter(|state| **state != PositionState::Prompt).count();
        let masked = self.undecided(index);
        let step = self.blocks[index].steps;
        // Steps over a part of the block follow no schedule.
        if n_steps <= n_to_fill || self.focus(index).decided.len() < range.len() {
            return;
        }
        let is_idle =
            |step: &usize| rule.is_idle(*step, range.len(), masked.iter().map(|position| chance(*position, *step)));
        self.blocks[index].steps += (step..n_steps).take_while(is_idle).count();
    }
}
