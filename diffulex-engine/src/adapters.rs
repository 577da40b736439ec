//! The adapters by name, and those that are unloaded but still in use.
//!
//! An unloaded adapter accepts no new request, and leaves the device when its last request ends.
//!
//! Never here: tensors, files.

use std::collections::{BTreeMap, BTreeSet};

use crate::AdapterId;
use crate::config::EngineOptions;

/// Longest name in bytes. Chosen by us: it is a model name in every request and every list.
const MAX_NAME_BYTES: usize = 256;

/// An adapter that requests may name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    pub(crate) id: AdapterId,
    /// True for D2F's adapters, whose requests are decoded by `d2f`.
    pub(crate) is_d2f: bool,
}

/// The adapters that requests may name.
#[derive(Debug)]
pub(crate) struct AdapterTable {
    max_adapters: usize,
    max_bytes: u64,
    by_name: BTreeMap<String, Named>,
    /// Bytes of each on the device, including retired ones.
    n_bytes: BTreeMap<AdapterId, u64>,
    /// Unloaded adapters that running requests still use.
    retired: BTreeSet<AdapterId>,
    next_id: AdapterId,
}

impl AdapterTable {
    /// An empty table with the limits of `options`.
    pub(crate) fn new(options: &EngineOptions) -> Self {
        Self {
            max_adapters: options.max_loaded_loras as usize,
            max_bytes: options.max_lora_bytes,
            by_name: BTreeMap::new(),
            n_bytes: BTreeMap::new(),
            retired: BTreeSet::new(),
            next_id: 0,
        }
    }

    /// The adapter called `name`.
    pub(crate) fn find(&self, name: &str) -> Option<Named> {
        self.by_name.get(name).copied()
    }

    /// Names, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// Reserves an id for a new adapter. Returns it with the bytes that the adapter may use, or the reason for a refusal.
    pub(crate) fn room(&mut self, name: &str) -> Result<(AdapterId, u64), String> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(format!("an adapter's name has 1 to {MAX_NAME_BYTES} bytes; this has {}", name.len()));
        }
        if self.by_name.contains_key(name) {
            return Err(format!("an adapter {name:?} is loaded already"));
        }
        // Retired ones count: they leave the device with their last request.
        let n_adapters = self.n_bytes.len();
        if n_adapters >= self.max_adapters {
            return Err(format!(
                "{n_adapters} adapters are loaded, as many as --max-loaded-loras lets in; unload one first"
            ));
        }
        self.next_id += 1;
        Ok((self.next_id, self.max_bytes.saturating_sub(self.n_bytes.values().sum())))
    }

    /// Registers the loaded adapter under `name` with its size.
    pub(crate) fn add(&mut self, name: String, adapter: Named, n_bytes: u64) {
        self.n_bytes.insert(adapter.id, n_bytes);
        self.by_name.insert(name, adapter);
    }

    /// Removes the name. The adapter is retired until [`Self::is_gone`] finds it unused.
    pub(crate) fn remove(&mut self, name: &str) -> Option<AdapterId> {
        let Named { id, .. } = self.by_name.remove(name)?;
        self.retired.insert(id);
        Some(id)
    }

    /// True, once, for a retired adapter that no request uses any more.
    pub(crate) fn is_gone(&mut self, id: AdapterId, has_requests: bool) -> bool {
        let is_gone = !has_requests && self.retired.remove(&id);
        if is_gone {
            self.n_bytes.remove(&id);
        }
        is_gone
    }
}
