//! The tokenizer, special tokens and chat template of a model, loaded from its files.

use std::collections::BTreeSet;

use tokenizers::Tokenizer;

use super::chat_template::{ChatTemplate, ConversationEnd};
use super::growth::Growth;
use super::input::ChatMessage;
use super::panics::caught;
use super::{byte_alphabet, coverage, merges};
use crate::error::{LoadError, RequestError};
use crate::files::ModelFiles;

/// Tokens that stand around an answer's parts. They are kept in its text where a vocabulary has them as special tokens: a reader of
/// the text could not find the parts otherwise.
const MARKS: [&str; 9] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    // Gemma 4's: of thoughts, calls and strings.
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
];

/// Special tokens as text, from tokenizer_config.json or else special_tokens_map.json; `None` if neither names one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// End of a text.
    pub eos_token: Option<String>,
    /// Beginning of a text.
    pub bos_token: Option<String>,
    /// Padding.
    pub pad_token: Option<String>,
}

impl SpecialTokens {
    fn of(sources: &[&serde_json::Value]) -> Self {
        let named = |name: &str| {
            let content =
                |value: &serde_json::Value| Some(value.as_str().or_else(|| value.get("content")?.as_str())?.to_owned());
            sources.iter().find_map(|source| source.get(name).and_then(content))
        };
        Self { eos_token: named("eos_token"), bos_token: named("bos_token"), pad_token: named("pad_token") }
    }
}

/// The part of a model that converts text to ids and back.
pub struct TextModel {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    names: SpecialTokens,
    /// Special tokens but marks of an answer's parts.
    special_ids: BTreeSet<u32>,
    eos_token_ids: BTreeSet<u32>,
    mask_token_id: Option<u32>,
    vocab_size: u32,
    max_bytes_per_token: Option<usize>,
    max_growth: Growth,
    unused: Vec<&'static str>,
}

impl TextModel {
    /// Reads `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json`, `generation_config.json`,
    /// `config.json` and `chat_template.jinja`; only the first is required, and may be `vocab.json` and `merges.txt`.
    pub fn load(files: &ModelFiles) -> Result<Self, LoadError> {
        let bytes = match files.read("tokenizer.json")? {
            Some(bytes) => bytes,
            None => merges::tokenizer_json(files)?.into(),
        };
        let fail = |what: String| LoadError::of(files.place(), format!("tokenizer: {what}"));
        let max_growth = Growth::of(&bytes).map_err(fail)?;
        let mut tokenizer = catching(|| Tokenizer::from_bytes(bytes.as_ref())).map_err(fail)?;
        let unused = switch_off(&mut tokenizer).map_err(fail)?;
        let largest_id = tokenizer.get_vocab(true).into_values().max();
        let vocab_size = match largest_id.map(|id| id.checked_add(1)) {
            None => 0,
            Some(Some(size)) => size,
            Some(None) => return Err(fail(format!("a token has the id {}, which is out of range", u32::MAX))),
        };
        let special_ids: BTreeSet<u32> = tokenizer
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| token.special && !MARKS.contains(&token.content.as_str()))
            .map(|(id, _)| id)
            .collect();

        let config = files.read_json("config.json")?.unwrap_or_default();
        let generation = files.read_json("generation_config.json")?.unwrap_or_default();
        let tokenizer_config = files.read_json("tokenizer_config.json")?.unwrap_or_default();
        let special_map = files.read_json("special_tokens_map.json")?.unwrap_or_default();

        // A special token is named by a string or by an object with `content`.
        let token_id = |value: &serde_json::Value| -> Option<u32> {
            let content = value.as_str().or_else(|| value.get("content")?.as_str())?;
            tokenizer.token_to_id(content)
        };
        // generation_config.json wins: it lists every token that ends a turn, config.json only the base model's.
        let mut eos_token_ids = BTreeSet::new();
        for (file, source) in [("generation_config.json", &generation), ("config.json", &config)] {
            let ids = match source.get("eos_token_id") {
                Some(serde_json::Value::Array(ids)) => ids.as_slice(),
                Some(serde_json::Value::Null) | None => &[],
                Some(id) => std::slice::from_ref(id),
            };
            for id in ids {
                let what = || format!("{file}: eos_token_id has {id}, which is not a token id");
                eos_token_ids.insert(as_id(id).ok_or_else(|| LoadError::of(files.place(), what()))?);
            }
        }
        eos_token_ids.extend(tokenizer_config.get("eos_token").and_then(token_id));
        let mask_token_id = config.get("mask_token_id").and_then(as_id).or_else(|| {
            [&tokenizer_config, &special_map].iter().find_map(|source| source.get("mask_token").and_then(token_id))
        });

        let template = ChatTemplate::load(files, &tokenizer_config)?;
        let max_bytes_per_token = coverage::max_bytes_per_token(&tokenizer);
        let names = SpecialTokens::of(&[&tokenizer_config, &special_map]);
        Ok(Self {
            tokenizer,
            template,
            names,
            special_ids,
            eos_token_ids,
            mask_token_id,
            vocab_size,
            max_bytes_per_token,
            max_growth,
            unused,
        })
    }

    /// Settings of the tokenizer's file that have no effect here.
    pub fn unused_settings(&self) -> &[&'static str] {
        &self.unused
    }

    /// Tokenises `text`. Special tokens spelled out in it become their ids; none is added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, RequestError> {
        self.encode_with(text, false)
    }

    /// Like [`Self::encode`]; with `adds_special_tokens`, those that the tokenizer's post-processor puts around a text are added.
    pub fn encode_with(&self, text: &str, adds_special_tokens: bool) -> Result<Vec<u32>, RequestError> {
        caught(|| self.max_growth.check(&self.tokenizer, text))
            .and_then(|checked| checked)
            .map_err(|what| RequestError::invalid("prompt", format!("prompt {what}")))?;
        let encoding = catching(|| self.tokenizer.encode_fast(text, adds_special_tokens))
            .map_err(|what| RequestError::invalid("prompt", format!("prompt cannot be tokenised: {what}")))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Minimum number of tokens of any text with `n_bytes`.
    pub fn min_tokens(&self, n_bytes: usize) -> usize {
        self.max_bytes_per_token.map_or(0, |bound| n_bytes.div_ceil(bound))
    }

    /// Renders messages with the model's template, up to the start of the assistant's turn.
    pub fn render_chat(&self, messages: &[ChatMessage]) -> Result<String, RequestError> {
        self.render_chat_with(messages, &serde_json::Map::new())
    }

    /// Like [`Self::render_chat`] with `tools` that the model may call and `variables` of the template, up to `end`. What the template
    /// [does not read](Self::template_reads) is left out.
    pub fn render_chat_until(
        &self,
        messages: &[ChatMessage],
        (tools, variables): (&[serde_json::Value], &serde_json::Map<String, serde_json::Value>),
        end: ConversationEnd,
    ) -> Result<String, RequestError> {
        self.template.render_until(messages, (tools, variables), end)
    }

    /// True if the chat template reads the variable `name`, such as `tools`.
    pub fn template_reads(&self, name: &str) -> bool {
        self.template.reads(name)
    }

    /// Like [`Self::render_chat`], with variables of the template such as `enable_thinking`.
    pub fn render_chat_with(
        &self,
        messages: &[ChatMessage],
        options: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, RequestError> {
        self.template.render(messages, options)
    }

    /// Returns the named special tokens.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.names
    }

    /// Returns the source of the chat template.
    pub fn chat_template(&self) -> &str {
        self.template.source()
    }

    /// Decodes `ids` without special tokens.
    pub fn decode(&self, ids: &[u32]) -> String {
        let ordinary: Vec<u32> = ids.iter().copied().filter(|id| !self.special_ids.contains(id)).collect();
        // An id outside the vocabulary decodes to nothing, as in Python.
        catching(|| self.tokenizer.decode(&ordinary, false)).unwrap_or_else(|what| {
            tracing::debug!(what, "the tokenizer's decoder failed");
            String::new()
        })
    }

    /// The text of one token alone; incomplete characters become U+FFFD.
    pub fn piece(&self, id: u32) -> String {
        self.decode(&[id])
    }

    /// The bytes of one token, which may be part of a character.
    pub fn bytes(&self, id: u32) -> Vec<u8> {
        let piece = self.piece(id);
        if piece.contains(char::REPLACEMENT_CHARACTER)
            && let Some(bytes) = self.token(id).and_then(|token| byte_alphabet::bytes(&token))
        {
            return bytes;
        }
        piece.into_bytes()
    }

    /// A token as spelled in the vocabulary, including special tokens.
    pub fn token(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// True for special tokens, which are no part of a text.
    pub fn is_special(&self, id: u32) -> bool {
        self.special_ids.contains(&id)
    }

    /// Tokens that end an answer.
    pub fn eos_token_ids(&self) -> &BTreeSet<u32> {
        &self.eos_token_ids
    }

    /// The mask token, if the config or the tokenizer names one.
    pub fn mask_token_id(&self) -> Option<u32> {
        self.mask_token_id
    }

    /// The largest id plus one.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }
}

/// Disables truncation and padding, and returns the names of the enabled ones. They are settings of a training run: a server reads
/// all of a prompt, or the part selected by `truncate_prompt_tokens`.
fn switch_off(tokenizer: &mut Tokenizer) -> Result<Vec<&'static str>, String> {
    let mut unused = Vec::new();
    if tokenizer.get_truncation().is_some() {
        tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
        unused.push("truncation");
    }
    if tokenizer.get_padding().is_some() {
        tokenizer.with_padding(None);
        unused.push("padding");
    }
    Ok(unused)
}

/// Calls the tokenizers crate and turns its panics into errors. It panics on some malformed files (Helper of its decoders, at the
/// end of a file) and, with other files, on some texts (Strip, on a token that it strips completely).
fn catching<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    caught(call)?.map_err(|error| error.to_string())
}

fn as_id(value: &serde_json::Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}
