//! The engine.

use diffulex_protocol::{EngineStats, ErrorCode, ModelCard, ServingCommand, ServingEvent};

use crate::config::EngineOptions;
use crate::error::LoadError;
use crate::files::ModelFiles;
use crate::serving::ServingEngine;

/// How far a load is.
#[derive(Clone, Copy, Debug)]
pub struct LoadProgress {
    /// Bytes of weights made ready.
    pub done_bytes: u64,
    /// Bytes of weights in all.
    pub total_bytes: u64,
}

/// The engine.
pub struct Engine {
    card: ModelCard,
}

impl Engine {
    /// Loads a model; `progress` is called now and then.
    pub fn load(
        files: &ModelFiles,
        _options: &EngineOptions,
        _progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, LoadError> {
        Err(LoadError::of(files.place(), "not yet"))
    }
}

impl ServingEngine for Engine {
    fn tick(&mut self, _commands: Vec<ServingCommand>) -> Vec<ServingEvent> {
        Vec::new()
    }
    fn has_work(&self) -> bool {
        false
    }
    fn fail_all(&mut self, _code: ErrorCode, _message: &str) -> Vec<ServingEvent> {
        Vec::new()
    }
    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
    fn card(&self) -> &ModelCard {
        &self.card
    }
}
