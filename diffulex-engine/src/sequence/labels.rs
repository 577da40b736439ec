//! Labels: given tokens, scored at the first position of an answer, which is then not written.
//!
//! The answer is opened as any other, so the position attends to what it always attends to: masks of its block, the whole (one token
//! long) answer, or a canvas of noise drawn with seed 0. The first step that predicts it ends the request.
//!
//! Log-probabilities are over the whole vocabulary at temperature 1, before penalties, guidance and the temperature of canvases.

use diffulex_protocol::{LabelScores, SamplingParams};

/// The labels of a request, and their scores once there are some.
#[derive(Debug)]
pub struct Labels {
    ids: Vec<u32>,
    scores: Option<LabelScores>,
}

impl Labels {
    pub(super) fn new(ids: &[u32]) -> Self {
        Self { ids: ids.to_vec(), scores: None }
    }

    /// Parameters of a request with labels: an answer of one token that depends on nothing but the prompt.
    pub(crate) fn params() -> SamplingParams {
        SamplingParams { temperature: 0.0, max_tokens: 1, ignore_eos: true, ..SamplingParams::default() }
    }

    pub(super) fn note(&mut self, scores: LabelScores) {
        self.scores = Some(scores);
    }

    /// Token ids to score.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Their scores.
    pub fn scores(&self) -> Option<&LabelScores> {
        self.scores.as_ref()
    }
}
