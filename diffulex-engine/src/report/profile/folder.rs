//! The folder below which profiles are written: its files are opened relative to a handle of it, through no link, and are bounded
//! in number and size.
//!
//! Never here: what files hold.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Files and folders below the folder at most. Chosen by us: over a hundred runs; who starts and stops profiles in a loop must not
/// use up a disk's inodes.
pub const MAX_ENTRIES: usize = 1000;

/// Bytes of all files below the folder at most. Chosen by us: two full runs.
pub const MAX_FOLDER_BYTES: u64 = 4 << 30;

/// Folders are of this user alone, and so are files.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// The folder of profiles.
#[derive(Debug)]
pub(super) struct ProfileFolder {
    root: PathBuf,
    handle: OwnedFd,
}

impl ProfileFolder {
    /// The folder at `root`, made where it is missing. `root` itself may be a link: it is the operator's.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(root)?;
        let handle = rustix::fs::open(root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        Ok(Self { root: root.to_owned(), handle: handle.map_err(|error| named(root, error.into()))? })
    }

    /// Bytes that may be written below it, in files that do not exist yet. An error where it is full.
    pub(super) fn room(&self) -> io::Result<u64> {
        let (mut n_entries, mut n_bytes) = (0, 0);
        let mut open = vec![self.handle.try_clone()?];
        while let Some(folder) = open.pop() {
            for entry in Dir::read_from(&folder)? {
                let entry = entry?;
                let name = entry.file_name();
                if matches!(name.to_bytes(), b"." | b"..") {
                    continue;
                }
                n_entries += 1;
                if n_entries >= MAX_ENTRIES {
                    return Err(self.full(format!("{MAX_ENTRIES} files and folders")));
                }
                let status = match rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(Errno::NOENT) => continue,
                    status => status?,
                };
                match FileType::from_raw_mode(status.st_mode) {
                    FileType::Directory => open.extend(folder_in(folder.as_fd(), name).ok()),
                    _ => n_bytes += u64::try_from(status.st_size).unwrap_or_default(),
                }
            }
        }
        match MAX_FOLDER_BYTES.checked_sub(n_bytes) {
            Some(room) if room > 0 => Ok(room),
            _ => Err(self.full(format!("{MAX_FOLDER_BYTES} bytes"))),
        }
    }

    fn full(&self, limit: String) -> io::Error {
        io::Error::other(format!("{} holds {limit}, the most for profiles; remove old ones", self.root.display()))
    }

    /// Opens the file at `path`, which is below the folder, to append to it; with `is_new`, one that does not exist. Folders on its
    /// way are made. Nothing is followed: neither a link nor a change of the folders meanwhile leads elsewhere.
    pub(super) fn append_to(&self, path: &Path, is_new: bool) -> io::Result<File> {
        self.open_file(path, is_new).map_err(|error| named(path, error))
    }

    fn open_file(&self, path: &Path, is_new: bool) -> io::Result<File> {
        let outside = || io::Error::other("the path is not below the folder for profiles");
        let relative = path.strip_prefix(&self.root).map_err(|_| outside())?;
        let mut names = Vec::new();
        for component in relative.components() {
            let Component::Normal(name) = component else { return Err(outside()) };
            names.push(name);
        }
        let Some((file, folders)) = names.split_last() else { return Err(outside()) };
        let mut folder = self.handle.try_clone()?;
        for name in folders {
            match rustix::fs::mkdirat(&folder, *name, Mode::from_raw_mode(FOLDER_MODE)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            folder = folder_in(folder.as_fd(), *name)?;
        }
        // A pipe without a reader is an error, and no wait.
        let how =
            OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let how = if is_new { how | OFlags::EXCL } else { how };
        let file = match rustix::fs::openat(&folder, *file, how, Mode::from_raw_mode(FILE_MODE)) {
            Err(Errno::LOOP) => return Err(is_link()),
            file => File::from(file?),
        };
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
    }
}

/// The folder `name` in `folder`, which is not a link.
fn folder_in(folder: BorrowedFd<'_>, name: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    match rustix::fs::openat(folder, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::LOOP | Errno::NOTDIR) => Err(is_link()),
        opened => Ok(opened?),
    }
}

fn is_link() -> io::Error {
    io::Error::other("there is a link or a file on its way; links below the folder for profiles are not followed")
}

/// The error about a path; its kind is kept.
fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
