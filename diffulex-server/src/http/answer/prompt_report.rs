//! The prompt in an answer: its text (`echo`), and how likely its tokens are (`prompt_logprobs`, and `logprobs` of an
//! echo).
//!
//! Never here: the order in which a prompt is scored, which the engine's `scoring` defines.

use std::collections::BTreeMap;

use diffulex_engine::TextModel;
use diffulex_protocol::PromptScores;
use serde::Serialize;

use crate::http::answer::error::ApiError;

/// Least log-probability that is reported, as vLLM's: JSON has no infinity.
const LEAST_LOGPROB: f32 = -9999.0;

/// The parts of a prompt that an answer reports.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::http) struct PromptReport {
    /// Its text comes before the answer's.
    pub(in crate::http) echoes: bool,
    /// Its log-probabilities are listed by themselves, with so many of the likeliest tokens.
    pub(in crate::http) listed: Option<usize>,
}

impl PromptReport {
    /// The field that asks for its tokens, if one does.
    pub(in crate::http) fn field(self) -> Option<&'static str> {
        if self.echoes { Some("echo") } else { self.listed.map(|_| "prompt_logprobs") }
    }

    /// Refuses what a stream cannot have: scores come with the end of an answer.
    pub(in crate::http) fn check_stream(self, is_stream: bool, wants_logprobs: bool) -> Result<(), ApiError> {
        let refused = |field, what| Err(ApiError::invalid(field, format!("{what} is not available in a stream")));
        match self {
            Self { listed: Some(_), .. } if is_stream => refused("prompt_logprobs", "prompt_logprobs"),
            Self { echoes: true, .. } if is_stream && wants_logprobs => refused("echo", "echo with logprobs"),
            _ => Ok(()),
        }
    }
}

/// A prompt that is reported.
#[derive(Clone, Copy)]
pub(in crate::http) struct ReportedPrompt<'a> {
    pub(in crate::http) text: &'a TextModel,
    pub(in crate::http) ids: &'a [u32],
    pub(in crate::http) scores: Option<&'a PromptScores>,
}

/// How likely a token of a prompt is.
pub(in crate::http) struct Score {
    /// Natural logarithm of its probability.
    pub(in crate::http) logprob: f32,
    /// The likeliest tokens at its place and their log-probabilities, in falling order.
    pub(in crate::http) likeliest: Vec<(u32, f32)>,
}

/// vLLM's entry of `prompt_logprobs`.
#[derive(Serialize)]
pub(in crate::http) struct ListedLogprob {
    logprob: f32,
    /// 1 is the likeliest; `null` for a token that is not among the likeliest that were asked for.
    rank: Option<usize>,
    decoded_token: String,
}

/// By token id, the token itself and the likeliest; `null` for the first token.
pub(in crate::http) type PromptEntry = Option<BTreeMap<u32, ListedLogprob>>;

impl ReportedPrompt<'_> {
    /// Its text as the model reads it: tokens spelled out, special ones included.
    pub(in crate::http) fn echo(&self) -> String {
        let bytes: Vec<u8> = self.ids.iter().flat_map(|id| self.bytes(*id)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes of one token, with the name of a special one.
    pub(in crate::http) fn bytes(&self, id: u32) -> Vec<u8> {
        match self.text.token(id).filter(|_| self.text.is_special(id)) {
            Some(name) => name.into_bytes(),
            None => self.text.bytes(id),
        }
    }

    /// One token alone.
    pub(in crate::http) fn spelled(&self, id: u32) -> String {
        String::from_utf8_lossy(&self.bytes(id)).into_owned()
    }

    /// Its tokens with their scores and at most `n` of the likeliest; the first has no score, as nothing is before it.
    pub(in crate::http) fn scored_tokens(&self, n: usize) -> impl Iterator<Item = (u32, Option<Score>)> {
        let score = move |index: usize, id| self.score(index.checked_sub(1)?, id, n);
        self.ids.iter().enumerate().map(move |(index, id)| (*id, score(index, *id)))
    }

    /// The score of the token `id`, which is entry `index` of the scores.
    fn score(&self, index: usize, id: u32, n: usize) -> Option<Score> {
        let scores = self.scores?;
        let logprob = scores.log_probabilities.get(index)?.max(LEAST_LOGPROB);
        let likeliest = scores.alternatives.get(index).map(Vec::as_slice).unwrap_or_default();
        let likeliest = likeliest.iter().take(n).map(|(other, probability)| {
            // The same number for the same token, for clients that compare it with the likeliest.
            (*other, if *other == id { logprob } else { probability.ln().max(LEAST_LOGPROB) })
        });
        Some(Score { logprob, likeliest: likeliest.collect() })
    }

    /// vLLM's `prompt_logprobs`: per token a map by id of the token itself and of `n` of the likeliest.
    pub(in crate::http) fn listed(&self, n: usize) -> Vec<PromptEntry> {
        let entries = self.scored_tokens(n).map(|(id, score)| {
            let Score { logprob, likeliest } = score?;
            let ranked = (1..).zip(likeliest).map(|(rank, (id, logprob))| (id, logprob, Some(rank)));
            // A rank replaces none.
            let all = std::iter::once((id, logprob, None)).chain(ranked);
            let listed = |(id, logprob, rank)| (id, ListedLogprob { logprob, rank, decoded_token: self.spelled(id) });
            Some(all.map(listed).collect())
        });
        entries.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use diffulex_engine::ModelFiles;

    use super::*;

    #[test]
    fn what_cannot_be_is_reported_as_the_least() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/sdar");
        let text = TextModel::load(&ModelFiles::folder(model).expect("the golden model")).expect("its tokenizer");
        let scores = PromptScores {
            log_probabilities: vec![f32::NEG_INFINITY, -9998.0, -12_000.0],
            alternatives: vec![vec![(8, 1.0), (9, 0.0)], Vec::new(), Vec::new()],
            ..PromptScores::default()
        };
        let listed = ReportedPrompt { text: &text, ids: &[5, 6, 7, 8], scores: Some(&scores) }.listed(2);
        assert!(listed[0].is_none());
        let logprob = |place: usize, id: u32| listed[place].as_ref().map(|entries| entries[&id].logprob);
        assert_eq!((logprob(1, 6), logprob(1, 8), logprob(1, 9)), (Some(-9999.0), Some(0.0), Some(-9999.0)));
        assert_eq!((logprob(2, 7), logprob(3, 8)), (Some(-9998.0), Some(-9999.0)));
    }
}
