//! The adapters by name, and those that are unloaded but still in use.
//!
//! An unloaded adapter accepts no new request, and leaves the device when its last request ends.
//!
//! Never here: tensors.

use std::collections::{BTreeMap, BTreeSet};

use diffulex_protocol::{AdapterSource, ModelCard};

use crate::AdapterId;
use crate::config::{EngineConfig, EngineOptions};
use crate::files::ModelFiles;
use crate::models;
use crate::runner::Runner;

/// Longest name in bytes. Chosen by us: it is a model name in every request and every list.
const MAX_NAME_BYTES: usize = 256;

/// An adapter that requests may name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadedAdapter {
    pub(crate) id: AdapterId,
    /// True for D2F's adapters: their requests are decoded by `d2f`.
    pub(crate) is_d2f: bool,
}

/// The adapters that requests may name.
#[derive(Debug)]
pub(crate) struct AdapterTable {
    max_adapters: usize,
    max_bytes: u64,
    by_name: BTreeMap<String, LoadedAdapter>,
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
    pub(crate) fn find(&self, name: &str) -> Option<LoadedAdapter> {
        self.by_name.get(name).copied()
    }

    /// Names, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// Loads the adapter of `source` on the device of `runner`; the error is the reason for a refusal.
    pub(crate) fn load(
        &mut self,
        source: &AdapterSource,
        config: &EngineConfig,
        card: &ModelCard,
        runner: &mut dyn Runner,
    ) -> Result<(), String> {
        let (id, max_bytes) = self.reserve(&source.name)?;
        let files = ModelFiles::folder(&source.path).map_err(|error| error.to_string())?;
        let is_d2f = models::is_d2f(&files).map_err(|error| error.to_string())?;
        if is_d2f && config.strategy_with_d2f.is_none() {
            return Err(format!(
                "it is an adapter of D2F, for Dream, DiffuCoder and LLaDA; this model is {}, decoded by {}",
                card.architecture,
                config.strategy.name()
            ));
        }
        let n_bytes = runner.load_adapter(id, &files, max_bytes).map_err(|error| error.to_string())?;
        self.n_bytes.insert(id, n_bytes);
        self.by_name.insert(source.name.clone(), LoadedAdapter { id, is_d2f });
        Ok(())
    }

    /// Reserves an id for a new adapter. Returns it with the bytes that the adapter may use, or the reason for a refusal.
    fn reserve(&mut self, name: &str) -> Result<(AdapterId, u64), String> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(format!("an adapter's name has 1 to {MAX_NAME_BYTES} bytes; this has {}", name.len()));
        }
        if self.by_name.contains_key(name) {
            return Err(format!("an adapter {name:?} is loaded already"));
        }
        // Retired ones count: they leave the device with their last request.
        let n_adapters = self.n_bytes.len();
        if n_adapters >= self.max_adapters {
            return Err(format!("{n_adapters} adapters are loaded, the limit of --max-loaded-loras; unload one first"));
        }
        self.next_id += 1;
        Ok((self.next_id, self.max_bytes.saturating_sub(self.n_bytes.values().sum())))
    }

    /// Removes the name. The adapter is retired until [`Self::drop_if_unused`] drops it.
    pub(crate) fn remove(&mut self, name: &str) -> Option<AdapterId> {
        let LoadedAdapter { id, .. } = self.by_name.remove(name)?;
        self.retired.insert(id);
        Some(id)
    }

    /// Drops an unloaded adapter from the device of `runner`, unless requests still use it.
    pub(crate) fn drop_if_unused(&mut self, id: AdapterId, is_used: bool, runner: &mut dyn Runner) {
        if !is_used && self.retired.remove(&id) {
            self.n_bytes.remove(&id);
            runner.unload_adapter(id);
        }
    }
}
