use proptest::prelude::*;

use super::*;
use crate::http::reasoning::parser::ReasoningParser;

fn reader(parser: ReasoningParser, is_open: bool) -> ReasoningReader {
    ReasoningForm { marks: parser.marks().unwrap(), is_open, is_shown: true }.reader()
}

/// Thoughts and text of an answer that comes in `pieces`.
fn read(mut reader: ReasoningReader, pieces: &[&str]) -> (String, String) {
    let mut told: Vec<Told> = pieces.iter().flat_map(|piece| reader.push(piece)).collect();
    told.extend(reader.finish());
    let (mut thoughts, mut text) = (String::new(), String::new());
    for part in told {
        match part {
            Told::Thought(more) => {
                assert!(text.is_empty(), "a thought after the text");
                thoughts.push_str(&more);
            }
            Told::Text(more) => text.push_str(&more),
        }
    }
    (thoughts, text)
}

#[test]
fn thoughts_are_told_from_the_text() {
    use ReasoningParser::{Gemma4, Qwen3};
    let cases = [
        (Qwen3, false, "<think>\nLet me see.\n\nYes.\n</think>\n\nIt is.\n", "Let me see.\n\nYes.", "It is.\n"),
        (Qwen3, false, "\n<think>a</think>b", "a", "b"),
        (Qwen3, false, "<think>\n\n</think>\n\nPlain.", "", "Plain."),
        (Qwen3, false, "<think></think>", "", ""),
        // Cut within the block: everything is thought, what looked like a mark, too.
        (Qwen3, false, "<think>\nLet me see </thi", "Let me see </thi", ""),
        (Qwen3, false, "<think>a < b </ c </think> d", "a < b </ c", "d"),
        // Marks behind the first block are text.
        (Qwen3, false, "<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
        (Qwen3, false, "No <think>a</think>", "", "No <think>a</think>"),
        (Qwen3, false, " <thin", "", " <thin"),
        (Qwen3, false, "  \n ", "", "  \n "),
        (Qwen3, false, "a</think>b", "", "a</think>b"),
        // The prompt has opened the block.
        (Qwen3, true, "\na\n</think>\n\nb", "a", "b"),
        (Qwen3, true, "<think>\na</think>b", "a", "b"),
        (Qwen3, true, "</think>\n\nb", "", "b"),
        (Qwen3, true, "a <thi", "a <thi", ""),
        (Qwen3, true, "<thi", "<thi", ""),
        (Gemma4, false, "<|channel>thought\nHm.\n<channel|>Yes.", "Hm.", "Yes."),
        (Gemma4, false, "<|channel>thought\n<channel|>Yes.", "", "Yes."),
        (Gemma4, false, "<|channel>thoughts<channel|>Yes.", "thoughts", "Yes."),
        (Gemma4, false, "<|channel>though", "though", ""),
        (Gemma4, true, "Hm.<channel|>Yes.", "Hm.", "Yes."),
        (Gemma4, true, "thought\nHm.<channel|>Yes.", "Hm.", "Yes."),
    ];
    for (parser, is_open, answer, thoughts, text) in cases {
        let expected = (thoughts.to_owned(), text.to_owned());
        assert_eq!(read(reader(parser, is_open), &[answer]), expected, "{parser:?} {is_open} {answer:?}");
        let characters: Vec<String> = answer.chars().map(String::from).collect();
        let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
        assert_eq!(read(reader(parser, is_open), &characters), expected, "{parser:?} {is_open} {answer:?}");
    }
}

#[test]
fn what_is_sure_is_given_at_once() {
    let mut open = reader(ReasoningParser::Qwen3, false);
    let thought = |text: &str| vec![Told::Thought(text.to_owned())];
    assert_eq!(open.push("<think>\nOne"), thought("One"));
    assert_eq!(open.push(" two \n"), thought(" two"));
    assert_eq!(open.push("three</th"), thought(" \nthree"));
    assert_eq!(open.push("ree"), thought("</three"));
    assert_eq!(open.push("</think>\n"), []);
    assert_eq!(open.push("\nDone"), [Told::Text("Done".to_owned())]);
    let mut plain = reader(ReasoningParser::Qwen3, false);
    assert_eq!(plain.push("<thi"), []);
    assert_eq!(plain.push("s>"), [Told::Text("<this>".to_owned())]);
    assert_eq!(plain.push("<think>"), [Told::Text("<think>".to_owned())]);
}

#[test]
fn thoughts_that_are_not_shown_are_left_out() {
    let form = ReasoningForm { is_shown: false, ..ReasoningForm::think(false) };
    assert_eq!(read(form.reader(), &["<think>a</think>b"]), (String::new(), "b".to_owned()));
}

/// Texts made of what marks are made of.
fn answers() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        Just("<think>"),
        Just("</think>"),
        Just("<|channel>"),
        Just("thought\n"),
        Just("<channel|>"),
        Just("<"),
        Just("</"),
        Just("th"),
        Just(" "),
        Just("\n"),
        Just("ü"),
        Just("text"),
    ];
    proptest::collection::vec(pieces, 0..10).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_cut_of_an_answer_tells_the_same(
        answer in answers(), cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..6), is_open: bool,
    ) {
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(answer.len() + 1)).collect();
        places.extend([0, answer.len()]);
        places.retain(|place| answer.is_char_boundary(*place));
        places.sort_unstable();
        let pieces: Vec<&str> = places.windows(2).map(|pair| &answer[pair[0]..pair[1]]).collect();
        let characters: Vec<String> = answer.chars().map(String::from).collect();
        let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
        for parser in [ReasoningParser::Qwen3, ReasoningParser::Gemma4] {
            let whole = read(reader(parser, is_open), &[&answer]);
            prop_assert_eq!(&read(reader(parser, is_open), &pieces), &whole);
            prop_assert_eq!(&read(reader(parser, is_open), &characters), &whole);
            let marks = parser.marks().unwrap();
            if !is_open && !answer.trim_start().starts_with(marks.opening) {
                prop_assert_eq!(whole, (String::new(), answer.clone()));
            }
        }
    }
}
