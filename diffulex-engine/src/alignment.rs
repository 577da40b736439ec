//! Alignment of logits with positions.

/// The position that a row of logits predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogitAlignment {
    /// The position of the row.
    Same,
    /// The position after it: shifted logits.
    Next,
}
