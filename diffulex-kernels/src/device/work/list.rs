//! A list of launches and transfers, in order, which operations append to and change while it waits.
//!
//! Two lists are the same if kernels, grids, arguments and places of copies are; the contents of index lists are not part of them, as
//! they travel through staging memory.

use crate::device::driver::{Extent, MAX_ARGS};
use crate::device::memory::staging::Place;
use crate::device::work::arg::Arg;

/// An entry of a list. Transfers have at least one byte.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Entry {
    Launch { kernel: &'static str, extent: Extent, first_arg: usize, n_args: usize },
    Upload { to: u64, from: Place },
    Download { from: u64, to: Place },
    Copy { from: u64, to: u64, n_bytes: usize },
    Clear { at: u64, n_bytes: usize },
}

/// A list of work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct List {
    entries: Vec<Entry>,
    /// Arguments of all launches, one after the other.
    args: Vec<u64>,
}

impl List {
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Arguments of a launch, by the fields of its entry.
    pub(crate) fn args(&self, first: usize, n: usize) -> &[u64] {
        &self.args[first..first + n]
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Appends a launch; returns its index.
    pub(crate) fn launch(&mut self, kernel: &'static str, extent: Extent, args: &[Arg]) -> usize {
        assert!(args.len() <= MAX_ARGS, "{kernel} has {} arguments", args.len());
        let first_arg = self.args.len();
        self.args.extend(args.iter().map(|arg| arg.bits()));
        self.entries.push(Entry::Launch { kernel, extent, first_arg, n_args: args.len() });
        self.entries.len() - 1
    }

    /// Changes arguments of a launch, from the `first` on; false if there is none at `index`.
    pub(crate) fn amend(&mut self, index: usize, first: usize, args: &[Arg]) -> bool {
        let Some(Entry::Launch { first_arg, n_args, .. }) = self.entries.get(index) else {
            return false;
        };
        assert!(first + args.len() <= *n_args, "{} arguments from {first} of {n_args}", args.len());
        for (place, arg) in self.args[first_arg + first..].iter_mut().zip(args) {
            *place = arg.bits();
        }
        true
    }

    /// Takes the launches at these indices back, if they are the last entries, in this order.
    pub(crate) fn take_back<const N: usize>(&mut self, indices: [usize; N]) -> bool {
        let Some(first) = self.entries.len().checked_sub(N) else { return false };
        if !indices.into_iter().eq(first..first + N) {
            return false;
        }
        for entry in self.entries.drain(first..).rev() {
            if let Entry::Launch { first_arg, .. } = entry {
                self.args.truncate(first_arg);
            }
        }
        true
    }
}
