//! The kernels' threads: a fixed pool that spins for a moment and then sleeps.
//!
//! A forward has some hundred regions of 10 to 1000 µs. Waking a sleeping thread costs 10 to 50 µs, so a thread that has
//! nothing to do spins for the next region first. The caller works too, and takes over tasks that the others do not start:
//! if another program has their core, a region waits at most for the one task that each of them has begun.

use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::cpu::pool::workers::Workers;

/// Tasks of a region per thread, so that a thread that loses its core delays little.
const TASKS_PER_THREAD: usize = 4;

/// The threads; the caller of [`Pool::run`] is one of them.
pub(crate) struct Pool {
    workers: Workers,
}

impl Pool {
    /// A pool of `n_threads`, including the caller; at least 1.
    pub(crate) fn new(n_threads: usize) -> io::Result<Self> {
        Ok(Self { workers: Workers::new(n_threads.saturating_sub(1))? })
    }

    /// Threads, the caller's included.
    pub(crate) fn n_threads(&self) -> usize {
        self.workers.n_threads()
    }

    /// Maximum number of tasks for work of `n` equal parts.
    pub(crate) fn n_tasks(&self, n: usize) -> usize {
        let n_threads = self.n_threads();
        if n_threads == 1 { 1 } else { n.min(n_threads * TASKS_PER_THREAD).max(1) }
    }

    /// Calls `task` with each of `0..n_tasks`, on any thread and in any order, and returns when all calls have.
    ///
    /// # Panics
    /// If a task panics.
    pub(crate) fn run(&self, n_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.workers.run(n_tasks, task);
    }

    /// The results of `task` for each of `0..n`, in order.
    pub(crate) fn map<T: Send + Sync>(&self, n: usize, task: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let results: Vec<OnceLock<T>> = (0..n).map(|_| OnceLock::new()).collect();
        self.run(n, &|index| {
            let _ = results[index].set(task(index));
        });
        results.into_iter().filter_map(OnceLock::into_inner).collect()
    }

    /// Calls `task` with the index and the values of every chunk of `chunk_len`, in a few long runs.
    pub(crate) fn chunks<T: Send>(&self, values: &mut [T], chunk_len: usize, task: impl Fn(usize, &mut [T]) + Sync) {
        let chunk_len = chunk_len.max(1);
        let n_chunks = values.len().div_ceil(chunk_len);
        let per_run = n_chunks.div_ceil(self.n_tasks(n_chunks)).max(1);
        let runs: Vec<Mutex<&mut [T]>> = values.chunks_mut(per_run * chunk_len).map(Mutex::new).collect();
        self.run(runs.len(), &|run| {
            let mut values = runs[run].lock().unwrap_or_else(PoisonError::into_inner);
            for (index, chunk) in values.chunks_mut(chunk_len).enumerate() {
                task(run * per_run + index, chunk);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::cpu::pool::sync::SPIN;

    #[test]
    fn every_task_runs_once_whoever_runs_it() {
        for n_threads in [1, 2, 3, 8] {
            let pool = Pool::new(n_threads).unwrap();
            for n_tasks in (0..40).chain([1000]) {
                let counts: Vec<AtomicUsize> = (0..n_tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(n_tasks, &|index| {
                    counts[index].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn every_worker_comes_to_a_region_awake_or_asleep() {
        let pool = Pool::new(3).unwrap();
        for pause in [Duration::ZERO, 10 * SPIN].repeat(20) {
            // An idle worker sleeps after `SPIN`.
            let idle = Instant::now();
            while idle.elapsed() < pause {
                std::thread::yield_now();
            }
            // Nobody leaves before all are there, so that each of the three takes one task.
            let (n_here, began) = (AtomicUsize::new(0), Instant::now());
            pool.run(3, &|_| {
                n_here.fetch_add(1, Ordering::Relaxed);
                while n_here.load(Ordering::Relaxed) < 3 {
                    assert!(began.elapsed() < Duration::from_secs(30), "a worker did not come");
                    std::thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn results_keep_their_order_and_chunks_their_place() {
        let pool = Pool::new(3).unwrap();
        assert_eq!(pool.map(100, |index| 3 * index), (0..100).map(|index| 3 * index).collect::<Vec<_>>());
        let mut values = vec![0; 103];
        pool.chunks(&mut values, 5, |chunk, values| values.fill(chunk));
        assert_eq!(values, (0..103).map(|place| place / 5).collect::<Vec<_>>());
        pool.chunks(&mut [0u8; 0], 5, |_, _| panic!("there is no chunk"));
    }

    #[test]
    fn a_region_inside_a_region_runs_on_its_caller() {
        let pool = Pool::new(2).unwrap();
        let sum = AtomicUsize::new(0);
        pool.run(4, &|outer| {
            pool.run(3, &|inner| {
                sum.fetch_add(10 * outer + inner, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), 3 * 60 + 4 * 3);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2).unwrap();
        for _ in 0..20 {
            let failed = catch_unwind(AssertUnwindSafe(|| pool.run(50, &|index| assert!(index != 31, "task 31"))));
            assert!(failed.is_err());
            assert_eq!(pool.map(5, |index| index), [0, 1, 2, 3, 4]);
        }
    }
}
