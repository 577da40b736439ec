//! What is in a file, in memory or mapped. The only mapping there is.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

use memmap2::{Mmap, UncheckedAdvice};

use crate::error::LoadError;
use crate::files::{open_regular, refuse_pointer};

/// What is in a file.
#[derive(Debug)]
pub enum Content {
    /// In memory.
    Bytes(Cow<'static, [u8]>),
    /// On a disk, read as it is asked for.
    Mapped(Mmap),
}

impl Content {
    /// The regular file at `path`; `None` where there is none.
    pub fn map(path: &Path) -> Result<Option<Self>, LoadError> {
        let fail = |error: std::io::Error| LoadError::of(path.display(), error);
        let Some((file, _)) = open_regular(path)? else { return Ok(None) };
        // SAFETY: the map is only read, and bounds come from its own length. A file that another program cuts while it is
        // mapped ends this process with SIGBUS, as it does with every program that maps weights.
        let map = unsafe { Mmap::map(&file) }.map_err(fail)?;
        refuse_pointer(path, &map)?;
        Ok(Some(Self::Mapped(map)))
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Mapped(map) => map,
        }
    }

    /// Says that the bytes of `range` have been read for good: they need not stay in memory.
    pub fn release(&self, range: &Range<usize>) {
        let Self::Mapped(map) = self else { return };
        // SAFETY: the map is shared and only read: what is read of it later comes from the file again.
        let result = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
        if let Err(error) = result {
            tracing::debug!(%error, "a file's pages stay in memory");
        }
    }
}
