//! Tokenizer, chat template and incremental detokenisation.
//!
//! [`TextModel`] is the part of a model that needs no weights. The front end loads its own to tokenise and to check lengths
//! before a request is sent; the engine's decodes committed ids.
//!
//! Never here: weights, scheduling, events.

mod byte_alphabet;
mod chat_template;
mod coverage;
mod detokenize;
mod growth;
mod input;
mod merges;
pub(crate) mod panics;
pub(crate) mod spelling;
mod tokenizer;

pub use chat_template::ConversationEnd;
pub use detokenize::Detokenizer;
pub use input::{ChatMessage, Prompt, ServingInput, ToolCall};
pub use tokenizer::{SpecialTokens, TextModel};
