//! Answers to questions, and what both forms report beside them.
//!
//! `confidence` is the share of the likeliest option times `label_mass`. Never here: how probabilities are found.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::http::decisions::decide::Judged;

/// A value to choose: a text and a boolean of the same letters differ.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Choice {
    Text(String),
    Boolean(bool),
}

/// An answer in OpenAI's form.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Answer<'a> {
    Predicate { probability: f64 },
    Choice { choice: &'a Choice, confidence: f64, probabilities: Vec<ChoiceProbability<'a>> },
    Score { score: f64, confidence: f64, probabilities: Vec<LevelProbability<'a>> },
}

#[derive(Serialize)]
pub(super) struct ChoiceProbability<'a> {
    value: &'a Choice,
    probability: f64,
}

#[derive(Serialize)]
pub(super) struct LevelProbability<'a> {
    label: &'a str,
    /// Index of the level.
    value: u32,
    probability: f64,
}

impl<'a> Answer<'a> {
    pub(super) fn predicate(judged: &Judged) -> Self {
        Self::Predicate { probability: judged.of_yes() }
    }

    pub(super) fn choice(judged: &Judged, values: &'a [Choice]) -> Self {
        let probabilities = values.iter().zip(&judged.probabilities);
        let probabilities =
            probabilities.map(|(value, probability)| ChoiceProbability { value, probability: *probability });
        Self::Choice {
            choice: &values[judged.best()],
            confidence: judged.confidence(),
            probabilities: probabilities.collect(),
        }
    }

    pub(super) fn score(judged: &Judged, labels: &'a [String]) -> Self {
        let levels = (0..).zip(labels).zip(&judged.probabilities);
        let probabilities =
            levels.map(|((value, label), probability)| LevelProbability { label, value, probability: *probability });
        Self::Score {
            score: judged.mean_level(),
            confidence: judged.confidence(),
            probabilities: probabilities.collect(),
        }
    }
}

impl Judged {
    /// Probability of the first option, which of a predicate is yes.
    pub(super) fn of_yes(&self) -> f64 {
        self.probabilities[0]
    }

    /// The likeliest option, ties to the first.
    pub(super) fn best(&self) -> usize {
        let mut best = 0;
        for (option, probability) in self.probabilities.iter().enumerate() {
            if *probability > self.probabilities[best] {
                best = option;
            }
        }
        best
    }

    pub(super) fn confidence(&self) -> f64 {
        self.probabilities[self.best()] * self.label_mass
    }

    /// The mean of the levels' indices.
    pub(super) fn mean_level(&self) -> f64 {
        (0u32..).zip(&self.probabilities).map(|(level, probability)| f64::from(level) * probability).sum()
    }
}

/// The `diffulex` object of an answer.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Diagnostics {
    /// Share of the whole distribution that the labels have.
    label_mass: f64,
    /// The likeliest token of the vocabulary is a label.
    argmax_is_label: bool,
}

impl Diagnostics {
    pub(super) fn of(judged: &Judged) -> Self {
        Self { label_mass: judged.label_mass, argmax_is_label: judged.argmax_is_label }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_first_and_a_score_is_the_mean_of_the_levels() {
        let judged = Judged { probabilities: vec![0.2, 0.4, 0.4], label_mass: 0.5, argmax_is_label: true };
        assert_eq!(judged.best(), 1);
        assert!((judged.mean_level() - 1.2).abs() < 1e-12);
        assert!((judged.confidence() - 0.2).abs() < 1e-12);
    }
}
