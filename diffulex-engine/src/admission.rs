//! Admission: a request becomes a sequence that can be decoded to its end, or an error that names the field.
//!
//! Never here: the queue, pages, events.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

use diffulex_protocol::{ErrorCode, FinishReason, SamplingParams, ServingGenerate, SettingValue};
use diffulex_strategies::accept::DENOISING_STEPS;
use diffulex_strategies::{ContextGrowth, Layout, Strategy};

use crate::adapter_id::AdapterId;
use crate::adapters::{AdapterTable, Named};
use crate::config::EngineConfig;
use crate::error::RequestError;
use crate::sequence::{Limits, Sequence};

/// The place of an answer among the tokens of its sequence.
struct Place {
    /// Tokens before it.
    prompt: Vec<u32>,
    /// Where it ends.
    limits: Limits,
    /// Tokens of it that the client gave, one entry per position; empty if it gave none.
    given: Vec<Option<u32>>,
    /// Tokens after it.
    suffix: Vec<u32>,
}

/// The context of an admission.
pub(crate) struct Admission<'a> {
    pub(crate) config: &'a EngineConfig,
    pub(crate) adapters: &'a AdapterTable,
    /// Ids of prompts are below this.
    pub(crate) vocab_size: u32,
}

/// An admitted request.
pub(crate) struct Admitted {
    pub(crate) sequence: Sequence,
    pub(crate) adapter: Option<AdapterId>,
    /// Scores the prompt, where that is asked for and it has more than one token.
    pub(crate) scoring: Option<Sequence>,
}

/// Refuses token ids in the field `param` that are not below `vocab_size`.
pub fn check_ids(param: &'static str, ids: &[u32], vocab_size: u32) -> Result<(), RequestError> {
    let Some(id) = ids.iter().find(|id| **id >= vocab_size) else { return Ok(()) };
    let message = format!("{param} holds token id {id}, which is outside the vocabulary of {vocab_size}");
    Err(RequestError::invalid(param, message))
}

/// Refuses `n_tokens` in the field `param` that a context of `max_model_len` cannot hold together with `n_more` to write.
pub fn check_length(
    param: &'static str,
    n_tokens: usize,
    n_more: usize,
    max_model_len: usize,
) -> Result<(), RequestError> {
    if n_tokens + n_more <= max_model_len {
        return Ok(());
    }
    let more = if n_more > 0 { ", and at least one to write" } else { "" };
    Err(RequestError::context_length(param, max_model_len, format!("{n_tokens} tokens{more}")))
}

/// Refuses token ids of `params` that are not below `vocab_size`.
pub fn check_params_ids(params: &SamplingParams, vocab_size: u32) -> Result<(), RequestError> {
    check_ids("stop_token_ids", &params.stop_token_ids, vocab_size)?;
    let biased: Vec<u32> = params.logit_bias.iter().map(|(token, _)| *token).collect();
    check_ids("logit_bias", &biased, vocab_size)
}

/// Refuses a request on a context that its strategy can make nothing of.
fn check_context(strategy: &Strategy, request: &ServingGenerate) -> Result<(), RequestError> {
    match strategy.kind().layout().context_growth() {
        ContextGrowth::Refused(why) => {
            let message = format!("this model is decoded by {}, which keeps no contexts: {why}", strategy.name());
            Err(RequestError { message, code: ErrorCode::ContextUnsupported, param: None })
        }
        ContextGrowth::Grows | ContextGrowth::WholePrompt if request.masked.is_empty() => Ok(()),
        ContextGrowth::Grows | ContextGrowth::WholePrompt => {
            Err(RequestError::invalid("prompt", "masks in the prompt cannot be filled on a context"))
        }
    }
}

impl Admission<'_> {
    /// The sequence of `request`, whose seed is set.
    pub(crate) fn admit(&self, request: &mut ServingGenerate) -> Result<Admitted, RequestError> {
        // Drawn here where the client has none, so that the reply can name it.
        let seed = request.sampling_params.seed_or(|| RandomState::new().hash_one(&request.rid));
        request.sampling_params.seed = Some(seed);
        let params = &request.sampling_params;
        params.validate().map_err(|error| RequestError::invalid(error.field, error.to_string()))?;
        check_ids("prompt", &request.prompt, self.vocab_size)?;
        check_params_ids(params, self.vocab_size)?;
        let adapter = request.adapter.as_deref().map(|name| self.adapter(name)).transpose()?;
        let is_d2f = adapter.is_some_and(|adapter| adapter.is_d2f);
        let mut decoding = params.decoding.clone();
        let mut strategy = self.config.strategy_for(is_d2f, &decoding)?;
        self.check_suffix(&strategy, &request.suffix)?;
        let declared = strategy.declared();
        let fits_a_block = (1..=declared.block_size).contains(&request.masked.len());
        let timed = declared.accept.filter(|rule| rule.may_pause() && rule.denoising_steps().is_none());
        if fits_a_block && timed.is_some() {
            // A schedule over time without a number of steps gets one step per masked token.
            decoding.set(DENOISING_STEPS.name, SettingValue::Integer(request.masked.len() as i64));
            strategy = self.config.strategy_for(is_d2f, &decoding)?;
        }
        if request.context.is_some() {
            check_context(&strategy, request)?;
        }
        let fills = request.context.is_some_and(|context| context.fills);
        let is_only_read = fills || request.embed.is_some();
        let place = if fills {
            self.filling(&strategy, &request.prompt)?
        } else if is_only_read {
            self.behind(&request.prompt, &[], 0)?
        } else if request.masked.is_empty() {
            self.behind(&request.prompt, &request.suffix, params.max_tokens as usize)?
        } else {
            self.at_masks(&strategy, request)?
        };
        if is_only_read {
            self.check_pages("prompt", place.prompt.len(), 1)?;
        } else {
            self.check_room(&strategy, &place)?;
        }
        let scoring = params.prompt_logprobs.map(|n| self.scoring(&strategy, &place, n)).transpose()?.flatten();
        let Place { prompt, limits, given, suffix } = &place;
        let sequence = Sequence::new(
            prompt,
            *limits,
            // A model without a mask has canvases: the id only fills undecided positions and is never read.
            self.config.mask_token_id.unwrap_or_default(),
            &self.config.eos_token_ids,
            params.clone(),
            strategy,
            self.config.alignment,
        )
        .holding(given)
        .followed_by(suffix);
        let sequence = if is_only_read { sequence.only_read() } else { sequence };
        Ok(Admitted { sequence, adapter: adapter.map(|adapter| adapter.id), scoring })
    }

    /// The sequence that scores the prompt of `place`; `None` if there is nothing to score.
    fn scoring(
        &self,
        strategy: &Strategy,
        place: &Place,
        n_alternatives: u32,
    ) -> Result<Option<Sequence>, RequestError> {
        let refused = |why: String| {
            let what = "the log-probabilities of a prompt (prompt_logprobs, or echo with logprobs)";
            Err(RequestError::invalid("prompt_logprobs", format!("{what} {why}")))
        };
        if !place.given.is_empty() || !place.suffix.is_empty() {
            return refused("need a prompt without masks and without a suffix".to_owned());
        }
        let (mask, alignment) = (self.config.mask_token_id.unwrap_or_default(), self.config.alignment);
        let Some(sequence) = Sequence::scoring(&place.prompt, n_alternatives, mask, strategy, alignment) else {
            let why = match strategy.kind().layout() {
                Layout::Canvases => "whose canvases start as noise instead of masks",
                _ => "which encodes a prompt as one block, whose tokens have no order",
            };
            return refused(format!("are not defined for {}, {why}", strategy.name()));
        };
        Ok(Some(sequence).filter(|_| place.prompt.len() > 1))
    }

    fn check_suffix(&self, strategy: &Strategy, suffix: &[u32]) -> Result<(), RequestError> {
        if !suffix.is_empty() && strategy.kind().layout() != Layout::WholeAnswer {
            let name = strategy.name();
            let message = format!(
                "suffix needs a model that sees what follows the gap; this one is decoded by {name}, block after block"
            );
            return Err(RequestError::invalid("suffix", message));
        }
        check_ids("suffix", suffix, self.vocab_size)
    }

    /// The part of `prompt` whose K/V are final before an answer, with the limits of a request that goes on from there.
    fn filling(&self, strategy: &Strategy, prompt: &[u32]) -> Result<Place, RequestError> {
        let mut place = self.behind(prompt, &[], 1)?;
        let declared = strategy.declared();
        if declared.layout == Layout::BlockCausal {
            place.prompt.truncate(place.prompt.len() / declared.block_size * declared.block_size);
        }
        place.limits = Limits { end: place.prompt.len(), reason: FinishReason::MaxNewTokensReached };
        Ok(place)
    }

    /// The answer between `prompt` and `suffix`.
    fn behind(&self, prompt: &[u32], suffix: &[u32], max_tokens: usize) -> Result<Place, RequestError> {
        let max_model_len = self.config.max_model_len;
        let (prompt_len, suffix_len) = (prompt.len(), suffix.len());
        if suffix_len > 0 && prompt_len + suffix_len >= max_model_len {
            return Err(RequestError::invalid(
                "suffix",
                format!(
                    "prompt ({prompt_len} tokens) and suffix ({suffix_len}) leave no room for an answer in {max_model_len} tokens"
                ),
            ));
        }
        let max_model_len = max_model_len - suffix_len;
        if prompt_len == 0 {
            return Err(RequestError::invalid("prompt", "prompt is empty"));
        }
        check_length("prompt", prompt_len, max_tokens.min(1), max_model_len)?;
        let wanted = prompt_len.saturating_add(max_tokens);
        let limits = if wanted <= max_model_len {
            Limits { end: wanted, reason: FinishReason::MaxNewTokensReached }
        } else {
            Limits { end: max_model_len, reason: FinishReason::MaxModelLenReached }
        };
        Ok(Place { prompt: prompt.to_vec(), limits, given: Vec::new(), suffix: suffix.to_vec() })
    }

    /// The answer from the first mask of `prompt` to the last; what follows that is its suffix.
    fn at_masks(&self, strategy: &Strategy, request: &ServingGenerate) -> Result<Place, RequestError> {
        let ServingGenerate { prompt, suffix, masked, .. } = request;
        let max_tokens = request.sampling_params.max_tokens as usize;
        let invalid = |message: String| Err(RequestError::invalid("prompt", message));
        if strategy.kind().layout() != Layout::WholeAnswer {
            let name = strategy.name();
            return invalid(format!(
                "masks in a prompt need a model that sees what follows them; this one is decoded by {name}, block after block"
            ));
        }
        if !suffix.is_empty() {
            let message = "a prompt with masks has no suffix: what follows them is part of the prompt";
            return Err(RequestError::invalid("suffix", message));
        }
        let masked: BTreeSet<usize> = masked.iter().map(|position| *position as usize).collect();
        let (Some(first), Some(last)) = (masked.first().copied(), masked.last().copied()) else {
            return invalid("no position of the prompt is masked".to_owned());
        };
        check_length("prompt", prompt.len(), 0, self.config.max_model_len)?;
        if last >= prompt.len() {
            return invalid(format!("position {last} is masked; the prompt has {}", prompt.len()));
        }
        let end = last + 1;
        if end - first > max_tokens {
            let message = format!(
                "the answer has {} tokens, from the prompt's first mask to its last; max_tokens is {max_tokens}",
                end - first
            );
            return Err(RequestError::invalid("max_tokens", message));
        }
        Ok(Place {
            prompt: prompt[..first].to_vec(),
            limits: Limits { end, reason: FinishReason::MaxNewTokensReached },
            given: (first..end).map(|position| (!masked.contains(&position)).then_some(prompt[position])).collect(),
            suffix: prompt[end..].to_vec(),
        })
    }

    /// Refuses a request that no plan could ever include.
    fn check_room(&self, strategy: &Strategy, place: &Place) -> Result<(), RequestError> {
        let Place { prompt, limits, suffix, .. } = place;
        let declared = strategy.declared();
        let n_positions = declared.layout.extent(prompt.len(), limits.end, declared.block_size) + suffix.len();
        let n_copies = declared.n_copies();
        if n_copies > 1 && n_copies * n_positions > self.config.max_num_batched_tokens {
            return Err(RequestError::too_large(
                "decoding.cfg_scale",
                format!(
                    "guidance forwards {n_positions} positions twice; a forward takes {} rows",
                    self.config.max_num_batched_tokens
                ),
            ));
        }
        let budget = self.config.max_num_batched_tokens;
        // The server's own strategy was checked at the start.
        if declared.layout == Layout::PromptFirst && n_positions + declared.block_size >= budget {
            let least = n_positions + declared.block_size + 1;
            let message = format!(
                "with this adapter prompts are encoded whole, which takes {least} rows; a forward takes {budget}: ask for less or serve with --max-num-batched-tokens"
            );
            return Err(RequestError::too_large("model", message));
        }
        self.check_pages("max_tokens", n_positions, n_copies)
    }

    /// Refuses, for `param`, positions that the pool has no pages for.
    fn check_pages(&self, param: &'static str, n_positions: usize, n_copies: usize) -> Result<(), RequestError> {
        let n_pages = n_copies * n_positions.div_ceil(self.config.page_size);
        if n_pages > self.config.n_pages {
            return Err(RequestError::too_large(
                param,
                format!(
                    "{n_positions} positions need {n_pages} KV pages; the pool has {}: ask for fewer tokens or serve with a larger KV cache",
                    self.config.n_pages
                ),
            ));
        }
        Ok(())
    }

    fn adapter(&self, name: &str) -> Result<Named, RequestError> {
        self.adapters.find(name).ok_or_else(|| {
            let known: Vec<&str> = self.adapters.names().collect();
            RequestError::invalid("model", format!("no adapter {name:?} is loaded; loaded are {known:?}"))
        })
    }
}
