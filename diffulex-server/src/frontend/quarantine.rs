//! Finds the request that kills workers, and keeps it from doing it again.
//!
//! In: what ran when a worker was lost. Out: which requests wait, which are sent, which are refused. A request that ran
//! when a worker was lost is a suspect. When its client sends it again it is tried: suspects run in halves and then alone,
//! and their readers get nothing before they are cleared, so that a group whose worker is lost can run again. A suspect is
//! cleared by its answer, or by running longer than it had when the worker was lost. One whose worker is lost while it is
//! the only suspect is refused for [`REFUSED_FOR`]: at once when nothing else ran, at the second time otherwise.
//!
//! A pure state machine: it knows neither the worker nor the clock. Never here: sockets, processes, readers.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash, Hasher};
use std::io;
use std::time::{Duration, Instant};

use diffulex_protocol::{SamplingParams, ServingGenerate};

/// How long a request that killed a worker is refused, and how long one that may have done so is a suspect. Chosen by us.
pub(super) const REFUSED_FOR: Duration = Duration::from_secs(600);

/// Bounds of a trial. A suspect is cleared after it has run for as long as it had when the worker was lost, within these.
/// Chosen by us: a new worker is slower for its first second, and others wait meanwhile.
const TRIAL: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(10);

/// Suspects and refused requests that are remembered. Chosen by us: more than a server takes at once.
const MAX_REMEMBERED: usize = 4096;

/// Lost workers for which the only suspect is refused although something else ran, too. Chosen by us.
const STRIKES: u32 = 2;

/// Identity of a request's content: everything but the seed, the id and how the answer is delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of a request under `key`, which keeps clients from making two that are equal.
    pub(super) fn of(
        key: &impl BuildHasher,
        ids: &[u32],
        suffix: Option<&[u32]>,
        adapter: Option<&str>,
        params: &SamplingParams,
    ) -> Self {
        let mut hash = Hashed(key.build_hasher());
        ids.hash(&mut hash.0);
        suffix.hash(&mut hash.0);
        adapter.hash(&mut hash.0);
        let params = SamplingParams { seed: None, ..params.clone() };
        // Written to memory, which cannot fail.
        let _ = serde_json::to_writer(&mut hash, &params);
        Self(hash.0.finish())
    }
}

/// A hasher as a writer.
struct Hashed<H>(H);

impl<H: Hasher> io::Write for Hashed<H> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A request that the worker has.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) rid: String,
    pub(super) fingerprint: Fingerprint,
    /// When it was accepted.
    pub(super) since: Instant,
}

/// A request that waits here.
#[derive(Clone, Debug)]
struct Held {
    fingerprint: Fingerprint,
    generate: ServingGenerate,
}

/// The record of a suspect.
#[derive(Clone, Copy, Debug)]
struct Suspicion {
    /// The longest it had run when a worker was lost.
    ran: Duration,
    /// Workers that were lost while it was the only suspect.
    strikes: u32,
    /// When the last of them was lost.
    since: Instant,
}

/// Suspects that run now.
#[derive(Debug)]
struct Trial {
    /// Those whose clients are still there.
    members: Vec<Held>,
    /// Those of which the worker has not said that they ended, by id.
    unsettled: HashMap<String, Fingerprint>,
    end: Instant,
}

/// The next actions.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Next {
    /// To be sent to the worker, in this order.
    pub(super) send: Vec<ServingGenerate>,
    /// Ids whose readers may have what there is.
    pub(super) cleared: Vec<String>,
}

/// Consequences of a lost worker for the requests that ran.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Aftermath {
    /// Ids of suspects that will run again, from their beginning.
    pub(super) again: Vec<String>,
    /// Ids that are refused from now on.
    pub(super) refused: Vec<String>,
}

/// The suspects of a server.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    suspects: HashMap<Fingerprint, Suspicion>,
    /// Until when.
    refused: HashMap<Fingerprint, Instant>,
    /// Suspects that came back while others were tried.
    arrivals: Vec<Held>,
    /// Groups to be tried, in order.
    groups: VecDeque<Vec<Held>>,
    trial: Option<Trial>,
    /// Others, which wait for the groups.
    newcomers: Vec<ServingGenerate>,
    /// Requests whose clients left before the worker had said that they ended.
    departed: HashMap<String, Running>,
}

impl Quarantine {
    /// How much longer requests of this fingerprint are refused; `None` if they are not.
    pub(super) fn refusal(&self, fingerprint: Fingerprint, now: Instant) -> Option<Duration> {
        self.refused
            .get(&fingerprint)
            .and_then(|until| until.checked_duration_since(now))
            .filter(|left| !left.is_zero())
    }

    /// True if requests of this fingerprint are to be tried.
    pub(super) fn is_suspect(&self, fingerprint: Fingerprint, now: Instant) -> bool {
        self.suspects.get(&fingerprint).is_some_and(|suspicion| now < suspicion.since + REFUSED_FOR)
    }

    /// Gives the request back if it may be sent now; [`Self::next`] gives it back later otherwise.
    pub(super) fn admit(
        &mut self,
        fingerprint: Fingerprint,
        generate: ServingGenerate,
        now: Instant,
    ) -> Option<ServingGenerate> {
        if self.is_suspect(fingerprint, now) {
            self.arrivals.push(Held { fingerprint, generate });
            return None;
        }
        if self.is_trying() {
            self.newcomers.push(generate);
            return None;
        }
        Some(generate)
    }

    /// True while suspects run, or groups of them are about to.
    pub(super) fn is_trying(&self) -> bool {
        self.trial.is_some() || !self.groups.is_empty()
    }

    /// True if there is nothing that [`Self::next`] could do.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_trying() && self.arrivals.is_empty() && self.newcomers.is_empty()
    }

    /// Ends the trial that is over and starts the next one. For a worker that takes requests.
    pub(super) fn next(&mut self, now: Instant) -> Next {
        let mut next = Next::default();
        if let Some(trial) = self.trial.take_if(|trial| trial.unsettled.is_empty() || now >= trial.end) {
            for fingerprint in trial.unsettled.values() {
                self.suspects.remove(fingerprint);
            }
            next.cleared = trial.members.into_iter().map(|held| held.generate.rid).collect();
        }
        if self.trial.is_some() {
            return next;
        }
        if self.groups.is_empty() {
            next.send = std::mem::take(&mut self.newcomers);
            self.groups = halves(std::mem::take(&mut self.arrivals)).into();
        }
        if let Some(members) = self.groups.pop_front() {
            next.send.extend(members.iter().map(|held| held.generate.clone()));
            self.trial = Some(self.trial_of(members, now));
        }
        next
    }

    fn trial_of(&self, members: Vec<Held>, now: Instant) -> Trial {
        let ran = |held: &Held| self.suspects.get(&held.fingerprint).map(|suspicion| suspicion.ran);
        let longest = members.iter().filter_map(ran).max().unwrap_or_default();
        let unsettled = members.iter().map(|held| (held.generate.rid.clone(), held.fingerprint)).collect();
        Trial { members, unsettled, end: now + longest.clamp(*TRIAL.start(), *TRIAL.end()) }
    }

    /// The worker ended a request. True if its reader may have what there is now.
    pub(super) fn ended(&mut self, rid: &str) -> bool {
        self.departed.remove(rid);
        let Some(trial) = &mut self.trial else { return false };
        let Some(fingerprint) = trial.unsettled.remove(rid) else { return false };
        trial.members.retain(|held| held.generate.rid != rid);
        if !trial.unsettled.values().any(|other| *other == fingerprint) {
            self.suspects.remove(&fingerprint);
        }
        true
    }

    /// A request's client left, or its time is up. True if the worker has never heard of it.
    pub(super) fn left(&mut self, request: Running) -> bool {
        let rid = request.rid.as_str();
        let n_before = self.n_held();
        self.arrivals.retain(|held| held.generate.rid != rid);
        self.newcomers.retain(|generate| generate.rid != rid);
        for group in &mut self.groups {
            group.retain(|held| held.generate.rid != rid);
        }
        self.groups.retain(|group| !group.is_empty());
        if self.n_held() < n_before {
            return true;
        }
        if let Some(trial) = &mut self.trial {
            trial.members.retain(|held| held.generate.rid != rid);
        }
        self.departed.insert(request.rid.clone(), request);
        false
    }

    /// Takes a request out, to be sent out of turn: it is about to be aborted.
    pub(super) fn take(&mut self, rid: &str) -> Option<ServingGenerate> {
        if let Some(index) = self.newcomers.iter().position(|generate| generate.rid == rid) {
            return Some(self.newcomers.remove(index));
        }
        let groups = self.groups.iter_mut().chain([&mut self.arrivals]);
        let taken = groups.into_iter().find_map(|group| {
            let index = group.iter().position(|held| held.generate.rid == rid)?;
            Some(group.remove(index).generate)
        });
        self.groups.retain(|group| !group.is_empty());
        taken
    }

    fn n_held(&self) -> usize {
        self.arrivals.len() + self.newcomers.len() + self.groups.iter().map(Vec::len).sum::<usize>()
    }

    /// Ids of requests that wait here.
    pub(super) fn held(&self) -> HashSet<String> {
        let held = self.arrivals.iter().chain(self.groups.iter().flatten()).map(|held| &held.generate);
        held.chain(&self.newcomers).map(|generate| generate.rid.clone()).collect()
    }

    /// The worker was lost while it had `running`.
    pub(super) fn worker_lost(&mut self, running: impl Iterator<Item = Running>, now: Instant) -> Aftermath {
        let trial = self.trial.take();
        let tried: HashSet<Fingerprint> = trial.iter().flat_map(|trial| trial.unsettled.values().copied()).collect();
        let held = self.held();
        let departed = std::mem::take(&mut self.departed).into_values();
        let others: Vec<Running> = running
            .chain(departed)
            .filter(|request| !held.contains(&request.rid) && !tried.contains(&request.fingerprint))
            .collect();
        for request in &others {
            let suspicion = self.suspects.entry(request.fingerprint).or_insert(Suspicion {
                ran: Duration::ZERO,
                strikes: 0,
                since: now,
            });
            suspicion.ran = suspicion.ran.max(now.saturating_duration_since(request.since));
            suspicion.since = now;
        }
        let aftermath = match trial {
            Some(trial) => self.judge(trial, &tried, others.is_empty(), now),
            None => Aftermath::default(),
        };
        self.forget_oldest(now);
        aftermath
    }

    fn judge(&mut self, trial: Trial, tried: &HashSet<Fingerprint>, was_alone: bool, now: Instant) -> Aftermath {
        let rids = |members: &[Held]| members.iter().map(|held| held.generate.rid.clone()).collect();
        let only = tried.iter().next().filter(|_| tried.len() == 1);
        let is_guilty = only.and_then(|fingerprint| self.suspects.get_mut(fingerprint)).is_some_and(|suspicion| {
            suspicion.strikes += 1;
            suspicion.since = now;
            was_alone || suspicion.strikes >= STRIKES
        });
        if is_guilty && let Some(fingerprint) = only {
            self.suspects.remove(fingerprint);
            self.refused.insert(*fingerprint, now + REFUSED_FOR);
            return Aftermath { refused: rids(&trial.members), again: Vec::new() };
        }
        let again = rids(&trial.members);
        for group in halves(trial.members).into_iter().rev() {
            self.groups.push_front(group);
        }
        Aftermath { again, refused: Vec::new() }
    }

    fn forget_oldest(&mut self, now: Instant) {
        self.refused.retain(|_, until| *until > now);
        self.suspects.retain(|_, suspicion| now < suspicion.since + REFUSED_FOR);
        drop_oldest(&mut self.refused, |until| *until);
        drop_oldest(&mut self.suspects, |suspicion| suspicion.since);
    }

    /// Forgets trials and the requests that wait for one, after all of them have failed. Suspects and refusals stay.
    pub(super) fn abandon(&mut self) {
        let known = std::mem::take(self);
        self.suspects = known.suspects;
        self.refused = known.refused;
    }
}

fn drop_oldest<T>(known: &mut HashMap<Fingerprint, T>, age: impl Fn(&T) -> Instant) {
    if known.len() <= MAX_REMEMBERED {
        return;
    }
    let mut ages: Vec<(Instant, Fingerprint)> = known.iter().map(|(key, value)| (age(value), *key)).collect();
    ages.sort_unstable();
    for (_, key) in &ages[..ages.len() - MAX_REMEMBERED] {
        known.remove(key);
    }
}

/// Two groups of as many different requests each; one group if all are the same, none if there are none.
fn halves(requests: Vec<Held>) -> Vec<Vec<Held>> {
    let mut seen = Vec::new();
    for held in &requests {
        if !seen.contains(&held.fingerprint) {
            seen.push(held.fingerprint);
        }
    }
    let second: HashSet<Fingerprint> = seen.split_off(seen.len().div_ceil(2)).into_iter().collect();
    let (second, first) = requests.into_iter().partition(|held| second.contains(&held.fingerprint));
    [first, second].into_iter().filter(|group: &Vec<Held>| !group.is_empty()).collect()
}

#[cfg(test)]
mod tests;
