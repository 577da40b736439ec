//! Why a constraint is refused.

/// Why a constraint is refused. The message names the keyword, the value and the limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConstraintError {
    /// For the client.
    pub message: String,
}

impl ConstraintError {
    /// An error with this message.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}
