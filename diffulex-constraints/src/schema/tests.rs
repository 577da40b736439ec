//! What schemas allow, judged by the crate `jsonschema`.

use proptest::prelude::*;
use serde_json::Value;

use super::language_of_schema;
use crate::language::Language;
use crate::testing::{Dice, contains, member, schema};

fn language(schema: &str) -> Language {
    language_of_schema(schema).unwrap_or_else(|error| panic!("{schema}: {error}"))
}

fn refusal(schema: &str) -> String {
    language_of_schema(schema).expect_err(schema).message
}

fn judge(schema: &str) -> jsonschema::Validator {
    let schema: Value = serde_json::from_str(schema).expect(schema);
    let options = jsonschema::options().with_draft(jsonschema::Draft::Draft202012).should_validate_formats(true);
    options.build(&schema).expect("a valid schema")
}

/// `text`, with a space behind each comma and colon that is not in a string.
fn spaced(text: &str) -> String {
    let (mut out, mut is_string, mut is_escaped) = (String::new(), false, false);
    for character in text.chars() {
        out.push(character);
        is_string ^= character == '"' && !is_escaped;
        is_escaped = character == '\\' && !is_escaped;
        out.push_str(if !is_string && ",:".contains(character) { " " } else { "" });
    }
    out
}

#[track_caller]
fn takes(schema: &str, yes: &[&str], no: &[&str]) {
    let (language, judge) = (language(schema), judge(schema));
    for text in yes {
        assert!(contains(&language, spaced(text)), "{schema} should allow {text}");
        assert!(judge.is_valid(&serde_json::from_str(text).expect(text)), "the judge refuses {text}");
    }
    for text in no {
        assert!(!contains(&language, spaced(text)), "{schema} should not allow {text}");
    }
}

#[track_caller]
fn members_hold(schema: &str, seed: u64, n_members: usize) {
    let language = language(schema);
    if language == Language::Nothing {
        return;
    }
    let judge = judge(schema);
    let mut dice = Dice(seed);
    for _ in 0..n_members {
        let text = member(&language, &mut dice);
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{schema}: {text}: {error}"));
        assert!(judge.is_valid(&value), "{schema} does not hold for {text}");
        assert!(contains(&language, &text), "{schema}: the matcher refuses {text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_member_of_a_random_schema_satisfies_it(seed in any::<u64>()) {
        let schema = schema(&mut Dice(seed), 3).to_string();
        prop_assert_ne!(language(&schema), Language::Nothing, "{}", schema);
        members_hold(&schema, seed ^ 1, 8);
    }

    #[test]
    fn integers_are_those_between_their_bounds(least in -1200i64..1200, length in 0i64..1300, probe in -2600i64..2600) {
        let most = least + length;
        let language = language(&format!(r#"{{"type":"integer","minimum":{least},"maximum":{most}}}"#));
        prop_assert_eq!(contains(&language, probe.to_string()), (least..=most).contains(&probe));
        for edge in [least - 1, least, most, most + 1] {
            prop_assert_eq!(contains(&language, edge.to_string()), (least..=most).contains(&edge), "{}", edge);
        }
    }
}

#[test]
fn small_ranges_of_integers_are_exact() {
    for least in -12..=12 {
        for most in least..=12 {
            let language = language(&format!(r#"{{"type":"integer","minimum":{least},"maximum":{most}}}"#));
            for probe in -25..=25 {
                assert_eq!(
                    contains(&language, probe.to_string()),
                    (least..=most).contains(&probe),
                    "{least} {most} {probe}"
                );
            }
            assert!(!contains(&language, "-0") && !contains(&language, "01") && !contains(&language, ""));
        }
    }
}

#[test]
fn bounds_of_integers_reach_64_bits_and_round_inwards() {
    takes(
        r#"{"type":"integer","minimum":-9223372036854775808,"maximum":18446744073709551615}"#,
        &["-9223372036854775808", "18446744073709551615", "0"],
        &["-9223372036854775809", "18446744073709551616"],
    );
    takes(r#"{"type":"integer","exclusiveMinimum":0.5,"exclusiveMaximum":3}"#, &["1", "2"], &["0", "3"]);
    takes(r#"{"type":"integer","minimum":7}"#, &["7", "10", "999999999999999999"], &["6", "-7"]);
    assert_eq!(language(r#"{"type":"integer","minimum":3,"maximum":2}"#), Language::Nothing);
}

#[test]
fn strings_hold_every_escape_and_no_half_of_a_pair() {
    takes(
        r#"{"type":"string"}"#,
        &[r#""""#, r#""\"\\\/\b\f\n\r\t""#, r#""\u00e9\uD834\udd1e\uFFFF\ud7ff""#, "\"é𝄞\u{7f}\""],
        &["\"\n\"", r#""\ud834""#, r#""\udd1e""#, r#""\ud834\ud834""#, r#""\x41""#, r#"""""#, "\"\u{1}\""],
    );
}

#[test]
fn lengths_count_characters() {
    let schema = r#"{"type":"string","minLength":2,"maxLength":3}"#;
    takes(schema, &["\"éé\"", "\"𝄞𝄞𝄞\"", r#""\n\n""#, r#""\"\\\t""#], &["\"é\"", "\"aaaa\"", r#""\n""#]);
    takes(r#"{"type":"string","maxLength":1}"#, &["\"\u{3ffff}\""], &["\"\u{40000}\""]);
    assert!(refusal(r#"{"type":"string","maxLength":257}"#).contains("maxLength is 257, at most 256 is allowed"));
}

#[test]
fn patterns_search_the_decoded_text() {
    takes(r#"{"pattern":"b"}"#, &["\"abc\"", "\"b\""], &["\"ac\""]);
    takes(r#"{"pattern":"^b|c$"}"#, &["\"bx\"", "\"xc\""], &["\"xbx\""]);
    takes(r#"{"pattern":"^\"\\n$"}"#, &[r#""\"\n""#], &["\"\"\n\""]);
    takes(r#"{"pattern":"^[a-z]+$","minLength":2,"maxLength":4}"#, &["\"ab\"", "\"abcd\""], &["\"a\"", "\"abcde\""]);
    takes(r#"{"pattern":"^[a-z][0-9]*$","maxLength":3}"#, &["\"a\"", "\"a12\""], &["\"a123\""]);
    takes(r#"{"pattern":"^\\d$"}"#, &["\"7\""], &["\"٣\""]);
    for (pattern, yes, no) in [
        (r"[^\\W_]", "a", &["é", "_", "-"][..]),
        (r"[^\\w]", "-", &["a", "é", "²"]),
        (r"\\W", "-", &["a", "é", "²"]),
        (r"[^\\D]", "7", &["٣", "a"]),
        (r"[^\\d]", "a", &["7", "٣"]),
        (r"[^\\S]", " ", &["\u{a0}", "a"]),
        (r"[^\\s]", "a", &[" ", "\u{a0}", "\u{feff}"]),
    ] {
        let quoted = |text: &&str| format!("\"{text}\"");
        let no: Vec<String> = no.iter().map(quoted).collect();
        takes(
            &format!(r#"{{"pattern":"^{pattern}$"}}"#),
            &[&quoted(&yes)],
            &no.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    }
    assert!(refusal(r#"{"pattern":"^(?=a)"}"#).contains("look-around"));
    assert!(refusal(r#"{"pattern":"\\bа"}"#).contains("word boundaries"));
    assert!(refusal(r#"{"pattern":"a*b*","maxLength":3}"#).contains("maxLength"));
}

#[test]
fn dates_know_their_calendar() {
    takes(
        r#"{"format":"date"}"#,
        &["\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\"", "\"2023-04-30\""],
        &["\"2023-02-29\"", "\"1900-02-29\"", "\"2023-04-31\"", "\"2023-13-01\"", "\"2023-00-10\"", "\"0000-01-01\""],
    );
    let language = language(r#"{"format":"date"}"#);
    for year in 1..=2400u32 {
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        assert_eq!(contains(&language, format!("\"{year:04}-02-29\"")), is_leap, "{year}");
    }
}

#[test]
fn formats_allow_common_texts() {
    for (format, yes, no) in [
        ("time", "23:59:59.5+02:00", "24:00:00Z"),
        ("date-time", "2024-02-29T12:00:00Z", "2024-02-30T12:00:00Z"),
        ("duration", "P1Y2M3DT4H5M6S", "P1H"),
        ("duration", "P4W", "P"),
        ("email", "jane.doe+x@mail.example.org", "jane@"),
        ("hostname", "a-b.example.org", "-a.example"),
        ("ipv4", "255.0.10.1", "256.0.0.1"),
        ("ipv6", "2001:db8::1", "1::2::3"),
        ("ipv6", "::ffff:1.2.3.4", "1:2:3:4:5:6:7"),
        ("uri", "https://a@example.org:80/b?c=d#e", "example"),
        ("uri", "mailto:a@b.org", "a b:c"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
    ] {
        takes(
            &format!(r#"{{"type":"string","format":"{format}"}}"#),
            &[&format!("\"{yes}\"")],
            &[&format!("\"{no}\"")],
        );
    }
    assert!(refusal(r#"{"format":"regex"}"#).contains("the format \"regex\" is not supported"));
}

#[test]
fn json_has_a_space_behind_commas_and_colons_and_no_other() {
    let language = language(r#"{"properties":{"a":{"type":"array"},"b":{"enum":[{"c":[1,2]}]}},"required":["a","b"]}"#);
    assert!(contains(&language, r#"{"a": [1, {"x": 2}], "b": {"c": [1, 2]}}"#));
    for text in [
        r#"{"a":[1, {"x": 2}], "b": {"c": [1, 2]}}"#,
        r#"{"a": [1,{"x": 2}], "b": {"c": [1, 2]}}"#,
        r#"{"a": [1, {"x": 2}],"b": {"c": [1, 2]}}"#,
        r#"{"a": [1, {"x":2}], "b": {"c": [1, 2]}}"#,
        r#"{"a": [1, {"x": 2}], "b": {"c": [1,2]}}"#,
        r#"{ "a": [1, {"x": 2}], "b": {"c": [1, 2]}}"#,
    ] {
        assert!(!contains(&language, text), "{text}");
    }
}

#[test]
fn objects_have_declared_members_in_their_order() {
    takes(
        r#"{"type":"object","properties":{"b":{"type":"integer"},"a":{"const":1}},"required":["a"]}"#,
        &[r#"{"b":2,"a":1}"#, r#"{"a":1}"#],
        &[r#"{"a":1,"b":2}"#, r#"{"b":2}"#, r#"{"a":1,"c":0}"#, r#"{"a":1,}"#, r#"{,"a":1}"#],
    );
    takes(r#"{"type":"object","properties":{}}"#, &["{}"], &[r#"{"a":1}"#]);
    takes(r#"{"type":"object"}"#, &["{}", r#"{"a":[1,{"b":{}}]}"#], &["[]"]);
    takes(r#"{"additionalProperties":{"type":"integer"},"minProperties":1}"#, &[r#"{"x":1,"y":2}"#], &["{}"]);
    takes(r#"{"required":["x"],"additionalProperties":{"const":1}}"#, &[r#"{"x":1}"#], &["{}"]);
    assert_eq!(language(r#"{"required":["x"],"additionalProperties":false}"#), Language::Nothing);
}

#[test]
fn arrays_have_their_prefix_and_counts() {
    let schema = r#"{"prefixItems":[{"const":1},{"const":2}],"items":{"const":3},"minItems":1,"maxItems":4}"#;
    takes(schema, &["[1]", "[1,2]", "[1,2,3]", "[1,2,3,3]"], &["[]", "[2]", "[1,3]", "[1,2,3,3,3]", "[1,2,3,]"]);
    takes(r#"{"type":"array","items":false}"#, &["[]"], &["[1]"]);
    takes(r#"{"prefixItems":[{"const":1},false]}"#, &["[]", "[1]"], &["[1,1]"]);
    takes(r#"{"prefixItems":[{"const":1},{"const":2}],"maxItems":1}"#, &["[]", "[1]"], &["[1,2]"]);
    assert_eq!(language(r#"{"type":"array","items":false,"minItems":1}"#), Language::Nothing);
}

#[test]
fn schemas_that_hold_at_once_are_one() {
    takes(
        r##"{"allOf":[{"$ref":"#/$defs/a"},{"properties":{"b":{"type":"null"}},"required":["b"]}],"$defs":{"a":
        {"type":"object","properties":{"a":{"type":"integer","minimum":0}},"required":["a"]}},"properties":{"a":{"maximum":3}}}"##,
        &[r#"{"a":3,"b":null}"#],
        &[r#"{"a":4,"b":null}"#, r#"{"a":3}"#],
    );
    takes(
        r#"{"type":"object","properties":{"a":{"const":1},"b":{"const":2}},"anyOf":[{"required":["a"]},{"required":["b"]}]}"#,
        &[r#"{"a":1}"#, r#"{"b":2}"#, r#"{"a":1,"b":2}"#],
        &["{}"],
    );
    let tuple = r#"{"anyOf":[{"type":"array","prefixItems":[{"const":1}],"items":{"const":2}}]}"#;
    takes(tuple, &["[1,2]"], &["[2]"]);
    assert!(refusal(r#"{"items":{"const":5},"allOf":[{"prefixItems":[{"const":3}]}]}"#).contains("\"prefixItems\""));
    takes(r#"{"type":["integer","string"],"allOf":[{"type":"number"}]}"#, &["1"], &["\"a\"", "1.5"]);
    takes(
        r#"{"additionalProperties":false,"properties":{"a":true},"allOf":[{"properties":{"b":true}}]}"#,
        &["{}", r#"{"a":1}"#],
        &[r#"{"b":1}"#],
    );
}

#[test]
fn one_of_needs_schemas_that_exclude_each_other() {
    takes(r#"{"oneOf":[{"type":"string"},{"type":"null"}]}"#, &["null", "\"a\""], &["1"]);
    takes(
        r#"{"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"x":{"type":"null"}},"required":["k"]},
        {"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}]}"#,
        &[r#"{"k":"a","x":null}"#, r#"{"k":"b"}"#],
        &[r#"{"k":"b","x":null}"#],
    );
    assert!(
        refusal(r#"{"oneOf":[{"type":"integer"},{"type":"number"}]}"#).contains("oneOf[0] and oneOf[1] may both hold")
    );
}

#[test]
fn refusals_name_the_keyword_and_the_place() {
    let property = r#"{"type":"object","properties":{"x":{"type":"string","not":{}}}}"#;
    assert_eq!(refusal(property), "$.properties.x: the keyword \"not\" is not supported");
    for keyword in [
        "not",
        "if",
        "then",
        "else",
        "uniqueItems",
        "contains",
        "patternProperties",
        "multipleOf",
        "propertyNames",
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedProperties",
        "unevaluatedItems",
        "$dynamicRef",
        "contentEncoding",
        "foo",
    ] {
        let message = refusal(&format!(r#"{{"anyOf":[{{"{keyword}":1}}]}}"#));
        assert_eq!(message, format!("$.anyOf[0]: the keyword \"{keyword}\" is not supported"));
    }
    assert!(refusal(r##"{"$ref":"#/$defs/a","$defs":{"a":{"items":{"$ref":"#/$defs/a"}}}}"##).contains("is recursive"));
    assert!(refusal(r#"{"$ref":"http://a.org/b"}"#).contains("is not supported"));
    assert!(refusal(r##"{"$ref":"#/$defs/a"}"##).contains("names nothing"));
    assert!(refusal(r#"{"items":{"$id":"a"}}"#).starts_with("$.items: \"$id\" is supported at the root only"));
    assert!(refusal(r#"{"type":"string","nullable":true}"#).contains("\"nullable\" is not supported"));
    assert!(refusal("[]").contains("a schema is an object"));
    assert!(refusal(r#"{"type":"any"}"#).contains("\"any\", not a type"));
    assert!(refusal(r#"{"type":"object","type":"array"}"#).contains("given twice"));
}

#[test]
fn hostile_schemas_are_refused_at_once() {
    let deep = "[".repeat(100_000);
    assert!(refusal(&deep).contains("recursion limit"));
    let deep = format!("{}{{}}{}", r#"{"items":"#.repeat(100), "}".repeat(100));
    assert!(refusal(&deep).contains("more than 64 schemas are nested"));
    assert!(refusal(&" ".repeat(10_000_000)).contains("10000000 bytes, at most 1048576"));
    let doubled: Vec<String> = (0..40)
        .map(|n| {
            format!(
                r##""d{n}":{{"properties":{{"a":{{"$ref":"#/$defs/d{m}"}},"b":{{"$ref":"#/$defs/d{m}"}}}}}}"##,
                m = n + 1
            )
        })
        .collect();
    let doubled = format!(r##"{{"$ref":"#/$defs/d0","$defs":{{{},"d40":true}}}}"##, doubled.join(","));
    assert!(refusal(&doubled).contains("more than 20000 schemas"));
    assert!(refusal(r#"{"const":"\ud800"}"#).contains("not JSON that can be read"));
    let values: Vec<String> = (0..5000).map(|n| format!("\"value {n}\"")).collect();
    takes(&format!(r#"{{"enum":[{}]}}"#, values.join(",")), &["\"value 4999\""], &["\"value 5000\""]);
    let members: Vec<String> = (0..2000).map(|n| format!(r#""{n}":true"#)).collect();
    let merged = vec![r##"{"$ref":"#/$defs/a"}"##; 2000].join(",");
    let merged = format!(r##"{{"allOf":[{merged}],"$defs":{{"a":{{"properties":{{{}}}}}}}}}"##, members.join(","));
    assert!(refusal(&merged).contains("more than 20000"));
    let values: Vec<String> = (0..30_000).map(|n| n.to_string()).collect();
    assert!(refusal(&format!(r#"{{"enum":[{}]}}"#, values.join(","))).contains("more than 20000"));
}

/// Where a schema of the suite is read: its members satisfy it, and what the suite calls invalid is not among them.
#[test]
fn the_test_suite_of_json_schema_finds_no_wrong_member() {
    let suite: Value =
        serde_json::from_str(include_str!("../../tests/data/json_schema_test_suite.json")).expect("JSON");
    let (mut n_read, mut n_refused, mut n_taken, mut n_left) = (0, 0, 0, 0);
    for (file, groups) in suite.as_object().expect("files") {
        for group in groups.as_array().expect("groups") {
            let schema = group["schema"].to_string();
            let Ok(language) = language_of_schema(&schema) else {
                n_refused += 1;
                continue;
            };
            n_read += 1;
            members_hold(&schema, 5, 20);
            for test in group["tests"].as_array().expect("tests") {
                let text = spaced(&test["data"].to_string());
                let is_taken = contains(&language, &text);
                assert!(!is_taken || test["valid"] == true, "{file}: {schema} allows {text}");
                n_taken += usize::from(is_taken);
                n_left += usize::from(!is_taken && test["valid"] == true);
            }
        }
    }
    // Valid data that are left out have other types than the keywords are about, undeclared members, or `1.0` for an integer.
    assert!(n_read >= 100 && n_taken >= 200, "{n_read} read, {n_refused} refused, {n_taken} taken, {n_left} left out");
}
