//! Contexts: texts that requests fill, extend, fork and free, each of one owner.
//!
//! This table owns the tokens. The engine holds pages of a context under its number, which is never used twice, and may lose them:
//! a context then costs its next request time and nothing else. Expired contexts go at the next sweep. Never here: requests,
//! sending.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use diffulex_protocol::{HeldContext, ServingCommand};
use serde::Serialize;

use crate::telemetry::ContextCounts;

/// Contexts that are known to be gone. Chosen by us: some 40 KB.
const GONE_KEPT: usize = 1024;

/// Longest `ttl_s`, in seconds. Chosen by us: a day.
pub const MAX_CONTEXT_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// Whose contexts: a hash of the API key that they came with, or of none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContextOwner(pub u64);

/// A context as its owner names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContextName {
    /// Whose it is.
    pub owner: ContextOwner,
    /// One of the owner's.
    pub id: u64,
}

/// The properties of a new context.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewContext {
    /// The owner's choice of an id; `None` draws one.
    pub id: Option<u64>,
    /// The context to begin with; its adapter and salt are taken over.
    pub parent: Option<u64>,
    /// The adapter of all its requests.
    pub adapter: Option<String>,
    /// Its pages are shared only with requests of the same salt.
    pub cache_salt: Option<String>,
    /// How long it lives after its last use; `None` is the server's time.
    pub ttl: Option<Duration>,
}

/// A context as clients see it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContextView {
    /// Its id.
    pub context_id: u64,
    /// The context that it was forked from.
    pub parent_context_id: Option<u64>,
    /// Its adapter.
    #[serde(rename = "model")]
    pub adapter: Option<String>,
    /// Its tokens.
    pub context_len: usize,
    /// Those at its front whose K/V the engine holds.
    pub committed_len: usize,
    /// The others, which its next request encodes.
    pub tail_len: usize,
    /// Its last request had to encode tokens that were held before.
    pub rebuilt: bool,
    /// A request uses it.
    pub busy: bool,
    /// Seconds that it lives after its last use.
    pub ttl_s: f64,
    /// Seconds that it has left.
    pub expires_in_s: f64,
}

/// Why a context is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Its owner freed it.
    Freed,
    /// Nobody used it for its time to live.
    Expired,
}

/// A use of a context that is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ContextError {
    /// There is none of that id.
    #[error("there is no context {0}")]
    Unknown(u64),
    /// The parent is not there.
    #[error("there is no context {0} to fork")]
    UnknownParent(u64),
    /// There was one.
    #[error("context {id} {}", match why { Gone::Freed => "was freed", Gone::Expired => "expired: nobody used it for its ttl_s" })]
    Gone {
        /// The context.
        id: u64,
        /// How it went.
        why: Gone,
    },
    /// Another request has not ended.
    #[error("context {0} is used by another request that has not ended")]
    Busy(u64),
    /// The owner has one of this id.
    #[error("there is a context {0} already")]
    Exists(u64),
    /// The server holds as many as it may.
    #[error(
        "{max_contexts} contexts are held, the most that this server holds (--max-contexts); free one, or wait until one expires"
    )]
    TooMany {
        /// That many.
        max_contexts: usize,
    },
    /// Its strategy encodes a prompt as a whole.
    #[error(
        "context {0} cannot grow: this model encodes a prompt as a whole, so a context holds the prompt that it is filled with first"
    )]
    CannotGrow(u64),
}

/// A context as a request begins with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Begun {
    /// Its number at the engine.
    pub number: u64,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Its adapter.
    pub adapter: Option<String>,
    /// Its salt.
    pub cache_salt: Option<String>,
    /// Text may be added to it; `None` while nobody knows.
    pub grows: Option<bool>,
}

/// The addition of a request that ended to its context.
#[derive(Clone, Debug, PartialEq)]
pub struct Addition<'a> {
    /// Tokens that the client gave.
    pub given: &'a [u32],
    /// Tokens of the answer.
    pub written: &'a [u32],
    /// The engine's word about it.
    pub held: HeldContext,
    /// Tokens of the context, and what was given, that the engine found in its cache.
    pub cached_tokens: usize,
}

#[derive(Debug)]
struct Context {
    number: u64,
    parent: Option<u64>,
    adapter: Option<String>,
    cache_salt: Option<String>,
    ids: Vec<u32>,
    /// Tokens that the engine held after the last request.
    held: usize,
    /// The engine is another since.
    is_lost: bool,
    grows: Option<bool>,
    was_rebuilt: bool,
    ttl: Duration,
    last_use: Instant,
    is_busy: bool,
}

/// All contexts of a server.
#[derive(Debug)]
pub struct ContextTable {
    max_contexts: usize,
    default_ttl: Duration,
    contexts: BTreeMap<ContextName, Context>,
    /// The newest last.
    gone: VecDeque<(ContextName, Gone)>,
    counts: ContextCounts,
}

impl ContextTable {
    /// A table for `max_contexts`, which live for `default_ttl` after their last use if they say nothing else.
    pub fn new(max_contexts: usize, default_ttl: Duration) -> Self {
        Self {
            max_contexts,
            default_ttl,
            contexts: BTreeMap::new(),
            gone: VecDeque::new(),
            counts: ContextCounts::default(),
        }
    }

    /// The counts.
    pub fn counts(&self) -> ContextCounts {
        ContextCounts { held: self.contexts.len(), ..self.counts }
    }

    /// Makes a context. `draw` draws numbers of 64 bits. Returns its id, and the engine's share of the work.
    pub fn create(
        &mut self,
        owner: ContextOwner,
        new: NewContext,
        mut draw: impl FnMut() -> u64,
        now: Instant,
    ) -> Result<(u64, Option<ServingCommand>), ContextError> {
        if let Some(id) = new.id.filter(|id| self.contexts.contains_key(&ContextName { owner, id: *id })) {
            return Err(ContextError::Exists(id));
        }
        let number = draw();
        let ttl = new.ttl.unwrap_or(self.default_ttl);
        let mut context = Context {
            number,
            parent: new.parent,
            adapter: new.adapter,
            cache_salt: new.cache_salt,
            ids: Vec::new(),
            held: 0,
            is_lost: false,
            grows: None,
            was_rebuilt: false,
            ttl,
            last_use: now,
            is_busy: false,
        };
        let mut command = None;
        if let Some(parent) = new.parent {
            let parent = self.get(ContextName { owner, id: parent }).map_err(|error| match error {
                ContextError::Unknown(id) => ContextError::UnknownParent(id),
                other => other,
            })?;
            parent.last_use = now;
            command = Some(ServingCommand::ForkContext { parent: parent.number, child: number });
            context.ids.clone_from(&parent.ids);
            context.adapter.clone_from(&parent.adapter);
            context.cache_salt.clone_from(&parent.cache_salt);
            (context.held, context.is_lost, context.grows) = (parent.held, parent.is_lost, parent.grows);
        }
        if self.contexts.len() >= self.max_contexts {
            return Err(ContextError::TooMany { max_contexts: self.max_contexts });
        }
        let id = new.id.unwrap_or_else(|| {
            // 53 bits, which JavaScript's numbers hold.
            std::iter::repeat_with(|| draw() >> 11)
                .find(|id| !self.contexts.contains_key(&ContextName { owner, id: *id }))
                .unwrap_or(number)
        });
        let name = ContextName { owner, id };
        self.gone.retain(|(gone, _)| *gone != name);
        self.contexts.insert(name, context);
        self.counts.created += 1;
        self.counts.forked += u64::from(new.parent.is_some());
        Ok((id, command))
    }

    /// Begins a request on a context, which is busy until [`Self::end`].
    pub fn begin(&mut self, name: ContextName, now: Instant) -> Result<Begun, ContextError> {
        let context = self.get(name)?;
        if context.is_busy {
            return Err(ContextError::Busy(name.id));
        }
        context.is_busy = true;
        context.last_use = now;
        Ok(Begun {
            number: context.number,
            ids: context.ids.clone(),
            adapter: context.adapter.clone(),
            cache_salt: context.cache_salt.clone(),
            grows: context.grows,
        })
    }

    /// Ends the request on a context. One that failed or was aborted adds nothing.
    pub fn end(&mut self, name: ContextName, addition: Option<Addition<'_>>, now: Instant) {
        let Some(context) = self.contexts.get_mut(&name) else { return };
        context.is_busy = false;
        context.last_use = now;
        let Some(Addition { given, written, held, cached_tokens }) = addition else { return };
        context.was_rebuilt = cached_tokens < context.held;
        self.counts.rebuilt += u64::from(context.was_rebuilt);
        context.ids.extend_from_slice(given);
        if held.grows {
            context.ids.extend_from_slice(written);
        }
        context.grows = Some(held.grows);
        context.held = context.ids.len().min(held.held as usize);
        context.is_lost = false;
    }

    /// Frees a context. Returns what it was, and the engine's share of the work.
    pub fn free(&mut self, name: ContextName, now: Instant) -> Result<(ContextView, ServingCommand), ContextError> {
        let context = self.get(name)?;
        if context.is_busy {
            return Err(ContextError::Busy(name.id));
        }
        let view = view_of(name.id, context, now);
        let command = ServingCommand::FreeContext { context: context.number };
        self.remove(name, Gone::Freed);
        Ok((view, command))
    }

    /// Removes the contexts that nobody has used for their time to live. Returns the engine's share of the work.
    pub fn sweep(&mut self, now: Instant) -> Vec<ServingCommand> {
        let is_expired =
            |context: &Context| !context.is_busy && now.saturating_duration_since(context.last_use) >= context.ttl;
        let expired: Vec<(ContextName, u64)> = self
            .contexts
            .iter()
            .filter(|(_, context)| is_expired(context))
            .map(|(name, context)| (*name, context.number))
            .collect();
        self.counts.expired += expired.len() as u64;
        expired
            .into_iter()
            .map(|(name, number)| {
                self.remove(name, Gone::Expired);
                ServingCommand::FreeContext { context: number }
            })
            .collect()
    }

    /// The engine is gone, and with it all pages.
    pub fn engine_lost(&mut self) {
        self.contexts.values_mut().for_each(|context| context.is_lost = true);
    }

    /// A context as its owner sees it.
    pub fn view(&mut self, name: ContextName, now: Instant) -> Result<ContextView, ContextError> {
        self.get(name).map(|context| view_of(name.id, context, now))
    }

    /// All contexts of `owner`, by id.
    pub fn views(&self, owner: ContextOwner, now: Instant) -> Vec<ContextView> {
        let own = ContextName { owner, id: 0 }..=ContextName { owner, id: u64::MAX };
        self.contexts.range(own).map(|(name, context)| view_of(name.id, context, now)).collect()
    }

    fn get(&mut self, name: ContextName) -> Result<&mut Context, ContextError> {
        let Self { contexts, gone, .. } = self;
        contexts.get_mut(&name).ok_or_else(|| {
            let why = gone.iter().find(|(gone, _)| *gone == name).map(|(_, why)| *why);
            why.map_or(ContextError::Unknown(name.id), |why| ContextError::Gone { id: name.id, why })
        })
    }

    fn remove(&mut self, name: ContextName, why: Gone) {
        self.contexts.remove(&name);
        if self.gone.len() == GONE_KEPT {
            self.gone.pop_front();
        }
        self.gone.push_back((name, why));
    }
}

fn view_of(id: u64, context: &Context, now: Instant) -> ContextView {
    let committed_len = if context.is_lost { 0 } else { context.held };
    ContextView {
        context_id: id,
        parent_context_id: context.parent,
        adapter: context.adapter.clone(),
        context_len: context.ids.len(),
        committed_len,
        tail_len: context.ids.len() - committed_len,
        rebuilt: context.was_rebuilt,
        busy: context.is_busy,
        ttl_s: context.ttl.as_secs_f64(),
        expires_in_s: context.ttl.saturating_sub(now.saturating_duration_since(context.last_use)).as_secs_f64(),
    }
}
