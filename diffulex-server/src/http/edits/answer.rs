//! The answer to an edit: the whole text, and where the model wrote in it.

use diffulex_engine::TextModel;
use diffulex_protocol::ServingReply;
use serde::Serialize;

use crate::http::answer::parts::{DiffusionReport, Usage, unix_seconds};
use crate::http::edits::canvas::{Canvas, Draft, Piece};

/// The answer.
#[derive(Serialize)]
pub(super) struct Edit<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    /// The canvas with its places filled.
    text: String,
    spans: Vec<Span>,
    /// Whether written positions saw the text behind them.
    sees_right: bool,
    usage: Usage,
    diffulex: DiffusionReport,
}

/// A place that the model wrote.
#[derive(Serialize)]
struct Span {
    name: Option<String>,
    #[serde(rename = "type")]
    kind: &'static str,
    /// Unicode characters of `text` before it, and up to its end.
    start: usize,
    end: usize,
    text: String,
    /// Mean confidence of its tokens, 1 for those of a draft that stayed; `null` without tokens.
    confidence: Option<f32>,
}

impl<'a> Edit<'a> {
    /// The answer that `reply` is to `canvas`.
    pub(super) fn of(tokenizer: &TextModel, canvas: &Canvas, reply: &'a ServingReply, model: &'a str) -> Self {
        let mut text = canvas.beginning.clone();
        let mut n_chars = text.chars().count();
        let mut spans = Vec::new();
        for piece in &canvas.pieces {
            let (name, positions, draft) = match piece {
                Piece::Text(own) => {
                    text.push_str(own);
                    n_chars += own.chars().count();
                    continue;
                }
                Piece::Written { name, positions, draft } => (name, positions, draft.as_ref()),
            };
            // An end token in the last place ends the answer.
            let end = positions.end.min(reply.token_ids.len());
            let positions = positions.start.min(end)..end;
            let ids = &reply.token_ids[positions.clone()];
            let written = draft.map_or_else(|| tokenizer.decode(ids), |draft| draft.rewritten(tokenizer, ids));
            let confidences = reply.confidences.get(positions).unwrap_or_default();
            let start = n_chars;
            n_chars += written.chars().count();
            text.push_str(&written);
            spans.push(Span {
                name: name.clone(),
                kind: kind(draft),
                start,
                end: n_chars,
                text: written,
                confidence: (!confidences.is_empty())
                    .then(|| confidences.iter().sum::<f32>() / confidences.len() as f32),
            });
        }
        Self {
            id: &reply.rid,
            object: "edit",
            created: unix_seconds(),
            model,
            text,
            spans,
            sees_right: canvas.sees_right,
            usage: Usage::of(reply),
            diffulex: DiffusionReport::of(reply),
        }
    }
}

/// The word for a place that the model writes.
pub(super) fn kind(draft: Option<&Draft>) -> &'static str {
    if draft.is_some() { "draft" } else { "hole" }
}
