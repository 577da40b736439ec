//! Unix sockets at paths that others name: made, and removed again.
//!
//! A file that a dead server left is replaced, one that a program listens at is not. Never here: connections.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, chmod, fchmod, flock, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

use crate::os::platform::{SOCKET_PATH_BYTES, is_listened_at};

/// Connections that wait to be accepted. As tokio's for TCP.
const BACKLOG: i32 = 1024;

/// Who may connect: the server's user and the group of the file, which is the folder's where that has the set-group-ID bit.
const MODE: Mode = Mode::from_raw_mode(0o660);

/// A socket that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The path is longer than the system takes.
    #[error("the path has {n_bytes} bytes, a socket's has at most {SOCKET_PATH_BYTES}")]
    TooLong {
        /// Its length.
        n_bytes: usize,
    },
    /// There is a file that is not a socket.
    #[error("there is a file that is not a socket; it is left alone")]
    NotASocket,
    /// Another program listens there.
    #[error("another program listens there")]
    Taken,
    /// Another program has the folder's lock.
    #[error("another program has locked the folder; it may be a server that is starting there")]
    Locked,
    /// The system refuses.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<Errno> for SocketError {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// The file of a socket, removed on drop unless another one has taken its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    /// A socket that listens at `path`, and its file.
    pub fn listen(path: &Path) -> Result<(UnixListener, Self), SocketError> {
        let n_bytes = path.as_os_str().as_bytes().len();
        if n_bytes > SOCKET_PATH_BYTES {
            return Err(SocketError::TooLong { n_bytes });
        }
        // Of two servers that start at once, neither takes the other's new file for a dead one's.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        flock(&folder, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            Errno::WOULDBLOCK => SocketError::Locked,
            error => error.into(),
        })?;
        remove_dead(path)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // The file is made with the socket's mode, less the umask: never wider than it is meant.
        fchmod(&socket, MODE)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        let metadata = std::fs::symlink_metadata(path)?;
        let file = Self { path: path.to_owned(), identity: (metadata.dev(), metadata.ino()) };
        chmod(path, MODE)?;
        listen(&socket, BACKLOG)?;
        Ok((UnixListener::from(socket), file))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = |file: std::fs::Metadata| (file.dev(), file.ino()) == self.identity;
        if !std::fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, "the socket {} could not be removed", self.path.display());
        }
    }
}

/// Removes the socket that a dead program left at `path`.
fn remove_dead(path: &Path) -> Result<(), SocketError> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
        Ok(file) if !file.file_type().is_socket() => Err(SocketError::NotASocket),
        Ok(_) if is_listened_at(path) => Err(SocketError::Taken),
        Ok(_) => Ok(std::fs::remove_file(path)?),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_dead_socket_is_replaced_and_a_living_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let (listener, file) = SocketFile::listen(&path).expect("listens");
        assert_eq!(std::fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o660);
        UnixStream::connect(&path).expect("connects");
        assert!(matches!(SocketFile::listen(&path), Err(SocketError::Taken)));
        UnixStream::connect(&path).expect("still connects");
        // As after SIGKILL.
        std::mem::forget(file);
        drop(listener);
        assert!(UnixStream::connect(&path).is_err());
        let (listener, file) = SocketFile::listen(&path).expect("replaces it");
        drop((listener, file));
        assert!(!path.exists());
    }

    #[test]
    fn only_the_own_file_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let (_listener, file) = SocketFile::listen(&path).expect("listens");
        std::fs::rename(&path, folder.path().join("t")).expect("moved");
        std::fs::write(&path, "kept").expect("written");
        drop(file);
        assert_eq!(std::fs::read_to_string(&path).expect("a file"), "kept");
        assert!(matches!(SocketFile::listen(&path), Err(SocketError::NotASocket)));
    }

    #[test]
    fn a_path_that_is_too_long_is_named_with_the_limit() {
        let error = SocketFile::listen(Path::new(&"x".repeat(108))).expect_err("too long").to_string();
        assert!(error.contains("108 bytes") && error.contains("at most 107"), "{error}");
    }
}
