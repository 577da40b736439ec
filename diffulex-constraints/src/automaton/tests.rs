use std::collections::{HashMap, HashSet};

use diffulex_protocol::Constraint;
use proptest::prelude::*;

use super::Automaton;
use crate::dfa::Dfa;
use crate::groups::Groups;
use crate::testing::languages;
use crate::{Item, Language, Vocabulary, language_of};

const MASK: u32 = 256;
const ENDS: [u32; 2] = [257, 258];
/// ` a`, whose space is left out at the start.
const SPACED: u32 = 259;

/// Every byte, the mask, two end tokens, and tokens of several bytes.
fn spelled() -> Vec<Option<Box<[u8]>>> {
    let bytes = (0..=255_u8).map(|byte| Some(Box::from([byte])));
    let others = [None, None, Some("</s>"), Some(" a"), Some("ab"), Some("ab"), Some("b,a"), Some("é"), Some("")];
    let split: [&[u8]; 2] = [b"a\xc3", b"\xa9,"];
    let others = others.into_iter().map(|text| text.map(|text| Box::from(text.as_bytes())));
    bytes.chain(others).chain(split.map(|bytes| Some(Box::from(bytes)))).collect()
}

fn vocabulary() -> Vocabulary {
    let tokens = spelled();
    Vocabulary::new(&tokens, &[], &ENDS, tokens.len() + 3)
}

fn vocabulary_with_start() -> Vocabulary {
    let tokens = spelled();
    Vocabulary::new(&tokens, &[(SPACED, Some(Box::from(*b"a"))), (32, Some(Box::from(*b"")))], &ENDS, tokens.len() + 3)
}

fn repeat(part: Language, least: u32, most: Option<u32>) -> Language {
    Language::Repeat { part: Box::new(part), least, most }
}

fn refusal(language: &Language) -> String {
    Automaton::compile(language, &vocabulary()).unwrap_err().message
}

/// Compares each token in each state with the automaton over bytes.
fn compare(language: &Language, has_start: bool) {
    let vocabulary = if has_start { vocabulary_with_start() } else { vocabulary() };
    let Ok(dfa) = Dfa::new(language) else {
        assert!(Automaton::compile(language, &vocabulary).is_err());
        return;
    };
    let automaton = Automaton::compile(language, &vocabulary).unwrap();
    let tokens = spelled();
    let over = automaton.n_states() as u32 - 1;
    let mut seen = HashSet::from([(Automaton::START, 0)]);
    let mut open = vec![(Automaton::START, 0)];
    let mut relations: Vec<Vec<(u32, u32)>> = vec![Vec::new(); vocabulary.n_rows()];
    while let Some((state, over_bytes)) = open.pop() {
        assert_eq!(automaton.is_accepting(state), dfa.is_accepting(over_bytes));
        for token in 0..vocabulary.n_rows() as u32 {
            let is_first = has_start && state == Automaton::START;
            let bytes: Option<&[u8]> = match token {
                _ if ENDS.contains(&token) => None,
                SPACED if is_first => Some(b"a"),
                32 if is_first => Some(b""),
                _ => {
                    tokens.get(token as usize).and_then(Option::as_deref).filter(|bytes| is_first || !bytes.is_empty())
                }
            };
            let expected =
                bytes.and_then(|bytes| bytes.iter().try_fold(over_bytes, |state, &byte| dfa.step(state, byte)));
            let next = automaton.next(state, token);
            if ENDS.contains(&token) {
                assert_eq!(next, dfa.is_accepting(over_bytes).then_some(over));
            } else {
                assert_eq!(next.is_some(), expected.is_some(), "{token} in {state}");
            }
            let Some(next) = next else { continue };
            relations[token as usize].push((state, next));
            if let Some(expected) = expected
                && seen.insert((next, expected))
            {
                open.push((next, expected));
            }
        }
    }
    assert_eq!(seen.len(), automaton.n_states() - 1, "a state of each is one of the other");
    let mut class_of = HashMap::new();
    for (relation, &class) in relations.iter_mut().zip(automaton.class_of()) {
        relation.sort_unstable();
        assert_eq!(relation.is_empty(), class == Automaton::NEVER);
        assert_eq!(*class_of.entry(relation.clone()).or_insert(class), class);
    }
    let used: HashSet<u32> = automaton.class_of().iter().copied().collect();
    assert_eq!(class_of.len(), used.len(), "one class for one relation");
    for class in 0..automaton.n_classes() as u32 {
        let size = automaton.class_of().iter().filter(|&&of| of == class).count();
        assert_eq!(automaton.class_size(class), size);
        let first = automaton.class_of().iter().position(|&of| of == class);
        assert_eq!(automaton.representative(class) as usize, first.unwrap_or(0));
    }
    for token in ENDS {
        assert_eq!(automaton.next(over, token), Some(over));
        assert_eq!(automaton.class_of()[token as usize], Automaton::END);
    }
    assert_eq!(automaton.class_of()[MASK as usize], Automaton::NEVER);
    assert_eq!(automaton.next(over, 97), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tokens_lead_where_their_bytes_do_and_classes_are_equal_relations(language in languages(), has_start: bool) {
        compare(&language, has_start);
    }
}

/// Any characters but commas, counted; behind the comma every byte has a state of its own.
fn counted(n_characters: u32) -> Language {
    let others = Language::Characters(vec![('\u{0}', '+'), ('-', char::MAX)]);
    let ends = Language::Either(["ab", "b,a", " aé,", "a", ""].map(Language::text).to_vec());
    Language::Sequence(vec![repeat(others, 2, Some(n_characters)), Language::text(","), ends])
}

#[test]
fn words_that_are_walked_as_one_lead_where_their_bytes_do() {
    for (n_characters, is_grouped) in [(40, true), (2, false)] {
        let language = counted(n_characters);
        let vocabulary = vocabulary();
        let dfa = Dfa::new(&language).unwrap();
        assert_eq!(Groups::new(&dfa, vocabulary.plain()).is_some(), is_grouped);
        compare(&language, false);
        compare(&language, true);
    }
}

#[test]
fn twenty_strings_of_fifty_characters_are_within_the_limits() {
    let fields: Vec<String> =
        (0..20).map(|field| format!(r#""field_{field}":{{"type":"string","maxLength":50}}"#)).collect();
    let schema = format!(r#"{{"type":"object","properties":{{{}}}}}"#, fields.join(","));
    let language = language_of(&Constraint::JsonSchema(schema)).unwrap();
    let automaton = Automaton::compile(&language, &vocabulary()).unwrap();
    assert!((7_000..8_000).contains(&automaton.n_states()), "{}", automaton.n_states());
}

#[test]
fn an_alternative_that_begins_another_hides_nothing() {
    let language = Language::Either(vec![Language::text("a"), Language::text("ab")]);
    let automaton = Automaton::compile(&language, &vocabulary()).unwrap();
    let after = automaton.next(Automaton::START, 97).unwrap();
    assert!(automaton.is_accepting(after));
    assert!(automaton.is_accepting(automaton.next(after, 98).unwrap()));
    assert!(automaton.is_accepting(automaton.next(Automaton::START, 260).unwrap()));
    assert_eq!(automaton.shortest(), 1);
}

#[test]
fn characters_may_be_split_over_tokens() {
    let language = Language::text("aé,");
    let automaton = Automaton::compile(&language, &vocabulary()).unwrap();
    let (a_and_half, half_and_comma) = (265, 266);
    let state = automaton.next(Automaton::START, a_and_half).unwrap();
    assert!(automaton.is_accepting(automaton.next(state, half_and_comma).unwrap()));
    assert_eq!(automaton.next(Automaton::START, half_and_comma), None);
    assert_eq!(automaton.shortest(), 2);
}

#[test]
fn surrogates_are_no_characters() {
    let automaton = Automaton::compile(&Language::Characters(vec![('\u{d000}', '\u{f000}')]), &vocabulary()).unwrap();
    let state = automaton.next(Automaton::START, 0xed).unwrap();
    assert!(automaton.next(state, 0x9f).is_some());
    assert_eq!(automaton.next(state, 0xa0), None);
}

#[test]
fn an_automaton_has_no_state_that_tokens_cannot_complete() {
    // Nothing writes the lone `b` that is needed after `a`.
    let tokens = ["a", "b,", "c"].map(|text| Some(Box::from(text.as_bytes())));
    let vocabulary = Vocabulary::new(&tokens, &[], &[3], 4);
    let language = Language::Either(vec![Language::text("ab"), Language::text("cb,")]);
    let automaton = Automaton::compile(&language, &vocabulary).unwrap();
    assert_eq!(automaton.class_of()[0], Automaton::NEVER);
    let state = automaton.next(Automaton::START, 2).unwrap();
    assert!(automaton.is_accepting(automaton.next(state, 1).unwrap()));
    let only = Language::text("ab");
    let message = Automaton::compile(&only, &vocabulary).unwrap_err().message;
    assert_eq!(message, "no sequence of tokens satisfies the constraint");
}

#[test]
fn a_first_token_is_spelled_as_at_the_start() {
    let automaton = Automaton::compile(&Language::text("a a"), &vocabulary_with_start()).unwrap();
    let state = automaton.next(Automaton::START, SPACED).unwrap();
    assert!(automaton.is_accepting(automaton.next(state, SPACED).unwrap()));
    // A first space is nothing; a second one is a space.
    let state = automaton.next(Automaton::START, 32).unwrap();
    assert_eq!(automaton.next(state, 32), None);
    assert!(automaton.next(state, 97).is_some());
    let spaced = Automaton::compile(&Language::text(" a"), &vocabulary_with_start()).unwrap();
    assert_eq!(spaced.next(Automaton::START, SPACED), None);
}

#[test]
fn a_vocabulary_without_end_tokens_has_answers_that_reach_their_limit() {
    let tokens = [Some(Box::from(*b"a"))];
    let automaton =
        Automaton::compile(&repeat(Language::text("a"), 0, None), &Vocabulary::new(&tokens, &[], &[], 1)).unwrap();
    assert!(automaton.fits(&[None; 4], 0));
    assert_eq!(automaton.class_size(Automaton::END), 0);
}

#[test]
fn impossible_languages_are_refused() {
    assert_eq!(refusal(&Language::Nothing), "no text satisfies the constraint");
    let never = Language::Sequence(vec![Language::text("a"), Language::Either(Vec::new())]);
    assert_eq!(refusal(&never), "no text satisfies the constraint");
}

#[test]
fn languages_beyond_a_limit_are_refused_with_the_limit() {
    let letter = || Language::ByteRanges(vec![(b'a', b'b')]);
    let exponential =
        |n| Language::Sequence(vec![repeat(letter(), 0, None), Language::text("a"), repeat(letter(), n, Some(n))]);
    assert_eq!(refusal(&exponential(24)), "the constraint is too complex: its automaton takes more than 16 MB");
    assert_eq!(refusal(&exponential(13)), "the constraint is too complex: its automaton has more than 8000 states");
    let long = repeat(repeat(letter(), 1000, Some(1000)), 1000, None);
    assert_eq!(refusal(&long), "the constraint is too long: its expression takes more than 16 MB");
    let empty = repeat(Language::empty(), u32::MAX, None);
    assert_eq!(refusal(&empty), "the constraint is too long: its expression takes more than 16 MB");
    let deep = |n| (1..n).fold(Language::text("a"), |part, _| repeat(part, 1, Some(1)));
    assert!(Automaton::compile(&deep(200), &vocabulary()).is_ok());
    assert_eq!(refusal(&deep(201)), "the constraint is nested more than 200 levels deep");
}

#[test]
fn automata_with_too_many_edges_are_refused() {
    // Each token leads from each state to another one.
    let tokens: Vec<Option<Box<[u8]>>> = (1..=150).map(|n| Some(Box::from("a".repeat(n).as_bytes()))).collect();
    let vocabulary = Vocabulary::new(&tokens, &[], &[150], 151);
    let compile = |most| Automaton::compile(&repeat(Language::text("a"), 0, Some(most)), &vocabulary);
    assert_eq!(compile(3000).map(|automaton| automaton.n_states()), Ok(3002));
    let message = compile(4000).unwrap_err().message;
    assert_eq!(message, "the constraint is too complex: its automaton has more than 500000 edges");
}

#[test]
fn two_chains_share_the_copies_of_items() {
    let names: Vec<String> = (0..20).map(|n| format!("\"name{n}\":")).collect();
    let value = || Language::Repeat { part: Box::new(Language::ByteRanges(vec![(b'0', b'9')])), least: 1, most: None };
    let item =
        |name: &String| Item { language: Language::Sequence(vec![Language::text(name), value()]), is_required: false };
    let n_states = |n: usize| {
        let items =
            Language::Items { items: names[..n].iter().map(item).collect(), separator: Box::new(Language::text(",")) };
        Automaton::compile(&items, &vocabulary()).unwrap().n_states()
    };
    assert!(n_states(20) < 3 * n_states(10), "{} {}", n_states(20), n_states(10));
}

#[test]
fn an_automaton_accounts_for_its_memory() {
    let automaton = Automaton::compile(&Language::text("ab"), &vocabulary()).unwrap();
    assert!(automaton.n_bytes() >= 4 * automaton.class_of().len());
}
