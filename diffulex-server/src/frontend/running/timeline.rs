//! The life of a request: its stages and its end, each recorded once, by one clock.
//!
//! In: moments, from admission, routing and the reader. Out: times and counts, which [`recorders`](crate::frontend::running::recorders) write. Where a
//! client asks for several answers, each has a [`Timeline`], and they are joined as they end. Never here: files, lines, pages.

use std::time::{Duration, Instant};

use diffulex_protocol::{ErrorCode, FinishReason, NfeCounts, ServingReply};

use crate::observe::telemetry::error_label;
use crate::observe::traces::CANCELLED;

/// A status that no client receives, as nginx writes it: the client left before the end.
const CLIENT_LEFT: u16 = 499;

/// Status of an answer, and of a stream that failed after its headers.
const OK: u16 = 200;

/// Queue time of an answered request: from its acceptance by the engine to its first forward, as the engine measures it. The meaning
/// is that of vLLM's `request_queue_time_seconds`, and the same in metrics, log, spans and profiles.
pub(in crate::frontend) fn queue_time(reply: &ServingReply) -> Duration {
    Duration::try_from_secs_f64(reply.queue_time_s).unwrap_or_default()
}

/// The life of one request to the engine so far, or of all choices of a client's request that have ended.
#[derive(Clone, Copy, Debug)]
pub(in crate::frontend) struct Timeline {
    /// Accepted for admission: parsed, not tokenised.
    pub(in crate::frontend) accepted: Instant,
    /// Its text goes to the tokenizer.
    pub(in crate::frontend) tokenising: Instant,
    /// Its prompt is token ids.
    pub(in crate::frontend) tokenised: Instant,
    /// Its first event comes from the engine.
    has_event: bool,
    /// The last event with new final tokens comes from the engine.
    last_commit: Option<Instant>,
    /// Tokens of the answer that are final.
    n_final: u32,
    /// The end comes, from the engine or made by the front end.
    pub(in crate::frontend) ended: Option<Instant>,
    /// Its reader has something to show.
    pub(in crate::frontend) first_read: Option<Instant>,
    /// Answers that their readers have.
    pub(in crate::frontend) answered: Option<Answered>,
    /// The first error that a reader has.
    pub(in crate::frontend) error: Option<ErrorCode>,
}

/// Answers that their readers have: the counts of all together.
#[derive(Clone, Copy, Debug)]
pub(in crate::frontend) struct Answered {
    n: u32,
    /// The reason of the first.
    pub(in crate::frontend) finish: FinishReason,
    /// For each of [`FinishReason::ALL`], whether an answer ended so.
    finishes: [bool; FinishReason::ALL.len()],
    pub(in crate::frontend) n_cached_tokens: u32,
    pub(in crate::frontend) n_tokens: u32,
    pub(in crate::frontend) nfe: u32,
    pub(in crate::frontend) nfe_counts: NfeCounts,
    pub(in crate::frontend) n_preemptions: u32,
    /// Of the answer that waited least; see [`queue_time`].
    pub(in crate::frontend) least_queue: Duration,
    /// Of the answer that waited most.
    pub(in crate::frontend) queue: Duration,
    /// The last of them comes from the engine.
    pub(in crate::frontend) arrived: Instant,
}

/// An event of the engine, beside those before it.
#[derive(Clone, Copy, Debug)]
pub(in crate::frontend) struct Arrival {
    pub(in crate::frontend) is_first: bool,
    /// Tokens that it makes final.
    pub(in crate::frontend) n_fresh: u32,
    /// Time since the last event that made tokens final; `None` if there is none.
    pub(in crate::frontend) since_commit: Option<Duration>,
}

impl Timeline {
    /// A request that was accepted at `accepted`, and tokenised from one time to the other.
    pub(in crate::frontend) fn new(accepted: Instant, (tokenising, tokenised): (Instant, Instant)) -> Self {
        Self {
            accepted,
            tokenising,
            tokenised,
            has_event: false,
            last_commit: None,
            n_final: 0,
            ended: None,
            first_read: None,
            answered: None,
            error: None,
        }
    }

    /// An event comes from the engine at `now`, with `n_final` tokens of the answer final.
    pub(in crate::frontend) fn arrive(&mut self, n_final: u32, now: Instant) -> Arrival {
        let is_first = !std::mem::replace(&mut self.has_event, true);
        let n_fresh = n_final.saturating_sub(self.n_final);
        let mut since_commit = None;
        if n_fresh > 0 {
            self.n_final = n_final;
            since_commit = self.last_commit.replace(now).map(|last| now.saturating_duration_since(last));
        }
        Arrival { is_first, n_fresh, since_commit }
    }

    /// The request runs again from its beginning.
    pub(in crate::frontend) fn start_again(&mut self) {
        self.last_commit = None;
        self.n_final = 0;
    }

    /// The reader takes an event.
    pub(in crate::frontend) fn read(&mut self) {
        self.first_read.get_or_insert_with(Instant::now);
    }

    /// The reader takes the answer.
    pub(in crate::frontend) fn read_reply(&mut self, reply: &ServingReply) {
        self.read();
        let queue = queue_time(reply);
        self.answered = Some(Answered {
            n: 1,
            finish: reply.finish_reason,
            finishes: FinishReason::ALL.map(|known| known == reply.finish_reason),
            n_cached_tokens: reply.cached_tokens,
            n_tokens: reply.written_tokens(),
            nfe: reply.nfe,
            nfe_counts: reply.nfe_counts,
            n_preemptions: reply.preemptions,
            least_queue: queue,
            queue,
            arrived: self.ended.unwrap_or(self.tokenised),
        });
    }

    /// The first forward of the choices that have an answer, by the front end's clock; never after the answer.
    pub(in crate::frontend) fn first_forward(&self, answered: &Answered) -> Instant {
        (self.tokenised + answered.least_queue).min(answered.arrived)
    }

    /// `self` and a choice of the same request that ended later.
    fn join(self, later: Self) -> Self {
        let first_read = match (self.first_read, later.first_read) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let answered = match (self.answered, later.answered) {
            (Some(one), Some(other)) => Some(one.join(&other)),
            (one, other) => one.or(other),
        };
        Self {
            accepted: self.accepted.min(later.accepted),
            tokenised: self.tokenised.min(later.tokenised),
            first_read,
            answered,
            error: self.error.or(later.error),
            ..self
        }
    }
}

impl Answered {
    fn join(self, later: &Self) -> Self {
        let (one, other) = (self.nfe_counts, later.nfe_counts);
        let mut finishes = self.finishes;
        finishes.iter_mut().zip(later.finishes).for_each(|(is_there, more)| *is_there |= more);
        Self {
            n: self.n + later.n,
            finish: self.finish,
            finishes,
            n_cached_tokens: self.n_cached_tokens + later.n_cached_tokens,
            n_tokens: self.n_tokens + later.n_tokens,
            nfe: self.nfe + later.nfe,
            nfe_counts: NfeCounts {
                denoise: one.denoise + other.denoise,
                prefill: one.prefill + other.prefill,
                commit: one.commit + other.commit,
                rebuild: one.rebuild + other.rebuild,
            },
            n_preemptions: self.n_preemptions + later.n_preemptions,
            least_queue: self.least_queue.min(later.least_queue),
            queue: self.queue.max(later.queue),
            arrived: self.arrived.max(later.arrived),
        }
    }

    /// Every reason that an answer ended with.
    pub(in crate::frontend) fn finishes(&self) -> impl Iterator<Item = FinishReason> + use<> {
        FinishReason::ALL.into_iter().zip(self.finishes).filter(|(_, is_there)| *is_there).map(|(reason, _)| reason)
    }
}

/// A client's request: its choices that have ended for their reader, or were left by it.
#[derive(Debug, Default)]
pub(in crate::frontend) struct ClientTimeline {
    /// The id that the client knows it by.
    pub(in crate::frontend) rid: String,
    /// Tokens that the client gave: a prompt's once however many choices it has.
    pub(in crate::frontend) n_prompt_tokens: usize,
    /// Status of an error that came before the headers.
    pub(in crate::frontend) status: Option<u16>,
    pub(in crate::frontend) n_choices: u32,
    choices: Option<Timeline>,
}

impl ClientTimeline {
    /// A choice ends, of the request that the client knows by `rid`.
    pub(in crate::frontend) fn add(&mut self, rid: &str, choice: Timeline) {
        self.n_choices += 1;
        self.choices = Some(match self.choices {
            Some(choices) => choices.join(choice),
            None => {
                rid.clone_into(&mut self.rid);
                choice
            }
        });
    }

    /// All its choices as one; `None` for a request without any, which was not accepted.
    pub(in crate::frontend) fn choices(&self) -> Option<&Timeline> {
        self.choices.as_ref()
    }

    fn error(&self) -> Option<ErrorCode> {
        self.choices?.error
    }

    /// Its end in a word, and its status.
    pub(in crate::frontend) fn verdict(&self) -> (&'static str, u16) {
        let n_answered = self.choices.and_then(|choices| choices.answered).map_or(0, |answered| answered.n);
        match (self.error(), n_answered == self.n_choices) {
            (Some(_), _) => ("failed", self.status.unwrap_or(OK)),
            (None, true) => ("answered", OK),
            (None, false) => (CANCELLED, CLIENT_LEFT),
        }
    }

    /// Why it did not end as it should have, in a word.
    pub(in crate::frontend) fn failure(&self) -> Option<&'static str> {
        match (self.error(), self.verdict()) {
            (Some(code), _) => Some(error_label(code)),
            (None, (_, OK)) => {
                let mut finishes = self.choices?.answered?.finishes();
                finishes.find(|reason| *reason == FinishReason::Aborted).map(FinishReason::as_str)
            }
            (None, (word, _)) => Some(word),
        }
    }
}
