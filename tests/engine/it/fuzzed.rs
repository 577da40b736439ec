//! Findings of fuzzing: damaged or hostile tokenizer and template files.

use diffulex_engine::text::Detokenizer;
use diffulex_engine::{ChatMessage, TextModel};

use crate::harness::Files;

/// The golden model with this template.
fn with_template(template: &str) -> TextModel {
    let mut files = Files::golden("sdar");
    files.0.insert("chat_template.jinja".to_owned(), template.as_bytes().to_vec());
    TextModel::load(&files.leak()).unwrap()
}

fn rendered(template: &str) -> Result<String, String> {
    let message = ChatMessage::new("user", "Hi");
    with_template(template).render_chat(&[message]).map_err(|error| error.message)
}

fn refused(tokenizer: &[u8]) -> String {
    let mut files = Files::golden("sdar");
    files.0.insert("tokenizer.json".to_owned(), tokenizer.to_vec());
    TextModel::load(&files.leak()).err().expect("it is refused").to_string()
}

#[test]
fn a_template_that_does_not_end_is_an_error() {
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    let error = rendered(loops).expect_err("an error");
    assert!(error.contains("it takes more than 10000000 instructions"), "{error}");
}

#[test]
fn a_template_that_writes_too_much_is_an_error() {
    let error = rendered("{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}").expect_err("an error");
    assert!(error.contains("it writes more than 1048600 bytes"), "{error}");
    let error = rendered("{{ 90000000 * messages }}").expect_err("an error");
    assert!(error.contains("bytes of values"), "{error}");
}

#[test]
fn a_template_that_asks_for_a_wide_field_is_an_error() {
    let wide = [
        "{{ '%99999999999s'|format('a') }}",
        "{{ '%.99999999999f'|format(1.0) }}",
        "{{ '%(a)99999999999s'|format(a='a') }}",
        "{{ '{:99999999999}'.format('a') }}",
        "{{ 'a\nb'|indent(99999999999) }}",
        "{{ 'a\nb'|indent(width=99999999999) }}",
        "{{ messages|tojson(indent=99999999999) }}",
    ];
    for template in wide {
        let error = rendered(template).expect_err(template);
        assert!(error.contains("a width or precision over 1000"), "{template}: {error}");
    }
    let narrow = "{{ 'In 2025 %3s'|format('a') }}{{ 'In 2025 {:>3}'.format('b') }}{{ 'c\nd'|indent(width=2) }}";
    assert_eq!(rendered(narrow).unwrap(), "In 2025   aIn 2025   bc\n  d");
}

/// Ways to make values of any size with a few instructions.
const GROWING: [&str; 22] = [
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x * 2 %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|length }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson|length }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ ns.x ~ '' }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x == ns.x }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x * 2 %}{% endfor %}",
    "{% set a = 'a' * 1000000 %}{{ a|replace('a', a)|length }}",
    "{% set a = 'a' * 1000000 %}{{ a.replace('a', a)|length }}",
    "{% set a = 'a' * 1000000 %}{{ a.replace('', a)|length }}",
    "{% set a = 'a' * 1000000 %}{{ a|join(a)|length }}",
    "{% set a = 'a' * 1000000 %}{{ a.join(range(99999)|list)|length }}",
    "{% set a = '%s' * 100000 %}{% set b = 'b' * 100000 %}{{ a|format(b) }}",
    "{% set a = '{0}' * 100000 %}{% set b = 'b' * 100000 %}{{ a.format(b) }}",
    "{% set a = 'a\n' * 1000000 %}{{ a|indent(1000)|length }}",
    "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = ns.x + ['a' * 100000] %}{% endfor %}",
    "{% set x %}{% for i in range(99999) %}{{ 'a' * 100000 }}{% endfor %}{% endset %}{{ x|length }}",
    "{% macro f(x, n) %}{% if n %}{{ f(x ~ x, n - 1) }}{% endif %}{% endmacro %}{% set y = f('abcd', 60) %}",
    "{% set ns = namespace(x='<' * 1000000) %}{% for i in range(60) %}{% set ns.x = ns.x|e|string %}{% endfor %}",
    "{{ [1]|batch(1000, 'x')|list|length }}{% for i in range(99999) %}{{ range(9999)|list }}{% endfor %}",
    "{% set big = 'x' * 1000000 %}{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = ns.l + [big[1:]] %}{% endfor %}",
];

#[test]
fn a_template_that_makes_values_of_any_size_is_an_error() {
    for template in GROWING {
        let error = rendered(template).expect_err(template);
        let is_named = error.contains("bytes of values") || error.contains("it writes more than");
        assert!(is_named, "{template}: {error}");
    }
}

#[test]
fn a_template_that_nests_values_without_end_is_an_error() {
    for (template, what) in [
        ("{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}", "128 deep"),
        (
            "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = ns.x|batch(1)|list %}{% endfor %}{{ ns.x }}",
            "it makes",
        ),
        ("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "a namespace in a namespace"),
        ("{% set ns = namespace() %}{% set ns.x = [{'a': ns}] %}", "a namespace in a namespace"),
        ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "recursion limit"),
        ("{% block b %}{{ self.b() }}{% endblock %}", "recursion limit"),
        ("{% for i in [1] recursive %}{{ loop([i]) }}{% endfor %}", "recursion limit"),
        ("{% for i in [1] recursive %}{% set x = loop([i]) %}{% endfor %}", "recursion limit"),
        ("{% macro f() %}{% call f() %}{% endcall %}{{ caller() }}{% endmacro %}{{ f() }}", "recursion limit"),
        ("{% include 'chat' %}", "refers to another template"),
    ] {
        let mut files = Files::golden("sdar");
        files.0.insert("chat_template.jinja".to_owned(), template.as_bytes().to_vec());
        let error = match TextModel::load(&files.leak()) {
            Ok(_) => rendered(template).expect_err(template),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(what), "{template}: {error}");
    }
}

#[test]
fn a_template_that_is_too_deep_or_large_to_compile_is_refused() {
    let elifs = "{% elif b %}".repeat(50_000);
    for (template, what) in [
        (format!("{{{{ {} true }}}}", "not ".repeat(100_000)), "line 1: a tag has more than 2000 tokens"),
        (format!("{{{{ 1{} }}}}", " + x".repeat(100_000)), "line 1: a tag has more than 2000 tokens"),
        (format!("{{{{ {}1{} }}}}", "(".repeat(990), ")".repeat(990)), "recursion"),
        (format!("{{% if a %}}{elifs}{{% endif %}}"), "more than 500 elif"),
        ("{{ 'a' * 99999999 * 99999999 }}".to_owned(), "constants are multiplied"),
        (format!("{{{{ {} }}}}", vec!["'a' * 90000000"; 60].join(" ~ ")), "constants are multiplied"),
        ("{{ 'a' * 10 ** 8 }}".to_owned(), "constants are multiplied"),
        ("x".repeat((1 << 20) + 1), "1048577 bytes; at most 1048576"),
    ] {
        let mut files = Files::golden("sdar");
        files.0.insert("chat_template.jinja".to_owned(), template.as_bytes().to_vec());
        let error = TextModel::load(&files.leak()).err().expect(what).to_string();
        assert!(error.contains("chat template: ") && error.contains(what), "{what}: {error}");
    }
    // As deep as is let in.
    let deep = format!(
        "{{% if a %}}{}{{% else %}}{{{{ {} true }}}}{{% endif %}}",
        "{% elif b %}".repeat(500),
        "not ".repeat(1900)
    );
    assert_eq!(rendered(&deep).unwrap(), "True");
}

#[test]
fn values_are_accounted_for_without_a_change_of_what_they_are() {
    for (template, want) in [
        (
            "{{ 3 * 4 }} {{ 2.5 * 2 }} {{ 'ab' * 3 }} {{ 2 * 'x' }} {{ [1, 2] * 2 }} {{ 'a' * -1 }}|{{ true * 3 }}",
            "12 5.0 ababab xx [1, 2, 1, 2] |3",
        ),
        (
            "{% for i in [1, 2, 3] if i != 2 %}{{ loop.index ~ ':' ~ i }}{{ ',' if not loop.last }}{% else %}none{% endfor %}",
            "1:1,2:3",
        ),
        ("{% macro f(a, b='x') %}<{{ a + b }}>{% endmacro %}{{ f('1') }}{{ f('1', b='2') }}", "<1x><12>"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{% if 1 < 2 < 3 and 'a' in 'abc' and messages[0]['role'] == 'user' %}yes{% else %}no{% endif %}", "yes"),
        (
            "{{ 'a,b,c'.split(',')[::-1]|join('-') }} {{ ' x '.strip() }} {{ {'a': [1]}|tojson }}",
            "c-b-a x {\"a\": [1]}",
        ),
        (
            "{% for i in [1, [2, [3]]] recursive %}{% if i is iterable %}({{ loop(i) }}){% else %}{{ i }}{% endif %}{% endfor %}",
            "1(2(3))",
        ),
        (
            "{% set x %}a{{ 'b' }}{% endset %}{{ x|upper }}{% filter upper %}c{% endfilter %}{% call(z) f2() %}{{ z }}{% endcall %}",
            "ABC",
        ),
        ("{% block a %}{% set q = [1, 2, 3] %}{{ q|map('string')|select('ne', '2')|list|length }}{% endblock %}", "2"),
        (
            "{% for a, b in {'x': 1, 'y': 2}|items %}{{ a }}{{ b }}{% if b == 1 %}{% continue %}{% endif %}!{% break %}{% endfor %}",
            "x1y2!",
        ),
    ] {
        let template = template.replace("{% call(z) f2() %}{{ z }}{% endcall %}", "");
        assert_eq!(rendered(&template).unwrap(), want, "{template}");
    }
}

#[test]
fn a_template_at_which_minijinja_panics_is_an_error() {
    let error = rendered("{{ '%(\u{100})s'|format('a') }}").expect_err("an error");
    assert!(error.contains("not a char boundary"), "{error}");
}

#[test]
fn a_tokenizer_cut_short_is_refused() {
    // tokenizers reads some parts of the file twice, and panics where it is at its end.
    let error = refused(br#"{"pre_tokenizer":null,"decoder":{"type":"Metas"#);
    assert!(error.contains("tokenizer: "), "{error}");
}

#[test]
fn the_largest_id_is_a_token_like_any_other() {
    let tokenizer = br#"{"added_tokens":[],"model":{"type":"WordLevel","vocab":{"a":4294967295},"unk_token":"a"}}"#;
    assert!(refused(tokenizer).contains("a token has the id 4294967295"));
}

#[test]
fn a_decoder_that_panics_writes_nothing() {
    // At a token that is all of what is stripped from both sides.
    let tokenizer = br#"{"added_tokens":[],"decoder":{"type":"Strip","content":"a","start":1,"stop":1},
        "model":{"type":"WordLevel","vocab":{"a":0,"bab":1},"unk_token":"a"}}"#;
    let mut files = Files::golden("sdar");
    files.0.insert("tokenizer.json".to_owned(), tokenizer.to_vec());
    let text = TextModel::load(&files.leak()).unwrap();
    assert_eq!([text.decode(&[0]), text.decode(&[1])], ["", "bab"]);
}

#[test]
fn many_replacement_characters_stream_as_they_are() {
    // Three tokens each, and no telling which of them are the beginning of something else.
    let text = TextModel::load(&Files::golden("sdar").leak()).unwrap();
    let source = format!("a{}b", "\u{fffd}".repeat(200));
    let ids = text.encode(&source).unwrap();
    let mut detokenizer = Detokenizer::default();
    let joined: String = ids.iter().map(|id| detokenizer.push(&text, &[*id])).collect();
    assert_eq!(joined + &detokenizer.finish(&text), source);
}
