//! Tokenizers: their files are refused or loaded, and what is loaded takes any text and any ids.
//!
//! Parts: a text, tokenizer.json, tokenizer_config.json, vocab.json, merges.txt, added_tokens.json. Without any file the
//! golden tokenizer takes the text, and must give it back.

use std::sync::LazyLock;

use diffulex_engine::text::Detokenizer;
use diffulex_engine::{ModelFiles, TextModel};

use crate::{Folder, catching, parts};

static GOLDEN: LazyLock<TextModel> = LazyLock::new(|| {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tokenizer");
    let files = ModelFiles::folder(folder).expect("the golden tokenizer is there");
    TextModel::load(&files).expect("the golden tokenizer loads")
});

/// Loads the files, and brings the text to ids and back.
pub fn run(input: &[u8]) {
    catching(|| load(input));
}

fn load(input: &[u8]) {
    static FOLDER: LazyLock<Folder> = LazyLock::new(Folder::new);
    let [source, tokenizer, config, vocab, merges, added] = parts(input);
    let source = String::from_utf8_lossy(source.unwrap_or_default());
    if tokenizer.is_none() {
        return golden(&source);
    }
    let given = |part: Option<&'_ [u8]>| part.is_some_and(|part| !part.is_empty());
    FOLDER.set("tokenizer.json", tokenizer.filter(|_| given(tokenizer)));
    FOLDER.set("tokenizer_config.json", config.filter(|_| given(config)));
    FOLDER.set("vocab.json", vocab);
    FOLDER.set("merges.txt", merges);
    FOLDER.set("added_tokens.json", added);
    let Ok(model) = TextModel::load(&FOLDER.files()) else { return };
    let ids = model.encode(&source).unwrap_or_default();
    let _ = model.decode(&ids);
    let ids = some_ids(&source, model.vocab_size());
    let _ = stream(&model, &ids);
    for id in ids {
        let _ = (model.piece(id), model.bytes(id), model.token(id));
    }
}

fn golden(source: &str) {
    let ids = GOLDEN.encode(source).expect("any text can be tokenised");
    assert_eq!(stream(&GOLDEN, &ids), GOLDEN.decode(&ids));
    let ids = some_ids(source, GOLDEN.vocab_size());
    assert_eq!(stream(&GOLDEN, &ids), GOLDEN.decode(&ids));
}

/// Ids that need not be those of a text, and one or the other outside of the vocabulary.
fn some_ids(source: &str, vocab_size: u32) -> Vec<u32> {
    let n_ids = vocab_size.saturating_add(1);
    source
        .bytes()
        .scan(0u32, |state, byte| {
            *state = state.wrapping_mul(31).wrapping_add(byte.into());
            Some(*state % n_ids)
        })
        .take(64)
        .collect()
}

/// The text of ids that come one by one.
fn stream(model: &TextModel, ids: &[u32]) -> String {
    let mut detokenizer = Detokenizer::default();
    let mut text: String = ids.iter().map(|id| detokenizer.push(model, &[*id])).collect();
    text.push_str(&detokenizer.finish(model));
    text
}
