//! One request as the engine holds it: tokens, what is known of each position, blocks, limits.
//!
//! Positions are absolute: the prompt's first token is 0. Where blocks lie is the strategy's [`Layout`]. What is masked
//! is a fact of its own and never read off a token id. A block goes
//! `Active` (not all of it is decided) -> `Ready` (decided, its K/V not final) -> `Cached` (a forward wrote its final
//! K/V), and back to `Ready` when the request loses its pages.
//!
//! Never here: pages, tensors, other requests, events.

use std::collections::BTreeSet;
use std::ops::Range;

use diffulex_protocol::{FinishReason, NfeCounts, SamplingParams};
use diffulex_strategies::{
    BlockCandidates, BlockView, Edit, Focus, Input, KvReuse, Layout, Progress, Proposal, Score, Strategy,
};

use crate::error::RequestError;
use crate::models::LogitAlignment;
use crate::sampler::needs_logits;

/// What is known of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionState {
    /// Given by the client; never written.
    Prompt,
    /// Nothing stands there.
    Masked,
    /// A token stands there that may still be replaced.
    Draft,
    /// Decided.
    Filled,
}

impl PositionState {
    /// Whether it can change no more.
    pub fn is_decided(self) -> bool {
        matches!(self, Self::Prompt | Self::Filled)
    }
}

/// Where a block is on its way into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockStatus {
    /// Has masks or drafts, or stands behind a block that has.
    Active,
    /// Decided; a forward has to write its K/V.
    Ready,
    /// Its K/V are in the cache.
    Cached,
}

/// K/V of an `Active` block that a strategy may build on when it forwards a part of it only.
#[derive(Clone, Debug, PartialEq)]
pub enum Scratch {
    /// Its rows were never forwarded together.
    Never,
    /// They were, from these inputs, and that is what the cache has of all but the part forwarded since.
    Kept(Vec<Input>),
    /// That went with the pages; the inputs tell how to write it again.
    Lost(Vec<Input>),
}

/// A block that has been opened.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Where it is on its way.
    pub status: BlockStatus,
    /// Denoise steps it took.
    pub steps: usize,
    /// Those of them that began without a mask.
    pub full_steps: usize,
    /// Steps in a row, up to the last one, that left every token of it as it was.
    pub unchanged_steps: usize,
    /// What is in the cache of it before its tokens are final.
    pub scratch: Scratch,
}

impl Block {
    fn new(status: BlockStatus) -> Self {
        Self { status, steps: 0, full_steps: 0, unchanged_steps: 0, scratch: Scratch::Never }
    }
}

/// What a forward of a request is for; decides which counter it is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardKind {
    /// Rows of at least one block were denoised.
    Denoise,
    /// K/V lost in a preemption were written again.
    Rebuild,
    /// Prompt blocks were encoded; the answer's first token may come with them.
    Prefill,
    /// Finished blocks were encoded; a token of the next one may come with them.
    Commit,
}

/// Limits of one request, checked when it is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Positions of prompt and answer together.
    pub end: usize,
    /// Why the answer ends there.
    pub reason: FinishReason,
}

/// Where all of the answer stands from the start: the forward over everything whose K/V the steps of a block go on from.
#[derive(Clone, Debug, PartialEq)]
enum Context {
    /// There is none.
    Never,
    /// Its K/V are in the cache.
    Kept {
        /// The block it was made for.
        block: usize,
        /// What the network read.
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
    prompt_len: usize,
    limits: Limits,
    mask_token_id: u32,
    stop_ids: BTreeSet<u32>,
    params: SamplingParams,
    strategy: Strategy,
    alignment: LogitAlignment,
    tokens: Vec<u32>,
    states: Vec<PositionState>,
    /// What the network reads.
    inputs: Vec<Input>,
    confidences: Vec<f32>,
    blocks: Vec<Block>,
    context: Context,
    /// Blocks before this one were cached once and lost.
    rebuild_end: usize,
    /// Where an end token ends the answer: not before what the client gave of it.
    stops_from: usize,
    /// Position of the first end token, if one is written.
    first_stop: Option<usize>,
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
        strategy: Strategy,
        alignment: LogitAlignment,
    ) -> Self {
        let mut stop_ids: BTreeSet<u32> = params.stop_token_ids.iter().copied().collect();
        if !params.ignore_eos {
            stop_ids.extend(eos_token_ids);
        }
        let mut sequence = Self {
            prompt_len: prompt.len(),
            limits,
            mask_token_id,
            stop_ids,
            params,
            strategy,
            alignment,
            tokens: prompt.to_vec(),
            states: vec![PositionState::Prompt; prompt.len()],
            inputs: prompt.iter().copied().map(Input::Token).collect(),
            confidences: vec![1.0; prompt.len()],
            blocks: Vec::new(),
            context: Context::Never,
            rebuild_end: 0,
            stops_from: prompt.len(),
            first_stop: None,
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
                while sequence.tokens.len() < limits.end {
                    sequence.open_block();
                }
            }
        }
        sequence
    }

    /// With what the client gave of the answer, position by position; the rest is masked. Only where all of the answer is
    /// there from the start.
    #[must_use]
    pub fn holding(mut self, given: &[Option<u32>]) -> Self {
        assert!(given.is_empty() || self.layout() == Layout::WholeAnswer, "not all of the answer is there");
        for (position, token) in (self.prompt_len..).zip(given) {
            if let Some(token) = *token {
                self.tokens[position] = token;
                self.inputs[position] = Input::Token(token);
                self.states[position] = PositionState::Prompt;
                self.confidences[position] = 1.0;
                self.stops_from = position + 1;
            }
        }
        self
    }

    /// With `suffix` behind the answer's last position, where every position sees it and nothing is written. Only where all
    /// of the answer is there from the start.
    #[must_use]
    pub fn followed_by(mut self, suffix: &[u32]) -> Self {
        assert!(suffix.is_empty() || self.layout() == Layout::WholeAnswer, "nothing sees what follows");
        self.tokens.extend(suffix);
        self.inputs.extend(suffix.iter().copied().map(Input::Token));
        self.states.resize(self.tokens.len(), PositionState::Prompt);
        self.confidences.resize(self.tokens.len(), 1.0);
        self
    }

    /// Positions of a block.
    pub fn block_size(&self) -> usize {
        self.strategy.block_size()
    }

    /// How its blocks lie.
    pub fn layout(&self) -> Layout {
        self.strategy.layout()
    }

    /// A token that is made less likely at `position`, and what is taken off its logit.
    pub fn repelled(&self, position: usize) -> Option<(u32, f32)> {
        let penalty = Some(self.strategy.penalty_lambda()).filter(|penalty| *penalty > 0.0)?;
        let is_first = position == self.block_range(self.block_of(position)).start;
        let before =
            position.checked_sub(1).filter(|before| !is_first && self.states[*before] != PositionState::Masked)?;
        Some((self.tokens[before], penalty))
    }

    /// Its logits are changed, drawn from or gone on from, so that summaries of them will not do.
    pub fn needs_logits(&self) -> bool {
        needs_logits(&self.params, self.score())
            || self.guidance().is_some()
            || self.strategy.penalty_lambda() > 0.0
            || self.layout() == Layout::Canvases
    }

    /// How many of the likeliest tokens of a position its strategy looks at.
    pub fn n_likeliest(&self) -> usize {
        self.strategy.n_likeliest()
    }

    /// What its candidates are ranked by.
    pub fn score(&self) -> Score {
        self.strategy.accept().score()
    }

    /// Position from which the answer's blocks of [`Self::block_size`] are counted.
    pub fn block_origin(&self) -> usize {
        match self.layout() {
            Layout::BlockCausal => 0,
            Layout::PromptFirst | Layout::WholeAnswer | Layout::Canvases => self.prompt_len,
        }
    }

    /// Blocks that hold nothing but prompt.
    pub fn n_prompt_blocks(&self) -> usize {
        match self.layout() {
            Layout::BlockCausal => self.prompt_len / self.block_size(),
            Layout::PromptFirst => 1,
            Layout::Canvases => self.prompt_len.div_ceil(self.block_size()),
            Layout::WholeAnswer => 0,
        }
    }

    /// Positions before the answer.
    pub fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// Tokens that the client gave at `positions`.
    pub fn n_given(&self, positions: Range<usize>) -> usize {
        self.states[positions].iter().filter(|state| **state == PositionState::Prompt).count()
    }

    /// What the request asked for.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Where the answer must end.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Tokens of every opened position; the mask where nothing is decided.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The token that stands where nothing is decided.
    pub fn mask_token_id(&self) -> u32 {
        self.mask_token_id
    }

    /// What is known of every opened position.
    pub fn states(&self) -> &[PositionState] {
        &self.states
    }

    /// Probability of every token when it was written, 1 in the prompt, 0 where masked.
    pub fn confidences(&self) -> &[f32] {
        &self.confidences
    }

    /// Opened blocks.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Forwards so far.
    pub fn nfe(&self) -> NfeCounts {
        self.nfe
    }

    /// Position at which block `index` begins.
    fn block_start(&self, index: usize) -> usize {
        let block_size = self.block_size();
        match self.layout() {
            Layout::BlockCausal => index * block_size,
            Layout::PromptFirst => index.checked_sub(1).map_or(0, |index| self.prompt_len + index * block_size),
            Layout::WholeAnswer => (self.prompt_len + index * block_size).min(self.limits.end),
            Layout::Canvases => match index.checked_sub(self.n_prompt_blocks()) {
                Some(canvas) => self.prompt_len + canvas * block_size,
                None => index * block_size,
            },
        }
    }

    /// Positions of block `index`.
    pub fn block_range(&self, index: usize) -> Range<usize> {
        self.block_start(index)..self.block_start(index + 1)
    }

    /// The block that holds `position`, and so the number of whole blocks before it.
    pub fn block_of(&self, position: usize) -> usize {
        let counted = position.checked_sub(self.block_origin()).map(|offset| offset / self.block_size());
        match self.layout() {
            // Only the prompt's own block is before those that are counted.
            Layout::PromptFirst => counted.map_or(0, |index| index + 1),
            Layout::BlockCausal | Layout::WholeAnswer => counted.unwrap_or(0),
            Layout::Canvases => match counted {
                Some(canvas) => self.n_prompt_blocks() + canvas,
                None => position / self.block_size(),
            },
        }
    }

    /// Rows a forward over `blocks` takes.
    pub fn rows_of(&self, blocks: &Range<usize>) -> Range<usize> {
        match self.layout() {
            Layout::BlockCausal | Layout::PromptFirst | Layout::Canvases => {
                let start = self.block_start(blocks.start);
                let rows = match blocks.clone().next_back() {
                    Some(last) => {
                        start + self.focus(blocks.start).forwarded.start
                            ..self.block_start(last) + self.focus(last).forwarded.end
                    }
                    None => start..start,
                };
                // What speaks of a mask in the first row goes along, with the K/V it has already.
                let is_masked = self.states.get(rows.start) == Some(&PositionState::Masked);
                let lead = if is_masked { rows.start - self.speaker(rows.start) } else { 0 };
                rows.start - lead..rows.end
            }
            Layout::WholeAnswer => match &self.context {
                Context::Kept { block, .. } if Some(*block) == self.first_open() => {
                    let block = self.block_range(*block);
                    match self.strategy.kv_reuse() {
                        KvReuse::None => 0..self.tokens.len(),
                        KvReuse::Prefix => block.start..self.tokens.len(),
                        KvReuse::Dual => block,
                    }
                }
                Context::Never | Context::Kept { .. } | Context::Lost { .. } => 0..self.tokens.len(),
            },
        }
    }

    /// The first block with masks.
    fn first_open(&self) -> Option<usize> {
        (0..self.blocks.len()).find(|block| !self.progress(*block).is_complete())
    }

    /// What has to be forwarded again before the block in flight can go on, if anything has.
    fn lost_context(&self) -> Option<&[Input]> {
        match &self.context {
            Context::Lost { block, inputs } if Some(*block) == self.first_open() => Some(inputs),
            Context::Never | Context::Kept { .. } | Context::Lost { .. } => None,
        }
    }

    /// The position in whose row the logits of `position` stand, which was not given by the client.
    pub fn speaker(&self, position: usize) -> usize {
        match self.alignment {
            LogitAlignment::Same => position,
            // Dream lets the first position speak of itself.
            LogitAlignment::Next => position.saturating_sub(1),
        }
    }

    /// How far its logits are moved on from those without the prompt, if they are.
    pub fn guidance(&self) -> Option<f32> {
        self.strategy.guidance()
    }

    /// How often its rows are forwarded: with guidance once more, without the prompt, on pages of their own.
    pub fn n_copies(&self) -> usize {
        self.strategy.n_copies()
    }

    /// What the network reads in the rows of `blocks`.
    pub fn inputs(&self, blocks: &Range<usize>) -> Vec<Input> {
        if let Some(inputs) = self.lost_context() {
            return inputs.to_vec();
        }
        let rows = self.rows_of(blocks);
        let mut inputs = self.inputs[rows.clone()].to_vec();
        for index in blocks.clone() {
            if let Some(written) = self.restored(index) {
                let start = self.block_start(index) - rows.start;
                inputs[start..start + written.len()].copy_from_slice(written);
            }
        }
        inputs
    }

    /// Which rows of block `index` the next step is about.
    fn focus(&self, index: usize) -> Focus {
        let whole = Focus::whole(self.block_range(index).len());
        match self.blocks[index].status {
            BlockStatus::Ready | BlockStatus::Cached => Focus { decided: 0..0, ..whole },
            // What the strategy goes on from has to be there first.
            BlockStatus::Active if self.restored(index).is_some() => Focus { decided: 0..0, ..whole },
            BlockStatus::Active => self.strategy_focus(index),
        }
    }

    fn strategy_focus(&self, index: usize) -> Focus {
        let states = &self.states[self.block_range(index)];
        let masked: Vec<bool> = states.iter().map(|state| *state == PositionState::Masked).collect();
        self.strategy.focus(&masked, self.blocks[index].scratch != Scratch::Never)
    }

    /// What block `index` has to be written again from before the strategy can go on, if it has to.
    fn restored(&self, index: usize) -> Option<&[Input]> {
        match &self.blocks[index].scratch {
            Scratch::Lost(written) => {
                (self.strategy_focus(index).forwarded.len() < written.len()).then_some(written.as_slice())
            }
            Scratch::Never | Scratch::Kept(_) => None,
        }
    }

    /// How many positions from 0 on `position` sees.
    pub fn visible_from(&self, position: usize) -> usize {
        let block = self.block_of(position);
        match self.layout() {
            Layout::BlockCausal | Layout::PromptFirst => self.block_start(block + 1),
            Layout::Canvases if self.is_canvas(block) => self.block_start(block + 1),
            Layout::Canvases => position + 1,
            Layout::WholeAnswer => self.tokens.len(),
        }
    }

    /// Whether block `index` is a canvas that is still denoised, which is another pass of the network.
    pub fn is_canvas(&self, index: usize) -> bool {
        self.layout() == Layout::Canvases && self.blocks[index].status == BlockStatus::Active
    }

    /// What the logits of block `index` are divided by.
    pub fn temperature(&self, index: usize) -> f32 {
        self.strategy.temperature(self.blocks[index].steps)
    }

    /// Blocks of `blocks` that are up for a decision in this step.
    pub fn denoised(&self, blocks: &Range<usize>) -> Range<usize> {
        match self.layout() {
            Layout::BlockCausal | Layout::PromptFirst | Layout::Canvases => {
                self.window().1.start.max(blocks.start)..blocks.end
            }
            Layout::WholeAnswer if self.lost_context().is_some() => blocks.end..blocks.end,
            Layout::WholeAnswer => self.first_open().map_or(blocks.end..blocks.end, |block| block..block + 1),
        }
    }

    /// Blocks at the front whose K/V are in the cache.
    pub fn n_cached_blocks(&self) -> usize {
        self.blocks.iter().take_while(|block| block.status == BlockStatus::Cached).count()
    }

    /// Where the positions end whose K/V are in the cache for good.
    pub fn cached_end(&self) -> usize {
        self.block_start(self.n_cached_blocks())
    }

    /// Blocks that wait to be written, then blocks that are not decided: the order a window always has.
    pub fn window(&self) -> (Range<usize>, Range<usize>) {
        let cached = self.n_cached_blocks();
        let active =
            cached + self.blocks[cached..].iter().take_while(|block| block.status == BlockStatus::Ready).count();
        (cached..active, active..self.blocks.len())
    }

    /// The part of the [window](Self::window) that its next forward takes, with the block that opens in it, if one does.
    pub fn step_blocks(&mut self) -> Range<usize> {
        if self.encodes_apart() {
            return self.window().0;
        }
        self.open_block_if_due();
        self.n_cached_blocks()..self.blocks.len()
    }

    /// Rows that its next forward takes, without those of a block that opens in it.
    pub fn n_step_rows(&self) -> usize {
        let (ready, active) = self.window();
        let end = if self.encodes_apart() { ready.end } else { active.end };
        self.rows_of(&(ready.start..end)).len()
    }

    /// Whether the next forward leaves out the blocks that are not decided.
    fn encodes_apart(&self) -> bool {
        let (ready, active) = self.window();
        let mut active = active.map(|index| self.focus(index).forwarded);
        self.strategy.encodes_apart() && !ready.is_empty() && active.any(|forwarded| !forwarded.is_empty())
    }

    /// Positions that must be decided before the answer is whole: the limit, or the first end token.
    pub fn answer_end(&self) -> usize {
        self.first_stop.unwrap_or(self.limits.end)
    }

    /// First position after the prompt that is not decided.
    pub fn frontier(&self) -> usize {
        let open = self.states[self.prompt_len..].iter().position(|state| !state.is_decided());
        open.map_or(self.states.len(), |offset| self.prompt_len + offset)
    }

    /// End of the text that can no longer change: the frontier, cut where the answer ends.
    pub fn final_end(&self) -> usize {
        self.frontier().min(self.answer_end())
    }

    /// Blocks in flight at most.
    pub fn strategy_window(&self) -> usize {
        self.strategy.buffer_size()
    }

    fn progress(&self, index: usize) -> Progress {
        let states = &self.states[self.block_range(index)];
        let count = |wanted| states.iter().filter(|state| **state == wanted).count();
        Progress {
            n_filled: states.len() - count(PositionState::Masked),
            n_drafts: count(PositionState::Draft),
            block_size: states.len(),
        }
    }

    /// Opens the next block if the strategy and the limits want it. Called once before each step.
    fn open_block_if_due(&mut self) {
        let next = self.blocks.len();
        let starts_below_end = self.block_start(next) < self.answer_end();
        // An end token closes the window for every block behind its own.
        if !starts_below_end || self.first_stop.is_some() {
            return;
        }
        // What was cached once is not in flight, even while it is written again.
        let live = self.n_cached_blocks().max(self.n_prompt_blocks()).max(self.rebuild_end)..next;
        let newest = live.clone().next_back().map(|index| self.progress(index));
        if self.strategy.opens_block(live.len(), newest, self.n_cached_blocks() == next) {
            self.open_block();
        }
    }

    fn open_block(&mut self) {
        let end = self.block_start(self.blocks.len() + 1);
        let input = match self.layout() {
            Layout::BlockCausal | Layout::PromptFirst | Layout::WholeAnswer => Input::Token(self.mask_token_id),
            Layout::Canvases => Input::Noise,
        };
        self.inputs.resize(end, input);
        self.tokens.resize(end, self.mask_token_id);
        self.states.resize(end, PositionState::Masked);
        self.confidences.resize(end, 0.0);
        self.blocks.push(Block::new(BlockStatus::Active));
    }

    /// Positions of block `index` that are not decided and that the next step is about.
    pub fn undecided(&self, index: usize) -> Vec<usize> {
        let start = self.block_start(index);
        let decided = self.focus(index).decided;
        let positions = start + decided.start..start + decided.end;
        positions.filter(|position| !self.states[*position].is_decided()).collect()
    }

    /// The draft at `position`, if there is one.
    pub fn draft(&self, position: usize) -> Option<u32> {
        (self.states[position] == PositionState::Draft).then(|| self.tokens[position])
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

    /// Passes over the steps that write nothing whatever a forward says, where all of the answer is there from the start and
    /// more steps were asked for than there are positions to fill: the forwards of such steps read what the one before read.
    /// So no more forwards are made than there are positions to fill, and what is written is what would have been. `chance`
    /// tells what is drawn for a position at a step of its block.
    pub fn pass_idle_steps(&mut self, chance: impl Fn(usize, usize) -> f32) {
        let rule = self.strategy.accept();
        let Some(index) = self.first_open().filter(|_| self.layout() == Layout::WholeAnswer) else { return };
        let Some(n_steps) = rule.denoising_steps().filter(|_| rule.may_pause()) else { return };
        let range = self.block_range(index);
        let n_to_fill = self.states[range.clone()].iter().filter(|state| **state != PositionState::Prompt).count();
        let masked = self.undecided(index);
        let step = self.blocks[index].steps;
        // A step that is about a part of the block follows no schedule.
        if n_steps <= n_to_fill || self.focus(index).decided.len() < range.len() {
            return;
        }
        let is_idle =
            |step: &usize| rule.is_idle(*step, range.len(), masked.iter().map(|position| chance(*position, *step)));
        self.blocks[index].steps += (step..n_steps).take_while(is_idle).count();
    }

    /// What a forward over `blocks` is for.
    pub fn forward_kind(&self, blocks: &Range<usize>) -> ForwardKind {
        let denoises = |index: usize| {
            let Focus { forwarded, decided } = self.focus(index);
            !forwarded.is_empty() && !decided.is_empty()
        };
        if self.lost_context().is_some() {
            ForwardKind::Rebuild
        } else if blocks.clone().any(denoises) {
            ForwardKind::Denoise
        } else if blocks.end <= self.rebuild_end || blocks.clone().any(|index| self.restored(index).is_some()) {
            ForwardKind::Rebuild
        } else if blocks.start.max(self.rebuild_end) < self.n_prompt_blocks() {
            ForwardKind::Prefill
        } else {
            ForwardKind::Commit
        }
    }

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
            ForwardKind::Denoise => self.nfe.denoise += 1,
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
                candidates,
            };
            proposals.push((*index, self.strategy.step(&view)));
        }
        let settles = |index: usize, proposal: &Proposal| proposal.settles && self.progress(index).is_complete();
        let n_proposed: usize = proposals
            .iter()
            .map(|(index, proposal)| proposal.edits.len() + usize::from(settles(*index, proposal)))
            .sum();
        let n_changes = n_proposed + self.note_written(blocks);
        let is_idle = n_changes == 0 && !self.strategy.accept().may_pause();
        self.n_idle_steps = if is_idle { self.n_idle_steps + 1 } else { 0 };
        if self.n_idle_steps >= MAX_IDLE_STEPS {
            proposals = vec![self.forced(candidates)?];
            self.n_idle_steps = 0;
            change.was_forced = true;
        }
        for (index, proposal) in &proposals {
            let was_full = self.progress(*index).is_complete();
            let range = self.block_range(*index);
            let before = self.tokens[range.clone()].to_vec();
            for edit in &proposal.edits {
                self.apply(*index, *edit, &mut change)?;
            }
            let is_unchanged = was_full && before == self.tokens[range];
            let block = &mut self.blocks[*index];
            block.steps += 1;
            block.full_steps += usize::from(was_full);
            block.unchanged_steps = if is_unchanged { block.unchanged_steps + 1 } else { 0 };
        }
        self.settle(&proposals, &mut change);
        self.note_stop();
        Ok(change)
    }

    /// Takes note of the K/V that a forward over `blocks` wrote. Returns how many blocks are nearer to their end by that.
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
                        let written = restored.unwrap_or_else(|| self.inputs[range].to_vec());
                        self.blocks[index].scratch = Scratch::Kept(written);
                    }
                }
                BlockStatus::Cached => {}
            }
        }
        n_changes
    }

    /// Takes note of a forward over everything that the next steps go on from. Returns 1 if it was made a second time.
    fn note_context(&mut self, blocks: &Range<usize>) -> usize {
        if self.strategy.kv_reuse() == KvReuse::None {
            return 0;
        }
        let Some(block) = self.first_open().filter(|_| self.rows_of(blocks).len() == self.tokens.len()) else {
            return 0;
        };
        let lost = self.lost_context().map(<[Input]>::to_vec);
        let n_changes = usize::from(lost.is_some());
        self.context = Context::Kept { block, inputs: lost.unwrap_or_else(|| self.inputs.clone()) };
        n_changes
    }

    /// The best candidate for a mask of the first block that has one.
    fn forced(&self, candidates: &[BlockCandidates]) -> Result<(usize, Proposal), RequestError> {
        candidates
            .iter()
            .find_map(|BlockCandidates { block, candidates }| {
                let masked = candidates.iter().rev().filter(|candidate| candidate.current.is_none());
                let best = masked.max_by(|a, b| a.confidence.total_cmp(&b.confidence))?;
                Some((*block, self.strategy.force(*best)))
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
        if !range.contains(&position) || self.states[position].is_decided() {
            return Err(RequestError::engine(format!("illegal edit: position {position} may not be written")));
        }
        self.states[position] = state;
        self.tokens[position] = token;
        self.inputs[position] = input;
        self.confidences[position] = confidence;
        change.is_visible |= position < self.limits.end;
        if state == PositionState::Filled {
            self.count_filled(position, change);
        }
        Ok(())
    }

    fn count_filled(&self, position: usize, change: &mut StepChange) {
        if position < self.limits.end {
            change.filled.push(self.confidences[position]);
        }
    }

    /// Drafts that may stay are decided, and blocks that are decided become `Ready`, as long as everything before them is
    /// at least that.
    fn settle(&mut self, proposals: &[(usize, Proposal)], change: &mut StepChange) {
        let (_, active) = match self.layout() {
            Layout::BlockCausal | Layout::PromptFirst | Layout::Canvases => self.window(),
            // No K/V are kept, so a decided block is only looked at no more.
            Layout::WholeAnswer => {
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
            for position in self.block_range(index) {
                if self.states[position] == PositionState::Draft {
                    self.states[position] = PositionState::Filled;
                    self.inputs[position] = Input::Token(self.tokens[position]);
                    self.count_filled(position, change);
                    change.is_visible |= position < self.limits.end;
                }
            }
            // Where this forward read what now stands for good, behind final K/V, what it wrote is final.
            let is_final =
                proposal.is_some_and(|proposal| proposal.edits.is_empty()) && self.n_cached_blocks() == index;
            self.blocks[index].status = if is_final { BlockStatus::Cached } else { BlockStatus::Ready };
            self.blocks[index].scratch = Scratch::Never;
            change.block_steps.push(self.blocks[index].steps);
        }
    }

    /// Looks for the first end token, and drops the blocks behind it.
    fn note_stop(&mut self) {
        let generated = self.stops_from..self.states.len().min(self.limits.end);
        self.first_stop = generated.clone().find(|position| {
            self.states[*position] == PositionState::Filled && self.stop_ids.contains(&self.tokens[*position])
        });
        match (self.first_stop, self.layout()) {
            (Some(stop), Layout::BlockCausal | Layout::PromptFirst | Layout::Canvases) => {
                let last = self.block_of(stop);
                self.blocks.truncate(last + 1);
                let end = self.block_start(last + 1);
                self.tokens.truncate(end);
                self.states.truncate(end);
                self.inputs.truncate(end);
                self.confidences.truncate(end);
            }
            // Under attention to the whole answer its masks count although they will never be read.
            (Some(_), Layout::WholeAnswer) | (None, _) => {}
        }
    }

    /// Why the request is finished, if it is. Stop strings are not looked at here: they are a matter of text.
    pub fn finished(&self) -> Option<FinishReason> {
        if self.frontier() >= self.answer_end() {
            return Some(match self.first_stop {
                // A stop id of the client's own counts as its stop string does.
                Some(stop) if self.params.stop_token_ids.contains(&self.tokens[stop]) => FinishReason::StopString,
                Some(_) => FinishReason::EosTokenGenerated,
                None => self.limits.reason,
            });
        }
        if self.params.max_nfe.is_some_and(|max| self.nfe.decoding() >= max) {
            return Some(FinishReason::MaxNfeReached);
        }
        if self.params.max_repetition_run.is_some_and(|max| self.repetition_run() >= max as usize) {
            return Some(FinishReason::MaxRepetitionRunReached);
        }
        None
    }

    /// Equal tokens at the end of the text that is final.
    fn repetition_run(&self) -> usize {
        let done = &self.tokens[self.prompt_len..self.final_end()];
        done.last().map_or(0, |last| done.iter().rev().take_while(|token| *token == last).count())
    }

    /// Everything decided of the answer, what lies behind an end token included.
    pub fn full_answer(&self) -> Vec<u32> {
        (self.prompt_len..self.states.len().min(self.limits.end))
            .filter(|position| self.states[*position].is_decided())
            .map(|position| self.tokens[position])
            .collect()
    }
}

/// Steps that may change nothing before the watchdog forces a token: one can be a legal pause of a gated rule.
const MAX_IDLE_STEPS: u32 = 2;

/// What one step did to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct StepChange {
    /// What the forward was for.
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
