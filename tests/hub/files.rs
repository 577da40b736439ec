//! Repositories and their files, with the hashes that the Hub keeps of them.

use std::path::Path;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};

/// Files from this size on are kept apart from git, as on the Hub; weights always are.
const LARGE: usize = 1_000_000;

/// A file.
#[derive(Clone)]
pub struct Stored {
    pub(crate) path: String,
    pub(crate) content: Vec<u8>,
    pub(crate) git_id: String,
    /// Of a large file.
    pub(crate) sha256: Option<String>,
    /// Its size as the lists of files have it.
    pub listed_bytes: u64,
}

impl Stored {
    /// A file with its content.
    pub fn new(path: impl Into<String>, content: Vec<u8>) -> Self {
        let path = path.into();
        let is_large = content.len() >= LARGE || path.ends_with(".safetensors") || path.ends_with(".gguf");
        let sha256 = is_large.then(|| hex(digest(&SHA256, &content).as_ref()));
        let mut git = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        git.update(format!("blob {}\0", content.len()).as_bytes());
        git.update(&content);
        Self { listed_bytes: content.len() as u64, path, content, git_id: hex(git.finish().as_ref()), sha256 }
    }

    pub(crate) fn etag(&self) -> &str {
        self.sha256.as_ref().unwrap_or(&self.git_id)
    }
}

/// A repository with one commit.
#[derive(Clone)]
pub struct Repository {
    /// `OWNER/NAME`.
    pub name: String,
    /// Its files.
    pub files: Vec<Stored>,
    /// Content needs a token whose owner has accepted the terms.
    pub is_gated: bool,
    /// Nothing is seen without the token.
    pub is_private: bool,
}

impl Repository {
    /// A repository that is open to all.
    pub fn new(name: &str, files: Vec<Stored>) -> Self {
        Self { name: name.to_owned(), files, is_gated: false, is_private: false }
    }

    /// A repository with the files of a folder.
    pub fn of_folder(name: &str, folder: &Path) -> std::io::Result<Self> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_file()
                && let Some(name) = path.file_name()
            {
                files.push(Stored::new(name.to_string_lossy(), std::fs::read(&path)?));
            }
        }
        files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(Self::new(name, files))
    }

    /// The commit: a hash of all files.
    pub fn commit(&self) -> String {
        let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        for file in &self.files {
            hash.update(format!("{} {}\n", file.path, file.git_id).as_bytes());
        }
        hex(hash.finish().as_ref())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
