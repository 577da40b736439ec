//! A plain matcher of languages, and a source of random members. Both are slow and meant to be obviously right.

use std::collections::BTreeSet;

use crate::language::{Language, Node};

/// Whether `text` belongs to the language.
pub(crate) fn matches(language: &Language, text: &str) -> bool {
    ends(language, text.as_bytes(), 0).contains(&text.len())
}

/// Where a match that begins at `start` may end.
fn ends(language: &Language, text: &[u8], start: usize) -> BTreeSet<usize> {
    let after = |part: &Language, starts: &BTreeSet<usize>| -> BTreeSet<usize> {
        starts.iter().flat_map(|&start| ends(part, text, start)).collect()
    };
    match language {
        Language::Nothing => BTreeSet::new(),
        Language::Bytes(bytes) => text[start..].starts_with(bytes).then_some(start + bytes.len()).into_iter().collect(),
        Language::Characters(ranges) => {
            let length = (1..=4.min(text.len() - start)).find_map(|length| {
                let character = std::str::from_utf8(&text[start..start + length]).ok()?.chars().next()?;
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&character)).then_some(length)
            });
            length.map(|length| start + length).into_iter().collect()
        }
        Language::ByteRanges(ranges) => {
            let is_in = |byte: &u8| ranges.iter().any(|(first, last)| (first..=last).contains(&byte));
            text.get(start).filter(|byte| is_in(byte)).map(|_| start + 1).into_iter().collect()
        }
        Language::Sequence(parts) => parts.iter().fold(BTreeSet::from([start]), |starts, part| after(part, &starts)),
        Language::Either(parts) => parts.iter().flat_map(|part| ends(part, text, start)).collect(),
        Language::Repeat { part, least, most } => repeated(*least, *most, start, &|starts, _| after(part, starts)),
        Language::List { part, separator, least, most } => repeated(*least, *most, start, &|starts, is_first| {
            if is_first { after(part, starts) } else { after(part, &after(separator, starts)) }
        }),
        Language::Items { items, separator } => {
            // Ends without any item, and with at least one.
            let (mut bare, mut filled) = (BTreeSet::from([start]), BTreeSet::new());
            for item in items {
                let mut next = after(&item.language, &bare);
                next.extend(after(&item.language, &after(separator, &filled)));
                if item.is_required {
                    (bare, filled) = (BTreeSet::new(), next);
                } else {
                    filled.extend(next);
                }
            }
            bare.extend(filled);
            bare
        }
        Language::Graph(nodes) => graph_ends(nodes, text, start),
    }
}

/// `step` makes one repetition; it is given whether it is the first.
fn repeated(
    least: u32,
    most: Option<u32>,
    start: usize,
    step: &dyn Fn(&BTreeSet<usize>, bool) -> BTreeSet<usize>,
) -> BTreeSet<usize> {
    let mut all = BTreeSet::new();
    let mut now = BTreeSet::from([start]);
    for n_done in 0.. {
        if n_done >= least && !all.is_superset(&now) || n_done == least {
            all.extend(now.iter().copied());
        } else if n_done > least {
            break;
        }
        if most.is_some_and(|most| n_done >= most) || now.is_empty() {
            break;
        }
        now = step(&now, n_done == 0);
    }
    all
}

fn graph_ends(nodes: &[Node], text: &[u8], start: usize) -> BTreeSet<usize> {
    let mut seen = BTreeSet::from([(0, start)]);
    let mut open = vec![(0, start)];
    while let Some((node, at)) = open.pop() {
        for (language, to) in &nodes[node].edges {
            for end in ends(language, text, at) {
                if seen.insert((*to, end)) {
                    open.push((*to, end));
                }
            }
        }
    }
    seen.into_iter().filter(|(node, _)| nodes[*node].accepts).map(|(_, at)| at).collect()
}

/// Random numbers (SplitMix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// Below `n`, which is above 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    pub(crate) fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// A random member of a language that has one in each of its parts.
pub(crate) fn member(language: &Language, dice: &mut Dice) -> String {
    let mut bytes = Vec::new();
    write(language, dice, &mut bytes);
    String::from_utf8(bytes).expect("languages of text are UTF-8")
}

fn write(language: &Language, dice: &mut Dice, out: &mut Vec<u8>) {
    match language {
        Language::Nothing => panic!("no member"),
        Language::Bytes(bytes) => out.extend(bytes),
        Language::Characters(ranges) => {
            let (first, last) = *dice.pick(ranges);
            // Ends of ranges are likelier than the middle.
            let number = match dice.below(4) {
                0 => first as u32,
                1 => last as u32,
                _ => first as u32 + dice.below(u64::from(last as u32 - first as u32) + 1) as u32,
            };
            out.extend(char::from_u32(number).unwrap_or(first).to_string().bytes());
        }
        Language::ByteRanges(ranges) => out.push(dice.pick(ranges).0),
        Language::Sequence(parts) => parts.iter().for_each(|part| write(part, dice, out)),
        Language::Either(parts) => write(dice.pick(parts), dice, out),
        Language::Repeat { part, least, most } => {
            for _ in 0..count(*least, *most, dice) {
                write(part, dice, out);
            }
        }
        Language::List { part, separator, least, most } => {
            for part_idx in 0..count(*least, *most, dice) {
                if part_idx > 0 {
                    write(separator, dice, out);
                }
                write(part, dice, out);
            }
        }
        Language::Items { items, separator } => {
            let mut is_first = true;
            for item in items.iter() {
                if item.is_required || dice.chance(50) {
                    if !is_first {
                        write(separator, dice, out);
                    }
                    write(&item.language, dice, out);
                    is_first = false;
                }
            }
        }
        Language::Graph(nodes) => walk(nodes, dice, out),
    }
}

fn count(least: u32, most: Option<u32>, dice: &mut Dice) -> u32 {
    let most = most.unwrap_or(least + 4);
    match dice.below(6) {
        0 => most,
        1 => least,
        _ => least + dice.below(u64::from((most - least).min(4)) + 1) as u32,
    }
}

/// A random path, which takes shortest ways once it is long.
fn walk(nodes: &[Node], dice: &mut Dice, out: &mut Vec<u8>) {
    let mut distances: Vec<usize> = nodes.iter().map(|node| if node.accepts { 0 } else { usize::MAX }).collect();
    for _ in nodes {
        for (node_idx, node) in nodes.iter().enumerate() {
            let through = node.edges.iter().map(|(_, to)| distances[*to].saturating_add(1)).min();
            distances[node_idx] = distances[node_idx].min(through.unwrap_or(usize::MAX));
        }
    }
    let mut at = 0;
    for n_steps in 0.. {
        if nodes[at].accepts && (nodes[at].edges.is_empty() || n_steps > 20 || dice.chance(20)) {
            return;
        }
        let mut edges: Vec<_> = nodes[at].edges.iter().filter(|(_, to)| distances[*to] != usize::MAX).collect();
        if n_steps > 20 {
            edges.retain(|(_, to)| distances[*to] < distances[at]);
        }
        if edges.is_empty() {
            return;
        }
        let (language, to) = dice.pick(&edges);
        write(language, dice, out);
        at = *to;
    }
}
