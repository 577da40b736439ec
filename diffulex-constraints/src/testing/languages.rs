//! Random languages.

use proptest::prelude::*;

use crate::{Item, Language};

/// Small languages over `a`, `b`, `,` and `é`.
pub(crate) fn languages() -> impl Strategy<Value = Language> {
    let leaf = prop_oneof![
        12 => prop::sample::select(vec!["a", "b", "ab", "ba", ",", "é", "aé", ""]).prop_map(Language::text),
        2 => Just(Language::Characters(vec![('a', 'b'), ('\u{e8}', '\u{ea}')])),
        1 => Just(Language::Characters(vec![('\u{0}', char::MAX)])),
        2 => Just(Language::ByteRanges(vec![(b'a', b'b'), (b'b', b'c')])),
        1 => Just(Language::Nothing),
    ];
    let counts =
        || (0_u32..3, prop::option::of(0_u32..3)).prop_map(|(least, more)| (least, more.map(|more| least + more)));
    leaf.prop_recursive(3, 16, 3, move |part| {
        let item = (part.clone(), any::<bool>()).prop_map(|(language, is_required)| Item { language, is_required });
        let separator = prop_oneof![3 => Just(Language::text(",")), 1 => part.clone()];
        prop_oneof![
            prop::collection::vec(part.clone(), 0..4).prop_map(Language::Sequence),
            prop::collection::vec(part.clone(), 1..4).prop_map(Language::Either),
            (part.clone(), counts()).prop_map(|(part, (least, most))| Language::Repeat {
                part: part.into(),
                least,
                most
            }),
            (part, separator.clone(), counts()).prop_map(|(part, separator, (least, most))| Language::List {
                part: part.into(),
                separator: separator.into(),
                least,
                most,
            }),
            (prop::collection::vec(item, 0..4), separator)
                .prop_map(|(items, separator)| Language::Items { items, separator: separator.into() }),
        ]
    })
}
