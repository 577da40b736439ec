//! The demo model, compiled into the program so that it serves something without any file.
//!
//! In: `models/demo`. Out: [`ModelFiles`]. Never here: other models.

use std::path::Path;

use diffulex_engine::models::read_config;
use diffulex_engine::{LoadError, ModelFiles};
use diffulex_protocol::SamplingParams;

/// The temperature of requests to the demo model that name none: its answers are facts, sums and lists, which drawing at
/// random only spoils.
const TEMPERATURE: f32 = 0.0;

/// Each file that [`ModelFiles`] may be asked for, with its content.
macro_rules! embedded {
    ($($file:literal),* $(,)?) => {
        &[$(($file, include_bytes!(concat!("../../models/demo/", $file)))),*]
    };
}

const FILES: &[(&str, &[u8])] = embedded![
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors",
];

/// The temperature of requests that name none, to the model at `path` or the demo model.
pub fn default_temperature(path: Option<&Path>) -> f32 {
    path.map_or(TEMPERATURE, |_| SamplingParams::default().temperature)
}

/// The model at `path`, or the demo model when none is named. One that no network here computes is refused before anything
/// is started for it.
pub fn model_files(path: Option<&Path>) -> Result<ModelFiles, LoadError> {
    match path {
        Some(path) => {
            let files = ModelFiles::open(path)?;
            read_config(&files)?;
            Ok(files)
        }
        None => Ok(ModelFiles::Embedded { name: "diffulex-demo", files: FILES }),
    }
}
