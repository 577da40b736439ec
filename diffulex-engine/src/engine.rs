//! The engine: one tick on one page.
//!
//! `commands -> plan -> lay out -> forward -> sample -> decide and commit -> emit`. One tick is one denoise step of the
//! whole batch; requests come and go between ticks. Whatever fails, fails for the requests concerned, and every
//! accepted one ends in exactly one reply or error.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use diffulex_protocol::{
    AdapterSource, EngineStats, ErrorCode, FinishReason, HeldContext, Histogram, ModelCard, ServingCommand,
    ServingEvent, ServingGenerate,
};
use diffulex_strategies::{BlockCandidates, ContextGrowth};
use serde_json::json;

use crate::adapter_id::AdapterId;
use crate::adapters::{AdapterTable, Named};
use crate::admission::{Admission, Admitted};
use crate::batch::{Forward, Frame, lay_out};
use crate::config::{EngineConfig, EngineOptions};
use crate::device_load::DeviceWatch;
use crate::emit::{Emitter, Usage};
use crate::error::{DeviceError, LoadError, RequestError, StepError};
use crate::files::ModelFiles;
use crate::kernels::Vocabulary;
use crate::load::{Loaded, load};
use crate::models::{self, Outputs};
use crate::pooling::PooledStates;
use crate::profile::Stage;
use crate::randomness::{DrawKey, Randomness, Seeded};
use crate::runner::Runner;
use crate::sampler::candidates;
use crate::scheduler::{Scheduled, Scheduler, Span, Ticket};
use crate::sequence::{ForwardKind, Sequence, StepChange};
use crate::serving::ServingEngine;
use crate::text::TextModel;

pub use crate::load::LoadProgress;
use profiler::Profiler;

mod profiler;

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
    outputs: BTreeMap<Ticket, Output>,
    tickets: BTreeMap<String, Ticket>,
    next_ticket: Ticket,
    stats: EngineStats,
    last_step: Instant,
    device: DeviceWatch,
    profiler: Profiler,
}

/// The events of a request, and its clock.
struct Output {
    rid: String,
    emitter: Emitter,
    usage: Usage,
    received: Instant,
    has_started: bool,
    /// The answer's sequence, while the prompt is scored.
    answer: Option<Sequence>,
}

impl Engine {
    /// Loads a model; `progress` is called now and then.
    pub fn load(
        files: &ModelFiles,
        options: &EngineOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadError> {
        let Loaded { config, card, text, runner, device } = load(files, options, progress)?;
        let scheduler = Scheduler::new(&config);
        // Bounds chosen by us: blocks have up to 64 positions and canvases 256, but few steps; forwards write less than one to a few dozen.
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
            outputs: BTreeMap::new(),
            tickets: BTreeMap::new(),
            next_ticket: 0,
            stats,
            last_step: Instant::now(),
            device,
            profiler: Profiler::new(options.profile_dir.clone()),
        };
        for source in &options.adapters {
            engine.load_adapter(source).map_err(|what| LoadError::of(format!("adapter {:?}", source.name), what))?;
        }
        Ok(engine)
    }

    /// Replaces the source of random numbers, to replay recorded draws.
    #[must_use]
    pub fn with_randomness(self, randomness: Box<dyn Randomness>) -> Self {
        Self { randomness, ..self }
    }

    /// The options in effect.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The model's text side.
    pub fn text(&self) -> &TextModel {
        &self.text
    }

    /// Preempts a running request. A test hook.
    pub fn preempt(&mut self, rid: &str) {
        if let Some(ticket) = self.tickets.get(rid) {
            self.scheduler.preempt(*ticket, &mut self.scheduled);
        }
    }

    /// True when pages held and pages free add up.
    pub fn pages_are_consistent(&self) -> bool {
        self.scheduler.pool().is_consistent(
            self.scheduled.values().map(|request| request.pages.as_slice()).chain(self.scheduler.contexts().holdings()),
        )
    }

    fn admit(&mut self, mut request: ServingGenerate) -> Result<Ticket, RequestError> {
        if self.tickets.contains_key(&request.rid) {
            return Err(RequestError::invalid("rid", format!("request id {} is in flight already", request.rid)));
        }
        let admission = Admission { config: &self.config, adapters: &self.adapters, vocab_size: self.card.vocab_size };
        let Admitted { sequence, adapter, scoring } = admission.admit(&mut request)?;
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.stats.prompt_tokens += sequence.n_given(0..sequence.states().len()) as u64;
        let emitter = Emitter::new(&request, sequence.prompt_len());
        let (sequence, answer) = match scoring {
            Some(scoring) => (scoring, Some(sequence)),
            None => (sequence, None),
        };
        let output = Output {
            rid: request.rid.clone(),
            emitter,
            usage: Usage::default(),
            received: Instant::now(),
            has_started: false,
            answer,
        };
        self.outputs.insert(ticket, output);
        self.profiler.event(Stage::Engine, "scheduler_queue_enter", &request.rid, || json!({}));
        let context = request.context.map(|context| context.id);
        let mut root = self.scheduler.pool().root(adapter, request.cache_salt.as_deref());
        if context.is_some() && sequence.layout().context_growth() == ContextGrowth::WholePrompt {
            root = self.scheduler.pool().hash(root, &sequence.tokens()[..sequence.prompt_len()]);
        }
        self.scheduled
            .insert(ticket, Scheduled::new(sequence, adapter).rooted(root).extending(context).pooling(request.embed));
        self.tickets.insert(request.rid, ticket);
        self.scheduler.enqueue(ticket, context);
        Ok(ticket)
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
        self.scheduler.free_contexts_of(id);
        self.drop_if_unused(id);
        Ok(())
    }

    fn drop_if_unused(&mut self, id: AdapterId) {
        let has_requests = self.scheduled.values().any(|request| request.adapter == Some(id));
        if self.adapters.is_gone(id, has_requests) {
            self.runner.unload_adapter(id);
        }
    }

    /// Ends the request `ticket`; nothing of it is left.
    fn forget(&mut self, ticket: Ticket) -> Option<(Scheduled, Output)> {
        let (mut scheduled, output) = self.take_out(ticket)?;
        self.release(ticket, &mut scheduled);
        Some((scheduled, output))
    }

    fn take_out(&mut self, ticket: Ticket) -> Option<(Scheduled, Output)> {
        let scheduled = self.scheduled.remove(&ticket)?;
        let output = self.outputs.remove(&ticket)?;
        self.tickets.remove(&output.rid);
        Some((scheduled, output))
    }

    fn release(&mut self, ticket: Ticket, scheduled: &mut Scheduled) {
        self.scheduler.remove(ticket, scheduled);
        if let Some(adapter) = scheduled.adapter {
            self.drop_if_unused(adapter);
        }
    }

    /// The hold on the context of a request that wrote `n_written` tokens, if it has one.
    fn hold_context(&mut self, scheduled: &Scheduled, n_written: usize) -> Option<HeldContext> {
        scheduled.context?;
        let held = self.scheduler.hold_context(scheduled, scheduled.sequence.prompt_len() + n_written) as u32;
        let grows = scheduled.sequence.layout().context_growth() == ContextGrowth::Grows;
        Some(HeldContext { held, grows })
    }

    fn finish(&mut self, ticket: Ticket, reason: FinishReason, events: &mut Vec<ServingEvent>) {
        if let Some((mut scheduled, mut output)) = self.take_out(ticket) {
            output.usage.preemptions = scheduled.preemptions;
            let nfe = scheduled.sequence.nfe();
            // Aborted while the prompt was scored: the reply is about the answer, which is empty.
            let answer = output.answer.take();
            let sequence = answer.as_ref().unwrap_or(&scheduled.sequence);
            self.profiler.event(
                Stage::Engine,
                "stage_complete",
                &output.rid,
                || json!({"next": "detokenizer", "finish_reason": reason, "nfe": nfe}),
            );
            output.usage.embedding = scheduled.pooled.as_ref().map(PooledStates::embedding);
            let mut ended = output.emitter.finish(sequence, &self.text, &output.usage, reason);
            if let Some(ServingEvent::Reply(reply)) = ended.last_mut()
                && reason != FinishReason::Aborted
            {
                reply.context = self.hold_context(&scheduled, reply.token_ids.len());
            }
            self.release(ticket, &mut scheduled);
            self.profiler.sent(&ended);
            events.extend(ended);
            if reason == FinishReason::Aborted {
                self.stats.wasted_nfe += u64::from(nfe.denoise);
            }
            if let Some(ServingEvent::Reply(reply)) = events.last() {
                let n_written = reply.written_tokens();
                self.stats.generation_tokens += u64::from(n_written.saturating_sub(output.emitter.n_counted()));
                if nfe.denoise > 0 {
                    self.stats.tokens_per_forward.observe(f64::from(n_written) / f64::from(nfe.decoding()));
                }
            }
        }
    }

    /// Ends a request whose answer is whole from the start, since nothing is to be written. True if it was.
    fn finish_if_whole(&mut self, ticket: Ticket, events: &mut Vec<ServingEvent>) -> bool {
        let reason = self.scheduled.get(&ticket).and_then(|request| request.sequence.finished());
        if let Some(reason) = reason {
            self.finish(ticket, reason, events);
        }
        reason.is_some()
    }

    /// Puts the answer in the place of the prompt, which is scored. The answer finds what is cached of the prompt as any other
    /// request does, so it is the one without scores.
    fn begin_answer(&mut self, ticket: Ticket, events: &mut Vec<ServingEvent>) {
        if let (Some(request), Some(output)) = (self.scheduled.get_mut(&ticket), self.outputs.get_mut(&ticket))
            && let Some(answer) = output.answer.take()
        {
            output.emitter.note_scores(&request.sequence);
            request.sequence = answer;
        }
        if !self.finish_if_whole(ticket, events) {
            self.scheduler.requeue(ticket, &mut self.scheduled);
        }
    }

    fn fail(&mut self, ticket: Ticket, error: RequestError, events: &mut Vec<ServingEvent>) {
        if let Some((_, output)) = self.forget(ticket) {
            self.profiler.event(Stage::Engine, "stage_failed", &output.rid, || json!({"error": error.code}));
            events.push(ServingEvent::Error(error.into_event(output.rid)));
        }
    }

    fn handle(&mut self, command: ServingCommand, events: &mut Vec<ServingEvent>) {
        match command {
            ServingCommand::Generate(request) => {
                let rid = request.rid.clone();
                self.profiler.event(Stage::Engine, "stage_input_received", &rid, || json!({"from_stage": "frontend"}));
                match self.admit(request) {
                    Ok(ticket) => _ = self.finish_if_whole(ticket, events),
                    Err(error) => events.push(ServingEvent::Error(error.into_event(rid))),
                }
            }
            ServingCommand::Abort { rid } => {
                self.profiler.event(Stage::Engine, "abort_received", &rid, || json!({}));
                if let Some(ticket) = self.tickets.get(&rid).copied() {
                    self.finish(ticket, FinishReason::Aborted, events);
                }
            }
            // The loop around the engine keeps it for itself.
            ServingCommand::Attach { .. } => {}
            ServingCommand::FlushCache => self.scheduler.flush_cache(),
            ServingCommand::ForkContext { parent, child } => self.scheduler.fork_context(parent, child),
            ServingCommand::FreeContext { context } => self.scheduler.free_context(context),
            ServingCommand::LoadAdapter(source) => {
                let message = self.load_adapter(&source).err();
                if let Some(why) = &message {
                    // The client must not learn what a path holds; the operator may.
                    tracing::warn!(name = source.name, path = source.path, why, "an adapter was not loaded");
                }
                events.push(ServingEvent::AdapterReply { name: source.name, ok: message.is_none(), message });
            }
            ServingCommand::UnloadAdapter { name } => {
                let message = self.unload_adapter(&name).err();
                events.push(ServingEvent::AdapterReply { name, ok: message.is_none(), message });
            }
            ServingCommand::ProfileStart(order) => events.push(self.profiler.start(&order)),
            ServingCommand::ProfileStop => events.push(self.profiler.stop()),
            // The loop around the engine handles it; one that comes here all the same ends what runs.
            ServingCommand::Shutdown { .. } => {
                events.extend(self.fail_all(ErrorCode::ShuttingDown, "the server is shutting down"));
            }
        }
    }

    /// One denoise step of everything the plan takes in.
    fn step(&mut self, events: &mut Vec<ServingEvent>) {
        self.profiler.begin_step();
        self.pass_idle_steps();
        let plan = self.scheduler.plan(&mut self.scheduled);
        self.profiler.end_stage("plan");
        let n_finished = self.finish_without_forward(events);
        if plan.is_empty() && n_finished == 0 {
            // Admission refuses what can never be planned; if it was wrong, the oldest pays, and nothing hangs.
            if let Some(ticket) = self.scheduled.keys().next().copied() {
                self.fail(ticket, RequestError::engine("the scheduler found no room for this request"), events);
            }
        }
        if plan.is_empty() {
            return;
        }
        let started = Instant::now();
        for span in &plan {
            if let Some(output) = self.outputs.get_mut(&span.ticket)
                && !output.has_started
            {
                output.has_started = true;
                output.usage.queue_time_s = output.received.elapsed().as_secs_f64();
                self.profiler.event(Stage::Engine, "scheduler_prefill_start", &output.rid, || json!({}));
            }
        }
        let frame = Frame {
            page_size: self.config.page_size,
            vocab_size: self.card.vocab_size as usize,
            vocabulary: Vocabulary { n_sampleable: self.config.n_sampleable, mask_token_id: self.config.mask_token_id },
            randomness: &*self.randomness,
        };
        let Forward { text, canvases, owners, read } = lay_out(&plan, &self.scheduled, frame);
        let n_rows = text.ids.len() + canvases.ids.len();
        self.stats.rows += n_rows as u64;
        self.profiler.end_stage("lay_out");
        let Outputs { scored, states } = match self.runner.forward(&text, &canvases) {
            Ok(outputs) => outputs,
            Err(StepError::Batch(error)) => {
                for span in &plan {
                    self.fail(span.ticket, RequestError::engine(format!("the forward failed: {error}")), events);
                }
                return;
            }
            Err(StepError::Device(error)) => return self.give_up(&error, events),
        };
        self.profiler.end_stage("forward");
        let mut candidates = candidates(&self.scheduled, &owners, scored, &*self.randomness);
        self.stats.steps += 1;
        self.stats.forward_seconds += started.elapsed().as_secs_f64();
        self.profiler.end_stage("collect");
        self.pool_states(&read, &states, events);
        let n_requests = plan.len();
        for span in plan {
            match candidates.remove(&span.ticket).unwrap_or(Ok(Vec::new())) {
                Ok(candidates) => self.commit(&span, &candidates, started, events),
                Err(error) => self.fail(span.ticket, error, events),
            }
        }
        self.last_step = Instant::now();
        self.profiler.end_stage("commit");
        self.profiler.end_step(n_requests, n_rows);
    }

    /// Ends the requests whose context is filled by the pages that it found in the cache. Returns their number.
    fn finish_without_forward(&mut self, events: &mut Vec<ServingEvent>) -> usize {
        let filled = |(ticket, request): (&Ticket, &Scheduled)| {
            request
                .context
                .and_then(|_| request.sequence.finished())
                .map(|reason| (*ticket, reason, request.cached_tokens))
        };
        let filled: Vec<_> = self.scheduled.iter().filter_map(filled).collect();
        for (ticket, reason, cached_tokens) in &filled {
            if let Some(output) = self.outputs.get_mut(ticket) {
                output.usage.cached_tokens = *cached_tokens as u32;
            }
            self.finish(*ticket, *reason, events);
        }
        filled.len()
    }

    /// Brings states of texts that are only read to their requests.
    fn pool_states(&mut self, read: &[(Ticket, Range<usize>)], states: &[f32], events: &mut Vec<ServingEvent>) {
        let n_rows: usize = read.iter().map(|(_, positions)| positions.len()).sum();
        let width = states.len().checked_div(n_rows).unwrap_or_default();
        let mut rest = states;
        for (ticket, positions) in read {
            let (of_request, others) = rest.split_at(positions.len() * width);
            rest = others;
            let pooled = self.scheduled.get_mut(ticket).and_then(|request| request.pooled.as_mut());
            if let Some(Err(error)) = pooled.map(|pooled| pooled.take(positions.clone(), of_request)) {
                self.fail(*ticket, error, events);
            }
        }
    }

    /// Ends every request, then says that the engine cannot go on: weights and cache may be lost with the device.
    fn give_up(&mut self, error: &DeviceError, events: &mut Vec<ServingEvent>) {
        let message = error.to_string();
        events.extend(self.fail_all(ErrorCode::EngineFailed, &message));
        events.push(ServingEvent::Fatal { message, backtrace: None });
    }

    fn pass_idle_steps(&mut self) {
        let Self { scheduled, randomness, .. } = self;
        for Scheduled { sequence, .. } in scheduled.values_mut() {
            let seed = sequence.params().seed.unwrap_or_default();
            sequence.pass_idle_steps(|position, step| randomness.chance(DrawKey { seed, position, step }));
        }
    }

    fn commit(
        &mut self,
        span: &Span,
        candidates: &[BlockCandidates],
        started: Instant,
        events: &mut Vec<ServingEvent>,
    ) {
        let (Some(request), Some(output)) = (self.scheduled.get_mut(&span.ticket), self.outputs.get_mut(&span.ticket))
        else {
            return;
        };
        let change = match request.sequence.advance(span.blocks.clone(), candidates) {
            Ok(change) => change,
            Err(error) => return self.fail(span.ticket, error, events),
        };
        self.scheduler.name_pages(request);
        output.usage.cached_tokens = request.cached_tokens as u32;
        if !matches!(change.kind, ForwardKind::Prefill | ForwardKind::Score) {
            output.usage.decode_time_s += started.elapsed().as_secs_f64();
            output.usage.decode_tokens += change.filled.len() as u32;
        }
        self.profiler.step_event(&output.rid, || {
            json!({"kind": change.kind, "nfe": request.sequence.nfe().charged(), "blocks": [span.blocks.start, span.blocks.end],
                   "accepted": change.filled.len(), "blocks_done": change.block_steps})
        });
        if output.answer.is_some() {
            let is_scored = request.sequence.finished().is_some();
            self.count(&change);
            if is_scored {
                self.begin_answer(span.ticket, events);
            }
            return;
        }
        let found_stop = output.emitter.absorb(&request.sequence, &self.text);
        let reason = if found_stop { Some(FinishReason::StopString) } else { request.sequence.finished() };
        match reason {
            Some(reason) => self.finish(span.ticket, reason, events),
            None => {
                self.stats.generation_tokens += u64::from(output.emitter.count_written(&request.sequence));
                let changed = change.is_visible;
                let event = output.emitter.step_event(&request.sequence, &self.text, &output.usage, changed);
                self.profiler.sent(event.as_slice());
                events.extend(event);
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
            // Nothing is written.
            ForwardKind::Score => {
                self.stats.nfe.score += 1;
                return;
            }
        }
        self.stats.forced_fills += u64::from(change.was_forced);
        self.stats.decided_positions += change.filled.len() as u64;
        for confidence in &change.filled {
            self.stats.commit_confidence.observe(f64::from(*confidence));
        }
        for steps in &change.block_steps {
            self.stats.steps_per_block.observe(*steps as f64);
        }
    }
}

impl ServingEngine for Engine {
    fn tick(&mut self, commands: Vec<ServingCommand>) -> Vec<ServingEvent> {
        let mut events = Vec::new();
        for command in commands {
            self.handle(command, &mut events);
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
            contexts: self.scheduler.contexts().n_contexts() as u32,
            context_pages: self.scheduler.contexts().n_pages() as u32,
            prefix_queries: self.scheduler.prefix_queries,
            prefix_hits: self.scheduler.prefix_hits,
            preemptions: self.scheduler.preemptions,
            last_step_age_ms: self.last_step.elapsed().as_millis() as u64,
            device: self.device.load(Instant::now()),
            ..self.stats.clone()
        }
    }

    fn card(&self) -> &ModelCard {
        &self.card
    }
}

#[cfg(test)]
mod tests;
