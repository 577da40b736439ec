//! Languages of text cut to a number of characters, where that is easy and exact.

use crate::language::Language;

/// Fewest and most characters of the text of a language; `None`: any number, or not known.
fn lengths(language: &Language) -> (u64, Option<u64>) {
    match language {
        Language::Nothing => (u64::MAX, Some(0)),
        Language::Bytes(bytes) => {
            let n = String::from_utf8_lossy(bytes).chars().count() as u64;
            (n, Some(n))
        }
        Language::Characters(_) => (1, Some(1)),
        Language::Sequence(parts) => parts.iter().map(lengths).fold((0, Some(0)), |sum: (u64, Option<u64>), next| {
            (sum.0.saturating_add(next.0), sum.1.zip(next.1).map(|(a, b)| a.saturating_add(b)))
        }),
        Language::Either(parts) => parts
            .iter()
            .map(lengths)
            .fold((u64::MAX, Some(0)), |all, next| (all.0.min(next.0), all.1.zip(next.1).map(|(a, b)| a.max(b)))),
        Language::Repeat { part, least, most } => {
            let (fewest, longest) = lengths(part);
            let longest = longest.zip(*most).map(|(longest, most)| longest.saturating_mul(most.into()));
            (fewest.saturating_mul((*least).into()), longest)
        }
        _ => (0, None),
    }
}

/// The text of `least` to `most` characters in this language. `None`: it has no easy form.
pub(super) fn within(language: Language, least: u64, most: Option<u64>) -> Option<Language> {
    let (fewest, longest) = lengths(&language);
    if fewest >= least && most.is_none_or(|most| longest.is_some_and(|longest| longest <= most)) {
        return Some(language);
    }
    if longest.is_some_and(|longest| longest < least) || most.is_some_and(|most| fewest > most) {
        return Some(Language::Nothing);
    }
    match language {
        Language::Either(parts) => {
            let parts: Option<Vec<_>> = parts.into_iter().map(|part| within(part, least, most)).collect();
            parts.map(Language::either)
        }
        Language::Sequence(mut parts) => {
            let is_varied = |part: &Language| matches!(lengths(part), (fewest, longest) if longest != Some(fewest));
            let mut varied = (0..parts.len()).filter(|&idx| is_varied(&parts[idx]));
            let (Some(part_idx), None) = (varied.next(), varied.next()) else { return None };
            let part = std::mem::replace(&mut parts[part_idx], Language::empty());
            let (fixed, _) = lengths(&Language::Sequence(parts.clone()));
            let most = most.map(|most| most.saturating_sub(fixed));
            parts[part_idx] = within(part, least.saturating_sub(fixed), most)?;
            Some(Language::sequence(parts))
        }
        Language::Repeat { part, least: fewest, most: longest } => {
            let (length, Some(longest_part)) = lengths(&part) else { return None };
            if length != longest_part || length == 0 {
                return None;
            }
            let fewest = u32::try_from(least.div_ceil(length)).ok()?.max(fewest);
            let most = most.map(|most| u32::try_from(most / length).unwrap_or(u32::MAX));
            let longest = match (most, longest) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            Some(Language::repeat(*part, fewest, longest))
        }
        _ => None,
    }
}
