//! Long work of requests that needs no waiting: parsing large bodies, tokenising long texts.
//!
//! It is done on threads of its own, so that probes and streams are served meanwhile, and by few at a time, so that it
//! leaves cores to the engine and holds the memory of few. What waits for its turn is given up when its client leaves;
//! work that has begun runs to its end, even if its client is gone. Never here: what the work is.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Pieces of work done at the same time. Chosen by us: they take cores from the engine.
const THREADS: usize = 2;

/// Work that gave no result.
#[derive(Debug, thiserror::Error)]
pub enum LongWorkError {
    /// It panicked.
    #[error("long work of a request failed: {0}")]
    Failed(#[from] tokio::task::JoinError),
    /// No turns are given any more.
    #[error("long work of a request failed: {0}")]
    NoTurn(#[from] tokio::sync::AcquireError),
}

/// Hands out turns. Clones share them.
#[derive(Clone, Debug)]
pub struct LongWork {
    turns: Arc<Semaphore>,
}

impl Default for LongWork {
    fn default() -> Self {
        Self { turns: Arc::new(Semaphore::new(THREADS)) }
    }
}

impl LongWork {
    /// Does `work` on a thread of its own when its turn comes; the error is that it panicked. Dropped before its turn, it is
    /// never begun.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, LongWorkError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await?;
        let work = move || {
            // Given back by the thread that works, not by who waits for it.
            let _turn = turn;
            work()
        };
        Ok(tokio::task::spawn_blocking(work).await?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn clients_that_leave_neither_add_threads_nor_leave_work() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let long_work = LongWork::default();
            let begun = Arc::new(AtomicUsize::new(0));
            let (started, starts) = channel();
            let mut releases = Vec::new();
            let mut clients = Vec::new();
            for _ in 0..20 {
                let (release, released) = channel::<()>();
                let (begun, started, long_work) = (Arc::clone(&begun), started.clone(), long_work.clone());
                releases.push(release);
                clients.push(tokio::spawn(async move {
                    let work = move || {
                        begun.fetch_add(1, Ordering::SeqCst);
                        let _ = started.send(());
                        let _ = released.recv();
                    };
                    long_work.run(work).await
                }));
            }
            tokio::task::yield_now().await;
            for _ in 0..THREADS {
                starts.recv_timeout(std::time::Duration::from_secs(60)).expect("work that begins");
            }
            for client in &clients {
                client.abort();
            }
            for client in clients {
                let _ = client.await;
            }
            // The two that began hold their turns until they end.
            assert_eq!(long_work.turns.available_permits(), 0);
            drop(releases);
            assert_eq!(long_work.run(|| 7).await.ok(), Some(7));
            assert_eq!(begun.load(Ordering::SeqCst), THREADS);
        });
    }

    #[test]
    fn work_that_panics_gives_its_turn_back() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let long_work = LongWork::default();
            for _ in 0..2 * THREADS {
                assert!(long_work.run(|| panic!("at work")).await.is_err());
            }
            assert_eq!(long_work.run(|| 7).await.ok(), Some(7));
        });
    }
}
