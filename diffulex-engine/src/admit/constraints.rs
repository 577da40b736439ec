//! Constraints: compiled beside the engine's thread, shared by the requests that have the same, and forgotten when memory is short.
//!
//! A request whose constraint is not compiled waits here, in no queue of the scheduler. One constraint is compiled at a time, in the
//! order of arrival, so that hostile ones take one core at most and delay nothing but each other.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use diffulex_constraints::{Automaton, ConstraintError, Vocabulary, language_of};
use diffulex_protocol::{Constraint, ServingGenerate};

use crate::error::RequestError;
use crate::kernels::Classes;
use crate::text::panics::caught;
use crate::text::{TextModel, spelling};

/// Bytes of compiled constraints that are kept for later requests; those in use are not counted. Chosen by us: some 30 large ones.
const MAX_KEPT_BYTES: usize = 256 << 20;

/// Bytes that a kept refusal counts for, beside its constraint.
const REFUSAL_BYTES: usize = 1 << 10;

/// Niceness of the compiling thread (setpriority(2)). Chosen by us: beside a thread that never waits it gets 70 / 1094 of a core (weights
/// of sched(7)), so that a step takes 1.07 times as long at most; with the least priority, 19, a schema of a quarter of a second would
/// take 17 s on busy cores.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 12;

/// The field of every error.
const PARAM: &str = "constraint";

/// A compiled constraint, shared by requests.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// The automaton over tokens.
    pub(crate) automaton: Arc<Automaton>,
    /// Its classes of tokens, as scoring takes them.
    pub(crate) classes: Arc<Classes>,
    took: Duration,
}

/// The outcome of compiling, shared by requests.
type Outcome = Result<Arc<Compiled>, ConstraintError>;

/// The hash of a constraint. It may have a megabyte, so that it is hashed once.
type Hash = u64;

/// What the compiling thread sends back.
type Done = (Constraint, Hash, Outcome);

/// A kept outcome.
struct Kept {
    constraint: Constraint,
    outcome: Outcome,
    n_bytes: usize,
    /// When it was used last, by a count of uses.
    used: u64,
}

/// A request with its constraints.
pub(crate) struct Settled {
    /// The request.
    pub(crate) request: ServingGenerate,
    /// Its constraints, each with the time that compiling took for this request, which is 0 if it was compiled before; or why it is
    /// refused.
    pub(crate) compiled: Result<Vec<(Arc<Compiled>, Duration)>, RequestError>,
}

/// A request some of whose constraints are not compiled.
struct Waiting {
    request: ServingGenerate,
    /// Its constraints, in order.
    wanted: Vec<Wanted>,
}

/// A constraint that a request waits for, or has.
struct Wanted {
    hash: Hash,
    /// With the time that it took for this request.
    outcome: Option<(Outcome, Duration)>,
}

impl Waiting {
    /// The first constraint without an outcome.
    fn next(&self) -> Option<(&Constraint, Hash)> {
        let mut all = self.request.constraints().zip(&self.wanted);
        all.find(|(_, wanted)| wanted.outcome.is_none()).map(|(constraint, wanted)| (constraint, wanted.hash))
    }

    /// Notes `outcome` wherever `constraint` is waited for. True if it is.
    fn note(&mut self, (constraint, hash): (&Constraint, Hash), outcome: &Outcome, took: Duration) -> bool {
        let mut took = Some(took);
        for (own, wanted) in self.request.constraints().zip(&mut self.wanted) {
            if wanted.outcome.is_none() && wanted.hash == hash && own == constraint {
                wanted.outcome = Some((outcome.clone(), took.take().unwrap_or_default()));
            }
        }
        took.is_none()
    }

    /// The request, if nothing is missing.
    fn settled(self) -> Result<Settled, Box<Self>> {
        if self.next().is_some() {
            return Err(Box::new(self));
        }
        let of = |(outcome, took): (Outcome, Duration)| outcome.map(|compiled| (compiled, took));
        let compiled: Result<_, ConstraintError> =
            self.wanted.into_iter().filter_map(|wanted| wanted.outcome).map(of).collect();
        let compiled = compiled.map_err(|error| RequestError::invalid(PARAM, error.message));
        Ok(Settled { request: self.request, compiled })
    }
}

/// Compiled constraints, and the requests that wait for theirs.
pub(crate) struct Constraints {
    /// Of constraints with the same hash, the one that came last.
    kept: HashMap<Hash, Kept>,
    /// What is kept, by its last use: refusals are small, so there may be hundreds of thousands.
    by_use: BTreeMap<u64, Hash>,
    /// Nobody outside can make constraints whose hashes are the same.
    hasher: RandomState,
    kept_bytes: usize,
    n_uses: u64,
    waiting: VecDeque<Waiting>,
    /// Whether the thread compiles one of them.
    is_compiling: bool,
    orders: Sender<(Constraint, Hash)>,
    done: Receiver<Done>,
}

impl Constraints {
    /// For a model with `text` and a head of `n_rows` rows. The thread ends when this is dropped.
    pub(crate) fn new(text: Arc<TextModel>, n_rows: usize, eos_token_ids: Vec<u32>) -> std::io::Result<Self> {
        let (orders, taken) = channel();
        let (finished, done) = channel();
        std::thread::Builder::new()
            .name("diffulex-constraints".to_owned())
            .spawn(move || compile_all(&text, n_rows, &eos_token_ids, &taken, &finished))?;
        Ok(Self {
            kept: HashMap::new(),
            by_use: BTreeMap::new(),
            hasher: RandomState::new(),
            kept_bytes: 0,
            n_uses: 0,
            waiting: VecDeque::new(),
            is_compiling: false,
            orders,
            done,
        })
    }

    /// `request` with its constraints if all are compiled; otherwise the request waits.
    pub(crate) fn take(&mut self, request: ServingGenerate) -> Option<Settled> {
        let mut wanted = Vec::new();
        for constraint in request.constraints() {
            let hash = self.hasher.hash_one(constraint);
            let outcome = self.find(constraint, hash).map(|outcome| (outcome, Duration::ZERO));
            wanted.push(Wanted { hash, outcome });
        }
        match (Waiting { request, wanted }).settled() {
            Ok(settled) => Some(settled),
            Err(waiting) => {
                self.waiting.push_back(*waiting);
                self.order_next();
                None
            }
        }
    }

    /// Requests whose constraints have been compiled. Blocks for `wait` if there are none yet.
    pub(crate) fn settled(&mut self, wait: Duration) -> Vec<Settled> {
        let mut all = Vec::new();
        let mut wait = wait;
        while self.is_compiling {
            let (constraint, hash, outcome) = match self.done.recv_timeout(wait) {
                Ok(done) => done,
                Err(RecvTimeoutError::Timeout) => break,
                // The thread has panicked, which its own words do not outlive.
                Err(RecvTimeoutError::Disconnected) => {
                    let gone = || RequestError::engine("the thread that compiles constraints has ended");
                    let waiting = self.waiting.drain(..);
                    all.extend(waiting.map(|Waiting { request, .. }| Settled { request, compiled: Err(gone()) }));
                    self.is_compiling = false;
                    break;
                }
            };
            wait = Duration::ZERO;
            self.is_compiling = false;
            // The time counts for the first that asked.
            let mut took = outcome.as_ref().map_or(Duration::ZERO, |compiled| compiled.took);
            for mut waiting in std::mem::take(&mut self.waiting) {
                if waiting.note((&constraint, hash), &outcome, took) {
                    took = Duration::ZERO;
                }
                match waiting.settled() {
                    Ok(settled) => all.push(settled),
                    Err(waiting) => self.waiting.push_back(*waiting),
                }
            }
            self.keep(constraint, hash, outcome);
            self.order_next();
        }
        all
    }

    /// Whether requests wait.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether `rid` waits.
    pub(crate) fn has(&self, rid: &str) -> bool {
        self.waiting.iter().any(|waiting| waiting.request.rid == rid)
    }

    /// Removes the waiting request `rid`.
    pub(crate) fn remove(&mut self, rid: &str) -> Option<ServingGenerate> {
        let place = self.waiting.iter().position(|waiting| waiting.request.rid == rid)?;
        self.waiting.remove(place).map(|waiting| waiting.request)
    }

    /// Removes all waiting requests.
    pub(crate) fn remove_all(&mut self) -> Vec<ServingGenerate> {
        self.waiting.drain(..).map(|waiting| waiting.request).collect()
    }

    /// Orders a constraint of the oldest request that waits, unless one is compiled already.
    fn order_next(&mut self) {
        if self.is_compiling {
            return;
        }
        if let Some((constraint, hash)) = self.waiting.front().and_then(Waiting::next) {
            // Without the thread, `settled` finds its channel closed.
            let _ = self.orders.send((constraint.clone(), hash));
            self.is_compiling = true;
        }
    }

    fn find(&mut self, constraint: &Constraint, hash: Hash) -> Option<Outcome> {
        let kept = self.kept.get_mut(&hash).filter(|kept| kept.constraint == *constraint)?;
        self.n_uses += 1;
        self.by_use.remove(&kept.used);
        self.by_use.insert(self.n_uses, hash);
        kept.used = self.n_uses;
        Some(kept.outcome.clone())
    }

    /// Keeps an outcome, and forgets those that were used longest ago while there are too many bytes.
    fn keep(&mut self, constraint: Constraint, hash: Hash, outcome: Outcome) {
        let n_text = text_bytes(&constraint);
        let n_compiled = outcome
            .as_ref()
            .map_or(REFUSAL_BYTES, |compiled| compiled.automaton.n_bytes() + compiled.classes.n_bytes());
        self.n_uses += 1;
        let n_bytes = n_text + n_compiled;
        self.kept_bytes += n_bytes;
        self.by_use.insert(self.n_uses, hash);
        if let Some(before) = self.kept.insert(hash, Kept { constraint, outcome, n_bytes, used: self.n_uses }) {
            self.by_use.remove(&before.used);
            self.kept_bytes -= before.n_bytes;
        }
        while self.kept_bytes > MAX_KEPT_BYTES {
            let oldest = self.by_use.pop_first();
            let Some(kept) = oldest.and_then(|(_, oldest)| self.kept.remove(&oldest)) else { return };
            self.kept_bytes -= kept.n_bytes;
        }
    }
}

/// Bytes of a constraint as the client wrote it.
fn text_bytes(constraint: &Constraint) -> usize {
    match constraint {
        Constraint::JsonObject => 0,
        Constraint::JsonSchema(text) | Constraint::Regex(text) | Constraint::Grammar(text) => text.len(),
        Constraint::Choice(texts) => texts.iter().map(String::len).sum(),
        Constraint::Tags(tags) => {
            tags.tags.iter().map(|tag| tag.begin.len() + tag.schema.len() + tag.end.len()).sum::<usize>()
                + tags.separator.len()
        }
        Constraint::After(after) => after.begin.len() + after.end.len() + text_bytes(&after.then),
    }
}

/// Compiles what is ordered, until nobody can order any more.
fn compile_all(
    text: &TextModel,
    n_rows: usize,
    eos_token_ids: &[u32],
    orders: &Receiver<(Constraint, Hash)>,
    finished: &Sender<Done>,
) {
    step_back();
    // Read once, when the first constraint comes: it takes a fraction of a second and many models never need it.
    let mut vocabulary: Option<Result<Vocabulary, ConstraintError>> = None;
    while let Ok((constraint, hash)) = orders.recv() {
        let started = Instant::now();
        let vocabulary = vocabulary.get_or_insert_with(|| spelling::vocabulary(text, n_rows, eos_token_ids));
        let outcome = match vocabulary {
            // A fault of ours must cost one request, not all that come later.
            Ok(vocabulary) => caught(|| compile(&constraint, vocabulary, started))
                .unwrap_or_else(|what| Err(ConstraintError::new(format!("the constraint cannot be compiled: {what}")))),
            Err(error) => Err(error.clone()),
        };
        if finished.send((constraint, hash, outcome)).is_err() {
            return;
        }
    }
}

/// Lets the threads of the kernels go first on a machine whose cores are all busy: a request can wait for its constraint, but each step
/// waits for its slowest thread.
fn step_back() {
    // Only in Linux has each thread a priority of its own; elsewhere this would slow the whole process down.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::warn!(%error, "the thread that compiles constraints keeps its priority");
    }
}

fn compile(constraint: &Constraint, vocabulary: &Vocabulary, started: Instant) -> Outcome {
    let automaton = Automaton::compile(&language_of(constraint)?, vocabulary)?;
    let classes = Arc::new(Classes::new(automaton.class_of(), automaton.n_classes()));
    Ok(Arc::new(Compiled { automaton: Arc::new(automaton), classes, took: started.elapsed() }))
}
