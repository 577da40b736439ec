//! The tensors of a checkpoint: one safetensors file, or several with an index.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use memmap2::{Mmap, UncheckedAdvice};
use safetensors::{Dtype, SafeTensors};

use crate::error::LoadError;
use crate::files::ModelFiles;
use crate::kernels::{WeightData, WeightType};

/// Names listed in an error before it says how many more there are.
const NAMES_SHOWN: usize = 8;

/// The weights of a low-rank adapter, which may stand beside a model's.
pub(super) const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// An open checkpoint. Remembers which tensors were asked for, so that surplus ones can be refused.
pub struct Checkpoint {
    place: String,
    shards: Vec<Shard>,
    /// What each shard is called.
    names: Vec<String>,
    tensors: BTreeMap<String, Entry>,
    used: BTreeSet<String>,
}

enum Shard {
    Bytes(Cow<'static, [u8]>),
    Mapped(Mmap),
}

impl Shard {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Mapped(map) => map,
        }
    }
}

struct Entry {
    shard: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    range: std::ops::Range<usize>,
}

impl Checkpoint {
    /// Opens the shards that `model.safetensors.index.json` names, or `model.safetensors`, or else every safetensors file
    /// there is.
    pub fn open(files: &ModelFiles) -> Result<Self, LoadError> {
        let mut checkpoint = Self::empty(files);
        for name in shards(files)? {
            checkpoint.add_shard(files, &name)?;
        }
        Ok(checkpoint)
    }

    /// Opens one file.
    pub fn open_file(files: &ModelFiles, name: &str) -> Result<Self, LoadError> {
        let mut checkpoint = Self::empty(files);
        checkpoint.add_shard(files, name)?;
        Ok(checkpoint)
    }

    fn empty(files: &ModelFiles) -> Self {
        Self {
            place: files.place(),
            shards: Vec::new(),
            names: Vec::new(),
            tensors: BTreeMap::new(),
            used: BTreeSet::new(),
        }
    }

    fn add_shard(&mut self, files: &ModelFiles, name: &str) -> Result<(), LoadError> {
        let fail = |error: &dyn std::fmt::Display| LoadError::of(files.place(), format!("{name}: {error}"));
        let shard = match files.path(name) {
            Some(path) => {
                let file = std::fs::File::open(&path).map_err(|error| fail(&error))?;
                // SAFETY: the map is only read, and bounds come from its own length. A file that another program cuts
                // while it is mapped ends this process with SIGBUS, as it does with every program that maps weights.
                Shard::Mapped(unsafe { Mmap::map(&file) }.map_err(|error| fail(&error))?)
            }
            None => Shard::Bytes(files.require(name)?),
        };
        let bytes = shard.bytes();
        let header = SafeTensors::deserialize(bytes).map_err(|error| fail(&error))?;
        let base = bytes.as_ptr() as usize;
        for (tensor, view) in header.tensors() {
            let start = view.data().as_ptr() as usize - base;
            let entry = Entry {
                shard: self.shards.len(),
                dtype: view.dtype(),
                shape: view.shape().to_vec(),
                range: start..start + view.data().len(),
            };
            if let Some(other) = self.tensors.insert(tensor.clone(), entry) {
                let other = &self.names[other.shard];
                return Err(LoadError::of(&self.place, format!("{tensor} is in {other} and in {name}")));
            }
        }
        self.shards.push(shard);
        self.names.push(name.to_owned());
        Ok(())
    }

    /// True if the checkpoint has a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Values of all tensors.
    pub fn n_values(&self) -> u64 {
        self.tensors.values().map(|entry| entry.shape.iter().product::<usize>() as u64).sum()
    }

    /// How most of the weights are stored.
    pub fn weight_type(&self) -> WeightType {
        let bytes_of = |dtype: Dtype| -> usize {
            self.tensors.values().filter(|entry| entry.dtype == dtype).map(|entry| entry.range.len()).sum()
        };
        if bytes_of(Dtype::BF16) > bytes_of(Dtype::F32) + bytes_of(Dtype::F16) {
            WeightType::Bf16
        } else {
            WeightType::F32
        }
    }

    /// The tensor `name`, which must have `shape`.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<WeightData<'_>, LoadError> {
        let entry = self
            .tensors
            .get(name)
            .ok_or_else(|| LoadError::of(&self.place, format!("the checkpoint has no tensor {name}")))?;
        if entry.shape != shape {
            let found = &entry.shape;
            return Err(LoadError::of(&self.place, format!("{name} has shape {found:?}, expected {shape:?}")));
        }
        self.used.insert(name.to_owned());
        let bytes = &self.shards[entry.shard].bytes()[entry.range.clone()];
        match entry.dtype {
            Dtype::F32 => Ok(WeightData::F32(bytes)),
            Dtype::BF16 => Ok(WeightData::Bf16(bytes)),
            Dtype::F16 => Ok(WeightData::F16(bytes)),
            other => Err(LoadError::of(&self.place, format!("{name} is {other:?}; expected F32, BF16 or F16"))),
        }
    }

    /// Whether two tensors are the same, bit for bit.
    pub fn are_equal(&self, [one, other]: [&str; 2]) -> bool {
        let content = |name: &str| {
            let entry = self.tensors.get(name)?;
            Some((entry.dtype, &entry.shape, &self.shards[entry.shard].bytes()[entry.range.clone()]))
        };
        content(one) == content(other)
    }

    /// Says that the tensor `name` has been read for good: its part of the file need not stay in memory.
    pub fn release(&self, name: &str) {
        let Some(entry) = self.tensors.get(name) else { return };
        let Shard::Mapped(map) = &self.shards[entry.shard] else { return };
        // SAFETY: the map is shared and only read: what is read of it later comes from the file again.
        let result =
            unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, entry.range.start, entry.range.len()) };
        if let Err(error) = result {
            tracing::debug!(%error, name, "the file's pages stay in memory");
        }
    }

    /// Marks a tensor as known although nobody reads it, such as the copy of a tied head.
    pub fn ignore(&mut self, name: &str) {
        self.used.insert(name.to_owned());
    }

    /// Marks every tensor whose name begins with `prefix`, such as the parts of a network that read images.
    pub fn ignore_all(&mut self, prefix: &str) {
        self.used.extend(self.tensors.keys().filter(|name| name.starts_with(prefix)).cloned());
    }

    /// An error that names the tensors nobody asked for. Rotary frequencies, which some checkpoints carry along and
    /// every network computes itself, are let pass.
    pub fn refuse_surplus(&self) -> Result<(), LoadError> {
        let is_surplus = |name: &&str| !self.used.contains(*name) && !name.ends_with("rotary_emb.inv_freq");
        let surplus: Vec<&str> = self.tensors.keys().map(String::as_str).filter(is_surplus).collect();
        if surplus.is_empty() {
            return Ok(());
        }
        let shown = surplus.iter().take(NAMES_SHOWN).copied().collect::<Vec<_>>().join(", ");
        let more = surplus.len().saturating_sub(NAMES_SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Err(LoadError::of(&self.place, format!("the network has no use for these tensors: {shown}{more}")))
    }
}

/// The files that hold the weights.
fn shards(files: &ModelFiles) -> Result<Vec<String>, LoadError> {
    const INDEX: &str = "model.safetensors.index.json";
    const ONE: &str = "model.safetensors";
    let here = |what: String| LoadError::of(files.place(), what);
    if let Some(index) = files.read_json(INDEX)? {
        let map = index.get("weight_map").and_then(|map| map.as_object()).filter(|map| !map.is_empty());
        let map = map.ok_or_else(|| here(format!("{INDEX} has no weight_map, or an empty one")))?;
        let mut shards = BTreeSet::new();
        for (tensor, shard) in map {
            match shard.as_str() {
                // A shard is a file of this folder: a path would let a checkpoint read others.
                Some(name) if !name.contains(['/', '\\']) => shards.insert(name.to_owned()),
                _ => return Err(here(format!("weight_map of {INDEX} has {tensor} in {shard}, which is no file name"))),
            };
        }
        return Ok(shards.into_iter().collect());
    }
    let mut names = files.names(&[".safetensors"])?;
    if names.iter().any(|name| name == ONE) {
        return Ok(vec![ONE.to_owned()]);
    }
    names.retain(|name| name != ADAPTER_WEIGHTS);
    if names.is_empty() {
        let others = files.names(&[".bin", ".pt", ".pth", ".gguf", ".ckpt", ".msgpack", ".h5"])?;
        let found = if others.is_empty() { String::new() } else { format!("; it has {}", others.join(", ")) };
        return Err(here(format!("has neither {ONE} nor {INDEX}{found}")));
    }
    Ok(names)
}
