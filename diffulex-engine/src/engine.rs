//! The engine: one tick on one page.
//!
//! `commands -> plan -> lay out -> forward -> sample -> decide and commit -> tell`. One tick is one denoise step of the
//! whole batch; requests come and go between ticks. Whatever fails, fails for the requests concerned, and every
//! accepted one ends in exactly one reply or error.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use diffulex_protocol::{
    AdapterSource, EngineStats, ErrorCode, FinishReason, Histogram, ModelCard, Prompt, ServingCommand, ServingEvent,
    ServingGenerate, ServingInput,
};
use diffulex_strategies::{BlockCandidates, Candidate, Layout, Strategy};

use crate::adapters::{AdapterTable, Named};
use crate::batch::{Forward, Frame, Owners, Wanted, draw_key, lay_out};
use crate::config::{EngineConfig, EngineOptions};
use crate::emit::{Emitter, Usage};
use crate::error::{LoadError, RequestError, StepError};
use crate::files::ModelFiles;
use crate::kernels::{Look, Vocabulary};
use crate::load::{Loaded, load};
use crate::models::{self, AdapterId, Scores};
use crate::runner::Runner;
use crate::sampler::{DrawKey, Drawn, Looks, Randomness, Seeded, greedy, sample};
use crate::scheduler::{Scheduled, Scheduler, Span, Ticket};
use crate::sequence::{ForwardKind, Limits, Sequence, StepChange};
use crate::serving::ServingEngine;
use crate::text::TextModel;

pub use crate::load::LoadProgress;

/// The engine.
pub struct Engine {
    config: EngineConfig,
    card: ModelCard,
    text: TextModel,
    runner: Box<dyn Runner>,
    adapters: AdapterTable,
    randomness: Box<dyn Randomness>,
    scheduler: Scheduler,
    scheduled: BTreeMap<Ticket, Scheduled>,
    telling: BTreeMap<Ticket, Telling>,
    tickets: BTreeMap<String, Ticket>,
    next_ticket: Ticket,
    stats: EngineStats,
    last_step: Instant,
    /// Of the last step. Kept for its memory: mapping and clearing tens of megabytes takes longer than filling them.
    scores: Scores,
}

/// The telling side of a request, and its clock.
struct Telling {
    rid: String,
    emitter: Emitter,
    usage: Usage,
    received: Instant,
    has_started: bool,
}

/// Logits whose memory is kept for the next step, at most, 64 MiB. Chosen by us.
const MAX_KEPT_LOGITS: usize = 1 << 24;

/// Where an answer goes.
struct Place {
    /// What stands before it.
    prompt: Vec<u32>,
    /// Where it ends.
    limits: Limits,
    /// What is given of it, position by position; none if nothing is.
    given: Vec<Option<u32>>,
    /// What stands behind it.
    suffix: Vec<u32>,
}

impl Engine {
    /// Loads a model; `progress` is called now and then.
    pub fn load(
        files: &ModelFiles,
        options: &EngineOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadError> {
        let Loaded { config, card, text, runner } = load(files, options, progress)?;
        let scheduler = Scheduler::new(&config);
        // Bounds chosen by us: blocks are at most 32 positions, forwards write from less than one to a few dozen.
        let stats = EngineStats {
            steps_per_block: Histogram::new(&[1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0]),
            tokens_per_forward: Histogram::new(&[0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0]),
            commit_confidence: Histogram::new(&[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0]),
            kv_pages_total: config.n_pages as u32,
            ..EngineStats::default()
        };
        let mut engine = Self {
            config,
            card,
            text,
            runner,
            adapters: AdapterTable::new(options),
            randomness: Box::new(Seeded),
            scheduler,
            scheduled: BTreeMap::new(),
            telling: BTreeMap::new(),
            tickets: BTreeMap::new(),
            next_ticket: 0,
            stats,
            last_step: Instant::now(),
            scores: Scores::default(),
        };
        for source in &options.adapters {
            engine.load_adapter(source).map_err(|what| LoadError::of(format!("adapter {:?}", source.name), what))?;
        }
        Ok(engine)
    }

    /// With chance from elsewhere: what others have drawn, to be drawn again.
    #[must_use]
    pub fn with_randomness(self, randomness: Box<dyn Randomness>) -> Self {
        Self { randomness, ..self }
    }

    /// The options as they act.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The model's text side.
    pub fn text(&self) -> &TextModel {
        &self.text
    }

    /// Throws a running request out of its pages as if an older one needed them. For tests of rebuilding.
    pub fn preempt(&mut self, rid: &str) {
        if let Some(ticket) = self.tickets.get(rid) {
            self.scheduler.preempt(*ticket, &mut self.scheduled);
        }
    }

    /// True when pages held and pages free add up.
    pub fn pages_are_consistent(&self) -> bool {
        self.scheduler.pool().is_consistent(self.scheduled.values().map(|request| request.pages.as_slice()))
    }

    fn accept(&mut self, mut request: ServingGenerate) -> Result<(), RequestError> {
        if self.tickets.contains_key(&request.rid) {
            return Err(RequestError::invalid("rid", format!("request id {} is in flight already", request.rid)));
        }
        // Drawn here where the client has none, so that the reply can name it.
        let seed = request.sampling_params.seed_or(|| RandomState::new().hash_one(&request.rid));
        request.sampling_params.seed = Some(seed);
        let params = &request.sampling_params;
        params.validate().map_err(|(param, message)| RequestError::invalid(param, message))?;
        let prompt = match &request.input {
            ServingInput::Prompt { prompt } => self.ids_of(prompt)?,
            ServingInput::Chat { messages } => self.text.encode(&self.text.render_chat(messages)?)?,
        };
        self.check_ids("prompt", &prompt)?;
        let adapter = request.adapter.as_deref().map(|name| self.adapter(name)).transpose()?;
        let is_d2f = adapter.is_some_and(|adapter| adapter.is_d2f);
        let mut decoding = params.decoding.clone();
        let mut strategy = self.config.strategy_for(is_d2f, &decoding)?;
        let suffix = request.suffix.as_ref().map_or(Ok(Vec::new()), |suffix| self.suffix(&strategy, suffix))?;
        let rule = strategy.accept();
        let fits_a_block = (1..=strategy.block_size()).contains(&request.masked.len());
        if fits_a_block && rule.may_pause() && rule.denoising_steps().is_none() {
            // Where nobody says otherwise, a schedule over time has a step for each token.
            decoding.denoising_steps = Some(request.masked.len() as u32);
            strategy = self.config.strategy_for(is_d2f, &decoding)?;
        }
        let place = if request.masked.is_empty() {
            self.behind(prompt, suffix, params.max_tokens as usize)?
        } else {
            self.at_masks(&strategy, &prompt, &suffix, &request.masked, params.max_tokens as usize)?
        };
        let Place { prompt, limits, given, suffix } = &place;
        self.check_room(&strategy, &place)?;
        let sequence = Sequence::new(
            prompt,
            *limits,
            // Where there is no mask, nothing is read off it: it only stands where nothing is decided yet.
            self.config.mask_token_id.unwrap_or_default(),
            &self.config.eos_token_ids,
            params.clone(),
            strategy,
            self.config.alignment,
        )
        .holding(given)
        .followed_by(suffix);
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.stats.prompt_tokens += sequence.n_given(0..sequence.states().len()) as u64;
        let telling = Telling {
            rid: request.rid.clone(),
            emitter: Emitter::new(&request, prompt.len()),
            usage: Usage::default(),
            received: Instant::now(),
            has_started: false,
        };
        self.telling.insert(ticket, telling);
        self.scheduled.insert(ticket, Scheduled::new(sequence, adapter.map(|adapter| adapter.id)));
        self.tickets.insert(request.rid, ticket);
        self.scheduler.enqueue(ticket);
        Ok(())
    }

    fn adapter(&self, name: &str) -> Result<Named, RequestError> {
        self.adapters.find(name).ok_or_else(|| {
            let known: Vec<&str> = self.adapters.names().collect();
            RequestError::invalid("model", format!("no adapter {name:?} is loaded; loaded are {known:?}"))
        })
    }

    /// Loads an adapter, which requests may name from then on; the error says why it cannot be.
    fn load_adapter(&mut self, source: &AdapterSource) -> Result<(), String> {
        let (id, max_bytes) = self.adapters.room(&source.name)?;
        let files = ModelFiles::folder(&source.path).map_err(|error| error.to_string())?;
        let is_d2f = models::is_d2f(&files).map_err(|error| error.to_string())?;
        if is_d2f && self.config.strategy_with_d2f.is_none() {
            let Self { card, config, .. } = self;
            return Err(format!(
                "it is an adapter of D2F, for Dream, DiffuCoder and LLaDA; this model is {} and decoded by {}",
                card.architecture,
                config.strategy.name()
            ));
        }
        let n_bytes = self.runner.load_adapter(id, &files, max_bytes).map_err(|error| error.to_string())?;
        self.adapters.add(source.name.clone(), Named { id, is_d2f }, n_bytes);
        Ok(())
    }

    fn unload_adapter(&mut self, name: &str) -> Result<(), String> {
        let id = self.adapters.remove(name).ok_or_else(|| format!("no adapter {name:?} is loaded"))?;
        self.drop_if_unused(id);
        Ok(())
    }

    fn drop_if_unused(&mut self, id: AdapterId) {
        let has_requests = self.scheduled.values().any(|request| request.adapter == Some(id));
        if self.adapters.is_gone(id, has_requests) {
            self.runner.unload_adapter(id);
        }
    }

    fn check_ids(&self, param: &'static str, ids: &[u32]) -> Result<(), RequestError> {
        let vocab_size = self.card.vocab_size;
        match ids.iter().find(|id| **id >= vocab_size) {
            Some(id) => {
                Err(RequestError::invalid(param, format!("token id {id} is outside the vocabulary of {vocab_size}")))
            }
            None => Ok(()),
        }
    }

    fn ids_of(&self, prompt: &Prompt) -> Result<Vec<u32>, RequestError> {
        match prompt {
            Prompt::Ids(ids) => Ok(ids.clone()),
            Prompt::Text(text) => self.text.encode(text),
        }
    }

    fn suffix(&self, strategy: &Strategy, suffix: &Prompt) -> Result<Vec<u32>, RequestError> {
        let ids = self.ids_of(suffix)?;
        if !ids.is_empty() && strategy.layout() != Layout::WholeAnswer {
            let name = strategy.name();
            let message = format!(
                "suffix needs a model that sees what follows the gap; this one is decoded by {name}, block after block"
            );
            return Err(RequestError::invalid("suffix", message));
        }
        self.check_ids("suffix", &ids)?;
        Ok(ids)
    }

    /// The answer between `prompt` and `suffix`.
    fn behind(&self, prompt: Vec<u32>, suffix: Vec<u32>, max_tokens: usize) -> Result<Place, RequestError> {
        let max_model_len = self.config.max_model_len;
        let (prompt_len, suffix_len) = (prompt.len(), suffix.len());
        if suffix_len > 0 && prompt_len + suffix_len >= max_model_len {
            return Err(RequestError::invalid(
                "suffix",
                format!(
                    "prompt and suffix have {prompt_len} and {suffix_len} tokens; with at least one between them, the limit of {max_model_len} is passed"
                ),
            ));
        }
        let max_model_len = max_model_len - suffix_len;
        if prompt_len == 0 {
            return Err(RequestError::invalid("prompt", "prompt is empty"));
        }
        if prompt_len >= max_model_len {
            return Err(RequestError::invalid(
                "prompt",
                format!(
                    "prompt has {prompt_len} tokens; with at least one to write, the limit of {max_model_len} is passed"
                ),
            ));
        }
        let wanted = prompt_len.saturating_add(max_tokens);
        let limits = if wanted <= max_model_len {
            Limits { end: wanted, reason: FinishReason::MaxNewTokensReached }
        } else {
            Limits { end: max_model_len, reason: FinishReason::MaxModelLenReached }
        };
        Ok(Place { prompt, limits, given: Vec::new(), suffix })
    }

    /// The answer from the first mask of `prompt` to the last; what follows that is its suffix.
    fn at_masks(
        &self,
        strategy: &Strategy,
        prompt: &[u32],
        suffix: &[u32],
        masked: &[u32],
        max_tokens: usize,
    ) -> Result<Place, RequestError> {
        let invalid = |message: String| Err(RequestError::invalid("prompt", message));
        if strategy.layout() != Layout::WholeAnswer {
            let name = strategy.name();
            return invalid(format!(
                "masks in a prompt need a model that sees what follows them; this one is decoded by {name}, block after block"
            ));
        }
        if !suffix.is_empty() {
            let message = "a prompt with masks has no suffix: what follows them is part of the prompt";
            return Err(RequestError::invalid("suffix", message));
        }
        let masked: BTreeSet<usize> = masked.iter().map(|position| *position as usize).collect();
        let (Some(first), Some(last)) = (masked.first().copied(), masked.last().copied()) else {
            return invalid("no position of the prompt is masked".to_owned());
        };
        let max_model_len = self.config.max_model_len;
        if prompt.len() > max_model_len {
            let message = format!("prompt has {} tokens, masks included; the limit is {max_model_len}", prompt.len());
            return Err(RequestError::too_large("prompt", message));
        }
        if last >= prompt.len() {
            return invalid(format!("position {last} is masked; the prompt has {}", prompt.len()));
        }
        let end = last + 1;
        if end - first > max_tokens {
            let message = format!(
                "the answer has {} tokens, from the prompt's first mask to its last; max_tokens is {max_tokens}",
                end - first
            );
            return Err(RequestError::invalid("max_tokens", message));
        }
        Ok(Place {
            prompt: prompt[..first].to_vec(),
            limits: Limits { end, reason: FinishReason::MaxNewTokensReached },
            given: (first..end).map(|position| (!masked.contains(&position)).then_some(prompt[position])).collect(),
            suffix: prompt[end..].to_vec(),
        })
    }

    /// Refuses what could never be planned.
    fn check_room(&self, strategy: &Strategy, place: &Place) -> Result<(), RequestError> {
        let Place { prompt, limits, suffix, .. } = place;
        let n_positions = strategy.layout().extent(prompt.len(), limits.end, strategy.block_size()) + suffix.len();
        let n_copies = strategy.n_copies();
        if n_copies > 1 && n_copies * n_positions > self.config.max_num_batched_tokens {
            return Err(RequestError::too_large(
                "decoding.cfg_scale",
                format!(
                    "guidance forwards {n_positions} positions twice; a forward takes {} rows",
                    self.config.max_num_batched_tokens
                ),
            ));
        }
        let budget = self.config.max_num_batched_tokens;
        // Of the server's own strategy it is known since the start that a forward holds it.
        if strategy.layout() == Layout::PromptFirst && n_positions + strategy.block_size() >= budget {
            let least = n_positions + strategy.block_size() + 1;
            let message = format!(
                "with this adapter prompts are encoded whole, which takes {least} rows; a forward takes {budget}: ask for less or serve with --max-num-batched-tokens"
            );
            return Err(RequestError::too_large("model", message));
        }
        let n_pages = n_copies * n_positions.div_ceil(self.config.page_size);
        if n_pages > self.config.n_pages {
            return Err(RequestError::too_large(
                "max_tokens",
                format!(
                    "{n_positions} positions need {n_pages} KV pages; the pool has {}: ask for fewer tokens or serve with a larger KV cache",
                    self.config.n_pages
                ),
            ));
        }
        Ok(())
    }

    /// Ends the request `ticket`; nothing of it is left.
    fn forget(&mut self, ticket: Ticket) -> Option<(Scheduled, Telling)> {
        let mut scheduled = self.scheduled.remove(&ticket)?;
        self.scheduler.remove(ticket, &mut scheduled);
        if let Some(adapter) = scheduled.adapter {
            self.drop_if_unused(adapter);
        }
        let telling = self.telling.remove(&ticket)?;
        self.tickets.remove(&telling.rid);
        Some((scheduled, telling))
    }

    fn finish(&mut self, ticket: Ticket, reason: FinishReason, events: &mut Vec<ServingEvent>) {
        if let Some((scheduled, mut telling)) = self.forget(ticket) {
            telling.usage.preemptions = scheduled.preemptions;
            events.extend(telling.emitter.finish(&scheduled.sequence, &self.text, &telling.usage, reason));
            let nfe = scheduled.sequence.nfe();
            if reason == FinishReason::Aborted {
                self.stats.wasted_nfe += u64::from(nfe.denoise);
            }
            if let Some(ServingEvent::Reply(reply)) = events.last()
                && nfe.denoise > 0
            {
                let forwards = f64::from(nfe.decoding());
                self.stats.tokens_per_forward.observe(f64::from(reply.written_tokens()) / forwards);
            }
        }
    }

    fn fail(&mut self, ticket: Ticket, error: RequestError, events: &mut Vec<ServingEvent>) {
        if let Some((_, telling)) = self.forget(ticket) {
            events.push(ServingEvent::Error(error.into_event(telling.rid)));
        }
    }

    fn obey(&mut self, command: ServingCommand, events: &mut Vec<ServingEvent>) {
        match command {
            ServingCommand::Generate(request) => {
                let rid = request.rid.clone();
                if let Err(error) = self.accept(request) {
                    events.push(ServingEvent::Error(error.into_event(rid)));
                }
            }
            ServingCommand::Abort { rid } => {
                if let Some(ticket) = self.tickets.get(&rid).copied() {
                    self.finish(ticket, FinishReason::Aborted, events);
                }
            }
            ServingCommand::FlushCache => self.scheduler.flush_cache(),
            ServingCommand::LoadAdapter(source) => {
                let message = self.load_adapter(&source).err();
                if let Some(why) = &message {
                    // Who asks may not be told what a path holds: the operator is.
                    tracing::warn!(name = source.name, path = source.path, why, "an adapter was not loaded");
                }
                events.push(ServingEvent::AdapterReply { name: source.name, ok: message.is_none(), message });
            }
            ServingCommand::UnloadAdapter { name } => {
                let message = self.unload_adapter(&name).err();
                events.push(ServingEvent::AdapterReply { name, ok: message.is_none(), message });
            }
            ServingCommand::ProfileStart { .. } | ServingCommand::ProfileStop => {
                let message = Some("this engine records no profiles".to_owned());
                events.push(ServingEvent::ProfileReply { ok: false, message, paths: Vec::new() });
            }
            // The loop around the engine handles it; one that comes here all the same ends what runs.
            ServingCommand::Shutdown { .. } => {
                events.extend(self.fail_all(ErrorCode::ShuttingDown, "the server is shutting down"));
            }
        }
    }

    /// One denoise step of everything the plan takes in.
    fn step(&mut self, events: &mut Vec<ServingEvent>) {
        self.pass_idle_steps();
        let plan = self.scheduler.plan(&mut self.scheduled);
        if plan.is_empty() {
            // Admission refuses what can never be planned; if it was wrong, the oldest pays, and nothing hangs.
            if let Some(ticket) = self.scheduled.keys().next().copied() {
                self.fail(ticket, RequestError::engine("the scheduler found no room for this request"), events);
            }
            return;
        }
        let started = Instant::now();
        for span in &plan {
            if let Some(telling) = self.telling.get_mut(&span.ticket)
                && !telling.has_started
            {
                telling.has_started = true;
                telling.usage.queue_time_s = telling.received.elapsed().as_secs_f64();
            }
        }
        let frame = Frame {
            page_size: self.config.page_size,
            vocab_size: self.card.vocab_size as usize,
            randomness: &*self.randomness,
        };
        let Forward { text, canvases, owners } = lay_out(&plan, &self.scheduled, frame);
        self.stats.rows += (text.ids.len() + canvases.batch.ids.len()) as u64;
        let mut scores = std::mem::take(&mut self.scores);
        scores.logits.clear();
        scores.summaries.clear();
        let look = Look { vocabulary: self.vocabulary(), n_likeliest: self.most_likeliest(&owners.summaries) };
        let forward = self.runner.forward(&text, &canvases, look, &mut scores);
        let outcome = forward.and_then(|()| self.temper(&mut scores.logits, &owners.logits));
        if let Err(error) = outcome {
            for span in &plan {
                self.fail(span.ticket, RequestError::engine(format!("the forward failed: {error}")), events);
            }
            return;
        }
        let mut candidates = self.sample(&scores, &owners);
        scores.logits.clear();
        scores.logits.shrink_to(MAX_KEPT_LOGITS);
        self.scores = scores;
        self.stats.steps += 1;
        self.stats.forward_seconds += started.elapsed().as_secs_f64();
        for span in plan {
            match candidates.remove(&span.ticket).unwrap_or(Ok(Vec::new())) {
                Ok(candidates) => self.commit(&span, &candidates, started, events),
                Err(error) => self.fail(span.ticket, error, events),
            }
        }
        self.last_step = Instant::now();
    }

    fn pass_idle_steps(&mut self) {
        let Self { scheduled, randomness, .. } = self;
        for Scheduled { sequence, .. } in scheduled.values_mut() {
            let seed = sequence.params().seed.unwrap_or_default();
            sequence.pass_idle_steps(|position, step| randomness.chance(DrawKey { seed, position, step }));
        }
    }

    /// Divides logits by what their strategies ask for, and keeps what canvases go on from.
    fn temper(&mut self, logits: &mut [f32], wanted: &[Wanted]) -> Result<(), StepError> {
        let vocab_size = self.card.vocab_size as usize;
        let is_same = |a: &Wanted, b: &Wanted| (a.ticket, a.block) == (b.ticket, b.block);
        let mut row = 0;
        for block in wanted.chunk_by(is_same) {
            let logits = &mut logits[row * vocab_size..(row + block.len()) * vocab_size];
            row += block.len();
            let Wanted { ticket, block, .. } = block[0];
            let Some(request) = self.scheduled.get_mut(&ticket) else { continue };
            let temperature = request.sequence.temperature(block);
            if temperature != 1.0 {
                logits.iter_mut().for_each(|logit| *logit /= temperature);
            }
            if request.sequence.is_canvas(block) {
                request.signal = self.runner.signal(logits)?;
            }
        }
        Ok(())
    }

    fn vocabulary(&self) -> Vocabulary {
        Vocabulary { n_sampleable: self.config.n_sampleable, mask_token_id: self.config.mask_token_id }
    }

    /// How many of the likeliest tokens some of these look at.
    fn most_likeliest(&self, wanted: &[Wanted]) -> usize {
        let sequences = wanted.iter().filter_map(|wanted| self.scheduled.get(&wanted.ticket));
        sequences.map(|request| request.sequence.n_likeliest()).max().unwrap_or(1)
    }

    /// Candidates of each request by block, or why it has none.
    fn sample(&self, scores: &Scores, owners: &Owners) -> BTreeMap<Ticket, Result<Vec<BlockCandidates>, RequestError>> {
        let mut sampled = Candidates { scheduled: &self.scheduled, randomness: &*self.randomness, of: BTreeMap::new() };
        let rows = || scores.logits.chunks_exact(self.card.vocab_size as usize).zip(&owners.logits);
        let place = |wanted: &Wanted| (wanted.ticket, wanted.block, wanted.row);
        let unguided: BTreeMap<_, &[f32]> =
            rows().filter(|(_, wanted)| wanted.is_unguided).map(|(logits, wanted)| (place(wanted), logits)).collect();
        for (logits, wanted) in rows().filter(|(_, wanted)| !wanted.is_unguided) {
            sampled.add(wanted, |sequence, key, looks| {
                let mut logits = Cow::Borrowed(logits);
                if let Some((scale, base)) = sequence.guidance().zip(unguided.get(&place(wanted))) {
                    let guided = base.iter().zip(&*logits).map(|(base, logit)| base + (scale + 1.0) * (logit - base));
                    logits = Cow::Owned(guided.collect());
                }
                if let Some((token, penalty)) = sequence.repelled(key.position) {
                    logits.to_mut()[token as usize] -= penalty;
                }
                sample(&logits, self.vocabulary(), sequence.params(), key, looks, &*self.randomness)
            });
        }
        for (summary, wanted) in scores.summaries.iter().zip(&owners.summaries) {
            sampled.add(wanted, |_, _, looks| greedy(summary, looks));
        }
        sampled.of
    }

    fn commit(
        &mut self,
        span: &Span,
        candidates: &[BlockCandidates],
        started: Instant,
        events: &mut Vec<ServingEvent>,
    ) {
        let (Some(request), Some(telling)) = (self.scheduled.get_mut(&span.ticket), self.telling.get_mut(&span.ticket))
        else {
            return;
        };
        let change = match request.sequence.advance(span.blocks.clone(), candidates) {
            Ok(change) => change,
            Err(error) => return self.fail(span.ticket, error, events),
        };
        self.scheduler.name_pages(request);
        telling.usage.cached_tokens = request.cached_tokens as u32;
        if change.kind != ForwardKind::Prefill {
            telling.usage.decode_time_s += started.elapsed().as_secs_f64();
            telling.usage.decode_tokens += change.filled.len() as u32;
        }
        let found_stop = telling.emitter.absorb(&request.sequence, &self.text);
        let reason = if found_stop { Some(FinishReason::StopString) } else { request.sequence.finished() };
        match reason {
            Some(reason) => self.finish(span.ticket, reason, events),
            None => {
                let changed = change.is_visible;
                events.extend(telling.emitter.step_event(&request.sequence, &self.text, &telling.usage, changed));
            }
        }
        self.count(&change);
    }

    fn count(&mut self, change: &StepChange) {
        match change.kind {
            ForwardKind::Denoise => self.stats.nfe.denoise += 1,
            ForwardKind::Prefill => self.stats.nfe.prefill += 1,
            ForwardKind::Commit => self.stats.nfe.commit += 1,
            ForwardKind::Rebuild => self.stats.nfe.rebuild += 1,
        }
        self.stats.forced_fills += u64::from(change.was_forced);
        self.stats.generation_tokens += change.filled.len() as u64;
        for confidence in &change.filled {
            self.stats.commit_confidence.observe(f64::from(*confidence));
        }
        for steps in &change.block_steps {
            self.stats.steps_per_block.observe(*steps as f64);
        }
    }
}

/// Candidates of each request by block, or why it has none.
struct Candidates<'a> {
    scheduled: &'a BTreeMap<Ticket, Scheduled>,
    randomness: &'a dyn Randomness,
    of: BTreeMap<Ticket, Result<Vec<BlockCandidates>, RequestError>>,
}

impl Candidates<'_> {
    /// Adds what is drawn for a position, which lies in the block of the one before or in another.
    fn add(&mut self, wanted: &Wanted, draw: impl FnOnce(&Sequence, DrawKey, Looks) -> Option<Drawn>) {
        let Some(request) = self.scheduled.get(&wanted.ticket) else { return };
        let sequence = &request.sequence;
        let entry = self.of.entry(wanted.ticket).or_insert_with(|| Ok(Vec::new()));
        let Ok(blocks) = entry else { return };
        let key = draw_key(sequence, sequence.block_range(wanted.block).start + wanted.row);
        let looks = Looks { score: sequence.score(), n_likeliest: sequence.n_likeliest() };
        let Some(drawn) = draw(sequence, key, looks) else {
            let position = key.position;
            *entry = Err(RequestError::engine(format!("the network's output at position {position} is not a number")));
            return;
        };
        let Drawn { token, confidence, likeliest, runners_up, score } = drawn;
        let current = sequence.draft(key.position);
        let chance = self.randomness.chance(key);
        let row = wanted.row;
        let candidate = Candidate { row, current, token, confidence, likeliest, runners_up, score, chance };
        match blocks.last_mut() {
            Some(last) if last.block == wanted.block => last.candidates.push(candidate),
            Some(_) | None => blocks.push(BlockCandidates { block: wanted.block, candidates: vec![candidate] }),
        }
    }
}

impl ServingEngine for Engine {
    fn tick(&mut self, commands: Vec<ServingCommand>) -> Vec<ServingEvent> {
        let mut events = Vec::new();
        for command in commands {
            self.obey(command, &mut events);
        }
        if self.has_work() {
            self.step(&mut events);
        }
        events
    }

    fn has_work(&self) -> bool {
        !self.scheduled.is_empty()
    }

    fn fail_all(&mut self, code: ErrorCode, message: &str) -> Vec<ServingEvent> {
        let mut events = Vec::with_capacity(self.tickets.len());
        for ticket in self.tickets.values().copied().collect::<Vec<Ticket>>() {
            let error = RequestError { message: message.to_owned(), code, param: None };
            self.fail(ticket, error, &mut events);
        }
        events
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            running: self.scheduler.n_running() as u32,
            waiting: self.scheduler.n_waiting() as u32,
            kv_pages_free: self.scheduler.pool().n_free() as u32,
            prefix_queries: self.scheduler.prefix_queries,
            prefix_hits: self.scheduler.prefix_hits,
            preemptions: self.scheduler.preemptions,
            last_step_age_ms: self.last_step.elapsed().as_millis() as u64,
            ..self.stats.clone()
        }
    }

    fn card(&self) -> &ModelCard {
        &self.card
    }
}
