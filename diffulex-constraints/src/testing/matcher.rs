//! Which texts belong to a language, by definition, without automata.

use std::collections::BTreeSet;

use crate::Language;

/// Whether a text belongs to a language. Slow.
pub fn contains(language: &Language, text: impl AsRef<[u8]>) -> bool {
    let text = text.as_ref();
    ends(language, text, 0).contains(&text.len())
}

/// Where the texts of a language that begin at `from` end.
fn ends(language: &Language, text: &[u8], from: usize) -> BTreeSet<usize> {
    let each = |language: &Language, starts: &BTreeSet<usize>| -> BTreeSet<usize> {
        starts.iter().flat_map(|&start| ends(language, text, start)).collect()
    };
    match language {
        Language::Nothing => BTreeSet::new(),
        Language::Bytes(bytes) => text[from..].starts_with(bytes).then_some(from + bytes.len()).into_iter().collect(),
        Language::ByteRanges(ranges) => {
            let is_in = |byte: &u8| ranges.iter().any(|(first, last)| (first..=last).contains(&byte));
            text.get(from).filter(|byte| is_in(byte)).map(|_| from + 1).into_iter().collect()
        }
        Language::Characters(ranges) => {
            let is_in = |c: &char| ranges.iter().any(|(first, last)| (first..=last).contains(&c));
            let bytes = (1..=4).filter_map(|length| text.get(from..from + length));
            let character =
                bytes.filter_map(|bytes| std::str::from_utf8(bytes).ok()).find_map(|text| text.chars().next());
            character.filter(is_in).map(|c| from + c.len_utf8()).into_iter().collect()
        }
        Language::Sequence(parts) => parts.iter().fold(BTreeSet::from([from]), |starts, part| each(part, &starts)),
        Language::Either(parts) => parts.iter().flat_map(|part| ends(part, text, from)).collect(),
        Language::Repeat { part, least, most } => {
            list(&each, part, &Language::empty(), (*least, *most), from, text.len())
        }
        Language::List { part, separator, least, most } => {
            list(&each, part, separator, (*least, *most), from, text.len())
        }
        Language::Items { items, separator } => {
            let (mut none_yet, mut some) = (BTreeSet::from([from]), BTreeSet::new());
            for item in items {
                let mut entered = each(separator, &some);
                entered.extend(&none_yet);
                let after = each(&item.language, &entered);
                if item.is_required {
                    none_yet.clear();
                    some.clear();
                }
                some.extend(after);
            }
            none_yet.extend(some);
            none_yet
        }
        Language::Graph(nodes) => {
            let mut reached: BTreeSet<(usize, usize)> = (!nodes.is_empty()).then_some((0, from)).into_iter().collect();
            let mut fresh: Vec<_> = reached.iter().copied().collect();
            while let Some((node, from)) = fresh.pop() {
                for (part, next) in &nodes[node].edges {
                    for end in ends(part, text, from) {
                        if reached.insert((*next, end)) {
                            fresh.push((*next, end));
                        }
                    }
                }
            }
            reached.into_iter().filter(|(node, _)| nodes[*node].accepts).map(|(_, end)| end).collect()
        }
    }
}

fn list(
    each: &dyn Fn(&Language, &BTreeSet<usize>) -> BTreeSet<usize>,
    part: &Language,
    separator: &Language,
    (least, most): (u32, Option<u32>),
    from: usize,
    n_bytes: usize,
) -> BTreeSet<usize> {
    let mut ends = BTreeSet::new();
    let mut starts = BTreeSet::from([from]);
    if least == 0 {
        ends.insert(from);
    }
    // More parts than bytes add nothing but parts without bytes.
    for count in 1..=most.unwrap_or(least + n_bytes as u32 + 1) {
        if starts.is_empty() {
            break;
        }
        if count > 1 {
            starts = each(separator, &starts);
        }
        starts = each(part, &starts);
        if count >= least {
            ends.extend(&starts);
        }
    }
    ends
}
