//! The folder in which a worker listens for front ends that did not start it.
//!
//! In: `ipc:///FOLDER` from the command line. Out: the addresses of the two sockets, and a lock that one front end holds, as
//! ZMQ would deal the events out among several. Never here: sockets, workers.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::address::{Address, AddressError};

/// The file whose lock the attached front end holds.
const LOCK_FILE: &str = "front-end.lock";

/// A folder that cannot be attached at.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// It is not written as it should be.
    #[error("expected ipc:///FOLDER, an absolute path; over TCP, nothing would keep a second front end out")]
    Form,
    /// A socket cannot be in it.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Other users could use its sockets.
    #[error(
        "{reason}, who could then take requests and read prompts; take a folder that only you can write to, or say \
         --allow-shared-zmq"
    )]
    Shared {
        /// How.
        reason: String,
    },
    /// Another front end holds its lock.
    #[error("another front end is attached to {}", .0.display())]
    Taken(PathBuf),
    /// The system refuses.
    #[error("{}: {error}", .path.display())]
    Io {
        /// The folder or the lock's file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

/// A folder with the sockets of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    folder: PathBuf,
    /// Where commands go.
    pub commands: Address,
    /// Where events come from.
    pub events: Address,
}

/// The lock of the one front end at a place, until it is dropped.
#[derive(Debug)]
pub struct PlaceLock {
    _file: File,
}

impl Place {
    /// The place that `url` names.
    pub fn parse(url: &str) -> Result<Self, PlaceError> {
        let folder = url.strip_prefix("ipc://").map(Path::new).filter(|folder| folder.is_absolute());
        let folder = folder.ok_or(PlaceError::Form)?;
        let address = |name: &str| Address::parse(&format!("ipc://{}", folder.join(name).display()));
        Ok(Self { folder: folder.to_owned(), commands: address("commands.ipc")?, events: address("events.ipc")? })
    }

    /// Makes the folder, for this user alone, where there is none. Refuses one that other users rule, unless that is meant.
    pub fn prepare(&self, may_be_shared: bool) -> Result<(), PlaceError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        made.map_err(|error| self.wrong(&self.folder, error))?;
        self.commands.check_place()?;
        match self.commands.shared() {
            Some(reason) if !may_be_shared => Err(PlaceError::Shared { reason }),
            Some(_) | None => Ok(()),
        }
    }

    /// Takes the lock of the front end.
    pub fn lock(&self) -> Result<PlaceLock, PlaceError> {
        let path = self.folder.join(LOCK_FILE);
        let file = File::create(&path).map_err(|error| self.wrong(&path, error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(PlaceLock { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(PlaceError::Taken(self.folder.clone())),
            Err(error) => Err(self.wrong(&path, error.into())),
        }
    }

    fn wrong(&self, path: &Path, error: std::io::Error) -> PlaceError {
        PlaceError::Io { path: path.to_owned(), error }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "ipc://{}", self.folder.display())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn place(folder: &Path) -> Place {
        Place::parse(&format!("ipc://{}", folder.display())).expect("a place")
    }

    #[test]
    fn a_place_is_an_absolute_folder() {
        assert_eq!(Place::parse("ipc:///run/x").expect("a place").commands.to_string(), "ipc:///run/x/commands.ipc");
        for url in ["tcp://127.0.0.1:5555", "ipc://run/x", "/run/x", "", &format!("ipc:///{}", "x".repeat(200))] {
            assert!(Place::parse(url).is_err(), "{url:?}");
        }
    }

    #[test]
    fn one_front_end_at_a_time_holds_a_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = place(&folder.path().join("deep/er"));
        place.prepare(false).expect("made");
        let lock = place.lock().expect("free");
        assert!(place.lock().expect_err("taken").to_string().contains("another front end"));
        drop(lock);
        place.lock().expect("free again");
    }

    #[test]
    fn a_folder_that_others_rule_is_refused_unless_it_is_meant() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = place(folder.path());
        place.prepare(false).expect("ours");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).expect("set");
        assert!(place.prepare(false).expect_err("others").to_string().contains("--allow-shared-zmq"));
        place.prepare(true).expect("meant");
    }
}
