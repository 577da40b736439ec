//! Where a model's files are: a folder, a GGUF file, or bytes inside the binary.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::content::Content;
use crate::error::LoadError;
use crate::gguf::Gguf;

/// The files of one model.
#[derive(Clone, Debug)]
pub enum ModelFiles {
    /// A checkpoint folder as people have it.
    Folder(PathBuf),
    /// One file that holds all of a model.
    Gguf(Arc<Gguf>),
    /// Name and content of each file, compiled in.
    Embedded {
        /// What to call the model.
        name: &'static str,
        /// `(file name, content)`.
        files: &'static [(&'static str, &'static [u8])],
    },
}

impl ModelFiles {
    /// A checkpoint folder or a GGUF file; an error when there is neither at `path`.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, LoadError> {
        let path = path.into();
        if path.is_dir() {
            return Self::folder(path);
        }
        if !path.exists() {
            return Err(LoadError::of(
                path.display(),
                "is not there; --model takes a checkpoint folder or a GGUF file",
            ));
        }
        Ok(Self::Gguf(Arc::new(Gguf::open(&path)?)))
    }

    /// A checkpoint folder; an error when there is none at `path`.
    pub fn folder(path: impl Into<PathBuf>) -> Result<Self, LoadError> {
        let path = path.into();
        if !path.is_dir() {
            return Err(LoadError::of(path.display(), "is not a folder"));
        }
        Ok(Self::Folder(path))
    }

    /// What to call the model when nobody says: the folder's or the file's name.
    pub fn name(&self) -> String {
        match self {
            Self::Folder(path) => {
                let path = path.canonicalize().unwrap_or_else(|_| path.clone());
                path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
            }
            Self::Gguf(gguf) => gguf.name(),
            Self::Embedded { name, .. } => (*name).to_owned(),
        }
    }

    /// Where the files are, for messages.
    pub fn place(&self) -> String {
        match self {
            Self::Folder(path) => path.display().to_string(),
            Self::Gguf(gguf) => gguf.place(),
            Self::Embedded { name, .. } => format!("{name} (built in)"),
        }
    }

    /// The path of `file`, where files have one and this one exists.
    pub fn path(&self, file: &str) -> Option<PathBuf> {
        match self {
            Self::Folder(folder) => Some(folder.join(file)).filter(|path| path.is_file()),
            Self::Gguf(_) | Self::Embedded { .. } => None,
        }
    }

    /// The content of `file`, `None` when there is no such file.
    pub fn read(&self, file: &str) -> Result<Option<Cow<'static, [u8]>>, LoadError> {
        match self {
            Self::Folder(folder) => read_if_present(&folder.join(file)),
            Self::Gguf(gguf) => Ok(gguf.file(file).map(|content| Cow::Owned(content.to_vec()))),
            Self::Embedded { files, .. } => {
                Ok(files.iter().find(|(name, _)| *name == file).map(|(_, content)| Cow::Borrowed(*content)))
            }
        }
    }

    /// Names of the files that end in one of `endings`, in order.
    pub fn names(&self, endings: &[&str]) -> Result<Vec<String>, LoadError> {
        let mut names = match self {
            Self::Folder(folder) => {
                let fail = |error| LoadError::of(folder.display(), error);
                let entries: Result<Vec<_>, _> = std::fs::read_dir(folder).map_err(fail)?.collect();
                let names = entries.map_err(fail)?.into_iter();
                names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
            }
            Self::Gguf(gguf) => gguf.files().map(str::to_owned).collect(),
            Self::Embedded { files, .. } => files.iter().map(|(name, _)| (*name).to_owned()).collect(),
        };
        names.retain(|name| endings.iter().any(|ending| name.ends_with(ending)));
        names.sort();
        Ok(names)
    }

    /// The content of `file`, which the model cannot do without.
    pub fn require(&self, file: &str) -> Result<Cow<'static, [u8]>, LoadError> {
        self.read(file)?.ok_or_else(|| LoadError::of(self.place(), format!("has no {file}")))
    }

    /// The content of `file`, which the model cannot do without, without a copy where the file is on a disk.
    pub fn map(&self, file: &str) -> Result<Content, LoadError> {
        match self.path(file) {
            Some(path) => Content::map(&path),
            None => self.require(file).map(Content::Bytes),
        }
    }

    /// `file` as JSON, `None` when there is no such file.
    pub fn read_json(&self, file: &str) -> Result<Option<serde_json::Value>, LoadError> {
        self.read(file)?
            .map(|bytes| {
                serde_json::from_slice(&bytes)
                    .map_err(|error| LoadError::of(self.place(), format!("{file} is not JSON: {error}")))
            })
            .transpose()
    }
}

fn read_if_present(path: &Path) -> Result<Option<Cow<'static, [u8]>>, LoadError> {
    match std::fs::read(path) {
        Ok(content) => Ok(Some(Cow::Owned(content))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(LoadError::of(path.display(), error)),
    }
}
