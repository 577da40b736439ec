//! JSON numbers: any number, and the digits of integers between two bounds.

use crate::language::Language;

/// Digits before the point of a number, and behind it: with an exponent of two digits it is finite in 64 bits. Chosen by us.
const NUMBER_DIGITS: u32 = 15;
/// The largest integer without an upper bound: all integers of 18 digits fit 64 bits. Chosen by us.
pub(super) const LARGEST_UNBOUNDED: i128 = 999_999_999_999_999_999;
/// The integers that a bound may name: those of 64 bits, signed or not.
pub(super) const BOUNDS: (i128, i128) = (i64::MIN as i128, u64::MAX as i128);

fn digit() -> Language {
    Language::characters(&[('0', '9')])
}

fn digits(least: u32, most: u32) -> Language {
    Language::repeat(digit(), least, Some(most))
}

/// Any number: up to 15 digits, up to 15 behind the point, an exponent of up to two.
pub(super) fn any_number() -> Language {
    let whole = Language::either(vec![
        Language::text("0"),
        Language::sequence(vec![Language::characters(&[('1', '9')]), digits(0, NUMBER_DIGITS - 1)]),
    ]);
    let fraction = Language::sequence(vec![Language::text("."), digits(1, NUMBER_DIGITS)]);
    let exponent = Language::sequence(vec![
        Language::characters(&[('E', 'E'), ('e', 'e')]),
        Language::optional(Language::characters(&[('+', '+'), ('-', '-')])),
        digits(1, 2),
    ]);
    Language::sequence(vec![
        Language::optional(Language::text("-")),
        whole,
        Language::optional(fraction),
        Language::optional(exponent),
    ])
}

/// The integers from `least` to `most`, both included, without leading zeros.
pub(super) fn integers(least: i128, most: i128) -> Language {
    let mut parts = Vec::new();
    if least < 0 && least <= most {
        let (low, high) = (most.min(-1).unsigned_abs(), least.unsigned_abs());
        parts.push(Language::sequence(vec![Language::text("-"), magnitudes(low, high)]));
    }
    if most >= 0 && least <= most {
        parts.push(magnitudes(least.max(0).unsigned_abs(), most.unsigned_abs()));
    }
    Language::either(parts)
}

/// The numbers from `least` to `most` in digits. A bound of another number of digits than the other is replaced by 10…0 or 9…9.
fn magnitudes(least: u128, most: u128) -> Language {
    let (short, long) = (least.to_string(), most.to_string());
    if short.len() == long.len() {
        return between(short.as_bytes(), long.as_bytes());
    }
    let mut parts = Vec::new();
    parts.push(between(short.as_bytes(), "9".repeat(short.len()).as_bytes()));
    let (fewest, most_digits) = (short.len() as u32, long.len() as u32);
    if fewest + 1 < most_digits {
        let rest = digits(fewest, most_digits - 2);
        parts.push(Language::sequence(vec![Language::characters(&[('1', '9')]), rest]));
    }
    let lowest = format!("1{}", "0".repeat(long.len() - 1));
    parts.push(between(lowest.as_bytes(), long.as_bytes()));
    Language::either(parts)
}

/// Strings of digits from `least` to `most`, as long as both.
pub(super) fn between(least: &[u8], most: &[u8]) -> Language {
    let (Some((&low, low_rest)), Some((&high, high_rest))) = (least.split_first(), most.split_first()) else {
        return Language::empty();
    };
    if low == high {
        return Language::sequence(vec![one_of(low, low), between(low_rest, high_rest)]);
    }
    let rest = low_rest.len() as u32;
    if low_rest.iter().all(|&digit| digit == b'0') && high_rest.iter().all(|&digit| digit == b'9') {
        return Language::sequence(vec![one_of(low, high), digits(rest, rest)]);
    }
    let nines = vec![b'9'; low_rest.len()];
    let zeros = vec![b'0'; low_rest.len()];
    let mut parts = vec![Language::sequence(vec![one_of(low, low), between(low_rest, &nines)])];
    if low + 1 < high {
        parts.push(Language::sequence(vec![one_of(low + 1, high - 1), digits(rest, rest)]));
    }
    parts.push(Language::sequence(vec![one_of(high, high), between(&zeros, high_rest)]));
    Language::either(parts)
}

fn one_of(low: u8, high: u8) -> Language {
    Language::characters(&[(char::from(low), char::from(high))])
}
