//! The address of a socket: how it is written, and who else reaches it.
//!
//! In: text from the command line. Out: an [`Address`] that works as it is written, or what is accepted instead. Never
//! here: sockets of ZMQ.

use std::fmt;
use std::fs::Metadata;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::os::platform::{SOCKET_PATH_BYTES, is_listened_at};

/// Why there can be no socket at an address.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// It is written in none of the accepted forms.
    #[error("expected ipc:///FOLDER/NAME, or tcp:// on 127.0.0.1, [::1] or localhost with a port of 1 to 65535")]
    Form,
    /// The path is longer than a socket's may be.
    #[error("the socket's path has {n_bytes} bytes, at most {SOCKET_PATH_BYTES} fit")]
    TooLong {
        /// Its length.
        n_bytes: usize,
    },
    /// The path's folder is something else.
    #[error("{} is not a folder", .0.display())]
    NotAFolder(PathBuf),
    /// At the path is something else, which a socket would replace.
    #[error("{} is there and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// Another program listens there.
    #[error("another program listens at {}", .0.display())]
    InUse(PathBuf),
    /// The system refuses.
    #[error("{}: {error}", .path.display())]
    Io {
        /// The folder or the socket.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

/// Where a socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A file.
    Ipc(PathBuf),
    /// On loopback.
    Tcp(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ipc(path) => write!(f, "ipc://{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

impl Address {
    /// The address that `text` names.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("ipc://") {
            // ZMQ reads a star and an at sign at the beginning as something else than a file.
            if path.is_empty() || path.starts_with(['*', '@']) || path.chars().any(char::is_control) {
                return Err(AddressError::Form);
            }
            if path.len() > SOCKET_PATH_BYTES {
                return Err(AddressError::TooLong { n_bytes: path.len() });
            }
            return Ok(Self::Ipc(path.into()));
        }
        let rest = text.strip_prefix("tcp://").ok_or(AddressError::Form)?;
        let address = match rest.strip_prefix("localhost:") {
            // By name, ZMQ would look for a network interface that is called so.
            Some(port) => port.parse().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)).ok(),
            None => rest.parse().ok(),
        };
        address
            .filter(|address: &SocketAddr| address.ip().is_loopback() && address.port() != 0)
            .map(Self::Tcp)
            .ok_or(AddressError::Form)
    }

    /// Refuses a place in which there can be no socket.
    pub fn check_place(&self) -> Result<(), AddressError> {
        let Self::Ipc(path) = self else { return Ok(()) };
        let folder = folder_of(path);
        match std::fs::metadata(folder) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Err(AddressError::NotAFolder(folder.to_owned())),
            Err(error) => return Err(AddressError::Io { path: folder.to_owned(), error }),
        }
        match std::fs::symlink_metadata(path) {
            // It would be deleted for the socket.
            Ok(metadata) if !metadata.file_type().is_socket() => Err(AddressError::NotASocket(path.clone())),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Why users beside this one could use the socket, if they could. The socket itself is this user's alone.
    pub fn shared(&self) -> Option<String> {
        let Self::Ipc(path) = self else { return Some("every user of this machine reaches it".to_owned()) };
        let folder = std::fs::canonicalize(folder_of(path)).ok()?;
        for (above, folder) in folder.ancestors().enumerate() {
            let Ok(metadata) = std::fs::metadata(folder) else { continue };
            if others_rule(&metadata, above > 0) {
                return Some(format!("other users can put a socket of theirs in its place, in {}", folder.display()));
            }
        }
        None
    }

    /// Tries what a worker will do in its process, so that a reason is known here: makes the socket's file and removes
    /// it again. Refuses an address at which somebody listens.
    pub fn try_listen(&self) -> Result<(), AddressError> {
        let Self::Ipc(path) = self else { return Ok(()) };
        self.check_place()?;
        if is_listened_at(path) {
            return Err(AddressError::InUse(path.clone()));
        }
        self.remove();
        let listener = UnixListener::bind(path).map_err(|error| AddressError::Io { path: path.clone(), error })?;
        drop(listener);
        self.remove();
        Ok(())
    }

    /// Removes the socket's file, if there is one.
    pub fn remove(&self) {
        let Self::Ipc(path) = self else { return };
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
        if is_socket && let Err(error) = std::fs::remove_file(path) {
            tracing::debug!(%error, "the socket {} could not be removed", path.display());
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

/// Whether users beside this one and root can change what a folder's names mean. Where only owners rename (the sticky
/// bit, as in `/tmp`), a folder in it is safe, and a socket is not: its name is free while no worker runs.
fn others_rule(metadata: &Metadata, holds_a_folder: bool) -> bool {
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    const STICKY: u32 = 0o1000;

    let is_foreign = metadata.uid() != 0 && metadata.uid() != rustix::process::geteuid().as_raw();
    let is_kept = holds_a_folder && metadata.mode() & STICKY != 0;
    is_foreign || metadata.mode() & WRITABLE_BY_OTHERS != 0 && !is_kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_zmq_will_use_them() {
        for (text, used) in [
            ("ipc:///run/x/a", "ipc:///run/x/a"),
            ("tcp://127.0.0.1:5555", "tcp://127.0.0.1:5555"),
            ("tcp://127.8.0.1:1", "tcp://127.8.0.1:1"),
            ("tcp://localhost:65535", "tcp://127.0.0.1:65535"),
            ("tcp://[::1]:5555", "tcp://[::1]:5555"),
        ] {
            assert_eq!(Address::parse(text).expect("accepted").to_string(), used);
        }
        let long = format!("ipc:///{}", "x".repeat(SOCKET_PATH_BYTES));
        for text in [
            "tcp://127.0.0.1:99999",
            "tcp://127.0.0.1:0",
            "tcp://127.0.0.1",
            "tcp://localhost",
            "tcp://localhost:x",
            "tcp://0.0.0.0:5555",
            "tcp://::1:5555",
            "tcp://*:5555",
            "tcp://eth0:5555",
            "tcp://10.0.0.1:5555",
            "ipc://",
            "ipc://*",
            "ipc://@abstract",
            "ipc:///a\0b",
            "inproc://x",
            "/run/x",
            "",
            &long,
        ] {
            assert!(Address::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_socket_in_use_is_not_taken_and_a_dead_one_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        let address = Address::Ipc(path.clone());
        let listener = UnixListener::bind(&path).expect("bound");
        assert!(address.try_listen().expect_err("in use").to_string().contains("another program"));
        drop(listener);
        address.try_listen().expect("free");
        assert!(!path.exists());
        std::fs::write(&path, "dear").expect("written");
        assert!(address.try_listen().expect_err("a file").to_string().contains("not a socket"));
        address.remove();
        assert!(path.exists());
    }
}
