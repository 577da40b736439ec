//! The load of the device that runs the model, read now and then for reports.
//!
//! Never here: how a device is asked.

use std::cell::Cell;
use std::time::{Duration, Instant};

use diffulex_protocol::DeviceLoad;

/// Time for which a reading is reported again. Chosen by us: the driver is asked for free memory in under a millisecond, and graphs of
/// it have a point a second at most.
const INTERVAL: Duration = Duration::from_secs(1);

/// Asks the device; `None` where it does not tell.
pub(crate) type ReadLoad = Box<dyn Fn() -> Option<DeviceLoad> + Send>;

/// A device's load, read at most once a second.
pub(crate) struct DeviceWatch {
    read: Option<ReadLoad>,
    last: Cell<Option<(Instant, Option<DeviceLoad>)>>,
}

impl DeviceWatch {
    /// A watch that reads the load by `read`, or always `None` without it.
    pub(crate) fn new(read: Option<ReadLoad>) -> Self {
        Self { read, last: Cell::new(None) }
    }

    /// The load at `now`, or a moment before.
    pub(crate) fn load(&self, now: Instant) -> Option<DeviceLoad> {
        let read = self.read.as_ref()?;
        match self.last.get() {
            Some((at, load)) if now.saturating_duration_since(at) < INTERVAL => load,
            _ => {
                let load = read();
                self.last.set(Some((now, load)));
                load
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_device_is_asked_once_a_second() {
        let n_asked = Arc::new(AtomicU64::new(0));
        let asked = Arc::clone(&n_asked);
        let watch = DeviceWatch::new(Some(Box::new(move || {
            Some(DeviceLoad { memory_free_bytes: asked.fetch_add(1, Ordering::Relaxed), utilization: None })
        })));
        let start = Instant::now();
        let free_at = |ms| watch.load(start + Duration::from_millis(ms)).map(|load| load.memory_free_bytes);
        assert_eq!([free_at(0), free_at(999), free_at(1000), free_at(1500)], [Some(0), Some(0), Some(1), Some(1)]);
        assert_eq!(DeviceWatch::new(None).load(start), None);
    }
}
