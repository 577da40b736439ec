//! The tokenizer of a GGUF file as `vocab.json`, `merges.txt` and `tokenizer_config.json`.

use serde_json::{Map, Value as Json, json};

use super::{Metadata, Value};

/// Values of `tokenizer.ggml.token_type` (gguf-py's TokenType).
mod kind {
    pub(super) const UNKNOWN: i128 = 2;
    pub(super) const CONTROL: i128 = 3;
    pub(super) const USER_DEFINED: i128 = 4;
    pub(super) const UNUSED: i128 = 5;
}

/// Generates the files of the tokenizer.
pub(super) fn files(metadata: &Metadata<'_>) -> Result<[(&'static str, Vec<u8>); 3], String> {
    let model = metadata.required_text("tokenizer.ggml.model")?;
    if model != "gpt2" {
        return Err(format!("tokenizer.ggml.model is {model}; known is gpt2, byte-level pair merges"));
    }
    let tokens = metadata.texts("tokenizer.ggml.tokens")?;
    let kinds = metadata.list("tokenizer.ggml.token_type")?.values();
    let kinds = kinds.map(|kind| match kind? {
        Value::Whole(kind) => Ok(kind),
        _ => Err("tokenizer.ggml.token_type has a value that is not a number".to_owned()),
    });
    let kinds = kinds.collect::<Result<Vec<i128>, String>>()?;
    if kinds.len() != tokens.len() {
        let (n_kinds, n_tokens) = (kinds.len(), tokens.len());
        return Err(format!("tokenizer.ggml.token_type has {n_kinds} entries for {n_tokens} tokens"));
    }
    // Padding rows of the embedding have invented names.
    let mut vocabulary = Map::new();
    let mut added = Map::new();
    for (id, (token, kind)) in tokens.iter().zip(&kinds).enumerate().filter(|(_, (_, kind))| **kind != kind::UNUSED) {
        vocabulary.insert((*token).to_owned(), id.into());
        if [kind::UNKNOWN, kind::CONTROL, kind::USER_DEFINED].contains(kind) {
            let is_special = *kind != kind::USER_DEFINED;
            let token = json!({"content": token, "single_word": false, "lstrip": false, "rstrip": false,
                               "normalized": false, "special": is_special});
            added.insert(id.to_string(), token);
        }
    }
    let mut merges = String::new();
    for merge in metadata.texts("tokenizer.ggml.merges")? {
        merges.push_str(merge);
        merges.push('\n');
    }
    let mut config = Map::new();
    config.insert("added_tokens_decoder".to_owned(), added.into());
    let pre = metadata.text("tokenizer.ggml.pre")?.unwrap_or("default");
    config.insert("tokenizer.ggml.pre".to_owned(), pre.into());
    for (field, key) in [("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding"), ("unk_token", "unknown")]
    {
        let key = format!("tokenizer.ggml.{key}_token_id");
        if let Some(id) = metadata.size(&key)? {
            let token = tokens
                .get(id as usize)
                .ok_or_else(|| format!("{key} is {id}; the vocabulary has {} tokens", tokens.len()))?;
            config.insert(field.to_owned(), (*token).into());
        }
    }
    if let Some(template) = metadata.text("tokenizer.chat_template")? {
        config.insert("chat_template".to_owned(), template.into());
    }
    Ok([
        ("vocab.json", Json::from(vocabulary).to_string().into_bytes()),
        ("merges.txt", merges.into_bytes()),
        ("tokenizer_config.json", Json::from(config).to_string().into_bytes()),
    ])
}
