//! The demo model, compiled into the program so that it serves something without any file.
//!
//! In: `models/demo`. Out: [`ModelFiles`]. Never here: other models.

use std::path::Path;

use diffulex_engine::{LoadError, ModelFiles};

/// The model in `folder`, or the demo model when none is named.
pub fn model_files(folder: Option<&Path>) -> Result<ModelFiles, LoadError> {
    match folder {
        Some(folder) => ModelFiles::folder(folder),
        None => Err(LoadError::of("--model", "no demo model is built in yet; name a checkpoint folder")),
    }
}
