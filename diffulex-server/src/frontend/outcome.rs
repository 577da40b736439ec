//! A finished request: what became of its choices, as their reader saw it. Its log line and its trace are made of it.

use std::time::{Duration, Instant};

use diffulex_protocol::{ErrorCode, FinishReason, NfeCounts, ServingReply};

use crate::observe::telemetry::error_label;
use crate::observe::traces::CANCELLED;

/// A status that no client receives, as nginx writes it: the client left before the end.
const CLIENT_LEFT: u16 = 499;

/// Status of an answer, and of a stream that failed after its headers.
const OK: u16 = 200;

/// The ends of a request's choices, together.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) accepted: Instant,
    /// When all of its first prompts were ids.
    pub(super) tokenised: Option<Instant>,
    /// Of the first choice, which the client knows all of them by.
    pub(super) rid: String,
    pub(super) n_choices: u32,
    n_answered: u32,
    /// Of the first choice that ended with an answer.
    pub(super) finish: Option<FinishReason>,
    /// For each of [`FinishReason::ALL`], whether a choice ended so.
    finishes: [bool; FinishReason::ALL.len()],
    pub(super) error: Option<ErrorCode>,
    /// The status of an error that came before the headers.
    status: Option<u16>,
    /// Tokens that the client gave, those of a prompt once however many choices it has.
    pub(super) n_prompt_tokens: usize,
    pub(super) n_cached_tokens: u32,
    pub(super) n_answer_tokens: u32,
    pub(super) nfe: u32,
    pub(super) nfe_counts: NfeCounts,
    pub(super) n_preemptions: u32,
    /// The longest of a choice.
    pub(super) queue: Duration,
    /// The shortest of a choice.
    pub(super) least_queue: Duration,
    /// From acceptance to the first event.
    pub(super) first: Option<Duration>,
    /// When the last answer came from the engine.
    pub(super) arrived: Option<Instant>,
}

impl Outcome {
    /// Of a request without a choice.
    pub(super) fn new(accepted: Instant) -> Self {
        Self {
            accepted,
            tokenised: None,
            rid: String::new(),
            n_choices: 0,
            n_answered: 0,
            finish: None,
            finishes: Default::default(),
            error: None,
            status: None,
            n_prompt_tokens: 0,
            n_cached_tokens: 0,
            n_answer_tokens: 0,
            nfe: 0,
            nfe_counts: NfeCounts::default(),
            n_preemptions: 0,
            queue: Duration::ZERO,
            least_queue: Duration::MAX,
            first: None,
            arrived: None,
        }
    }

    /// One more choice, `rid`.
    pub(super) fn add_choice(&mut self, rid: &str) {
        if self.n_choices == 0 {
            rid.clone_into(&mut self.rid);
        }
        self.n_choices += 1;
    }

    /// The reader has something.
    pub(super) fn note_event(&mut self) {
        self.first.get_or_insert_with(|| self.accepted.elapsed());
    }

    /// The reader has the answer, which came at `arrived`.
    pub(super) fn note_reply(&mut self, reply: &ServingReply, arrived: Option<Instant>) {
        self.n_answered += 1;
        self.finish.get_or_insert(reply.finish_reason);
        for (known, is_there) in FinishReason::ALL.iter().zip(&mut self.finishes) {
            *is_there |= *known == reply.finish_reason;
        }
        self.n_cached_tokens += reply.cached_tokens;
        self.n_answer_tokens += reply.written_tokens();
        self.nfe += reply.nfe;
        let (counts, more) = (&mut self.nfe_counts, &reply.nfe_counts);
        counts.denoise += more.denoise;
        counts.prefill += more.prefill;
        counts.commit += more.commit;
        counts.rebuild += more.rebuild;
        self.n_preemptions += reply.preemptions;
        let queue = Duration::try_from_secs_f64(reply.queue_time_s).unwrap_or_default();
        (self.queue, self.least_queue) = (self.queue.max(queue), self.least_queue.min(queue));
        self.arrived = self.arrived.max(arrived);
    }

    /// The reader has the error.
    pub(super) fn note_error(&mut self, code: ErrorCode) {
        self.error.get_or_insert(code);
    }

    /// The error is the whole answer, with this status.
    pub(super) fn note_status(&mut self, status: u16) {
        self.status.get_or_insert(status);
    }

    /// Some choice has an answer.
    pub(super) fn has_answer(&self) -> bool {
        self.n_answered > 0
    }

    /// Every reason that a choice ended with an answer.
    pub(super) fn finishes(&self) -> impl Iterator<Item = FinishReason> {
        FinishReason::ALL.into_iter().zip(self.finishes).filter(|(_, is_there)| *is_there).map(|(reason, _)| reason)
    }

    /// Its end in a word, and its status.
    pub(super) fn verdict(&self) -> (&'static str, u16) {
        match (self.error, self.n_answered == self.n_choices) {
            (Some(_), _) => ("failed", self.status.unwrap_or(OK)),
            (None, true) => ("answered", OK),
            (None, false) => (CANCELLED, CLIENT_LEFT),
        }
    }

    /// Why it did not end as it should have, in a word.
    pub(super) fn failure(&self) -> Option<&'static str> {
        let aborted = self.finishes().find(|reason| *reason == FinishReason::Aborted).map(FinishReason::as_str);
        match (self.error, self.verdict()) {
            (Some(code), _) => Some(error_label(code)),
            (None, (_, OK)) => aborted,
            (None, (word, _)) => Some(word),
        }
    }
}
