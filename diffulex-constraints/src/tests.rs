//! What expressions, choices, grammars and tags allow.

use diffulex_protocol::{After, Constraint, Tag, Tags};
use proptest::prelude::*;

use crate::language::Language;
use crate::language_of;
use crate::testing::{Dice, contains, member};

#[track_caller]
fn takes(constraint: &Constraint, yes: &[&str], no: &[&str]) {
    let language = language_of(constraint).unwrap_or_else(|error| panic!("{constraint:?}: {error}"));
    for text in yes {
        assert!(contains(&language, text), "{constraint:?} should allow {text:?}");
    }
    for text in no {
        assert!(!contains(&language, text), "{constraint:?} should not allow {text:?}");
    }
}

fn refusal(constraint: Constraint) -> String {
    language_of(&constraint).expect_err("a refusal").message
}

fn regex(pattern: &str) -> Constraint {
    Constraint::Regex(pattern.to_owned())
}

fn grammar(grammar: &str) -> Constraint {
    Constraint::Grammar(grammar.to_owned())
}

#[test]
fn expressions_match_the_whole_text() {
    takes(&regex("a|ab"), &["a", "ab"], &["", "b", "abb"]);
    takes(&regex("^(?:ab?)$"), &["a", "ab"], &["xa"]);
    takes(&regex("(?i)é[x-z]{2,3}"), &["Éxy", "éZZZ"], &["éx"]);
    takes(&regex(r"\p{Greek}+\d"), &["λ٣", "αβ1"], &["a1"]);
    takes(&regex("^a$|^b$"), &["a", "b"], &["ab"]);
    takes(&regex("(a*)*"), &["", "aaa"], &["b"]);
    takes(&regex("."), &["x", "é"], &["\n", "xy"]);
}

#[test]
fn expressions_that_are_not_regular_or_too_large_are_refused() {
    assert!(refusal(regex("(?=a)b")).contains("look-around"));
    assert!(refusal(regex(r"(a)\1")).contains("backreferences"));
    assert!(refusal(regex(r"\ba")).contains("word boundaries"));
    assert!(refusal(regex("a^b")).contains("only at the start or end"));
    assert!(refusal(regex("(?:^a)*")).contains("inside a repetition"));
    assert!(refusal(regex("(?m)^a")).contains("anchors of lines"));
    assert!(refusal(regex("(((a{100}){100}){101})")).contains("1010000 characters"));
    assert!(refusal(regex("a{1000000}{1000000}{1000000}{1000000}")).contains("at most 1000000 are allowed"));
    assert!(refusal(regex(&"(".repeat(5000))).contains("refused"));
    assert!(refusal(regex(&"a".repeat(8193))).contains("8193 bytes, at most 8192"));
    assert!(refusal(regex(r"(?-u:\xff)")).contains("UTF-8"));
    assert!(refusal(regex("[^\\s\\S]")).contains("no text at all"));
}

#[test]
fn choices_are_their_texts() {
    let choice = |texts: &[&str]| Constraint::Choice(texts.iter().map(|text| (*text).to_owned()).collect());
    takes(&choice(&["a", "ab", "a", ""]), &["a", "ab", ""], &["b"]);
    assert_eq!(refusal(choice(&[])), "choice is empty");
    assert!(refusal(choice(&["a"; 10_001])).contains("10001 texts, at most 10000"));
}

#[test]
fn any_object_is_an_object_of_four_levels() {
    let yes = ["{}", r#"{"a": [{"b": []}], "c": -1.5e9}"#, r#"{"a": {"b": {"c": {}}}}"#];
    takes(&Constraint::JsonObject, &yes, &["[]", "1", r#"{"a":1}"#, r#"{"a": {"b": {"c": {"d": {}}}}}"#]);
}

#[test]
fn gbnf_rules_are_read() {
    let text = r#"
# a list
root ::= "[" item ("," item)*   # inline
  "]"
item ::= [a-c]{2} | "\x41\"" opt?
opt  ::= [^\]\n] .
"#;
    takes(&grammar(text), &["[ab]", "[A\",cc]", "[A\"xé]"], &["[]", "[a]", "[A\"]]"]);
}

#[test]
fn lark_rules_are_read() {
    let text = r#"
// an assignment
start: NAME "=" (NUMBER | "none"i) [";"]
     | "let" pair~1..2 -> pairs
?pair: "(" /[a-z]/i ("0".."3") ")"
%import common.CNAME -> NAME
%import common (NUMBER, WS)
!other.2: "x"
"#;
    takes(&grammar(text), &["x=1.5e3", "a_1=NoNe;", "let(A0)(b3)"], &["x=", "let", "let(a4)", "1=2"]);
}

#[test]
fn recursion_at_one_end_is_a_repetition() {
    takes(&grammar("root ::= \"a\" root | \"b\""), &["b", "aab"], &["", "a", "ba"]);
    takes(&grammar("start: start \",\" ITEM | ITEM\nITEM: \"x\""), &["x", "x,x,x"], &["", "x,", ",x"]);
    // Two rules that name each other: even numbers of a.
    takes(&grammar("root ::= \"a\" odd | \"\"\nodd ::= \"a\" root"), &["", "aa", "aaaa"], &["a", "aaa"]);
    takes(&grammar("root ::= \"(\" list \")\"\nlist ::= \"x\" (\"-\" list)?"), &["(x)", "(x-x)"], &["()", "(x-)"]);
}

#[test]
fn other_recursion_is_refused_with_its_rule() {
    let message = refusal(grammar("root ::= pair\npair ::= \"(\" pair \")\" | \"\""));
    assert!(message.contains("rule \"pair\" is recursive"), "{message}");
    assert!(refusal(grammar("start: \"a\" start | start \"b\" | \"c\"")).contains("\"start\" is recursive"));
    assert!(refusal(grammar("start: (\"a\" start)*")).contains("\"start\" is recursive"));
}

#[test]
fn grammars_that_are_wrong_are_refused_with_their_line() {
    assert!(refusal(grammar("root ::= a")).contains("\"a\" is used and not defined"));
    assert!(refusal(grammar("a ::= \"b\"")).contains("no rule \"root\""));
    assert!(refusal(grammar("root ::= \"a\"\nroot ::= \"b\"")).contains("defined twice"));
    assert!(refusal(grammar("root ::= \"a")).starts_with("line 1 of the grammar: a string does not end"));
    assert!(
        refusal(grammar("start: \"a\"\n%ignore WS")).starts_with("line 2 of the grammar: %ignore is not supported")
    );
    assert!(refusal(grammar("start: /a(?!b)/")).contains("look-around"));
    assert!(refusal(grammar("")).contains("no rule"));
    assert!(refusal(grammar(&format!("root ::= {}", "(".repeat(50_000)))).contains("groups are nested"));
    assert!(refusal(grammar(&" ".repeat(70_000))).contains("70000 bytes, at most 65536"));
    let doubling: Vec<String> = (0..40).map(|n| format!("r{n} ::= r{m} r{m}\n", m = n + 1)).collect();
    let doubling = format!("root ::= r0\n{}r40 ::= \"a\"", doubling.concat());
    assert!(refusal(grammar(&doubling)).contains("when its rules are written out"));
    assert!(refusal(grammar("root ::= [z-a]")).contains("empty"));
    assert!(refusal(grammar(r#"root ::= "\ud800""#)).contains("surrogate"));
}

fn tags(begins: &[&str], allows_text: bool) -> Tags {
    let tag =
        |begin: &&str| Tag { begin: (*begin).to_owned(), schema: r#"{"const":1}"#.to_owned(), end: ";".to_owned() };
    Tags { tags: begins.iter().map(tag).collect(), allows_text, least: 0, repeats: true, separator: String::new() }
}

#[test]
fn tags_stand_in_text_without_their_beginnings() {
    let one = Constraint::Tags(tags(&["<c>"], true));
    takes(&one, &["", "text < <c", "a<c>1;b<c>1;", "<<c>1;", "<c<c>1;é"], &["<c>", "a<c>2;", "<c>1;<c>", "<c>1"]);
    let strict = Constraint::Tags(Tags { least: 1, repeats: false, ..tags(&["<c>", "<d>"], false) });
    takes(&strict, &["<c>1;", "<d>1;"], &["", "<c>1;<d>1;", "x<c>1;"]);
    let apart = Constraint::Tags(Tags { separator: "\n".to_owned(), ..tags(&["<c>"], false) });
    takes(&apart, &["", "<c>1;\n<c>1;"], &["<c>1;<c>1;", "<c>1;\n"]);
}

#[test]
fn tags_begin_where_the_first_beginning_occurs() {
    // Behind one a, the beginning would be found one character earlier.
    takes(&Constraint::Tags(tags(&["aa"], true)), &["aa1;", "baa1;"], &["aaa1;", "aaaa1;"]);
    takes(&Constraint::Tags(tags(&["ab", "ba"], true)), &["ab1;", "cba1;", "ccab1;"], &["aba1;", "bab1;"]);
}

fn after(begin: &str, end: &str, then: Constraint) -> Constraint {
    Constraint::After(Box::new(After { begin: begin.to_owned(), end: end.to_owned(), then }))
}

#[test]
fn what_comes_after_thoughts_belongs_to_the_other_language() {
    let open = after("", "</t>", regex("[0-9]+"));
    takes(
        &open,
        &["</t>1", "a < b</t>\n\n12", "</</t>1", "<t>x</t>\n1"],
        &["1", "a</t>", "a</t>\n\n\n1", "a</t>b</t>1"],
    );
    let begun = after("<t>", "</t>", Constraint::JsonObject);
    takes(&begun, &["<t></t>{}", "<t>{\n</t>\n{}"], &["{}", "</t>{}", " <t></t>{}"]);
    // A tag within the thoughts is free text.
    let calls = after("", "</t>", Constraint::Tags(Tags { least: 1, ..tags(&["<c>"], false) }));
    takes(&calls, &["<c>x;</t><c>1;"], &["<c>1;", "</t>"]);
    assert_eq!(refusal(after("<t>", "", regex("a"))), "after.end is empty");
    assert_eq!(refusal(after("", "a", after("", "b", regex("a")))), "after.then is an after, too");
    assert!(refusal(after("", &"x".repeat(257), regex("a"))).contains("have 257 bytes, at most 256"));
    assert_eq!(refusal(after("", "a", Constraint::Choice(Vec::new()))), "choice is empty");
}

#[test]
fn tags_out_of_their_limits_are_refused() {
    assert_eq!(refusal(Constraint::Tags(tags(&[], true))), "tags is empty");
    assert!(refusal(Constraint::Tags(tags(&[""], true))).contains("tags[0].begin is empty"));
    assert!(refusal(Constraint::Tags(tags(&["x<c>", "<c>"], true))).contains("tags[0].begin contains tags[1].begin"));
    assert!(refusal(Constraint::Tags(Tags { least: 2, repeats: false, ..tags(&["a"], true) })).contains("least is 2"));
    assert!(refusal(Constraint::Tags(tags(&["a"; 257], false))).contains("tags has 257 entries, at most 256"));
    let mut wrong = tags(&["a"], true);
    wrong.tags[0].schema = r#"{"not":{}}"#.to_owned();
    assert!(refusal(Constraint::Tags(wrong)).starts_with("tags[0].schema: $: the keyword \"not\""));
}

/// Whether `text` is tagged text by a plain reading: find the first beginning, read its part, go on behind it.
fn is_tagged(text: &str, begins: &[&str]) -> bool {
    let first = begins.iter().filter_map(|begin| text.find(begin).map(|at| (at, *begin))).min_by_key(|(at, _)| *at);
    let Some((at, begin)) = first else { return true };
    text[at + begin.len()..].strip_prefix("1;").is_some_and(|rest| is_tagged(rest, begins))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tagged_text_is_what_a_plain_reader_finds(letters in "[ab1;é]{0,14}", first in "[ab]{1,3}", second in "[ab]{1,3}") {
        let begins: &[&str] = if first.contains(&second) || second.contains(&first) { &[&first] } else { &[&first, &second] };
        let language = language_of(&Constraint::Tags(tags(begins, true))).expect("a language");
        // Parts are put in, so that not all texts are refused.
        for text in [letters.clone(), letters.replace('1', &format!("{first}1;"))] {
            prop_assert_eq!(contains(&language, &text), is_tagged(&text, begins), "{} {:?}", text, begins);
        }
        let text = member(&language, &mut Dice(letters.len() as u64 + 7));
        prop_assert!(is_tagged(&text, begins), "{} {:?}", text, begins);
    }

    #[test]
    fn members_of_an_expression_match_it(pattern in "([ab.é]|\\[a-c\\]|\\(a\\|bc\\)|\\(ab\\?\\)\\{1,3\\}|x\\*){1,6}", seed in any::<u64>()) {
        let language = language_of(&regex(&pattern)).expect("a language");
        let text = member(&language, &mut Dice(seed));
        let judge = regex_automata::dfa::regex::Regex::new(&format!("^(?:{pattern})$")).expect("an expression");
        prop_assert!(judge.is_match(&text), "{} {}", pattern, text);
        let other = text.replace('a', "b");
        prop_assert_eq!(judge.is_match(&other), contains(&language, &other), "{} {}", pattern, other);
    }
}

#[test]
fn any_language_has_a_size() {
    let nested = Language::repeat(Language::repeat(Language::text("ab"), 3, Some(5)), 2, None);
    assert_eq!(nested.size(), 20);
}
