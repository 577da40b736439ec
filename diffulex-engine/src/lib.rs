//! The Diffulex engine: requests, blocks, a paged KV cache, networks and kernels behind one tick.
//!
//! Arrows point down only: `engine` over `admission`, `scheduler`, `sequence`, `batch`, `sampler`, `emit`; these over `kv`, `text`,
//! `models`; these over `kernels`. Never here: sockets, HTTP, async.

mod adapter_id;
mod adapters;
mod admission;
mod alignment;
pub mod batch;
mod block_size;
pub mod config;
pub mod content;
pub mod contexts;
mod device_load;
pub mod emit;
pub mod engine;
pub mod error;
pub mod files;
pub mod gguf;
mod identity;
pub mod kernels;
pub mod kv;
mod load;
mod logit_changes;
mod memory;
pub mod models;
mod pooling;
pub mod profile;
pub mod randomness;
pub mod runner;
pub mod sampler;
pub mod scheduler;
pub mod sequence;
pub mod serving;
pub mod text;

pub use adapter_id::AdapterId;
pub use admission::{check_ids, check_length, check_params_ids};
pub use config::{DeviceChoice, DtypeChoice, EngineConfig, EngineOptions, Quantization, check_settings};
pub use diffulex_strategies::{Setting, SettingError, Values, settings};
pub use emit::snapshot_text;
pub use engine::{Engine, LoadProgress};
pub use error::{BatchError, DeviceError, LoadError, RequestError, StepError};
pub use files::ModelFiles;
pub use identity::model_identity;
pub use serving::ServingEngine;
pub use text::{ChatMessage, ConversationEnd, Prompt, ServingInput, SpecialTokens, TextModel};
