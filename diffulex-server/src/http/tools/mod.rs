//! Tools: what a request offers the model to call, how calls are written, and the calls of an answer.
//!
//! In: definitions and choices as the interfaces send them, and an answer's text as it is committed. Out: what chat templates get, the
//! constraint of the answer, and its calls. Never here: the shapes of routes.

pub(in crate::http) mod calls;
pub(in crate::http) mod choice;
pub(in crate::http) mod conversation;
pub(in crate::http) mod definitions;
pub(in crate::http) mod fields;
pub(in crate::http) mod forms;
pub(in crate::http) mod offer;
mod prompt;
mod reader;
