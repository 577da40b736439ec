//! The state of one request: the events that its reader has not taken yet, merged.
//!
//! In: events from the receiving thread. Out: [`StreamEvent`]s to one reader. Unread deltas merge. Unread snapshots wait
//! in a queue of bounded size, so that a reader that is a few steps late still gets every step; beyond it a newer one takes
//! over the last unread one with its committed text. A slow reader costs memory in the length of its answer, never in the
//! number of steps. Exactly one end is kept, the first. Never here: frames, sockets.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use diffulex_engine::{TextModel, snapshot_text};
use diffulex_protocol::{ErrorCode, ServingBufferSnapshot, ServingDelta, ServingError, ServingReply, StreamMode};
use serde::Serialize;

use crate::frontend::quarantine::{Fingerprint, Running};
use crate::frontend::requests::caller::Caller;
use crate::frontend::running::recorders::Recorders;
use crate::frontend::running::timeline::{EndReason, Timeline};

/// Positions that unread snapshots may show in all. Chosen by us: over a hundred steps of two blocks of 8, and some
/// 200 KB for a reader that never reads.
const MAX_UNREAD_POSITIONS: usize = 2048;

/// An event for a request's reader: progress, then one end.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamEvent {
    /// Text that will not change any more.
    Delta(ServingDelta),
    /// The part of the answer that can still change.
    Snapshot(Box<ServingBufferSnapshot>),
    /// The answer; the end.
    Reply(Box<ServingReply>),
    /// The error that ends the request.
    Error(ServingError),
}

impl StreamEvent {
    fn rid_mut(&mut self) -> &mut String {
        match self {
            Self::Delta(delta) => &mut delta.rid,
            Self::Snapshot(snapshot) => &mut snapshot.rid,
            Self::Reply(reply) => &mut reply.rid,
            Self::Error(error) => &mut error.rid,
        }
    }
}

pub(in crate::frontend) struct RequestState {
    pub(in crate::frontend) rid: String,
    /// The client's own id, which stands for `rid` in everything that its reader gets. On the wire ids are never used twice, so
    /// that late events of one request do not come to the next of its name.
    name: Option<String>,
    /// Whose it is.
    pub(in crate::frontend) caller: Caller,
    /// The first choice's id, which the client knows all of them by; `None` for the first.
    pub(in crate::frontend) first: Option<String>,
    pub(in crate::frontend) fingerprint: Fingerprint,
    pub(in crate::frontend) size: RequestSize,
    /// When the request has taken too long.
    pub(in crate::frontend) deadline: Option<Instant>,
    pending: Mutex<Pending>,
}

/// How large a request is, for reports that must not tell what it says.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(in crate::frontend) struct RequestSize {
    pub(in crate::frontend) prompt_tokens: usize,
    pub(in crate::frontend) max_tokens: u32,
    pub(in crate::frontend) stream: bool,
    pub(in crate::frontend) stream_mode: StreamMode,
    /// Seconds since it was accepted, once that is asked for.
    pub(in crate::frontend) age_s: f64,
}

struct Pending {
    timeline: Timeline,
    /// The reader gets nothing: the request may have to run again from its beginning.
    is_withheld: bool,
    /// Deltas: one at most. Snapshots: at most [`MAX_UNREAD_POSITIONS`] in all but the last.
    progress: VecDeque<Progress>,
    unread_positions: usize,
    end: Option<End>,
    reader: Option<Waker>,
    /// Counts events handed to the reader, so that it sees no gap where events were merged.
    next_seq: u32,
}

impl Pending {
    fn new(timeline: Timeline) -> Self {
        Self {
            timeline,
            is_withheld: false,
            progress: VecDeque::new(),
            unread_positions: 0,
            end: None,
            reader: None,
            next_seq: 0,
        }
    }

    /// Who is to be woken now that there is something to read.
    fn waker(&mut self) -> Option<Waker> {
        if self.is_withheld { None } else { self.reader.take() }
    }

    fn wait(&mut self, context: &Context<'_>) {
        match &mut self.reader {
            Some(reader) => reader.clone_from(context.waker()),
            reader @ None => *reader = Some(context.waker().clone()),
        }
    }
}

enum End {
    Reply(Box<ServingReply>),
    Error(ServingError),
}

enum Progress {
    Delta(ServingDelta),
    Snapshot(Box<ServingBufferSnapshot>),
    /// A snapshot made of several: its `text` is to be written anew.
    MergedSnapshot(Box<ServingBufferSnapshot>),
}

impl Progress {
    /// Positions it shows as a snapshot.
    fn n_positions(&self) -> usize {
        match self {
            Self::Delta(_) => 0,
            Self::Snapshot(snapshot) | Self::MergedSnapshot(snapshot) => snapshot.token_ids.len(),
        }
    }

    /// This and then `newer`, as one. A request has one mode, so both are of a kind.
    fn and(self, newer: Self) -> Self {
        match (self, newer) {
            (Self::Delta(older), Self::Delta(newer)) => Self::Delta(merge_deltas(older, newer)),
            (
                Self::Snapshot(older) | Self::MergedSnapshot(older),
                Self::Snapshot(newer) | Self::MergedSnapshot(newer),
            ) => Self::MergedSnapshot(Box::new(merge_snapshots(*older, *newer))),
            (Self::Delta(_), newer) | (_, newer @ Self::Delta(_)) => newer,
        }
    }
}

impl RequestState {
    pub(in crate::frontend) fn new(
        rid: String,
        caller: Caller,
        (fingerprint, size): (Fingerprint, RequestSize),
        timeline: Timeline,
        deadline: Option<Instant>,
    ) -> Self {
        let pending = Mutex::new(Pending::new(timeline));
        Self { rid, name: None, caller, first: None, fingerprint, size, deadline, pending }
    }

    /// With the client's own id, if there is one.
    pub(in crate::frontend) fn named(self, name: Option<String>) -> Self {
        Self { name, ..self }
    }

    /// One of the choices that the client knows by the id of the first.
    pub(in crate::frontend) fn of_choices(self, first: Option<String>) -> Self {
        Self { first, ..self }
    }

    /// It is `caller`'s, who knows it by `id`.
    pub(in crate::frontend) fn is_named(&self, caller: Caller, id: &str) -> bool {
        self.caller == caller && self.public_id() == id
    }

    /// The client's own id, if there is one.
    pub(in crate::frontend) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The id that its client knows it by.
    pub(in crate::frontend) fn public_id(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.rid)
    }

    /// The client's request, which all of its choices share.
    pub(in crate::frontend) fn request(&self) -> (Caller, &str) {
        (self.caller, self.first.as_deref().unwrap_or_else(|| self.public_id()))
    }

    /// As the quarantine knows it.
    pub(in crate::frontend) fn running(&self) -> Running {
        Running { rid: self.rid.clone(), fingerprint: self.fingerprint, since: self.timeline().accepted }
    }

    /// Keeps what comes from the reader until [`Self::release`].
    pub(in crate::frontend) fn withhold(&self) {
        self.lock().is_withheld = true;
    }

    /// Ends [`Self::withhold`] without waking the reader.
    pub(in crate::frontend) fn end_withholding(&self) {
        self.lock().is_withheld = false;
    }

    /// Ends [`Self::withhold`]; returns the reader's waker.
    pub(in crate::frontend) fn release(&self) -> Option<Waker> {
        let mut pending = self.lock();
        pending.is_withheld = false;
        pending.reader.take()
    }

    /// Forgets what the reader has not got: the request runs again from its beginning.
    pub(in crate::frontend) fn start_again(&self) {
        let mut pending = self.lock();
        pending.progress.clear();
        pending.unread_positions = 0;
        pending.timeline.start_again();
    }

    pub(in crate::frontend) fn take_delta(
        &self,
        delta: ServingDelta,
        now: Instant,
        recorders: &Recorders,
    ) -> Option<Waker> {
        let mut pending = self.lock();
        if pending.timeline.ended.is_some() {
            return None;
        }
        recorders.arrived(&mut pending.timeline, delta.token_offset + delta.token_ids.len() as u32, now);
        let delta = match pending.progress.pop_back() {
            Some(Progress::Delta(older)) => {
                recorders.telemetry.frames_coalesced.add(1);
                merge_deltas(older, delta)
            }
            // A request has one mode, so there is never a snapshot here.
            None | Some(Progress::Snapshot(_) | Progress::MergedSnapshot(_)) => delta,
        };
        pending.progress.push_back(Progress::Delta(delta));
        pending.waker()
    }

    pub(in crate::frontend) fn take_snapshot(
        &self,
        snapshot: Box<ServingBufferSnapshot>,
        now: Instant,
        recorders: &Recorders,
    ) -> Option<Waker> {
        let mut pending = self.lock();
        if pending.timeline.ended.is_some() {
            return None;
        }
        recorders.arrived(&mut pending.timeline, snapshot.committed_len, now);
        let is_full = pending.unread_positions + snapshot.token_ids.len() > MAX_UNREAD_POSITIONS;
        let progress = match if is_full { pending.progress.pop_back() } else { None } {
            Some(Progress::Snapshot(older) | Progress::MergedSnapshot(older)) => {
                recorders.telemetry.frames_coalesced.add(1);
                pending.unread_positions -= older.token_ids.len();
                Progress::MergedSnapshot(Box::new(merge_snapshots(*older, *snapshot)))
            }
            None | Some(Progress::Delta(_)) => Progress::Snapshot(snapshot),
        };
        pending.unread_positions += progress.n_positions();
        pending.progress.push_back(progress);
        pending.waker()
    }

    pub(in crate::frontend) fn take_reply(
        &self,
        reply: Box<ServingReply>,
        now: Instant,
        recorders: &Recorders,
    ) -> Option<Waker> {
        let mut pending = self.lock();
        if pending.timeline.ended.is_some() {
            return None;
        }
        recorders.answered(&mut pending.timeline, &reply, now);
        pending.end = Some(End::Reply(reply));
        pending.waker()
    }

    pub(in crate::frontend) fn take_error(&self, error: ServingError, recorders: &Recorders) -> Option<Waker> {
        let mut pending = self.lock();
        if pending.timeline.ended.is_some() {
            return None;
        }
        recorders.failed(&mut pending.timeline, error.code);
        pending.end = Some(End::Error(error));
        pending.waker()
    }

    /// [`Self::take_error`] with words of the front end's own, which nothing withholds.
    pub(in crate::frontend) fn fail(&self, code: ErrorCode, message: &str, recorders: &Recorders) -> Option<Waker> {
        self.lock().is_withheld = false;
        let error = ServingError::new(self.rid.as_str(), code, message);
        self.take_error(error, recorders)
    }

    /// Its life so far.
    pub(in crate::frontend) fn timeline(&self) -> Timeline {
        self.lock().timeline
    }

    /// Its size, with its age at `now`.
    pub(in crate::frontend) fn size_at(&self, now: Instant) -> RequestSize {
        let age = now.saturating_duration_since(self.timeline().accepted);
        RequestSize { age_s: age.as_secs_f64(), ..self.size }
    }

    /// `Ready` once the request has ended.
    pub(in crate::frontend) fn poll_end(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut pending = self.lock();
        if pending.timeline.ended.is_some() && !pending.is_withheld {
            return Poll::Ready(());
        }
        pending.wait(context);
        Poll::Pending
    }

    /// Makes one snapshot of all that are unread.
    pub(in crate::frontend) fn fold(&self, recorders: &Recorders) {
        let mut pending = self.lock();
        while pending.progress.len() > 1 {
            let (first, second) = (pending.progress.pop_front(), pending.progress.pop_front());
            if let (Some(first), Some(second)) = (first, second) {
                recorders.telemetry.frames_coalesced.add(1);
                pending.progress.push_front(first.and(second));
            }
        }
        pending.unread_positions = pending.progress.front().map_or(0, Progress::n_positions);
    }

    /// The next event; `Ready(None)` after the end.
    pub(in crate::frontend) fn poll(&self, text: &TextModel, context: &mut Context<'_>) -> Poll<Option<StreamEvent>> {
        let mut pending = self.lock();
        if pending.is_withheld {
            pending.wait(context);
            return Poll::Pending;
        }
        let seq = pending.next_seq;
        let progress = pending.progress.pop_front();
        pending.unread_positions -= progress.as_ref().map_or(0, Progress::n_positions);
        if progress.is_some() {
            pending.timeline.read();
        }
        let mut event = match progress {
            Some(Progress::Delta(delta)) => StreamEvent::Delta(ServingDelta { seq, ..delta }),
            Some(Progress::Snapshot(mut snapshot)) => {
                snapshot.seq = seq;
                StreamEvent::Snapshot(snapshot)
            }
            Some(Progress::MergedSnapshot(mut snapshot)) => {
                snapshot.seq = seq;
                snapshot.text = snapshot_text(text, &snapshot.token_ids, &snapshot.mask_positions);
                StreamEvent::Snapshot(snapshot)
            }
            None => match pending.end.take() {
                Some(End::Reply(reply)) => {
                    pending.timeline.read_end(EndReason::Answered(reply.finish_reason));
                    StreamEvent::Reply(reply)
                }
                Some(End::Error(error)) => {
                    pending.timeline.read_end(EndReason::Failed(error.code));
                    StreamEvent::Error(error)
                }
                None if pending.timeline.ended.is_some() => return Poll::Ready(None),
                None => {
                    pending.wait(context);
                    return Poll::Pending;
                }
            },
        };
        pending.next_seq += 1;
        if let Some(name) = &self.name {
            event.rid_mut().clone_from(name);
        }
        Poll::Ready(Some(event))
    }

    /// `Ready` once there is something to read; an error that nothing came before is taken.
    pub(in crate::frontend) fn poll_first(&self, context: &mut Context<'_>) -> Poll<Result<(), ServingError>> {
        let mut pending = self.lock();
        let is_something = !pending.progress.is_empty() || pending.timeline.ended.is_some();
        if pending.is_withheld || !is_something {
            pending.wait(context);
            return Poll::Pending;
        }
        if pending.progress.is_empty() {
            match pending.end.take() {
                Some(End::Error(error)) => {
                    pending.timeline.read_end(EndReason::Failed(error.code));
                    return Poll::Ready(Err(error));
                }
                end => pending.end = end,
            }
        }
        pending.timeline.read();
        Poll::Ready(Ok(()))
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `older` and then `newer`, as one.
fn merge_deltas(mut older: ServingDelta, newer: ServingDelta) -> ServingDelta {
    let mut text = std::mem::take(&mut older.text);
    text.push_str(&newer.text);
    let mut token_ids = std::mem::take(&mut older.token_ids);
    token_ids.extend(newer.token_ids);
    let mut confidences = std::mem::take(&mut older.confidences);
    confidences.extend(newer.confidences);
    let mut alternatives = std::mem::take(&mut older.alternatives);
    alternatives.extend(newer.alternatives);
    ServingDelta { text, token_ids, confidences, alternatives, token_offset: older.token_offset, ..newer }
}

/// `newer`, with what only `older` shows before it.
///
/// ```text
/// older  |final final|open open|          both windows in positions of the answer
/// newer              |final open|open open|
/// merged |final final|final open|open open|
/// ```
pub(crate) fn merge_snapshots(older: ServingBufferSnapshot, mut newer: ServingBufferSnapshot) -> ServingBufferSnapshot {
    let mut committed_text = older.committed_text;
    committed_text.push_str(&newer.committed_text);
    newer.committed_text = committed_text;

    // Text before the newer window was final already in the older snapshot.
    let n_kept = newer.token_offset.saturating_sub(older.token_offset) as usize;
    if n_kept == 0 || n_kept > older.token_ids.len() {
        return newer;
    }
    newer.token_offset = older.token_offset;
    newer.absolute_start = older.absolute_start;
    newer.token_ids = join(older.token_ids, n_kept, newer.token_ids);
    newer.pieces = join(older.pieces, n_kept, newer.pieces);
    newer.confidences = join(older.confidences, n_kept, newer.confidences);
    newer.alternatives = join(older.alternatives, n_kept, newer.alternatives);
    for position in &mut newer.mask_positions {
        *position += n_kept as u32;
    }
    newer
}

fn join<T>(mut head: Vec<T>, n_kept: usize, tail: Vec<T>) -> Vec<T> {
    head.truncate(n_kept);
    head.extend(tail);
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(
        token_offset: u32,
        token_ids: &[u32],
        mask_positions: &[u32],
        committed: &str,
    ) -> ServingBufferSnapshot {
        ServingBufferSnapshot {
            token_offset,
            absolute_start: 10 + token_offset,
            absolute_end: 10 + token_offset + token_ids.len() as u32,
            token_ids: token_ids.to_vec(),
            mask_positions: mask_positions.to_vec(),
            committed_text: committed.to_owned(),
            ..Default::default()
        }
    }

    #[test]
    fn merged_deltas_read_as_one() {
        let older = ServingDelta { text: "ab".into(), token_ids: vec![1, 2], token_offset: 4, ..Default::default() };
        let newer = ServingDelta {
            text: "c".into(),
            token_ids: vec![3],
            token_offset: 6,
            finished: true,
            ..Default::default()
        };
        let merged = merge_deltas(older, newer);
        assert_eq!((merged.text.as_str(), merged.token_offset, merged.finished), ("abc", 4, true));
        assert_eq!(merged.token_ids, [1, 2, 3]);
    }

    #[test]
    fn a_newer_snapshot_keeps_what_became_final_meanwhile() {
        let older = snapshot(0, &[1, 2, 3, 99], &[3], "ab");
        let newer = snapshot(2, &[3, 4, 99, 99], &[2, 3], "c");
        let merged = merge_snapshots(older, newer);
        assert_eq!(merged.token_ids, [1, 2, 3, 4, 99, 99]);
        assert_eq!(merged.mask_positions, [4, 5]);
        assert_eq!((merged.token_offset, merged.absolute_start, merged.absolute_end), (0, 10, 16));
        assert_eq!(merged.committed_text, "abc");
    }

    #[test]
    fn unread_snapshots_wait_one_by_one_until_there_are_too_many() {
        let now = Instant::now();
        let timeline = Timeline::new(now, (now, now));
        let state = RequestState::new("r".to_owned(), Caller::default(), Default::default(), timeline, None);
        let recorders = Recorders::default();
        // Windows of 16, one position further at each step.
        let n_steps = 1000;
        for step in 0..n_steps {
            let shown = snapshot(step, &[7; 16], &[15], "x");
            state.take_snapshot(Box::new(shown), Instant::now(), &recorders);
        }
        let pending = state.lock();
        assert!(pending.progress.len() >= MAX_UNREAD_POSITIONS / 16 - 1, "{} are kept", pending.progress.len());
        let mut next = 0;
        let mut committed = 0;
        for progress in &pending.progress {
            let (Progress::Snapshot(shown) | Progress::MergedSnapshot(shown)) = progress else { panic!("a delta") };
            assert!(shown.token_offset <= next, "a hole before {}", shown.token_offset);
            next = shown.token_offset + shown.token_ids.len() as u32;
            committed += shown.committed_text.len();
        }
        assert_eq!((next, committed), (n_steps - 1 + 16, n_steps as usize));
        assert!(pending.unread_positions <= MAX_UNREAD_POSITIONS + n_steps as usize + 16);
    }

    #[test]
    fn a_snapshot_that_reaches_further_back_replaces_the_older_one() {
        let merged = merge_snapshots(snapshot(4, &[5], &[], "x"), snapshot(0, &[1, 2, 3, 4, 6], &[], "y"));
        assert_eq!((merged.token_offset, merged.token_ids.len()), (0, 5));
        assert_eq!(merged.committed_text, "xy");
    }
}
