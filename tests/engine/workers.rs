//! The workers of the CPU kernels' pool, checked with loom: it runs a scenario with every order of the threads' steps and
//! every value that the memory model lets a load return, up to a number of preemptions.
//!
//! `workers.rs` is compiled a second time here, with loom's threads and atomics instead of those in `sync.rs`. Besides what a
//! scenario asserts, loom fails it for a deadlock, such as a lost wake-up, and for two accesses to a cell that are not
//! ordered: the cells are the job and what the tasks write.

#![expect(unsafe_code, reason = "the workers lend closures to threads")]

#[path = "../../diffulex-engine/src/kernels/cpu/workers.rs"]
mod workers;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;
use workers::Workers;

/// The names of `src/kernels/cpu/sync.rs`, of loom.
mod sync {
    use std::cell::RefCell;
    use std::io;
    pub(super) use std::sync::PoisonError;

    pub(super) use loom::cell::UnsafeCell;
    use loom::sync::Notify;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    pub(super) use loom::sync::{Arc, Mutex};
    pub(super) use loom::thread::yield_now;

    loom::thread_local! {
        static CURRENT: RefCell<Option<Thread>> = RefCell::new(None);
    }

    /// A token of its own: loom's `unpark` is not a step at which another thread may run, and shows the other thread the
    /// caller's writes before it parks, so that it hides what a worker that is awake may see.
    #[derive(Clone)]
    pub(super) struct Thread(Arc<Notify>);

    impl Thread {
        pub(super) fn unpark(&self) {
            self.0.notify();
        }
    }

    /// Blocks until the token is there, and takes it. May return without it once, as `std`'s may.
    pub(super) fn park() {
        let current = CURRENT.with(|it| it.borrow().clone()).expect("a thread of the builder");
        current.0.wait();
    }

    pub(super) struct JoinHandle<T> {
        handle: loom::thread::JoinHandle<T>,
        thread: Thread,
    }

    impl<T> JoinHandle<T> {
        pub(super) fn thread(&self) -> &Thread {
            &self.thread
        }

        pub(super) fn join(self) -> std::thread::Result<T> {
            self.handle.join()
        }
    }

    pub(super) struct Builder;

    impl Builder {
        pub(super) fn new() -> Self {
            Self
        }

        pub(super) fn name(self, _: String) -> Self {
            self
        }

        pub(super) fn spawn(self, body: impl FnOnce() + 'static) -> io::Result<JoinHandle<()>> {
            let thread = Thread(Arc::new(Notify::new()));
            let current = thread.clone();
            let handle = loom::thread::spawn(move || {
                CURRENT.with(|it| *it.borrow_mut() = Some(current));
                body();
            });
            Ok(JoinHandle { handle, thread })
        }
    }

    /// One look. A longer spin is a look at a later time, of which loom tries all.
    pub(super) fn spin_until(is_done: impl Fn() -> bool) -> bool {
        is_done()
    }
}

/// Counters that loom watches.
struct Cells(Vec<UnsafeCell<usize>>);

// SAFETY: loom ends the test when two threads use a cell and the accesses are not ordered.
unsafe impl Sync for Cells {}

impl Cells {
    fn new(n: usize) -> Self {
        Self((0..n).map(|_| UnsafeCell::new(0)).collect())
    }

    fn increment(&self, index: usize) {
        // SAFETY: as for `Sync`.
        self.0[index].with_mut(|count| unsafe { *count += 1 });
    }

    fn counts(&self) -> Vec<usize> {
        // SAFETY: as for `Sync`.
        self.0.iter().map(|count| count.with(|count| unsafe { *count })).collect()
    }
}

/// Runs the scenario with every order of steps in which a thread that could go on gives way at most `max_preemptions` times.
/// Two for one worker and one for two keep a test within a second or two; each more costs ten times that.
fn check(max_preemptions: usize, scenario: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(max_preemptions);
    model.check(scenario);
}

/// A job of two tasks. Both have run once when it returns, and the caller sees what they wrote.
fn run_a_job(workers: &Workers) {
    let cells = Cells::new(2);
    workers.run(2, &|index| cells.increment(index));
    assert_eq!(cells.counts(), [1, 1]);
}

/// A job whose tasks panic. Returns the message.
fn run_a_panic(workers: &Workers) -> &'static str {
    // Not `panic!`, which prints the message each time.
    let job = || workers.run(2, &|_| resume_unwind(Box::new("a task")));
    let panic = catch_unwind(AssertUnwindSafe(job)).expect_err("the tasks panic");
    panic.downcast_ref::<&str>().copied().expect("the message of a task")
}

#[test]
fn every_task_runs_once_before_its_job_returns() {
    check(2, || {
        let workers = Workers::new(1).unwrap();
        run_a_job(&workers);
        run_a_job(&workers);
    });
}

#[test]
fn two_workers_share_two_jobs() {
    check(1, || {
        let workers = Workers::new(2).unwrap();
        run_a_job(&workers);
        run_a_job(&workers);
    });
}

#[test]
fn a_worker_comes_to_every_job() {
    check(2, || {
        let workers = Workers::new(1).unwrap();
        for _ in 0..2 {
            let caller = thread::current().id();
            let (has_come, came) = (AtomicBool::new(false), Notify::new());
            workers.run(2, &|_| {
                if thread::current().id() != caller {
                    has_come.store(true, Ordering::Release);
                    came.notify();
                }
                // If the worker slept on, nobody would be left to run.
                while !has_come.load(Ordering::Acquire) {
                    came.wait();
                }
            });
        }
    });
}

#[test]
fn workers_end_whether_awake_or_asleep() {
    check(2, || {
        let workers = Workers::new(2).unwrap();
        assert_eq!(workers.n_threads(), 3);
    });
}

#[test]
fn a_panic_reaches_the_caller_and_the_next_job_runs() {
    check(2, || {
        let workers = Workers::new(1).unwrap();
        assert_eq!(run_a_panic(&workers), "a task");
        run_a_job(&workers);
    });
}

#[test]
fn of_two_callers_each_gets_its_own_job_and_panic() {
    check(2, || {
        let workers = Arc::new(Workers::new(1).unwrap());
        let other = thread::spawn({
            let workers = workers.clone();
            move || assert_eq!(run_a_panic(&workers), "a task")
        });
        run_a_job(&workers);
        other.join().unwrap();
    });
}
