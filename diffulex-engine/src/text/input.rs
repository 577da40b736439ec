//! The input of a request before it is token ids.

use serde::Serialize;

/// The input of a generation.
#[derive(Clone, Debug, PartialEq)]
pub enum ServingInput {
    /// Text or token ids, used as they are.
    Prompt {
        /// The prompt.
        prompt: Prompt,
    },
    /// Messages for the model's chat template.
    Chat {
        /// In order, the newest last.
        messages: Vec<ChatMessage>,
    },
}

impl ServingInput {
    /// A prompt of token ids.
    pub fn ids(ids: Vec<u32>) -> Self {
        Self::Prompt { prompt: Prompt::Ids(ids) }
    }

    /// A prompt of text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Prompt { prompt: Prompt::Text(text.into()) }
    }
}

/// Text, or ids of the model's vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Text to be tokenised.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

/// One message of a chat.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant` or whatever the template knows.
    pub role: String,
    /// Text; other modalities never come this far.
    pub content: String,
}
