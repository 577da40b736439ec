//! Chat templates and messages: a template is refused or renders, in bounded time and memory.
//!
//! Parts: the template, then role and content of messages by turns. An empty template stands for the golden one.

use std::sync::LazyLock;

use diffulex_engine::{ChatMessage, ModelFiles, TextModel};

use crate::{Folder, catching, parts};

/// The smallest there is: templates are read together with a tokenizer.
const TOKENIZER: &[u8] = br#"{"added_tokens":[],"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}"#;

const SPECIAL_TOKENS: &[u8] = br#"{"bos_token":"<s>","eos_token":{"content":"</s>"}}"#;

static FOLDER: LazyLock<Folder> = LazyLock::new(|| {
    let folder = Folder::new();
    folder.set("tokenizer.json", Some(TOKENIZER));
    folder.set("tokenizer_config.json", Some(SPECIAL_TOKENS));
    folder
});

static GOLDEN: LazyLock<TextModel> = LazyLock::new(|| {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tokenizer");
    let files = ModelFiles::folder(folder).expect("the golden tokenizer is there");
    TextModel::load(&files).expect("the golden tokenizer loads")
});

/// Renders the messages.
pub fn run(input: &[u8]) {
    catching(|| render(input));
}

fn render(input: &[u8]) {
    let [template, messages @ ..] = parts::<7>(input);
    let of = |part: Option<&[u8]>| part.map(|part| String::from_utf8_lossy(part).into_owned());
    let messages: Vec<ChatMessage> =
        messages.chunks(2).filter_map(|message| Some(ChatMessage::new(of(message[0])?, of(message[1])?))).collect();
    match template {
        None | Some([]) => {
            // Whatever the messages are, a real template takes them, and the tokenizer what it writes.
            let rendered = GOLDEN.render_chat(&messages).expect("the golden template takes all messages");
            GOLDEN.encode(&rendered).expect("any text can be tokenised");
        }
        Some(template) => {
            FOLDER.set("chat_template.jinja", Some(template));
            let Ok(model) = TextModel::load(&FOLDER.files()) else { return };
            // An error is an answer, too.
            let _ = model.render_chat(&messages);
        }
    }
}
