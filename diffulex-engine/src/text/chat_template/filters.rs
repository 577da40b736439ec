//! minijinja's filters and Python's methods, which spend the size of their result before they make it.

use minijinja::filters as native;
use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State};

use super::account::{self, CELL, Size};
use super::layout::{self, MAX_WIDTH, check_width};

/// How the size of a result follows from the arguments.
#[derive(Clone, Copy)]
enum Cost {
    /// Nothing is made, or one number.
    Free,
    /// A list of some of the items.
    Items,
    /// A list of lists of the items: each of the arguments that is a number says how many.
    Groups,
    /// A list of pieces of a text.
    Pieces,
    /// Text, or the comparison of all that is there.
    Whole,
    /// Text with indentation.
    Indented,
    /// Text with others in place of some of its parts.
    Replaced,
    /// All items in one text.
    Joined,
    /// Text with its fields filled in.
    Formatted,
}

/// Puts filters that keep account in the place of minijinja's.
pub(super) fn add_filters(environment: &mut Environment<'static>) {
    for (name, cost, filter) in all() {
        environment.add_filter(name, move |state: &mut State<'_, '_>, arguments: Rest<ValueOrKwargs>| {
            let arguments: Vec<Value> = arguments.0.into_iter().map(Value::from).collect();
            pay(state, cost, name == "join", &arguments)?;
            let result = filter.call(state, &arguments)?;
            match cost {
                Cost::Items | Cost::Groups | Cost::Pieces => check_depth(state, result),
                _ => Ok(result),
            }
        });
    }
}

/// A Python method, whose account is kept as that of the filter of this name.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let cost = match name {
        "upper" | "lower" | "title" | "capitalize" | "strip" | "lstrip" | "rstrip" => Cost::Whole,
        "split" | "splitlines" => Cost::Pieces,
        "replace" => Cost::Replaced,
        "join" => Cost::Joined,
        "format" => Cost::Formatted,
        _ => Cost::Free,
    };
    let all: Vec<Value> = std::iter::once(value).chain(arguments).cloned().collect();
    pay(state, cost, false, &all)?;
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)
}

/// Checks how deep the values of a list are, which may have become one deeper.
fn check_depth(state: &mut State<'_, '_>, value: Value) -> Result<Value, Error> {
    if value.as_str().is_none() {
        account::size(state, &value)?;
    }
    Ok(value)
}

/// Spends what the result of `arguments` takes; the list comes first `is_first`, or second.
fn pay(state: &mut State<'_, '_>, cost: Cost, is_first: bool, arguments: &[Value]) -> Result<(), Error> {
    let text = |index: usize| arguments.get(index).and_then(Value::as_str).unwrap_or_default();
    let mut whole = || -> Result<Size, Error> {
        let mut sum = Size::default();
        for argument in arguments {
            let size = account::size(state, argument)?;
            sum.cells += size.cells;
            sum.bytes = sum.bytes.saturating_add(size.bytes);
        }
        Ok(sum)
    };
    let items = || arguments.iter().map(account::n_items).fold(0, u64::saturating_add);
    let bytes = match cost {
        Cost::Free => 0,
        Cost::Items => items() * CELL,
        Cost::Groups => {
            for number in arguments.iter().skip(1).filter(|argument| argument.kind() == ValueKind::Number) {
                check_width(number.as_usize())?;
            }
            (items() + MAX_WIDTH as u64) * 2 * CELL
        }
        Cost::Pieces => {
            let n_pieces = match arguments.get(1).and_then(Value::as_str) {
                Some(separator) if !separator.is_empty() => text(0).matches(separator).count() + 1,
                _ => text(0).split_whitespace().count() + text(0).matches('\n').count() + 1,
            };
            text(0).len() as u64 + n_pieces as u64 * 2 * CELL
        }
        Cost::Whole => whole()?.as_text(),
        Cost::Indented => {
            // Each value on a line of its own, as deep as values may be.
            let width = arguments.iter().skip(1).filter_map(Value::as_usize).max().unwrap_or(4).min(MAX_WIDTH) as u64;
            let lines = text(0).matches('\n').count() as u64 + 1;
            let size = whole()?;
            let n_indents = if text(0).is_empty() { size.cells.saturating_mul(size.cells.min(128)) } else { lines };
            size.as_text().saturating_add(n_indents.saturating_mul(width))
        }
        Cost::Replaced => {
            let (old, new) = (text(1), text(2));
            let n_matches = if old.is_empty() { text(0).chars().count() + 1 } else { text(0).matches(old).count() };
            (n_matches as u64).saturating_mul(new.len() as u64).saturating_add(whole()?.as_text())
        }
        Cost::Joined => {
            let [list, separator] = if is_first { [0, 1] } else { [1, 0] };
            let n_items = arguments.get(list).map_or(0, account::n_items);
            n_items.saturating_mul(text(separator).len() as u64).saturating_add(whole()?.as_text())
        }
        Cost::Formatted => {
            let n_fields = text(0).matches(['%', '{']).count() as u64;
            let size = whole()?.as_text();
            // A field may be named many times.
            n_fields.saturating_mul(MAX_WIDTH as u64).saturating_add(size.saturating_mul(n_fields.max(1)))
        }
    };
    account::spend(state, bytes)
}

/// Every filter of minijinja, by name.
fn all() -> Vec<(&'static str, Cost, Value)> {
    macro_rules! table {
        ($($cost:ident: $($name:literal => $function:path),*;)*) => {
            vec![$($(($name, Cost::$cost, Value::from_function($function))),*),*]
        };
    }
    table! {
        Free: "default" => native::default, "d" => native::default, "first" => native::first, "last" => native::last,
              "length" => native::length, "count" => native::length, "abs" => native::abs, "int" => native::int,
              "float" => native::float, "round" => native::round, "bool" => native::bool, "attr" => native::attr;
        Items: "list" => native::list, "select" => native::select, "reject" => native::reject,
               "selectattr" => native::selectattr, "rejectattr" => native::rejectattr, "map" => native::map,
               "items" => native::items, "reverse" => native::reverse, "chain" => native::chain;
        Groups: "batch" => native::batch, "slice" => native::slice, "zip" => native::zip;
        Pieces: "split" => native::split, "lines" => native::lines;
        Whole: "safe" => native::safe, "escape" => native::escape, "e" => native::escape, "lower" => native::lower,
               "upper" => native::upper, "title" => native::title, "capitalize" => native::capitalize, "trim" => native::trim,
               "string" => native::string, "dictsort" => native::dictsort, "min" => native::min, "max" => native::max,
               "sort" => native::sort, "sum" => native::sum, "groupby" => native::groupby, "unique" => native::unique;
        Indented: "indent" => layout::indent, "pprint" => native::pprint, "tojson" => layout::tojson;
        Replaced: "replace" => native::replace;
        Joined: "join" => native::join;
        Formatted: "format" => layout::format;
    }
}
