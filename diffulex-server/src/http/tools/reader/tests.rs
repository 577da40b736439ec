use proptest::prelude::*;

use super::*;
use crate::http::tools::forms::ToolCallParser;

const FORMS: [ToolCallParser; 5] = [
    ToolCallParser::Hermes,
    ToolCallParser::Llama3Json,
    ToolCallParser::Mistral,
    ToolCallParser::Qwen3Coder,
    ToolCallParser::Gemma4,
];

fn reader(parser: ToolCallParser, is_kept: bool) -> Reader {
    let names = ["f", "look_up"];
    let kept = if is_kept { names.map(str::to_owned).to_vec() } else { Vec::new() };
    Reader::new(Form::of(Some(parser), ""), names.map(Tool::of_test).to_vec(), kept)
}

/// `events` with neighbours joined.
fn joined(events: Vec<Event>) -> Vec<Event> {
    let mut all: Vec<Event> = Vec::new();
    for event in events {
        match (all.last_mut(), event) {
            (Some(Event::Text(last)), Event::Text(more)) | (Some(Event::Arguments(last)), Event::Arguments(more)) => {
                last.push_str(&more);
            }
            (_, event) => all.push(event),
        }
    }
    all
}

fn read(mut reader: Reader, pieces: &[&str]) -> Vec<Event> {
    let mut events: Vec<Event> = pieces.iter().flat_map(|piece| reader.push(piece)).collect();
    events.extend(reader.finish());
    joined(events)
}

fn text(text: &str) -> Event {
    Event::Text(text.to_owned())
}

fn call(name: &str, arguments: &str) -> Vec<Event> {
    vec![Event::Start { name: name.to_owned() }, Event::Arguments(arguments.to_owned()), Event::End]
}

#[test]
fn calls_of_each_form_are_read_with_the_text_around_them() {
    use ToolCallParser::{Hermes, Llama3Json, Mistral};
    let one = [vec![text("Look:")], call("f", "{\"a\": \"}\"}")].concat();
    let two = [call("f", "{}"), call("look_up", "{\"n\": [1, {}]}")].concat();
    let cases = [
        (Hermes, "Look:\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\"}}\n</tool_call>\n", one.clone()),
        (Hermes, "Look: <tool_call>{\"arguments\":{\"a\": \"}\"},\"name\":\"f\"}</tool_call>", one.clone()),
        // The end of the answer ends the call, too.
        (Hermes, "Look: <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"}\"}}\n</tool_c", one.clone()),
        (
            Hermes,
            "<tool_call>\n{\"name\": \"f\"}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"look_up\", \"arguments\": \"{\\\"n\\\": [1, {}]}\"}\n</tool_call>",
            two.clone(),
        ),
        (Llama3Json, "Look: <|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": \"}\"}}", one.clone()),
        (Llama3Json, "{\"name\": \"f\"}; {\"name\": \"look_up\", \"parameters\": {\"n\": [1, {}]}}", two.clone()),
        (Mistral, "Look:[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": \"}\"}, \"id\": \"123456789\"}]", one),
        (Mistral, "[{\"name\": \"f\"}, {\"name\": \"look_up\", \"arguments\": {\"n\": [1, {}]}}]", two.clone()),
        (
            Mistral,
            "[TOOL_CALLS][{\"name\": \"f\"}][TOOL_CALLS][{\"name\": \"look_up\", \"arguments\": {\"n\": [1, {}]}}]",
            two,
        ),
    ];
    for (parser, answer, expected) in cases {
        assert_eq!(read(reader(parser, false), &[answer]), expected, "{parser:?} {answer}");
    }
}

/// A reader of calls of `f`, whose arguments have these types.
fn typed(parser: ToolCallParser) -> Reader {
    let properties = serde_json::json!({
        "text": {"type": "string"}, "count": {"type": "integer"}, "flag": {"type": "boolean"}, "list": {"type": "array"},
        "object": {"type": "object"}, "named": {"$ref": "#/$defs/A"}, "parts": {"allOf": [{"$ref": "#/$defs/A"}]},
        "values": {"enum": [1, 2]}, "endless": {"$ref": "#/$defs/B"}, "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "any": {}
    });
    let mut tool = Tool::of_test("f");
    tool.parameters.insert("properties".to_owned(), properties);
    let definitions = serde_json::json!({"A": {"type": "object"}, "B": {"$ref": "#/$defs/B"}});
    tool.parameters.insert("$defs".to_owned(), definitions);
    Reader::new(Form::of(Some(parser), ""), vec![tool], Vec::new())
}

#[test]
fn notations_that_are_not_json_become_json() {
    use ToolCallParser::{Gemma4, Qwen3Coder};
    let cases = [
        (
            Qwen3Coder,
            "<tool_call>\n<function=f>\n<parameter=text>\n12\n\n</parameter>\n<parameter=count>\n12\n</parameter>\n\
             <parameter=list>\n[1, \"a\"]\n</parameter>\n</function>\n</tool_call>",
            r#"{"text":"12\n","count":12,"list":[1,"a"]}"#,
        ),
        (
            Qwen3Coder,
            "<tool_call><function=f><parameter=flag>True</parameter><parameter=maybe>null</parameter>\
             <parameter=any>1</parameter><parameter=other>x</parameter><parameter=object>{\"a\": 1}</parameter></function></tool_call>",
            r#"{"flag":true,"maybe":null,"any":"1","other":"x","object":{"a":1}}"#,
        ),
        (
            Qwen3Coder,
            "<tool_call><function=f><parameter=named>{\"a\": 1}</parameter><parameter=parts>{}</parameter>\
             <parameter=values>2</parameter><parameter=endless>1</parameter></function></tool_call>",
            r#"{"named":{"a":1},"parts":{},"values":2,"endless":"1"}"#,
        ),
        // What is no JSON stays as it is, for the client to judge.
        (
            Qwen3Coder,
            "<tool_call>\n<function=f>\n<parameter=count>\ntwelve\n</parameter>\n</function>\n</tool_call>",
            r#"{"count":"twelve"}"#,
        ),
        (Qwen3Coder, "<tool_call>\n<function=f>\n</function>\n</tool", "{}"),
        (
            Gemma4,
            "<|tool_call>call:f{text:<|\"|>a, }]: \"b\"<|\"|>,count:-3,flag:true,list:[1,<|\"|>x<|\"|>,[]],object:{a:{b:null}},maybe:word}<tool_call|>",
            r#"{"text":"a, }]: \"b\"","count":-3,"flag":true,"list":[1,"x",[]],"object":{"a":{"b":null}},"maybe":"word"}"#,
        ),
        (Gemma4, "<|tool_call>call:f{}<tool_call|>", "{}"),
        (Gemma4, "<|tool_call> call:f{ <|\"|>a b<|\"|> : 1.5 , c:2 } <tool_call|>", r#"{"a b":1.5,"c":2}"#),
        (Gemma4, "<|tool_call>call:f{text:<|\"|><tool_call|><|\"|>}", r#"{"text":"<tool_call|>"}"#),
    ];
    for (parser, answer, arguments) in cases {
        assert_eq!(read(typed(parser), &[answer]), call("f", arguments), "{answer}");
    }
    let comma = "<|tool_call>call:f{count:1,}<tool_call|>";
    let answer = format!("{comma}<|tool_call>call:f{{count:2}}<tool_call|>");
    assert_eq!(read(typed(Gemma4), &[&answer]), [vec![text(comma)], call("f", r#"{"count":2}"#)].concat());
    let mut waits = typed(Gemma4);
    assert_eq!(waits.push("<|tool_call>call:me when, you"), [text("<|tool_call>call:me when, you")]);
    let deep = format!("<|tool_call>call:f{{a:{}1{}}}<tool_call|>", "[".repeat(500), "]".repeat(500));
    assert_eq!(read(typed(Gemma4), &[&deep]), [text(&deep)]);
}

#[test]
fn several_calls_with_text_around_them_are_read_in_every_notation() {
    for (parser, one, other) in [
        (
            ToolCallParser::Qwen3Coder,
            "<tool_call>\n<function=f>\n<parameter=text>\nx\n</parameter>\n</function>\n</tool_call>",
            "\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
        ),
        (
            ToolCallParser::Gemma4,
            "<|tool_call>call:f{text:<|\"|>x<|\"|>}<tool_call|>",
            "<|tool_call>call:f{}<tool_call|>",
        ),
    ] {
        let expected =
            [vec![text("Look:")], call("f", r#"{"text":"x"}"#), call("f", "{}"), vec![text(" Done.")]].concat();
        assert_eq!(read(typed(parser), &[&format!("Look:\n{one}{other} Done.")]), expected, "{parser:?}");
    }
}

#[test]
fn text_after_a_call_keeps_its_white_space() {
    let answer = "<tool_call>{\"name\": \"f\"}</tool_call>\n\nDone. ";
    let expected = [call("f", "{}"), vec![text("\n\nDone. ")]].concat();
    assert_eq!(read(reader(ToolCallParser::Hermes, false), &[answer]), expected);
    let answer = "{\"name\": \"f\"} ; or not";
    let expected = [call("f", "{}"), vec![text(" ; or not")]].concat();
    assert_eq!(read(reader(ToolCallParser::Llama3Json, false), &[answer]), expected);
}

#[test]
fn what_is_not_a_call_is_text_byte_for_byte() {
    let answers = [
        "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1,}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ",
        "<tool_call>\nf(1)\n</tool_call>",
        "a < b, {x: [1, 2]}, <tool_cal",
        "{\"name\": \"Ann\", \"age\": 3} and {\"name\": 1}",
        "[TOOL_CALLS] and [1, [2], {\"name\": \"f\"",
        "<|python_tag|>print(1)",
        "<tool_call>\n<function=unknown>\n</function>\n</tool_call>",
        "<tool_call><function=f><parameter=a>1</function></tool_call>",
        "<tool_call><function=f>\nx</function></tool_call>",
        "<tool_call>\n<function=f>\n<parameter=a>\n1",
        "<|tool_call>call:unknown{}<tool_call|>",
        "<|tool_call>call:f{a}<tool_call|>",
        "<|tool_call>call:f{a:}<tool_call|>",
        "<|tool_call>call:f{a:<|\"|>x<tool_call|>",
        "<|tool_call>call:f{a:1 <|\"|>b<|\"|>}<tool_call|>",
        "<|tool_call>f{}<tool_call|>",
        "größe {\u{1f642} [",
        "  \n ",
    ];
    let odd = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_calls>";
    assert_eq!(read(reader(ToolCallParser::Hermes, false), &[odd]), [text(odd)]);
    for parser in FORMS {
        for answer in answers {
            for is_kept in [false, true] {
                // A call that nothing but a call can follow is one from its beginning.
                if is_kept && answer.contains("\"f\"") {
                    continue;
                }
                assert_eq!(read(reader(parser, is_kept), &[answer]), [text(answer)], "{parser:?}");
            }
        }
    }
}

#[test]
fn text_is_given_as_soon_as_no_call_can_begin_in_it() {
    let mut reader = reader(ToolCallParser::Hermes, false);
    assert_eq!(reader.push("Hello"), [text("Hello")]);
    assert_eq!(reader.push(" <tool"), []);
    assert_eq!(reader.push("s> x"), [text(" <tools> x")]);
    assert_eq!(reader.push(" <tool_call>{\"name\": \"g\","), [text(" <tool_call>{\"name\": \"g\",")]);
}

#[test]
fn arguments_that_are_kept_to_a_schema_are_given_while_they_are_written() {
    let mut reader = reader(ToolCallParser::Hermes, true);
    assert_eq!(reader.push("<tool_call>\n{\"name\": \"f\", \"argu"), []);
    assert_eq!(reader.push("ments\": {"), [Event::Start { name: "f".to_owned() }, Event::Arguments("{".to_owned())]);
    assert_eq!(reader.push("\"a\": \"x"), [Event::Arguments("\"a\": \"x".to_owned())]);
    assert_eq!(reader.push("\"}}\n</tool_"), [Event::Arguments("\"}".to_owned()), Event::End]);
    assert_eq!((reader.push("call>"), reader.finish()), (vec![], vec![]));
}

#[test]
fn a_kept_call_that_is_cut_has_no_end() {
    let begun = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x";
    let expected = [Event::Start { name: "f".to_owned() }, Event::Arguments("{\"a\": \"x".to_owned())];
    assert_eq!(read(reader(ToolCallParser::Hermes, true), &[begun]), expected);
    let complete = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool";
    assert_eq!(read(reader(ToolCallParser::Hermes, true), &[complete]), call("f", "{}"));
}

#[test]
fn a_long_call_is_read_once() {
    let mut reader = reader(ToolCallParser::Hermes, false);
    reader.push("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"");
    for _ in 0..20_000 {
        assert_eq!(reader.push("xy"), []);
    }
    // What is read is noted: reading all of it each time would take minutes.
    assert_eq!(reader.object.map(|(_, extent)| extent.n_bytes), Some(40_000 + 34));
}

/// Texts made of what forms are made of.
fn answers() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        Just("<tool_call>"),
        Just("</tool_call>"),
        Just("[TOOL_CALLS]"),
        Just("<|python_tag|>"),
        Just("["),
        Just("]"),
        Just(","),
        Just(";"),
        Just(" "),
        Just("\n"),
        Just("{"),
        Just("}"),
        Just("\""),
        Just("\\"),
        Just("text"),
        Just("ü"),
        Just("{\"name\": \"f\", \"arguments\": {\"a\": \"}\"}}"),
        Just("{\"name\": \"look_up\", \"parameters\": {}}"),
        Just("{\"name\": \"f\", \"arguments\": "),
        Just("{\"name\": \"nobody\", \"arguments\": {}}"),
        Just("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": [1]}}\n</tool_call>"),
        Just("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}"),
        Just("<|tool_call>"),
        Just("<tool_call|>"),
        Just("<|\"|>"),
        Just("call:f{"),
        Just("a:"),
        Just("<function=f>"),
        Just("<parameter=a>"),
        Just("</parameter>"),
        Just("</function>"),
        Just("<|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|>"),
        Just("<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"),
    ];
    proptest::collection::vec(pieces, 0..16).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_cut_of_a_text_gives_the_same_events(
        answer in answers(), cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..8), is_kept: bool,
    ) {
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(answer.len() + 1)).collect();
        places.extend([0, answer.len()]);
        places.retain(|place| answer.is_char_boundary(*place));
        places.sort_unstable();
        let pieces: Vec<&str> = places.windows(2).map(|pair| &answer[pair[0]..pair[1]]).collect();
        for parser in FORMS {
            let whole = read(reader(parser, is_kept), &[&answer]);
            let each: Vec<String> = answer.chars().map(String::from).collect();
            let each: Vec<&str> = each.iter().map(String::as_str).collect();
            prop_assert_eq!(&read(reader(parser, is_kept), &pieces), &whole);
            prop_assert_eq!(&read(reader(parser, is_kept), &each), &whole);
            if !whole.iter().any(|event| matches!(event, Event::Start { .. })) {
                prop_assert_eq!(whole, if answer.is_empty() { vec![] } else { vec![text(&answer)] });
            }
        }
    }
}
