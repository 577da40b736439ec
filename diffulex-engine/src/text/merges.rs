//! Builds `tokenizer.json` from the older files `vocab.json`, `merges.txt`, and the added tokens of `tokenizer_config.json`.
//!
//! None of them contains the pre-tokenizer: it is code of the tokenizer class, or a name in a GGUF file. Supported are Qwen2's,
//! from which the tokenizers of Dream and SDAR derive, and Ling's, which LLaDA uses. Others are refused by name.

use serde_json::{Map, Value, json};

use crate::error::LoadError;
use crate::files::ModelFiles;

/// A pre-tokenizer.
struct Split {
    /// Tokenizer classes that use it, and llama.cpp's names (`tokenizer.ggml.pre`).
    names: &'static [&'static str],
    pattern: &'static str,
    /// Normalise text to NFC first.
    is_composed: bool,
}

const SPLITS: [Split; 2] = [
    // transformers, models/qwen2/tokenization_qwen2.py.
    Split {
        names: &["Qwen2Tokenizer", "Qwen2TokenizerFast", "DreamTokenizer", "DreamTokenizerFast", "qwen2"],
        pattern: r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        is_composed: true,
    },
    // Ling's, used by LLaDA and LLaDA-MoE (llama.cpp, src/llama-vocab.cpp, which does not normalise).
    Split {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        pattern: r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        is_composed: false,
    },
];

/// Builds the content of `tokenizer.json`.
pub(super) fn tokenizer_json(files: &ModelFiles) -> Result<Vec<u8>, LoadError> {
    let fail = |what: String| LoadError::of(files.place(), what);
    let missing = "has no tokenizer: neither tokenizer.json nor vocab.json with merges.txt";
    let vocab = files.read_json("vocab.json")?.ok_or_else(|| fail(missing.to_owned()))?;
    let merges = files.read("merges.txt")?.ok_or_else(|| fail(missing.to_owned()))?;
    let merges = std::str::from_utf8(&merges).map_err(|error| fail(format!("merges.txt: {error}")))?;
    let config = files.read_json("tokenizer_config.json")?.unwrap_or_default();
    let named = ["tokenizer.ggml.pre", "tokenizer_class"]
        .into_iter()
        .find_map(|field| Some((field, config.get(field).and_then(Value::as_str)?)));
    let (field, name) = named.unwrap_or(("tokenizer_class", "none"));
    let split = SPLITS.iter().find(|split| split.names.contains(&name)).ok_or_else(|| {
        let known = SPLITS.iter().flat_map(|split| split.names).copied().collect::<Vec<_>>().join(", ");
        fail(format!(
            "vocabulary and merges have no pre-tokenizer, and {field} is {name}; supported: {known}; or use a folder with tokenizer.json"
        ))
    })?;
    // The first line may be a version; a merge has two parts.
    let merges: Vec<Vec<&str>> = merges
        .lines()
        .filter(|line| !line.starts_with("#version") && !line.trim().is_empty())
        .map(|line| line.split(' ').collect())
        .collect();
    if let Some(line) = merges.iter().find(|merge| merge.len() != 2) {
        return Err(fail(format!("merges.txt: {:?} is not two parts", line.join(" "))));
    }
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": added_tokens(files, &config)?,
        "normalizer": split.is_composed.then(|| json!({"type": "NFC"})),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": split.pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    });
    serde_json::to_vec(&tokenizer).map_err(|error| fail(error.to_string()))
}

/// Added tokens by id: those of `tokenizer_config.json`, or those of `added_tokens.json`, which has no attributes and lists
/// special tokens only.
fn added_tokens(files: &ModelFiles, config: &Value) -> Result<Vec<Value>, LoadError> {
    let mut by_id: Vec<(u64, Map<String, Value>)> = Vec::new();
    if let Some(tokens) = config.get("added_tokens_decoder").and_then(Value::as_object) {
        for (id, token) in tokens {
            let (Ok(id), Some(token)) = (id.parse(), token.as_object()) else {
                let what = format!("tokenizer_config.json: added_tokens_decoder has {id:?}, which is not a token id");
                return Err(LoadError::of(files.place(), what));
            };
            by_id.push((id, token.clone()));
        }
    } else if let Some(Value::Object(tokens)) = files.read_json("added_tokens.json")? {
        for (content, id) in tokens {
            let Some(id) = id.as_u64() else {
                let what = format!("added_tokens.json: {content:?} has the id {id}");
                return Err(LoadError::of(files.place(), what));
            };
            let plain = json!({"content": content, "single_word": false, "lstrip": false, "rstrip": false,
                               "normalized": false, "special": true});
            by_id.extend(plain.as_object().map(|token| (id, token.clone())));
        }
    }
    by_id.sort_by_key(|(id, _)| *id);
    Ok(by_id
        .into_iter()
        .map(|(id, mut token)| {
            token.insert("id".to_owned(), id.into());
            Value::Object(token)
        })
        .collect())
}
