//! The front end: admits requests, sends them to the worker and routes its events back to who waits for them.
//!
//! In: requests from the routes, event batches from the supervisor's thread. Out: an [`EventStream`] per request, whose
//! drop aborts the request. Everything has a bound: requests in flight, tokenising threads, what a slow reader holds.
//! A request ends exactly once: by the engine's reply or error, or here when the worker is lost or time is up. Never
//! here: HTTP, sockets, processes.

mod adapter_requests;
mod adapters;
mod admission;
mod caller;
mod choice_ids;
mod context_lease;
mod context_name;
mod context_requests;
mod context_tasks;
mod contexts;
pub(crate) mod crash_report;
mod gone_contexts;
mod life;
mod locks;
pub mod long_work;
mod passed_on;
mod profile_requests;
mod quarantine;
mod recorders;
mod request_id;
mod request_state;
mod requester;
mod routing;
mod starter;
mod state;
mod stream;
mod submission;
mod submit_error;
mod supervisor;
mod task_name;
mod timeline;
mod tokenising;
mod watched_stream;

pub use adapters::{AdapterOutcome, AdapterRefusal};
pub use caller::Caller;
pub use context_lease::{ContextTurn, UnclaimedContext};
pub use context_name::ContextName;
pub use context_tasks::TaskTurn;
pub use contexts::{Addition, ContextError, ContextLimits, ContextTable, ContextView, MAX_CONTEXT_TTL, NewContext};
pub use crash_report::CrashReports;
pub use gone_contexts::Gone;
pub use life::NotServing;
pub use passed_on::PassedOn;
pub use recorders::ClientRequest;
pub use recorders::profile::{ProfileEnd, ProfileError, ProfileOrder, ProfileRun};
pub use request_id::RequestId;
pub use request_state::StreamEvent;
#[cfg(test)]
pub(crate) use request_state::merge_snapshots;
pub use requester::Requester;
pub use starter::{StartError, WorkerHandle, WorkerParts, WorkerStarter};
pub use state::{Frontend, FrontendOptions, WorkerStatus};
pub use stream::EventStream;
pub use submission::{Submission, Truncation};
pub use submit_error::SubmitError;
pub use task_name::TaskName;
pub use tokenising::Tokenising;
pub use watched_stream::{AnswerError, ClientDisconnected, WatchedStream};
