//! One request inside the engine: tokens, position states, blocks, limits.
//!
//! Positions are absolute: the prompt's first token is 0. The strategy's [`Layout`] places the blocks. Whether
//! a position is masked is stored, never inferred from its token id. A block goes
//! `Active` (not all of it is decided) -> `Ready` (decided, its K/V not final) -> `Cached` (a forward wrote its final
//! K/V), and back to `Ready` when the request loses its pages.
//!
//! Never here: pages, tensors, other requests, events.

mod advance;
mod block;
mod forward;
mod geometry;
mod position;
mod scoring;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use diffulex_protocol::{Alternatives, FinishReason, NfeCounts, SamplingParams};
use diffulex_strategies::{AnyStrategy, BlockProgress, Input, Layout, Requirements, Score};

use crate::alignment::LogitAlignment;
pub use advance::StepChange;
pub use block::{Block, BlockStatus, Scratch};
pub use forward::ForwardKind;
use geometry::Geometry;
pub use position::PositionState;
use position::Positions;
use scoring::Scoring;

/// Limits of one request, checked when it is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Positions of prompt and answer together.
    pub end: usize,
    /// Why the answer ends there.
    pub reason: FinishReason,
}

/// The forward over all positions whose K/V the steps of a block reuse, under [`Layout::WholeAnswer`].
#[derive(Clone, Debug, PartialEq)]
enum Context {
    /// There is none.
    Never,
    /// Its K/V are in the cache.
    Kept {
        /// The block it was made for.
        block: usize,
        /// The network's inputs.
        inputs: Vec<Input>,
    },
    /// They were, and the pages are gone.
    Lost {
        /// As above.
        block: usize,
        /// As above.
        inputs: Vec<Input>,
    },
}

/// One request.
#[derive(Debug)]
pub struct Sequence {
    geometry: Geometry,
    limits: Limits,
    mask_token_id: u32,
    stop_ids: BTreeSet<u32>,
    params: SamplingParams,
    strategy: AnyStrategy,
    declared: Requirements,
    alignment: LogitAlignment,
    positions: Positions,
    blocks: Vec<Block>,
    context: Context,
    /// Its tokens, where they are known and scored instead of written.
    scoring: Option<Scoring>,
    /// Blocks before this one were cached once and lost.
    rebuild_end: usize,
    /// First position at which an end token ends the answer: after the last token that the client gave, and after `min_tokens`.
    stops_from: usize,
    /// Position of the first end token, if one is written.
    first_stop: Option<usize>,
    /// Position behind the first run of `max_repetition_run` equal tokens, if there is one.
    repetition_end: Option<usize>,
    nfe: NfeCounts,
    /// Steps in a row that changed nothing.
    n_idle_steps: u32,
}

impl Sequence {
    /// A request for `prompt`, which is shorter than `limits.end`, and not empty unless all of the answer is there from the
    /// start.
    pub fn new(
        prompt: &[u32],
        limits: Limits,
        mask_token_id: u32,
        eos_token_ids: &[u32],
        params: SamplingParams,
        strategy: AnyStrategy,
        alignment: LogitAlignment,
    ) -> Self {
        let mut stop_ids: BTreeSet<u32> = params.stop_token_ids.iter().copied().collect();
        if !params.ignore_eos {
            stop_ids.extend(eos_token_ids);
        }
        let declared = strategy.requirements();
        let mut sequence = Self {
            geometry: Geometry {
                layout: declared.layout,
                block_size: declared.block_size,
                prompt_len: prompt.len(),
                end: limits.end,
                is_prompt_only: false,
            },
            limits,
            mask_token_id,
            stop_ids,
            stops_from: prompt.len() + params.min_tokens as usize,
            params,
            declared,
            strategy,
            alignment,
            positions: Positions::given(prompt),
            blocks: Vec::new(),
            context: Context::Never,
            scoring: None,
            rebuild_end: 0,
            first_stop: None,
            repetition_end: None,
            nfe: NfeCounts::default(),
            n_idle_steps: 0,
        };
        sequence.blocks = vec![Block::new(BlockStatus::Ready); sequence.n_prompt_blocks()];
        match sequence.layout() {
            Layout::BlockCausal | Layout::PromptFirst | Layout::Canvases => {
                if prompt.len() > sequence.block_start(sequence.blocks.len()) {
                    // The prompt's tail shares a block with the first masks.
                    sequence.open_block();
                }
            }
            Layout::WholeAnswer => {
                while sequence.positions.tokens.len() < limits.end {
                    sequence.open_block();
                }
            }
        }
        sequence
    }

    /// With the positions of the answer that the client gave; the others are masked. Only under [`Layout::WholeAnswer`].
    #[must_use]
    pub fn holding(mut self, given: &[Option<u32>]) -> Self {
        assert!(given.is_empty() || self.layout() == Layout::WholeAnswer, "not all of the answer is there");
        for (position, token) in (self.geometry.prompt_len..).zip(given) {
            if let Some(token) = *token {
                self.positions.give(position, token);
                self.stops_from = self.stops_from.max(position + 1);
            }
        }
        self
    }

    /// With `suffix` after the answer: every position attends to it, and it is never written. Only under
    /// [`Layout::WholeAnswer`].
    #[must_use]
    pub fn followed_by(mut self, suffix: &[u32]) -> Self {
        assert!(suffix.is_empty() || self.layout() == Layout::WholeAnswer, "nothing sees what follows");
        self.positions.extend_given(suffix);
        self
    }

    /// Without an answer: the prompt is forwarded, and that is all. The last block ends with the prompt, so no position attends
    /// to a mask. A prompt under [`Layout::WholeAnswer`] is one block, which sees all of itself.
    #[must_use]
    pub fn only_read(mut self) -> Self {
        let Geometry { layout, prompt_len, .. } = self.geometry;
        let layout = if layout == Layout::WholeAnswer { Layout::PromptFirst } else { layout };
        self.geometry = Geometry { layout, end: prompt_len, is_prompt_only: true, ..self.geometry };
        self.limits.end = prompt_len;
        self.positions.truncate(prompt_len);
        self.blocks = vec![Block::new(BlockStatus::Ready); self.n_prompt_blocks()];
        // Nothing is predicted, with or without guidance.
        self.declared.guidance = None;
        self
    }

    /// Positions of a block.
    pub fn block_size(&self) -> usize {
        self.geometry.block_size
    }

    /// The layout of its blocks.
    pub fn layout(&self) -> Layout {
        self.geometry.layout
    }

    /// The token whose logit is lowered at `position`, and by how much: the one before, under the edit rule `joint`.
    pub fn penalty(&self, position: usize) -> Option<(u32, f32)> {
        let penalty = Some(self.declared.penalty_lambda).filter(|penalty| *penalty > 0.0)?;
        let is_first = position == self.block_range(self.block_of(position)).start;
        let before = position
            .checked_sub(1)
            .filter(|before| !is_first && self.positions.states[*before] != PositionState::Masked)?;
        Some((self.positions.tokens[before], penalty))
    }

    /// How many of the likeliest tokens of a position its strategy looks at, or its client asks for.
    pub fn n_likeliest(&self) -> usize {
        self.declared.n_likeliest.max(self.params.top_logprobs as usize)
    }

    /// Tokens that end the answer.
    pub fn stop_ids(&self) -> &BTreeSet<u32> {
        &self.stop_ids
    }

    /// End of the positions at which no end token may come: the first `min_tokens` of the answer.
    pub fn min_end(&self) -> usize {
        self.geometry.prompt_len + self.params.min_tokens as usize
    }

    /// Tokens that penalties count, and how often the answer has each: 0 where only the client gave it.
    ///
    /// An occurrence in the answer is a decided position before its end, which is the first end token or the limit, whatever
    /// the order in which positions were decided. Drafts, masks and positions behind the end are none. Occurrences that the
    /// client gave are the prompt, the suffix, and the tokens between the masks of a prompt.
    pub fn occurrences(&self) -> BTreeMap<u32, u32> {
        let Positions { tokens, states, .. } = &self.positions;
        let answer = self.geometry.prompt_len..self.answer_end();
        let mut occurrences = BTreeMap::new();
        for (position, (token, state)) in tokens.iter().zip(states).enumerate() {
            match state {
                PositionState::Prompt => {
                    occurrences.entry(*token).or_insert(0);
                }
                PositionState::Filled if answer.contains(&position) => *occurrences.entry(*token).or_insert(0) += 1,
                PositionState::Filled | PositionState::Masked | PositionState::Draft => {}
            }
        }
        occurrences
    }

    /// The score that its candidates are ranked by.
    pub fn score(&self) -> Score {
        self.declared.score
    }

    /// Position from which the blocks of the answer are counted.
    pub fn block_origin(&self) -> usize {
        self.geometry.block_origin()
    }

    /// Blocks that hold prompt only.
    pub fn n_prompt_blocks(&self) -> usize {
        self.geometry.n_prompt_blocks()
    }

    /// Positions of block `index`.
    pub fn block_range(&self, index: usize) -> Range<usize> {
        self.geometry.block_range(index)
    }

    /// The block that holds `position`, and so the number of whole blocks before it.
    pub fn block_of(&self, position: usize) -> usize {
        self.geometry.block_of(position)
    }

    fn block_start(&self, index: usize) -> usize {
        self.geometry.block_start(index)
    }

    /// Positions before the answer.
    pub fn prompt_len(&self) -> usize {
        self.geometry.prompt_len
    }

    /// Tokens that the client gave at `positions`.
    pub fn n_given(&self, positions: Range<usize>) -> usize {
        self.positions.states[positions].iter().filter(|state| **state == PositionState::Prompt).count()
    }

    /// Parameters of the request.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Where the answer must end.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Tokens of every opened position; the mask where nothing is decided.
    pub fn tokens(&self) -> &[u32] {
        &self.positions.tokens
    }

    /// The token at masked positions.
    pub fn mask_token_id(&self) -> u32 {
        self.mask_token_id
    }

    /// State of every opened position.
    pub fn states(&self) -> &[PositionState] {
        &self.positions.states
    }

    /// Probability of every token when it was written, 1 in the prompt, 0 where masked.
    pub fn confidences(&self) -> &[f32] {
        &self.positions.confidences
    }

    /// The likeliest tokens of every position when its token was written, if the client asks for them.
    pub fn alternatives(&self) -> &[Alternatives] {
        &self.positions.alternatives
    }

    /// Opened blocks.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Forwards so far.
    pub fn nfe(&self) -> NfeCounts {
        self.nfe
    }

    /// Scale of classifier-free guidance, if it is on.
    pub fn guidance(&self) -> Option<f32> {
        self.declared.guidance
    }

    /// Copies of its rows in a forward: 2 with guidance, whose second copy is without the prompt and on pages of its own.
    pub fn n_copies(&self) -> usize {
        self.declared.n_copies()
    }

    /// Whether block `index` is a canvas that is still denoised, which is another pass of the network.
    pub fn is_canvas(&self, index: usize) -> bool {
        self.layout() == Layout::Canvases && self.blocks[index].status == BlockStatus::Active
    }

    /// Divisor of the logits of block `index`.
    pub fn temperature(&self, index: usize) -> f32 {
        self.strategy.temperature(self.blocks[index].steps)
    }

    /// Blocks at the front whose K/V are in the cache.
    pub fn n_cached_blocks(&self) -> usize {
        self.blocks.iter().take_while(|block| block.status == BlockStatus::Cached).count()
    }

    /// End of the positions whose final K/V are in the cache.
    pub fn cached_end(&self) -> usize {
        self.block_start(self.n_cached_blocks())
    }

    /// Position of the first end token that ends the answer, if one is written.
    pub fn first_stop(&self) -> Option<usize> {
        self.first_stop
    }

    /// Positions that must be decided before the answer is whole: the limit, the first end token, or the end of a run of equal
    /// tokens.
    pub fn answer_end(&self) -> usize {
        let end = self.first_stop.unwrap_or(self.limits.end);
        self.repetition_end.map_or(end, |run| run.min(end))
    }

    /// First position after the prompt that is not decided.
    pub fn frontier(&self) -> usize {
        let open = self.positions.states[self.geometry.prompt_len..].iter().position(|state| !state.is_decided());
        open.map_or(self.positions.states.len(), |offset| self.geometry.prompt_len + offset)
    }

    /// End of the text that can no longer change: the frontier, cut where the answer ends.
    pub fn final_end(&self) -> usize {
        self.frontier().min(self.answer_end())
    }

    /// Blocks in flight at most.
    pub fn strategy_window(&self) -> usize {
        self.declared.buffer_size
    }

    fn progress(&self, index: usize) -> BlockProgress {
        let states = &self.positions.states[self.block_range(index)];
        let count = |wanted| states.iter().filter(|state| **state == wanted).count();
        BlockProgress {
            n_filled: states.len() - count(PositionState::Masked),
            n_drafts: count(PositionState::Draft),
            block_size: states.len(),
        }
    }

    fn open_block(&mut self) {
        let end = self.block_start(self.blocks.len() + 1);
        let input = match self.layout() {
            Layout::BlockCausal | Layout::PromptFirst | Layout::WholeAnswer => Input::Token(self.mask_token_id),
            Layout::Canvases => Input::Noise,
        };
        self.positions.extend_masked(end, self.mask_token_id, input);
        self.blocks.push(Block::new(BlockStatus::Active));
    }

    /// The draft at `position`, if there is one.
    pub fn draft(&self, position: usize) -> Option<u32> {
        (self.positions.states[position] == PositionState::Draft).then(|| self.positions.tokens[position])
    }

    /// Marks the first `n_blocks`, and no others, as found in the prefix cache. Only before the first step, or after a
    /// preemption.
    pub fn found_in_cache(&mut self, n_blocks: usize) {
        for (index, block) in self.blocks.iter_mut().enumerate() {
            match block.status {
                BlockStatus::Ready if index < n_blocks => block.status = BlockStatus::Cached,
                BlockStatus::Cached if index >= n_blocks => block.status = BlockStatus::Ready,
                _ => debug_assert!(index >= n_blocks, "only what is decided is in the cache"),
            }
        }
    }

    /// The pages are gone: everything that was cached has to be written again.
    pub fn lose_cache(&mut self) {
        self.rebuild_end = self.rebuild_end.max(self.n_cached_blocks());
        self.context = match std::mem::replace(&mut self.context, Context::Never) {
            Context::Kept { block, inputs } | Context::Lost { block, inputs } => Context::Lost { block, inputs },
            Context::Never => Context::Never,
        };
        self.found_in_cache(0);
        for block in &mut self.blocks {
            block.scratch = match std::mem::replace(&mut block.scratch, Scratch::Never) {
                Scratch::Kept(written) | Scratch::Lost(written) => Scratch::Lost(written),
                Scratch::Never => Scratch::Never,
            };
        }
    }

    /// The reason why the request is finished, if it is. Stop strings are handled with the text, in `emit`.
    pub fn finished(&self) -> Option<FinishReason> {
        if self.geometry.is_prompt_only {
            return (self.n_cached_blocks() == self.blocks.len()).then_some(self.limits.reason);
        }
        if self.frontier() >= self.answer_end() {
            // Another end at the same place comes first.
            let end = self.first_stop.unwrap_or(self.limits.end);
            if self.repetition_end.is_some_and(|run| run < end) {
                return Some(FinishReason::MaxRepetitionRunReached);
            }
            return Some(match self.first_stop {
                // A stop id of the client's own counts as its stop string does.
                Some(stop) if self.params.stop_token_ids.contains(&self.positions.tokens[stop]) => {
                    FinishReason::StopString
                }
                Some(_) => FinishReason::EosTokenGenerated,
                None => self.limits.reason,
            });
        }
        if self.params.max_nfe.is_some_and(|max| self.nfe.decoding() >= max) {
            return Some(FinishReason::MaxNfeReached);
        }
        None
    }

    /// All decided tokens of the answer, including those after an end token.
    pub fn full_answer(&self) -> Vec<u32> {
        (self.geometry.prompt_len..self.positions.states.len().min(self.limits.end))
            .filter(|position| self.positions.states[*position].is_decided())
            .map(|position| self.positions.tokens[position])
            .collect()
    }
}
