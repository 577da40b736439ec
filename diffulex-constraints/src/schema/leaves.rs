//! Strings and numbers, from their keywords.

use super::decimals::{LARGEST, ONE, decimals, millionths};
use super::formats;
use super::keywords::{Keywords, shortened};
use super::lengths::within;
use super::numbers::{BOUNDS, LARGEST_UNBOUNDED, any_number, integers};
use super::strings::{any_string, counted_string, escaped, in_quotes};
use crate::error::ConstraintError;
use crate::json::Json;
use crate::language::Language;
use crate::regex;

/// Largest `minLength` and `maxLength`. Chosen by us: an automaton has seven states for each character that it counts.
pub(super) const MAX_LENGTH: u32 = 256;

/// A string of these keywords.
pub(super) fn string(keywords: Keywords<'_>) -> Result<Language, ConstraintError> {
    let least = keywords.count("minLength", MAX_LENGTH)?;
    let most = keywords.count("maxLength", MAX_LENGTH)?;
    let text = match (keywords.text("pattern")?, keywords.text("format")?) {
        (Some(_), Some(_)) => return Err(keywords.refuse("pattern beside format is not supported")),
        (Some(pattern), None) => {
            regex::search(pattern).map_err(|error| keywords.refuse(format!("pattern: {}", error.message)))?
        }
        (None, Some(format)) => formats::language(format)?.ok_or_else(|| {
            let (format, names) = (shortened(format), formats::NAMES);
            keywords.refuse(format!("the format \"{format}\" is not supported; these are: {names}"))
        })?,
        (None, None) if least.is_none() && most.is_none() => return Ok(any_string()),
        (None, None) => return Ok(counted_string(least.unwrap_or(0), most)),
    };
    let counted = within(text, least.unwrap_or(0).into(), most.map(Into::into));
    let counted = counted.ok_or_else(|| {
        keywords
            .refuse("minLength or maxLength beside this pattern or format is not supported: count inside the pattern")
    })?;
    Ok(match escaped(counted) {
        Language::Nothing => Language::Nothing,
        inner => in_quotes(inner),
    })
}

/// An integer of these keywords.
pub(super) fn integer(keywords: Keywords<'_>) -> Result<Language, ConstraintError> {
    let bound = |keyword: &str, rounded: fn(f64) -> f64| match keywords.get(keyword) {
        None => Ok(None),
        Some(Json::Number(number)) => Ok(Some(match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(exact), ..) => i128::from(exact),
            (_, Some(exact), _) => i128::from(exact),
            // Beyond 128 bits, the cast ends at the bounds of 128 bits.
            (_, _, inexact) => rounded(inexact.unwrap_or(f64::INFINITY)) as i128,
        })),
        Some(other) => Err(keywords.refuse(format!("{keyword} is {}, not a number", shortened(&other.line())))),
    };
    let lower =
        bound("minimum", f64::ceil)?.max(bound("exclusiveMinimum", f64::floor)?.map(|bound| bound.saturating_add(1)));
    let upper =
        [bound("maximum", f64::floor)?, bound("exclusiveMaximum", f64::ceil)?.map(|bound| bound.saturating_sub(1))];
    let upper = upper.into_iter().flatten().min();
    let largest = if lower.is_some_and(|lower| lower > LARGEST_UNBOUNDED) { BOUNDS.1 } else { LARGEST_UNBOUNDED };
    let smallest = if upper.is_some_and(|upper| upper < -LARGEST_UNBOUNDED) { BOUNDS.0 } else { -LARGEST_UNBOUNDED };
    let (lower, upper) = (lower.unwrap_or(smallest), upper.unwrap_or(largest));
    if lower > BOUNDS.1 || upper < BOUNDS.0 {
        return Err(keywords.refuse("the bounds leave only integers of more than 64 bits"));
    }
    Ok(integers(lower.max(BOUNDS.0), upper.min(BOUNDS.1)))
}

/// A number of these keywords.
pub(super) fn number(keywords: Keywords<'_>) -> Result<Language, ConstraintError> {
    if keywords.first_of(&["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]).is_none() {
        return Ok(any_number());
    }
    let bound = |keyword: &str| match keywords.get(keyword) {
        None => Ok(None),
        Some(Json::Number(number)) => match millionths(&number.to_string()) {
            Some(bound) => Ok(Some(bound)),
            None => {
                Err(keywords.refuse(format!("{keyword} is {number}, for numbers at most {LARGEST} from 0 is allowed")))
            }
        },
        Some(other) => Err(keywords.refuse(format!("{keyword} is {}, not a number", shortened(&other.line())))),
    };
    let at_least = bound("minimum")?.map(|(_, ceil)| ceil);
    let above = bound("exclusiveMinimum")?.map(|(floor, _)| floor + 1);
    let at_most = bound("maximum")?.map(|(floor, _)| floor);
    let below = bound("exclusiveMaximum")?.map(|(_, ceil)| ceil - 1);
    let least = at_least.max(above).unwrap_or(-LARGEST * ONE);
    let most = [at_most, below].into_iter().flatten().min().unwrap_or(LARGEST * ONE);
    Ok(decimals(least, most))
}
