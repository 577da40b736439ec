//! Adapters by name, and which of them are still at work.
//!
//! An adapter that is unloaded takes no new request at once, and leaves the device when the last request that has it ends.
//!
//! Never here: tensors, files.

use std::collections::{BTreeMap, BTreeSet};

use crate::models::AdapterId;

/// Longest name in bytes. Chosen by us: it is a model name in every request and every list.
const MAX_NAME_BYTES: usize = 256;

/// An adapter that requests may name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    pub(crate) id: AdapterId,
    /// It is one of D2F's, which make another kind of model of their base.
    pub(crate) is_d2f: bool,
}

/// The adapters that requests may name.
#[derive(Debug, Default)]
pub(crate) struct AdapterTable {
    by_name: BTreeMap<String, Named>,
    /// Unloaded, with requests that still have them.
    retired: BTreeSet<AdapterId>,
    next_id: AdapterId,
}

impl AdapterTable {
    /// The adapter called `name`.
    pub(crate) fn find(&self, name: &str) -> Option<Named> {
        self.by_name.get(name).copied()
    }

    /// Names, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// An id for an adapter that is to be called `name`, or why it cannot be.
    pub(crate) fn new_id(&mut self, name: &str) -> Result<AdapterId, String> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(format!("an adapter's name has 1 to {MAX_NAME_BYTES} bytes; this has {}", name.len()));
        }
        if self.by_name.contains_key(name) {
            return Err(format!("an adapter {name:?} is loaded already"));
        }
        self.next_id += 1;
        Ok(self.next_id)
    }

    /// The adapter is loaded and called `name`.
    pub(crate) fn add(&mut self, name: String, adapter: Named) {
        self.by_name.insert(name, adapter);
    }

    /// Takes the name away; the adapter is retired until [`Self::is_gone`] finds that nothing has it.
    pub(crate) fn remove(&mut self, name: &str) -> Option<AdapterId> {
        let Named { id, .. } = self.by_name.remove(name)?;
        self.retired.insert(id);
        Some(id)
    }

    /// True, once, for a retired adapter that no request has any more.
    pub(crate) fn is_gone(&mut self, id: AdapterId, has_requests: bool) -> bool {
        !has_requests && self.retired.remove(&id)
    }
}
