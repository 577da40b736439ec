//! A GGUF file, as llama.cpp's converter writes it, as the files of a checkpoint folder.
//!
//! In: one file. Out: `config.json`, `vocab.json`, `merges.txt` and `tokenizer_config.json` made of its metadata, and the
//! place of each tensor under the name it has in the authors' checkpoints; so nothing behind this module knows where a
//! model came from. Reference: llama.cpp's gguf-py, conversion and src/llama-arch.cpp.
//!
//! Never here: what the bytes of a tensor are.

mod architectures;
mod header;
mod vocabulary;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::content::Content;
use crate::error::LoadError;
use architectures::Architecture;
use header::{Header, List, Value};

/// Files by name.
type Files = BTreeMap<&'static str, Vec<u8>>;

/// An open file.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    content: Content,
    files: Files,
    tensors: Vec<Tensor>,
}

/// Where a tensor is.
#[derive(Debug)]
pub struct Tensor {
    /// Its name in the authors' checkpoints.
    pub name: String,
    /// Its name in the file.
    pub written: String,
    /// Slowest dimension first.
    pub shape: Vec<usize>,
    /// ggml's number for what its bytes are.
    pub type_id: u32,
    /// Where its bytes begin.
    pub start: usize,
    /// Heads of whose rows those that turn together stand side by side, where the authors have them half a head apart.
    pub paired_heads: Option<usize>,
}

impl Gguf {
    /// Opens the file at `path`.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let content = Content::map(path)?.ok_or_else(|| LoadError::of(path.display(), "no such file"))?;
        let (files, tensors) = Self::read(content.bytes()).map_err(|what| LoadError::of(path.display(), what))?;
        Ok(Self { path: path.to_owned(), content, files, tensors })
    }

    fn read(bytes: &[u8]) -> Result<(Files, Vec<Tensor>), String> {
        let header = Header::read(bytes)?;
        let metadata = Metadata(&header);
        if let Some(n) = metadata.size("split.count")?.filter(|n| *n > 1) {
            return Err(format!(
                "is one of {n} parts (split.count); llama.cpp's gguf-split --merge makes one file of them"
            ));
        }
        let architecture = Architecture::of(&metadata)?;
        let config = architecture.config(&metadata)?;
        let tensors = architecture.tensors(&metadata, &config)?;
        let vocabulary = vocabulary::files(&metadata)?;
        let mut files = Files::from([("config.json", config.to_string().into_bytes())]);
        files.extend(vocabulary);
        Ok((files, tensors))
    }

    /// What to call the model: the file's name without its ending.
    pub fn name(&self) -> String {
        self.path.file_stem().map_or_else(|| self.place(), |stem| stem.to_string_lossy().into_owned())
    }

    /// Where it is, for messages.
    pub fn place(&self) -> String {
        self.path.display().to_string()
    }

    /// All of its bytes.
    pub fn content(&self) -> &Content {
        &self.content
    }

    /// Names of the files it stands for, its weights' aside.
    pub fn files(&self) -> impl Iterator<Item = &'static str> {
        self.files.keys().copied()
    }

    /// One of these.
    pub fn file(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(Vec::as_slice)
    }

    /// Its tensors.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }
}

/// The metadata by key, each as what it must be.
struct Metadata<'a>(&'a Header<'a>);

impl<'a> Metadata<'a> {
    fn get(&self, key: &str) -> Option<Value<'a>> {
        self.0.metadata.get(key).copied()
    }

    /// The text at `key`.
    fn text(&self, key: &str) -> Result<Option<&'a str>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(format!("{key} is not text")),
        }
    }

    /// The text at `key`, which must be there.
    fn required_text(&self, key: &str) -> Result<&'a str, String> {
        self.text(key)?.ok_or_else(|| format!("has no {key}"))
    }

    /// The size, count or token at `key`.
    fn size(&self, key: &str) -> Result<Option<u32>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value {
            Value::Whole(whole) => {
                u32::try_from(whole).map(Some).map_err(|_| format!("{key} is {whole}, which is out of range"))
            }
            _ => Err(format!("{key} is not a whole number")),
        }
    }

    /// The number or flag at `key` as JSON.
    fn scalar(&self, key: &str) -> Result<Option<Json>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Whole(_)) => Ok(self.size(key)?.map(Json::from)),
            Some(Value::Number(number)) => Ok(Some(number.into())),
            Some(Value::Flag(flag)) => Ok(Some(flag.into())),
            Some(Value::Text(_) | Value::List(_)) => Err(format!("{key} is not a number")),
        }
    }

    /// The list at `key`, which must be there.
    fn list(&self, key: &str) -> Result<List<'a>, String> {
        match self.get(key) {
            Some(Value::List(list)) => Ok(list),
            Some(_) => Err(format!("{key} is not a list")),
            None => Err(format!("has no {key}")),
        }
    }

    /// The texts at `key`, which must be there.
    fn texts(&self, key: &str) -> Result<Vec<&'a str>, String> {
        let texts = self.list(key)?.values().map(|value| match value {
            Ok(Value::Text(text)) => Ok(text),
            Ok(_) => Err("not a text".to_owned()),
            Err(what) => Err(what),
        });
        texts.collect::<Result<_, _>>().map_err(|what| format!("{key}: {what}"))
    }
}
