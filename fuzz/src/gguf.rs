//! GGUF files: refused, or loaded. Their tokenizers' files are the target `tokenizer`'s.

use std::sync::LazyLock;

use diffulex_engine::kernels::cpu::CpuOps;
use diffulex_engine::{ModelFiles, models};

use crate::Folder;

/// Positions that a network is loaded for.
pub(crate) const MAX_POSITIONS: usize = 64;

pub(crate) static OPS: LazyLock<CpuOps> = LazyLock::new(|| CpuOps::new(1).expect("a thread for the kernels"));

/// Loads the input as a model.
pub fn run(input: &[u8]) {
    static FOLDER: LazyLock<Folder> = LazyLock::new(Folder::new);
    FOLDER.set("model.gguf", Some(input));
    let Ok(files) = ModelFiles::open(FOLDER.path().join("model.gguf")) else { return };
    let _ = models::load(&files, None, &*OPS, None, MAX_POSITIONS, &mut |_, _| ());
}
