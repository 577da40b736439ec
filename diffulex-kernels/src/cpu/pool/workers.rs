//! The threads of the pool, and how a job reaches them and ends.
//!
//! A job is a number of tasks. The caller opens it, wakes the workers, takes tasks itself until none is left, closes the job
//! and waits until no worker is inside. A worker enters when it sees a new open job, takes tasks until none is left, and leaves.
//! It spins for a moment before it parks, and whenever it wakes. The end is a job of its own kind, which is never closed.
//!
//! | state | written by | when |
//! |---|---|---|
//! | `gate`: the turn | the caller | opens a job (odd), closes it (even) |
//! | `gate`: the number inside | a worker | enters, leaves |
//! | `job` | the caller | the turn is even, and no worker that entered in an odd turn is inside |
//! | `next`: the first task not taken | the caller; everybody who works | before it opens a job; to take a task |
//! | `panic` | workers and the caller | a task panics; the caller takes it when no worker is inside |
//! | a worker's token (`unpark`, `park`) | the caller; the worker | gives it when it has opened a job; takes it to wake |
//! | `is_busy` | the caller | sets it before it writes the job, clears it when it has taken the panic |
//!
//! It must hold that
//! - each task runs once: `next` only grows while the job is open, and who takes a number alone runs that task;
//! - [`Workers::run`] returns after every task has, sees what they wrote, and no worker uses its closure afterwards: turn and
//!   number inside are one atomic, so a worker is either counted when the job closes, or finds it closed. Leaving releases
//!   what the worker wrote to the caller, who acquires it with the number 0;
//! - no worker reads a job while it is written: opening releases it, entering acquires it, and the next job is written after
//!   everybody who may read this one has left;
//! - no wake-up is lost: the token is given after the turn has changed. Either `park` finds the token, or the worker sleeps
//!   already and is woken; then it sees the turn.
//!
//! Every two steps that must see each other are read-modify-writes of one atomic or a token, so that nothing needs `SeqCst`.
//! `tests/workers.rs` checks all this with loom.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::sync::{
    Arc, AtomicBool, AtomicU64, AtomicUsize, Builder, JoinHandle, Mutex, Ordering, PoisonError, UnsafeCell, park,
    spin_until, yield_now,
};

/// One worker inside, in `Shared::gate`.
const ENTRY: u64 = 1;

/// One turn, in `Shared::gate`: 24 bits for the workers, of which Linux allows 2^22, leave 40. A worker would take a new job
/// for the last it saw only if it stayed off its core for exactly 2^39 jobs.
const TURN: u64 = 1 << 24;

/// Threads that work on the jobs of [`Workers::run`], with its caller.
pub(super) struct Workers {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    /// A job is running. A job inside of it runs on its caller alone.
    is_busy: AtomicBool,
}

#[derive(Clone, Copy)]
struct Job {
    task: *const (dyn Fn(usize) + Sync),
    n_tasks: usize,
}

struct Shared {
    /// The number of workers inside (times [`ENTRY`]) and the turn (times [`TURN`]), which is odd while a job is open.
    gate: AtomicU64,
    /// The first task that is not taken yet.
    next: AtomicUsize,
    /// The last job opened; none is the end.
    job: UnsafeCell<Option<Job>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written only while the turn is even and no worker is inside, and read only by workers that entered while
// it was odd, as `Workers::run` and `Shared::enter` show; the task it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is not used after the call that made it ends.
unsafe impl Send for Shared {}

/// The turn of a value of the gate.
fn turn(gate: u64) -> u64 {
    gate / TURN
}

/// The number of workers inside, of a value of the gate.
fn n_inside(gate: u64) -> u64 {
    gate % TURN
}

/// Flag: a job is open in this turn.
fn is_open(turn: u64) -> bool {
    turn % 2 == 1
}

impl Shared {
    /// Runs tasks of the job until none is left.
    fn work(&self, job: Job) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= job.n_tasks {
                return;
            }
            // SAFETY: `run` keeps the task alive until everybody who entered has left.
            let task = unsafe { &*job.task };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| task(index))) {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
        }
    }

    /// Works on the job if one is open. Returns the turn that it found, or none at the end.
    fn enter(&self) -> Option<u64> {
        let turn = turn(self.gate.fetch_add(ENTRY, Ordering::Acquire));
        if is_open(turn) {
            // SAFETY: the job was written before the turn became odd, and is not written again while this one is inside.
            let job = self.job.with(|job| unsafe { *job })?;
            self.work(job);
        }
        self.gate.fetch_sub(ENTRY, Ordering::Release);
        Some(turn)
    }

    /// Works on job after job until the end.
    fn serve(&self) {
        let mut seen = 0;
        loop {
            let is_new = || {
                // Relaxed: `enter` acquires what it finds.
                let turn = turn(self.gate.load(Ordering::Relaxed));
                is_open(turn) && turn != seen
            };
            while !spin_until(is_new) {
                park();
            }
            match self.enter() {
                Some(turn) => seen = turn,
                None => return,
            }
        }
    }
}

impl Workers {
    /// Starts `n` threads.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(super) fn new(n: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
        });
        let mut workers = Self { shared, handles: Vec::new(), is_busy: AtomicBool::new(false) };
        for index in 1..=n {
            let shared = workers.shared.clone();
            let thread = Builder::new().name(format!("kernel-{index}"));
            workers.handles.push(thread.spawn(move || shared.serve())?);
        }
        Ok(workers)
    }

    /// Number of threads that work on a job, its caller included.
    pub(super) fn n_threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Calls `task` with each of `0..n_tasks`, on any thread and in any order, and returns when all calls have.
    ///
    /// # Panics
    /// If a task panics.
    pub(super) fn run(&self, n_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let is_alone = n_tasks < 2 || self.handles.is_empty();
        if is_alone || self.is_busy.swap(true, Ordering::Acquire) {
            return (0..n_tasks).for_each(task);
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; no worker uses the pointer after this call, which waits below.
        let task = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(task) };
        let job = Job { task, n_tasks };
        self.open(Some(job));
        shared.work(job);
        shared.gate.fetch_add(TURN, Ordering::Relaxed);
        let is_empty = || n_inside(shared.gate.load(Ordering::Acquire)) == 0;
        while !spin_until(is_empty) {
            // A worker may need this core to finish.
            yield_now();
        }
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.is_busy.store(false, Ordering::Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Opens a job, or the end, and wakes the workers: one atomic operation for each, and a system call if it sleeps.
    fn open(&self, job: Option<Job>) {
        // SAFETY: this caller alone opens jobs, and the last one is closed and everybody who entered it has left; those who
        // come in now find the turn even and leave.
        self.shared.job.with_mut(|place| unsafe { *place = job });
        self.shared.next.store(0, Ordering::Relaxed);
        self.shared.gate.fetch_add(TURN, Ordering::Release);
        self.handles.iter().for_each(|handle| handle.thread().unpark());
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.open(None);
        for handle in self.handles.drain(..) {
            // A worker catches the panics of its tasks and has no others.
            let _ = handle.join();
        }
    }
}
