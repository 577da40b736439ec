//! Marks around thoughts, and which of them a model writes.

use serde::{Deserialize, Serialize};

/// The form in which the model writes what it thinks, by vLLM's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum ReasoningParser {
    /// `<think>...</think>` at the beginning of the answer: Qwen 3, SDAR, DreamReasoner.
    Qwen3,
    /// The same where the first mark may be missing: DeepSeek R1.
    DeepseekR1,
    /// `<|channel>thought ...<channel|>`: Gemma 4, DiffusionGemma.
    Gemma4,
    /// Thoughts are text like any other.
    None,
}

/// What is around thoughts.
#[derive(Debug, PartialEq)]
pub(super) struct Marks {
    pub(super) opening: &'static str,
    /// Text after the opening that names the block.
    pub(super) label: &'static str,
    pub(super) closing: &'static str,
}

const THINK: Marks = Marks { opening: "<think>", label: "", closing: "</think>" };
const CHANNEL: Marks = Marks { opening: "<|channel>", label: "thought\n", closing: "<channel|>" };

impl ReasoningParser {
    /// The one that `chosen` names, or else that of the marks in a chat `template`.
    pub(super) fn of(chosen: Option<Self>, template: &str) -> Self {
        let named = || {
            let marks = [(THINK.closing, Self::Qwen3), (THINK.opening, Self::Qwen3), (CHANNEL.opening, Self::Gemma4)];
            marks.into_iter().find(|(mark, _)| template.contains(mark)).map(|(_, parser)| parser)
        };
        chosen.or_else(named).unwrap_or(Self::None)
    }

    pub(super) fn marks(self) -> Option<&'static Marks> {
        match self {
            Self::Qwen3 | Self::DeepseekR1 => Some(&THINK),
            Self::Gemma4 => Some(&CHANNEL),
            Self::None => None,
        }
    }
}
