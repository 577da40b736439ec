//! Numbers between bounds, as decimals without an exponent.
//!
//! A validator compares numbers of 64 bits. Decimals of up to 15 digits are told apart by them (IEEE 754), so that what is between the
//! bounds in decimals is between them in 64 bits, too, bounds excluded or not.

use super::numbers::{between, integers};
use crate::language::Language;

/// Digits behind the point. Chosen by us: with nine before it, 15 in all.
pub(super) const FRACTION_DIGITS: u32 = 6;
/// The bounds are within this, and so are all numbers where a bound is missing.
pub(super) const LARGEST: i128 = 999_999_999;
/// One, in the units of [`decimals`].
pub(super) const ONE: i128 = 1_000_000;

/// The decimals from `least` to `most`, in millionths, both included.
pub(super) fn decimals(least: i128, most: i128) -> Language {
    let mut parts = Vec::new();
    if least < 0 && least <= most {
        let magnitudes = magnitudes(most.min(0).unsigned_abs(), least.unsigned_abs());
        parts.push(Language::sequence(vec![Language::text("-"), magnitudes]));
    }
    if most >= 0 && least <= most {
        parts.push(magnitudes(least.max(0).unsigned_abs(), most.unsigned_abs()));
    }
    Language::either(parts)
}

fn magnitudes(least: u128, most: u128) -> Language {
    let one = ONE.unsigned_abs();
    let (low, high) = (least / one, most / one);
    let (low_fraction, high_fraction) = (least % one, most % one);
    let whole = |whole: u128, fraction| Language::sequence(vec![Language::text(&whole.to_string()), fraction]);
    if low == high {
        return whole(low, fractions(low_fraction, high_fraction));
    }
    let mut parts = vec![whole(low, fractions(low_fraction, one - 1)), whole(high, fractions(0, high_fraction))];
    if low + 1 < high {
        parts.push(Language::sequence(vec![integers(low as i128 + 1, high as i128 - 1), fractions(0, one - 1)]));
    }
    Language::either(parts)
}

/// The point and the digits behind it, from `least` to `most` millionths; nothing, if that may be 0.
fn fractions(least: u128, most: u128) -> Language {
    // A fraction of fewer digits is one whose last digits are zeros.
    let mut parts: Vec<Language> = (1..=FRACTION_DIGITS as usize)
        .filter_map(|n_digits| {
            let unit = 10u128.pow(FRACTION_DIGITS - n_digits as u32);
            let (first, last) = (least.div_ceil(unit), most / unit);
            let digits = |number: u128| format!("{number:0n_digits$}");
            (first <= last).then(|| between(digits(first).as_bytes(), digits(last).as_bytes()))
        })
        .map(|digits| Language::sequence(vec![Language::text("."), digits]))
        .collect();
    if least == 0 {
        parts.push(Language::empty());
    }
    Language::either(parts)
}

/// The numbers of millionths next to a JSON number, at most and at least as large; `None`: it is not within [`LARGEST`] of 0.
pub(super) fn millionths(number: &str) -> Option<(i128, i128)> {
    let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let exponent = exponent.parse::<i32>().ok()? - i32::try_from(fraction.len()).ok()? + FRACTION_DIGITS as i32;
    let power = 10i128.checked_pow(exponent.unsigned_abs().min(38))?;
    let (floor, ceil) = match exponent {
        0.. => {
            let exact = digits.checked_mul(power)?;
            (exact, exact)
        }
        _ => (digits.div_euclid(power), -(-digits).div_euclid(power)),
    };
    (floor.abs().max(ceil.abs()) <= LARGEST * ONE).then_some((floor, ceil))
}
