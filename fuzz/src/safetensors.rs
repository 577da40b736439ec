//! Checkpoint folders: config.json and safetensors files, refused or loaded.
//!
//! Parts: config.json, model.safetensors, adapter_config.json, adapter_model.safetensors, the index of shards.

use std::sync::LazyLock;

use diffulex_engine::models;

use crate::gguf::{MAX_POSITIONS, OPS};
use crate::{Folder, parts};

/// Loads the parts as a model.
pub fn run(input: &[u8]) {
    static FOLDER: LazyLock<Folder> = LazyLock::new(Folder::new);
    let [config, weights, adapter_config, adapter, index] = parts(input);
    FOLDER.set("config.json", config);
    FOLDER.set("model.safetensors", weights);
    FOLDER.set("adapter_config.json", adapter_config);
    FOLDER.set("adapter_model.safetensors", adapter);
    FOLDER.set("model.safetensors.index.json", index);
    let _ = models::load(&FOLDER.files(), None, &*OPS, None, MAX_POSITIONS, &mut |_, _| ());
}
