//! Admission: a submission becomes a registered request, or an error.
//!
//! In: a [`Submission`]. Out: one [`EventStream`] per choice, whose command is in the outbox. Tokenises, checks lengths,
//! limits the requests in flight, and computes `Retry-After`. Never here: sending, events.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use diffulex_engine::{RequestError, check_ids, check_params_ids};
use diffulex_protocol::{
    ContextUse, ModelCard, Pooling, Prompt, SamplingParams, ServingGenerate, ServingInput, SnapshotSpan, StreamMode,
};

use super::contexts::ContextError;
use super::quarantine::Fingerprint;
use super::request_log::RequestLog;
use super::request_spans;
use super::request_state::{RequestSize, RequestState};
use super::stream::{EventStream, Permit};
use super::tokenising::Tokenising;
use super::{Frontend, Shared, WorkerStatus, WorkerView, lock};
use crate::traces::RequestTrace;

/// Completions that the rate for `Retry-After` is computed from. Chosen by us.
const COMPLETIONS_KEPT: usize = 64;

/// Bounds of `Retry-After`, as `http-api` promises them.
const RETRY_AFTER: std::ops::RangeInclusive<u64> = 1..=60;

/// A request as a route hands it to the front end.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The route, for the log.
    pub route: &'static str,
    /// Prompts or messages, each answered by itself.
    pub inputs: Vec<ServingInput>,
    /// Sampling and limits; a missing seed is [`SamplingParams::seed_or`] one that is drawn.
    pub sampling_params: SamplingParams,
    /// Progress is wanted, not only the reply.
    pub stream: bool,
    /// Which progress.
    pub stream_mode: StreamMode,
    /// How much a snapshot covers.
    pub snapshot: SnapshotSpan,
    /// Most snapshots a second; those that come faster are merged. `None` is every one.
    pub max_fps: Option<f32>,
    /// Text or ids that follow the answer.
    pub suffix: Option<Prompt>,
    /// A mask in the prompt is a place to fill; otherwise it is a token like any other.
    pub fills_masks: bool,
    /// The adapter to answer with.
    pub adapter: Option<String>,
    /// The client's own tag.
    pub user: Option<String>,
    /// The id that the client knows the request by; `None` makes one. Further choices add `-1`, `-2`, ... to it.
    pub request_id: Option<String>,
    /// Cuts the beginning of a prompt that is too long; `None` refuses it.
    pub truncation: Option<Truncation>,
    /// Shares cached prefixes only with requests of the same salt.
    pub cache_salt: Option<String>,
    /// The streams keep the ids of the prompt.
    pub keeps_prompt: bool,
    /// The context that it extends, whose tokens the inputs begin with.
    pub context: Option<ContextUse>,
    /// The inputs are read and not answered: their replies have embeddings, pooled so.
    pub embed: Option<Pooling>,
    /// Inputs of the client's request that were submitted before these.
    pub first_input: usize,
    /// Answers wanted to each input; each is a request of its own with the next seed.
    pub n_choices: u32,
    /// The trace of the client's request.
    pub trace: Option<RequestTrace>,
    /// The log line of the client's request if several submissions share it; without one, the submission gets its own.
    pub log: Option<RequestLog>,
}

/// Which tokens of a prompt are kept, from its end where nothing else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// This many at most.
    To(u32),
    /// As many as leave room for `max_tokens`, and half of the context at least. (The half is chosen by us: a `max_tokens` of the
    /// whole context would leave nothing of the prompt.)
    ToFit,
    /// As many as the model takes, from the prompt's beginning, as Ollama cuts what it embeds.
    Beginning,
}

impl Truncation {
    /// Cuts `ids`; the error is that more are to be kept than the model takes.
    fn cut(self, ids: &mut Vec<u32>, max_tokens: u32, max_model_len: u32) -> Result<(), RequestError> {
        let n_kept = match self {
            Self::To(n) if n > max_model_len => {
                let message = format!("truncate_prompt_tokens must be at most {max_model_len}, got {n}");
                return Err(RequestError::invalid("truncate_prompt_tokens", message));
            }
            Self::To(n) => n,
            Self::Beginning => {
                ids.truncate(max_model_len as usize);
                return Ok(());
            }
            Self::ToFit => max_model_len.saturating_sub(max_tokens).max(max_model_len / 2),
        };
        ids.drain(..ids.len().saturating_sub(n_kept as usize));
        Ok(())
    }
}

impl Submission {
    /// One choice of the default parameters, not streamed.
    pub fn new(route: &'static str, input: ServingInput) -> Self {
        Self::of_inputs(route, vec![input])
    }

    /// The same for several inputs.
    pub fn of_inputs(route: &'static str, inputs: Vec<ServingInput>) -> Self {
        Self {
            route,
            inputs,
            sampling_params: SamplingParams::default(),
            stream: false,
            stream_mode: StreamMode::default(),
            snapshot: SnapshotSpan::default(),
            max_fps: None,
            suffix: None,
            fills_masks: false,
            adapter: None,
            user: None,
            request_id: None,
            truncation: None,
            cache_salt: None,
            keeps_prompt: false,
            context: None,
            embed: None,
            first_input: 0,
            n_choices: 1,
            trace: None,
            log: None,
        }
    }

    /// The log line of the client's request, which is accepted now.
    pub fn begin_log(&self) -> RequestLog {
        if let Some(trace) = &self.trace {
            let operation = match (self.embed, self.inputs.first()) {
                (Some(_), _) => request_spans::EMBEDDINGS,
                (None, Some(ServingInput::Chat { .. })) => "chat",
                (None, _) => "text_completion",
            };
            let adapter = self.adapter.as_deref();
            request_spans::begin(trace, operation, adapter, &self.sampling_params, self.n_choices);
        }
        RequestLog::new(self.route, self.trace.clone())
    }

    /// Parameters of answer `choice` to a prompt, whose first answer has `seed`. The answers share the scores of the prompt.
    fn params_of_choice(&self, seed: u64, choice: u64) -> SamplingParams {
        let prompt_logprobs = self.sampling_params.prompt_logprobs.filter(|_| choice == 0);
        SamplingParams { seed: Some(seed.wrapping_add(choice)), prompt_logprobs, ..self.sampling_params.clone() }
    }

    /// The engine's command for one answer to `prompt`.
    fn command(
        &self,
        rid: String,
        sampling_params: SamplingParams,
        prompt: &Checked,
        suffix: Option<Vec<u32>>,
    ) -> ServingGenerate {
        ServingGenerate {
            rid,
            input: ServingInput::ids(prompt.ids.clone()),
            sampling_params,
            stream: self.stream,
            stream_mode: self.stream_mode,
            snapshot: self.snapshot,
            suffix: suffix.map(Prompt::Ids),
            masked: prompt.masked.clone(),
            adapter: self.adapter.clone(),
            user: self.user.clone(),
            cache_salt: self.cache_salt.clone(),
            context: self.context,
            embed: self.embed,
            created_time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        }
    }
}

/// Why a request was not accepted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// The request is wrong.
    #[error("{}", .0.message)]
    Request(RequestError),
    /// Too many requests in flight.
    #[error("too many requests are waiting; try again in {} s", .retry_after.as_secs())]
    QueueFull {
        /// When there is likely to be room.
        retry_after: Duration,
    },
    /// There is no worker to take it.
    #[error("{message}")]
    Unavailable {
        /// Why.
        message: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// Another request of that id has not ended.
    #[error("request_id {id:?} is the id of a request that has not ended")]
    IdInFlight {
        /// The id.
        id: String,
    },
    /// The engine has not answered.
    #[error("the engine did not answer within {} s", .after.as_secs())]
    NoAnswer {
        /// After this long.
        after: Duration,
    },
    /// Its context cannot take it.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// The request has ended the engine before.
    #[error("this request ended the engine twice, the second time while it was the only suspect; it is refused for another {} s", .left.as_secs().max(1))]
    Poisoned {
        /// How much longer it is refused.
        left: Duration,
    },
}

impl SubmitError {
    /// The error of the prompt `index` of several.
    fn of_prompt(self, index: usize) -> Self {
        match self {
            Self::Request(error) => {
                Self::Request(RequestError { message: format!("{} (prompt[{index}])", error.message), ..error })
            }
            other => other,
        }
    }
}

impl From<RequestError> for SubmitError {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

/// The id of a choice of the request that its client calls `id`.
fn name_of_choice(id: &str, choice: u64) -> String {
    if choice == 0 { id.to_owned() } else { format!("{id}-{choice}") }
}

impl Frontend {
    /// Accepts a request, or says why not. One stream per choice, those of the first input first. Nothing is begun unless all
    /// are accepted.
    pub async fn submit(&self, mut submission: Submission) -> Result<Vec<EventStream>, SubmitError> {
        let accepted = Instant::now();
        let log = submission.log.take().unwrap_or_else(|| submission.begin_log());
        let card = self.shared.card_of_running_worker()?;
        check_count(&submission, self.shared.options.max_in_flight)?;
        let (n_inputs, n_choices) = (submission.inputs.len(), u64::from(submission.n_choices));
        let n_answers = n_inputs as u64 * n_choices;
        let permits = (0..n_answers).map(|_| self.shared.admit()).collect::<Result<Vec<_>, _>>()?;
        let tokenising = self.shared.profiler.now();
        let mut prompts = Vec::with_capacity(n_inputs);
        for (index, input) in std::mem::take(&mut submission.inputs).into_iter().enumerate() {
            let prompt = self.checked_prompt(input, &submission, &card).await;
            let index = submission.first_input + index;
            prompts.push(prompt.map_err(|error| if n_inputs + index > 1 { error.of_prompt(index) } else { error })?);
        }
        let tokenised = self.shared.profiler.now();
        let suffix = match submission.suffix.take() {
            Some(prompt) => Some(self.suffix(prompt, &card).await?),
            None => None,
        };
        let mut fingerprints = Vec::with_capacity(n_inputs);
        for prompt in &prompts {
            fingerprints.push(self.accepted_fingerprint(&prompt.ids, suffix.as_deref(), &submission, accepted)?);
        }

        let n_suffix = suffix.as_ref().map_or(0, Vec::len);
        let n_given = |Checked { ids, masked }: &Checked| ids.len() - masked.len() + n_suffix;
        log.note_prompts(prompts.iter().map(n_given).sum());
        let seeds = prompts.iter().map(|_| submission.sampling_params.seed_or(|| self.shared.draws.seed()));
        let answers = prompts.iter().zip(fingerprints).zip(seeds);
        let answers = answers.flat_map(|((prompt, fingerprint), seed)| {
            (0..n_choices).map(move |choice| (prompt, fingerprint, seed, choice))
        });
        let mut streams = Vec::with_capacity(permits.len());
        for (nth, (permit, (prompt, fingerprint, seed, choice))) in
            (submission.first_input as u64..).zip(permits.into_iter().zip(answers))
        {
            let (ids, n_given) = (&prompt.ids, n_given(prompt) as u32);
            let size = RequestSize {
                prompt_tokens: ids.len(),
                max_tokens: submission.sampling_params.max_tokens,
                stream: submission.stream,
                stream_mode: submission.stream_mode,
                age_s: 0.0,
            };
            let rid = self.shared.draws.rid();
            let params = submission.params_of_choice(seed, choice);
            let generate = submission.command(rid.clone(), params, prompt, suffix.clone());
            let deadline = self.shared.options.request_timeout.map(|timeout| accepted + timeout);
            let first = streams.first().map(|stream: &EventStream| stream.rid().to_owned());
            let name = submission.request_id.as_deref().map(|id| name_of_choice(id, nth));
            let state = Arc::new(RequestState::new(rid, first, (fingerprint, size), accepted, deadline).named(name));
            self.shared.profiler.admitted(&state.rid, accepted, [tokenising, tokenised], ids.len());
            tracing::debug!(rid = state.rid, user = generate.user, prompt_tokens = ids.len(), "accepted");
            self.shared.register(&state, generate)?;
            self.shared.telemetry.accepted.add(1);
            let stream = EventStream::new(&self.shared, state, &log, permit);
            let kept = submission.keeps_prompt.then(|| ids.as_slice().into());
            streams.push(stream.of_prompt(n_given, kept).paced(submission.max_fps));
        }
        // Lets other submissions fill the outbox first: one flush then sends all, which wakes ZMQ's thread once.
        tokio::task::yield_now().await;
        self.shared.flush();
        self.shared.advance_trials();
        Ok(streams)
    }

    /// A prompt of `submission`, of which everything but the engine's state is checked.
    async fn checked_prompt(
        &self,
        input: ServingInput,
        submission: &Submission,
        card: &ModelCard,
    ) -> Result<Checked, SubmitError> {
        let (field, params) = (field_of(&input), &submission.sampling_params);
        let is_answered = submission.embed.is_none();
        let max_tokens = if is_answered { params.max_tokens } else { 0 };
        let ids = self.prompt(field, input, submission.truncation, max_tokens, card).await?;
        // First, because the other checks read the whole list.
        check_length(field, &ids, 0, card)?;
        let masked = if submission.fills_masks { masks_of(&ids, card) } else { Vec::new() };
        // Masks are places of the answer already.
        let writes = is_answered && masked.is_empty();
        let n_more = if writes { params.max_tokens.min(1) as usize } else { 0 };
        check_prompt(field, &ids, n_more, params, card)?;
        if submission.keeps_prompt && !masked.is_empty() {
            let message = "echo and prompt_logprobs need a prompt without masks: the answer would stand inside of it";
            return Err(RequestError::invalid("echo", message).into());
        }
        Ok(Checked { ids, masked })
    }

    /// The fingerprint of a prompt that is not refused for what it has done to the engine.
    fn accepted_fingerprint(
        &self,
        ids: &[u32],
        suffix: Option<&[u32]>,
        submission: &Submission,
        now: Instant,
    ) -> Result<Fingerprint, SubmitError> {
        let (adapter, params) = (submission.adapter.as_deref(), &submission.sampling_params);
        let fingerprint = Fingerprint::of(self.shared.draws.key(), ids, suffix, adapter, params);
        match lock(&self.shared.quarantine).refusal(fingerprint, now) {
            Some(left) => Err(SubmitError::Poisoned { left }),
            None => Ok(fingerprint),
        }
    }

    /// Token ids of a prompt, cut where that is asked for.
    async fn prompt(
        &self,
        field: &'static str,
        input: ServingInput,
        truncation: Option<Truncation>,
        max_tokens: u32,
        card: &ModelCard,
    ) -> Result<Vec<u32>, SubmitError> {
        let Some(truncation) = truncation else { return Ok(self.tokenise(field, input).await?) };
        let mut ids = self.tokenise_any(field, input, None, Tokenising::default()).await?;
        truncation.cut(&mut ids, max_tokens, card.max_model_len)?;
        Ok(ids)
    }

    /// Token ids of a suffix.
    async fn suffix(&self, prompt: Prompt, card: &ModelCard) -> Result<Vec<u32>, SubmitError> {
        let suffix = self.tokenise("suffix", ServingInput::Prompt { prompt }).await?;
        if masks_of(&suffix, card).is_empty() {
            return Ok(suffix);
        }
        let message = "suffix holds the mask token; places to fill are masks of the prompt, without a suffix";
        Err(RequestError::invalid("suffix", message).into())
    }

    /// Why a request would not be taken now, whatever it asks for.
    pub fn check_ready(&self) -> Result<(), SubmitError> {
        self.shared.card_of_running_worker().map(drop)
    }
}

impl Shared {
    pub(super) fn card_of_running_worker(&self) -> Result<Arc<ModelCard>, SubmitError> {
        if self.draining.load(Ordering::Acquire) {
            return Err(unavailable("the server is shutting down", 5));
        }
        let view = self.worker_view();
        if let Some(silence) = self.stall_of(&view) {
            return Err(unavailable(&format!("the engine has been silent for {} s", silence.as_secs()), 5));
        }
        match (&view.commands, &view.card) {
            (Some(_), Some(card)) => Ok(Arc::clone(card)),
            _ => Err(self.no_worker(&view)),
        }
    }

    /// When a lost worker is likely to be replaced.
    pub(super) fn restart_wait(&self, view: &WorkerView) -> Duration {
        let wait = view.expected.map_or(Duration::ZERO, |expected| expected.saturating_duration_since(Instant::now()));
        // Whole seconds, as the header has no others.
        Duration::from_secs((wait.as_secs_f64().ceil() as u64).clamp(*RETRY_AFTER.start(), *RETRY_AFTER.end()))
    }

    pub(super) fn no_worker(&self, view: &WorkerView) -> SubmitError {
        match &*self.status.borrow() {
            WorkerStatus::Starting | WorkerStatus::Running => unavailable("the model is loading", 2),
            WorkerStatus::Restarting { reason } => SubmitError::Unavailable {
                message: format!("the engine is being restarted after it was lost: {reason}"),
                retry_after: self.restart_wait(view),
            },
            WorkerStatus::Failed { reason } => unavailable(&format!("the engine could not start: {reason}"), 60),
            WorkerStatus::Stopped => unavailable("the server is shutting down", 5),
        }
    }

    fn admit(self: &Arc<Self>) -> Result<Permit, SubmitError> {
        let in_flight = self.in_flight.fetch_add(1, Ordering::AcqRel);
        let permit = Permit::new(Arc::clone(self));
        if in_flight < self.options.max_in_flight {
            return Ok(permit);
        }
        self.telemetry.rejected.add(1);
        Err(SubmitError::QueueFull { retry_after: self.retry_after(in_flight) })
    }

    /// The time in which the recent rate of completions empties half of what is in flight: waiting for all of it would
    /// leave the server idle, coming back for the first free place would meet everybody else there.
    fn retry_after(&self, in_flight: usize) -> Duration {
        let completions = lock(&self.completions);
        let seconds = match completions.front() {
            Some(oldest) => {
                let rate = completions.len() as f64 / oldest.elapsed().as_secs_f64().max(1e-3);
                (in_flight as f64 / 2.0 / rate).ceil() as u64
            }
            // Nothing has finished yet, so nothing is known; 5 is chosen by us.
            None => 5,
        };
        Duration::from_secs(seconds.clamp(*RETRY_AFTER.start(), *RETRY_AFTER.end()))
    }

    pub(super) fn note_completions(&self, count: usize, now: Instant) {
        let mut completions = lock(&self.completions);
        for _ in 0..count.min(COMPLETIONS_KEPT) {
            if completions.len() == COMPLETIONS_KEPT {
                completions.pop_front();
            }
            completions.push_back(now);
        }
    }
}

/// A prompt that was accepted.
struct Checked {
    ids: Vec<u32>,
    /// Places to fill.
    masked: Vec<u32>,
}

/// Refuses more answers than the server ever takes at once.
fn check_count(submission: &Submission, max_in_flight: usize) -> Result<(), RequestError> {
    let (n_inputs, n) = (submission.inputs.len(), submission.n_choices);
    if n_inputs.saturating_mul(n as usize) <= max_in_flight {
        return Ok(());
    }
    let limit = format!("this server takes {max_in_flight} requests at once");
    Err(match n_inputs {
        1 => RequestError::too_large("n", format!("n is {n}; {limit}")),
        _ => RequestError::too_large("prompt", format!("prompt: {n_inputs} prompts with n = {n}; {limit}")),
    })
}

/// The client's name of the field that holds `input`.
pub(super) fn field_of(input: &ServingInput) -> &'static str {
    match input {
        ServingInput::Prompt { .. } => "prompt",
        ServingInput::Chat { .. } => "messages",
    }
}

/// Positions of `ids` where the mask is written.
fn masks_of(ids: &[u32], card: &ModelCard) -> Vec<u32> {
    (0..).zip(ids).filter(|(_, id)| Some(**id) == card.mask_token_id).map(|(position, _)| position).collect()
}

/// Refuses `ids` that exceed the context length together with `n_more` tokens of answer.
fn check_length(field: &'static str, ids: &[u32], n_more: usize, card: &ModelCard) -> Result<(), RequestError> {
    if ids.len() + n_more <= card.max_model_len as usize {
        return Ok(());
    }
    let what = if n_more > 0 { ", and at least one to write" } else { "" };
    let problem = format!("{} tokens{what}", ids.len());
    Err(RequestError::context_length(field, card.max_model_len as usize, problem))
}

/// Checks that need no engine: emptiness, ids, length with `n_more` tokens of answer.
fn check_prompt(
    field: &'static str,
    ids: &[u32],
    n_more: usize,
    params: &SamplingParams,
    card: &ModelCard,
) -> Result<(), RequestError> {
    if ids.is_empty() {
        return Err(RequestError::invalid(field, format!("{field} must not be empty")));
    }
    check_ids(field, ids, card.vocab_size)?;
    check_length(field, ids, n_more, card)?;
    check_params_ids(params, card.vocab_size)
}

pub(super) fn unavailable(message: &str, retry_after_s: u64) -> SubmitError {
    SubmitError::Unavailable { message: message.to_owned(), retry_after: Duration::from_secs(retry_after_s) }
}
