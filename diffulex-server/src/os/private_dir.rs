//! The folder of a server's sockets, which only its user can enter.
//!
//! It has a lock file, held for as long as the server lives: a lock that can be taken is a dead server's, whose folder
//! [`PrivateDir::new`] sweeps away. A folder that was deleted is made again when it is asked for. Never here: sockets.

use std::fs::{File, Metadata, Permissions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use tempfile::TempDir;

use crate::os::locks::lock;

const PREFIX: &str = "diffulex-";

const LOCK_FILE: &str = ".diffulex-server.lock";

/// A private folder that cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a private folder under TMPDIR: {0}")]
pub struct PrivateDirError(#[from] std::io::Error);

/// A private folder; its drop removes it, unless a copy of the process is killed before.
#[derive(Debug)]
pub struct PrivateDir {
    held: Mutex<Option<Held>>,
}

/// The lock is the last to go.
#[derive(Debug)]
struct Held {
    folder: TempDir,
    lock: File,
}

impl PrivateDir {
    /// A new folder under the system's temporary one; those of dead servers there are removed.
    pub fn new() -> Result<Self, PrivateDirError> {
        sweep(&std::env::temp_dir());
        let held = Held::new()?;
        Ok(Self { held: Mutex::new(Some(held)) })
    }

    /// The folder; a new one where it has been deleted.
    pub fn path(&self) -> Result<PathBuf, PrivateDirError> {
        let mut held = lock(&self.held);
        if let Some(held) = held.as_ref()
            && held.is_whole()
        {
            return Ok(held.folder.path().to_owned());
        }
        let new = Held::new()?;
        let path = new.folder.path().to_owned();
        if let Some(old) = held.replace(new) {
            tracing::warn!(
                "the private folder {} is gone; the new one is {}",
                old.folder.path().display(),
                path.display()
            );
        }
        Ok(path)
    }

    /// Removes the folder.
    pub fn close(&self) {
        let held = lock(&self.held).take();
        let Some(Held { folder, lock }) = held else { return };
        let path = folder.path().to_owned();
        match folder.close() {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(%error, "the private folder {} could not be removed", path.display());
            }
            Ok(()) | Err(_) => {}
        }
        drop(lock);
    }
}

impl Held {
    fn new() -> Result<Self, PrivateDirError> {
        let folder = tempfile::Builder::new().prefix(PREFIX).permissions(Permissions::from_mode(0o700)).tempdir()?;
        // It gets its name only when it is locked, so that another server does not remove it as a dead one.
        let unlocked = folder.path().join(".diffulex-server.lock.new");
        let lock = File::create_new(&unlocked)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(std::io::Error::from)?;
        std::fs::rename(&unlocked, folder.path().join(LOCK_FILE))?;
        Ok(Self { folder, lock })
    }

    /// Whether it is still the folder that was made.
    fn is_whole(&self) -> bool {
        let inode = |metadata: Metadata| (metadata.dev(), metadata.ino());
        let there = std::fs::symlink_metadata(self.folder.path().join(LOCK_FILE)).map(inode);
        let held = self.lock.metadata().map(inode);
        matches!((there, held), (Ok(there), Ok(held)) if there == held)
    }
}

/// Removes the folders of servers that were killed. Folders that cannot be read or removed stay.
fn sweep(place: &Path) {
    let Ok(entries) = std::fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(PREFIX) && is_dead(&entry.path()) {
            match remove(&entry.path()) {
                Ok(()) => tracing::debug!("the folder {} of a dead server was removed", entry.path().display()),
                Err(error) => tracing::debug!(%error, "the folder {} could not be removed", entry.path().display()),
            }
        }
    }
}

/// Removes what a server puts into its folder, and the folder if that was all.
fn remove(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_socket() {
            std::fs::remove_file(entry.path())?;
        }
    }
    std::fs::remove_file(folder.join(LOCK_FILE))?;
    std::fs::remove_dir(folder)
}

/// Whether a folder is one of ours, of this user, and its server is dead: its lock is free.
fn is_dead(folder: &Path) -> bool {
    let Ok(metadata) = std::fs::symlink_metadata(folder) else { return false };
    if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o077 != 0 {
        return false;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(lock) = rustix::fs::open(folder.join(LOCK_FILE), flags, Mode::empty()) else { return false };
    flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_dead_servers_folder_is_swept() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = |name: &str| {
            let path = place.path().join(name);
            std::fs::create_dir(&path).expect("made");
            std::fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("set");
            path
        };
        let (dead, living, making, foreign) =
            (folder("diffulex-dead"), folder("diffulex-living"), folder("diffulex-making"), folder("other"));
        std::os::unix::net::UnixListener::bind(dead.join("a.ipc")).expect("bound");
        for path in [&dead, &foreign] {
            File::create_new(path.join(LOCK_FILE)).expect("made");
        }
        let lock = File::create_new(living.join(LOCK_FILE)).expect("made");
        flock(&lock, FlockOperation::NonBlockingLockExclusive).expect("locked");
        let link = place.path().join("diffulex-link");
        std::os::unix::fs::symlink(&foreign, &link).expect("linked");
        sweep(place.path());
        assert!(!dead.exists());
        for path in [living, making, foreign.join(LOCK_FILE), link] {
            assert!(path.exists(), "{}", path.display());
        }
    }
}
