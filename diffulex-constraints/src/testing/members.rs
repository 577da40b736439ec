//! Random members of languages.

use super::dice::Dice;
use crate::{Language, Node};

/// A random member of a language that has one in each of its parts.
pub fn member(language: &Language, dice: &mut Dice) -> String {
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
