//! Tokenizer, chat template and incremental detokenisation against Hugging Face's.

use std::sync::LazyLock;

use diffulex_engine::text::Detokenizer;
use diffulex_engine::{ChatMessage, ConversationEnd, ModelFiles, TextModel, ToolCall};
use proptest::prelude::*;
use serde_json::Map;

use crate::harness::{Files, golden, json};

/// Loaded once: a property asks for it hundreds of times.
fn text_model() -> &'static TextModel {
    static TEXT: LazyLock<TextModel> =
        LazyLock::new(|| TextModel::load(&ModelFiles::folder(golden("tokenizer")).unwrap()).unwrap());
    &TEXT
}

fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn encodings_equal_hugging_faces() {
    let text = text_model();
    let vectors = json("tokenizer/vectors.json");
    for vector in vectors["encode"].as_array().unwrap() {
        let (source, want) = (vector["text"].as_str().unwrap(), ids(&vector["ids"]));
        assert_eq!(text.encode(source).unwrap(), want, "{source:?}");
        assert_eq!(text.decode(&want), vector["decoded_skip_special"].as_str().unwrap(), "{source:?}");
    }
}

/// The golden tokenizer as the files from before `tokenizer.json`.
fn older_files() -> Files {
    let mut files = Files::golden("sdar");
    let tokenizer = files.json("tokenizer.json");
    files.set_json("vocab.json", &tokenizer["model"]["vocab"]);
    let merges = tokenizer["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|merge| format!("{} {}\n", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()));
    files.0.insert("merges.txt".to_owned(), format!("#version: 0.2\n{}", merges.collect::<String>()).into_bytes());
    files.0.remove("tokenizer.json");
    let mut config = files.json("tokenizer_config.json");
    config["tokenizer_class"] = "Qwen2Tokenizer".into();
    files.set_json("tokenizer_config.json", &config);
    files
}

#[test]
fn vocabulary_and_merges_make_the_same_tokenizer() {
    let text = TextModel::load(&older_files().leak()).unwrap();
    for vector in json("tokenizer/vectors.json")["encode"].as_array().unwrap() {
        let (source, want) = (vector["text"].as_str().unwrap(), ids(&vector["ids"]));
        assert_eq!(text.encode(source).unwrap(), want, "{source:?}");
        assert_eq!(text.decode(&want), vector["decoded_skip_special"].as_str().unwrap(), "{source:?}");
    }
    assert!(text.eos_token_ids().contains(&501) && text.mask_token_id() == Some(500) && text.is_special(504));
    // Where only added_tokens.json names them.
    let mut files = older_files();
    let mut config = files.json("tokenizer_config.json");
    config.as_object_mut().unwrap().remove("added_tokens_decoder");
    files.set_json("tokenizer_config.json", &config);
    files.set_json("added_tokens.json", &json("tokenizer/added_tokens.json"));
    assert_eq!(TextModel::load(&files.leak()).unwrap().encode("<|mask|>").unwrap(), [500]);
}

/// Python's tokenizers with the pattern of Ling's tokenizer.json: text is not composed.
#[test]
fn lings_way_to_split_is_known_by_llama_cpps_name() {
    let mut files = older_files();
    let mut config = files.json("tokenizer_config.json");
    config["tokenizer.ggml.pre"] = "bailingmoe".into();
    files.set_json("tokenizer_config.json", &config);
    let text = TextModel::load(&files.leak()).unwrap();
    let cases: [(&str, &[u32]); 3] = [
        ("I'll see he's", &[40, 6, 75, 75, 261, 68, 68, 220, 256, 6, 82]),
        ("the 12  the", &[83, 256, 220, 16, 17, 220, 260]),
        ("cafe\u{301}", &[66, 64, 69, 68, 136, 223]),
    ];
    for (source, want) in cases {
        assert_eq!(text.encode(source).unwrap(), want, "{source:?}");
    }
}

#[test]
fn older_files_that_do_not_do_are_named() {
    let refused = |files: Files| TextModel::load(&files.leak()).err().unwrap().to_string();
    let mut unknown = older_files();
    let mut config = unknown.json("tokenizer_config.json");
    config["tokenizer_class"] = "LlamaTokenizer".into();
    unknown.set_json("tokenizer_config.json", &config);
    assert!(refused(unknown).contains("tokenizer_class is LlamaTokenizer"));
    let mut halved = older_files();
    halved.0.remove("merges.txt");
    assert!(refused(halved).contains("neither tokenizer.json nor vocab.json with merges.txt"));
    let mut broken = older_files();
    broken.0.insert("merges.txt".to_owned(), b"a b c\n".to_vec());
    assert!(refused(broken).contains("\"a b c\" is not two parts"));
}

#[test]
fn chats_render_as_jinja_renders_them() {
    let text = text_model();
    let vectors = json("tokenizer/vectors.json");
    let mut n_compared = 0;
    for vector in vectors["chat"].as_array().unwrap() {
        if vector["add_generation_prompt"] != true {
            continue;
        }
        let messages: Vec<ChatMessage> = vector["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| ChatMessage::new(message["role"].as_str().unwrap(), message["content"].as_str().unwrap()))
            .collect();
        let rendered = text.render_chat_with(&messages, vector["kwargs"].as_object().unwrap()).unwrap();
        assert_eq!(rendered, vector["rendered"].as_str().unwrap());
        assert_eq!(text.encode(&rendered).unwrap(), ids(&vector["ids"]));
        n_compared += 1;
    }
    assert!(n_compared > 0);
}

#[test]
fn tools_calls_and_results_render_as_transformers_renders_them() {
    let template = include_bytes!("../../golden/tools/chat_template.jinja");
    let mut files = Files::golden("sdar");
    files.0.insert("chat_template.jinja".to_owned(), template.to_vec());
    let text = TextModel::load(&files.leak()).unwrap();
    assert!(text.template_reads("tools") && !text_model().template_reads("tools"));
    let cases = json("tools/rendered.json");
    for case in cases.as_array().unwrap() {
        let word = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let call = |call: &serde_json::Value| ToolCall {
            id: word(&call["id"]).unwrap(),
            name: word(&call["function"]["name"]).unwrap(),
            arguments: call["function"]["arguments"].as_object().unwrap().clone(),
        };
        let message = |message: &serde_json::Value| ChatMessage {
            tool_calls: message["tool_calls"].as_array().into_iter().flatten().map(call).collect(),
            tool_call_id: word(&message["tool_call_id"]),
            name: word(&message["name"]),
            ..ChatMessage::new(word(&message["role"]).unwrap(), word(&message["content"]).unwrap())
        };
        let messages: Vec<ChatMessage> = case["messages"].as_array().unwrap().iter().map(message).collect();
        let tools = case["tools"].as_array().unwrap();
        let rendered =
            text.render_chat_until(&messages, (tools, &Map::new()), ConversationEnd::GenerationPrompt).unwrap();
        assert_eq!(rendered, case["rendered"].as_str().unwrap());
    }
}

#[test]
fn a_template_gets_variables_and_what_an_assistant_thought() {
    let template = "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content | default('-') }}/{{ m.reasoning }}:{{ m.content }};{% endfor %}\
                    {% if add_generation_prompt %}{{ '<think>' if enable_thinking else '.' }}{% endif %}";
    let mut files = Files::golden("sdar");
    files.0.insert("chat_template.jinja".to_owned(), template.as_bytes().to_vec());
    let text = TextModel::load(&files.leak()).unwrap();
    assert!(text.template_reads("enable_thinking") && !text.template_reads("reasoning_effort"));
    let thought = ChatMessage { reasoning: Some("Hm".to_owned()), ..ChatMessage::new("assistant", "Yes") };
    let messages = [ChatMessage::new("user", "Really?"), thought];
    let variables = |thinks: bool| [("enable_thinking".to_owned(), thinks.into())].into_iter().collect::<Map<_, _>>();
    for (thinks, end) in [(true, "<think>"), (false, ".")] {
        let prompt = text.render_chat_until(&messages, (&[], &variables(thinks)), ConversationEnd::GenerationPrompt);
        assert_eq!(prompt.unwrap(), format!("user:-/:Really?;assistant:Hm/Hm:Yes;{end}"));
    }
    // The server's own variables are not a request's.
    let own = [("add_generation_prompt".to_owned(), true.into())].into_iter().collect();
    let prompt = text.render_chat_until(&messages, (&[], &own), ConversationEnd::LastMessage);
    assert!(prompt.unwrap().ends_with("Yes;"));
}

/// Gemma's marks of thoughts are special tokens of its vocabulary.
#[test]
fn marks_of_an_answers_parts_stay_in_its_text() {
    let mut files = Files::golden("sdar");
    let mut tokenizer = files.json("tokenizer.json");
    for token in tokenizer["added_tokens"].as_array_mut().unwrap() {
        token["special"] = true.into();
    }
    files.set_json("tokenizer.json", &tokenizer);
    let text = TextModel::load(&files.leak()).unwrap();
    let ids = text.encode("<think>a</think><|im_end|>b").unwrap();
    assert_eq!(text.decode(&ids), "<think>a</think>b");
    assert!(!text.is_special(509) && text.is_special(505));
}

#[test]
fn a_continued_conversation_ends_behind_the_content_whatever_the_template_does_to_it() {
    let rendered = |template: &str, contents: [&str; 3]| {
        let mut files = Files::golden("sdar");
        files.0.insert("chat_template.jinja".to_owned(), template.as_bytes().to_vec());
        let text = TextModel::load(&files.leak()).unwrap();
        let roles = ["system", "user", "assistant"];
        let message = |(role, content): (&str, &str)| ChatMessage::new(role, content);
        let messages: Vec<ChatMessage> = roles.into_iter().zip(contents).map(message).collect();
        let prompt = text.render_chat_until(&messages, (&[], &Map::new()), ConversationEnd::GenerationPrompt);
        assert_eq!(prompt.ok(), text.render_chat(&messages).ok());
        text.render_chat_until(&messages, (&[], &Map::new()), ConversationEnd::Content).map_err(|error| error.message)
    };
    let of_each = |message: &str| format!("{{% for message in messages %}}{message}{{% endfor %}}");
    let plain = of_each("[{{ message.content }}]");
    assert_eq!(rendered(&plain, ["s", "a b", "a"]).unwrap(), "[s][a b][a");
    assert_eq!(rendered(&plain, ["s", "u", ""]).unwrap(), "[s][u][");
    assert_eq!(rendered(&plain, ["CONTINUED-0-HERE", "u", " x \n"]).unwrap(), "[CONTINUED-0-HERE][u][ x \n");
    // Trimmed, as transformers has it: without the spaces that the template drops.
    let trimming = of_each("[{{ message.content | trim }}]");
    assert_eq!(rendered(&trimming, [" s", "u ", " x \n"]).unwrap(), "[s][u][x");
    assert_eq!(rendered(&trimming, ["s", "u", ""]).unwrap(), "[s][u][");
    let thinking = of_each("[{{ message.content.split('</think>')[-1].strip() }}]");
    assert_eq!(rendered(&thinking, ["s", "u", "<think>t</think> x y"]).unwrap(), "[s][u][x y");
    let error = rendered("{{ messages[0].content }}", ["s", "u", "s"]).unwrap_err();
    assert!(error.starts_with("messages: ") && error.contains("continue_final_message"), "{error}");
}

#[test]
fn end_tokens_come_from_every_file() {
    let text = text_model();
    assert!(text.eos_token_ids().contains(&501) && text.mask_token_id() == Some(500) && text.is_special(504));
}

/// A tokenizer as SentencePiece makes them: what is in no word is written byte by byte.
fn falling_back_to_bytes() -> TextModel {
    let mut files = Files::golden("sdar");
    let mut tokenizer = files.json("tokenizer.json");
    let bytes = (0..256).map(|byte| (format!("<0x{byte:02X}>"), byte));
    let letters = ('a'..='e').zip(256..).map(|(letter, id)| (letter.to_string(), id));
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        bytes.chain(letters).map(|(token, id)| (token, id.into())).collect();
    tokenizer["model"] =
        serde_json::json!({"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": true, "fuse_unk": false});
    tokenizer["decoder"] =
        serde_json::json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]});
    tokenizer["pre_tokenizer"] = serde_json::Value::Null;
    files.set_json("tokenizer.json", &tokenizer);
    TextModel::load(&files.leak()).unwrap()
}

#[test]
fn characters_of_single_bytes_come_whole() {
    let text = falling_back_to_bytes();
    for source in ["a😀b", "漢字", "a漢字b漢", "😀😀😀"] {
        let source = source.repeat(40);
        let ids: Vec<u32> = source
            .chars()
            .flat_map(|c| match c {
                'a'..='e' => vec![256 + c as u32 - 'a' as u32],
                _ => c.to_string().bytes().map(u32::from).collect(),
            })
            .collect();
        assert_eq!(text.decode(&ids), source);
        let mut detokenizer = Detokenizer::default();
        let pieces: Vec<String> = ids.iter().map(|id| detokenizer.push(&text, &[*id])).collect();
        assert!(pieces.iter().all(|piece| !piece.contains(char::REPLACEMENT_CHARACTER)), "{pieces:?}");
        assert_eq!(pieces.concat() + &detokenizer.finish(&text), source);
    }
}

#[test]
fn the_bytes_of_tokens_are_those_of_the_text() {
    let source = "a😀 b漢字é\n\u{301}\u{fffd}c";
    for text in [text_model(), &falling_back_to_bytes()] {
        let bytes: Vec<u8> = text.encode(source).unwrap().into_iter().flat_map(|id| text.bytes(id)).collect();
        assert_eq!(bytes, source.as_bytes());
    }
}

proptest! {
    /// However ids arrive, the pieces joined are the text, and no character is split.
    #[test]
    fn pieces_join_to_the_text(source in "[a-z é汉字😀👩‍👧ก็ \n]{0,40}", cuts in proptest::collection::vec(1usize..5, 0..80)) {
        let text = text_model();
        let ids = text.encode(&source).unwrap();
        let mut detokenizer = Detokenizer::default();
        let (mut joined, mut at) = (String::new(), 0);
        for cut in cuts {
            let end = (at + cut).min(ids.len());
            let piece = detokenizer.push(text, &ids[at..end]);
            prop_assert!(!piece.contains(char::REPLACEMENT_CHARACTER));
            joined.push_str(&piece);
            at = end;
        }
        joined.push_str(&detokenizer.push(text, &ids[at..]));
        joined.push_str(&detokenizer.finish(text));
        prop_assert_eq!(joined, text.decode(&ids));
    }

    /// Ids that are no text at all still come out as `decode` would have them.
    #[test]
    fn any_ids_join_to_their_decoding(ids in proptest::collection::vec(0u32..511, 0..60)) {
        let text = text_model();
        let mut detokenizer = Detokenizer::default();
        let mut joined = detokenizer.push(text, &ids);
        joined.push_str(&detokenizer.finish(text));
        prop_assert_eq!(joined, text.decode(&ids));
    }
}
