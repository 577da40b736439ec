//! The messages between the Diffulex front end and its workers.
//!
//! A front end sends [`ServingCommand`]s, a worker answers with [`ServingEvent`]s, one [`EventBatch`] a tick. On the
//! wire both are MessagePack maps tagged by `type`. Requests and answers have the keys of Diffulex's own dictionaries, and
//! every field that we add to them is optional. The two still do not interoperate: Diffulex's front end knows no `batch`,
//! `ready` and `heartbeat`, its worker sends none, and both sides of it bind. [`codec`] turns messages into bytes and back,
//! with a size cap and a depth cap before anything is built.
//!
//! Never here: sockets, text, tensors, policy.

pub mod codec;
mod command;
mod event;
mod messagepack;
mod params;
mod report;
mod salvage;
mod settings;

pub use codec::{CodecError, PROTOCOL_VERSION};
pub use command::{
    AdapterSource, ChatMessage, ContextUse, Pooling, ProfileStart, Prompt, ServingCommand, ServingGenerate,
    ServingInput, SnapshotSpan, StreamMode,
};
pub use event::{
    Alternatives, ErrorCode, EventBatch, FinishReason, HeldContext, NfeCounts, PromptScores, ServingBufferSnapshot,
    ServingDelta, ServingError, ServingEvent, ServingReply,
};
pub use messagepack::FieldVisitor;
pub use params::{ParamError, ParamProblem, SamplingParams};
pub use report::{DeviceLoad, EngineStats, Histogram, ModelCard, ModelIdentity, NfeCountsTotal, OfferedRule, Ready};
pub use salvage::{Salvaged, salvage};
pub use settings::{DecodingSettings, SettingValue};
