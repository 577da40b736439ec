//! The stream of an edit: the parts of its canvas, the denoise frames of `/generate`, then the answer.
//!
//! Never here: the changes of a frame, the answer's fields.

use serde::Serialize;

use crate::frontend::{Frontend, StreamEvent};
use crate::http::answer::answer_form::AnswerForm;
use crate::http::answer::denoise_frames::DenoiseFrames;
use crate::http::answer::error::ApiError;
use crate::http::answer::parts::ObjectHead;
use crate::http::answer::sse::{Framer, Frames};
use crate::http::edits::answer::{Edit, kind};
use crate::http::edits::canvas::{Canvas, Piece};

/// Writes the frames of an edit.
pub(super) struct EditFramer {
    frontend: Frontend,
    canvas: Canvas,
    model: String,
    denoise: DenoiseFrames,
}

/// The first frame: where in the answer's positions the model writes.
#[derive(Serialize)]
struct CanvasFrame<'a> {
    event: &'static str,
    model: &'a str,
    parts: Vec<PartFrame<'a>>,
}

/// A part of the canvas.
#[derive(Serialize)]
#[serde(untagged)]
enum PartFrame<'a> {
    /// Stays as it is.
    Text { text: &'a str },
    /// Is written.
    Written {
        name: Option<&'a str>,
        #[serde(rename = "type")]
        kind: &'static str,
        /// Its first position in the answer, as denoise frames count them, and the one behind its last.
        start: usize,
        end: usize,
    },
}

/// The last frame.
#[derive(Serialize)]
struct FinalFrame<'a> {
    event: &'static str,
    #[serde(flatten)]
    edit: Edit<'a>,
}

impl EditFramer {
    /// The frames of the edit of `canvas`.
    pub(super) fn new(frontend: Frontend, canvas: Canvas, form: AnswerForm) -> Self {
        Self { frontend, canvas, model: form.model, denoise: DenoiseFrames::new(form.denoise, true) }
    }
}

impl<'a> PartFrame<'a> {
    fn of(piece: &'a Piece) -> Self {
        match piece {
            Piece::Text(text) => Self::Text { text },
            Piece::Written { name, positions, draft } => Self::Written {
                name: name.as_deref(),
                kind: kind(draft.as_ref()),
                start: positions.start,
                end: positions.end,
            },
        }
    }
}

impl Framer for EditFramer {
    fn open(&mut self, frames: &mut Frames) {
        let beginning = PartFrame::Text { text: &self.canvas.beginning };
        let beginning = (!self.canvas.beginning.is_empty()).then_some(beginning);
        let parts = beginning.into_iter().chain(self.canvas.pieces.iter().map(PartFrame::of)).collect();
        frames.push(&CanvasFrame { event: "canvas", model: &self.model, parts });
    }

    fn event(&mut self, _choice_idx: usize, event: StreamEvent, frames: &mut Frames) -> Result<(), ApiError> {
        match event {
            StreamEvent::Snapshot(snapshot) => {
                frames.push_object(&ObjectHead::default(), |fields| self.denoise.add(fields, snapshot));
            }
            StreamEvent::Reply(reply) => {
                let edit = Edit::of(self.frontend.text(), &self.canvas, &reply, &self.model);
                frames.push(&FinalFrame { event: "final", edit });
            }
            StreamEvent::Error(error) => return Err(error.into()),
            // An edit asks for snapshots only.
            StreamEvent::Delta(_) => {}
        }
        Ok(())
    }
}
