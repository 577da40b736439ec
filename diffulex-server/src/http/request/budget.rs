//! Limits of one body, and the memory that bodies may take together, until they have become requests.
//!
//! Counted as it is taken, not as it is declared, so that who only announces a body takes nothing from others. What is spent
//! is refused rather than waited for: bodies that wait for each other's memory would all wait. Never here: reading.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Whole bodies of the largest size that there is room for. Chosen by us: 16 MiB with the default of 4 MiB a body, which is
/// 160 prompts of 100 KB at once.
const BODIES: usize = 4;

/// Bytes of one body that are not counted. Chosen by us: as much as its connection's buffers take anyhow, and more
/// than a usual chat, which so never waits for large bodies.
const FREE_BYTES: usize = 16 * 1024;

/// Counting in bytes would not reach beyond 4 GiB.
const UNIT_BYTES: usize = 1024;

/// Limits of a body.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Its size.
    pub max_bytes: usize,
    /// The time until it is complete.
    pub timeout: Duration,
}

/// Hands out memory. Clones share it.
#[derive(Clone, Debug)]
pub(in crate::http) struct BodyBudget {
    units: Arc<Semaphore>,
}

/// Memory of one body, given back on drop.
#[derive(Debug, Default)]
pub(in crate::http) struct HeldMemory {
    n_bytes: usize,
    units: Option<OwnedSemaphorePermit>,
}

impl BodyBudget {
    pub(in crate::http) fn new(max_body_bytes: usize) -> Self {
        let n_units = units(max_body_bytes).saturating_mul(BODIES);
        Self { units: Arc::new(Semaphore::new(n_units.clamp(1, Semaphore::MAX_PERMITS))) }
    }

    /// Makes `held` cover `n_bytes`; false when the budget is spent.
    pub(in crate::http) fn grow(&self, held: &mut HeldMemory, n_bytes: usize) -> bool {
        let more = units(n_bytes.saturating_sub(FREE_BYTES)) - units(held.n_bytes.saturating_sub(FREE_BYTES));
        let Ok(more) = u32::try_from(more) else { return false };
        let Ok(taken) = Arc::clone(&self.units).try_acquire_many_owned(more) else { return false };
        match &mut held.units {
            Some(units) => units.merge(taken),
            units @ None => *units = Some(taken),
        }
        held.n_bytes = n_bytes;
        true
    }
}

fn units(n_bytes: usize) -> usize {
    n_bytes.div_ceil(UNIT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        const BODY: usize = 64 * 1024;
        let budget = BodyBudget::new(BODY);
        let mut all = Vec::new();
        loop {
            let mut held = HeldMemory::default();
            // As it comes, in pieces that are no whole units.
            let is_held = (1..=100).all(|part| budget.grow(&mut held, BODY * part / 100));
            if !is_held {
                break;
            }
            all.push(held);
        }
        // The free part of each makes room for more.
        assert_eq!(all.len(), BODIES * BODY / (BODY - FREE_BYTES));
        let mut small = HeldMemory::default();
        assert!(budget.grow(&mut small, FREE_BYTES));
        all.pop();
        assert!(budget.grow(&mut small, BODY));
        drop((all, small));
        assert_eq!(budget.units.available_permits(), BODIES * units(BODY));
    }
}
