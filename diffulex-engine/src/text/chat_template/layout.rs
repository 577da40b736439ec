//! Filters that lay text out: fields, indentation and Python's JSON, with bounded widths.

use minijinja::value::{Kwargs, Rest, StringInput, Value, ValueOrKwargs};
use minijinja::{Error, ErrorKind, State};

/// Maximum width and precision in format strings, because a few bytes of template could otherwise allocate any amount of
/// memory. Chosen by us: released templates indent by 4 and have no format strings.
pub(super) const MAX_WIDTH: usize = 1000;

/// minijinja's `format`, with bounded widths and precisions.
pub(super) fn format(state: &mut State<'_, '_>, text: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let fields = text.as_str().unwrap_or_default().split('%').map(|field| {
        let named = field.strip_prefix('(').and_then(|field| field.split_once(')'));
        let field = named.map_or(field, |(_, field)| field);
        field.split(char::is_alphabetic).next().unwrap_or_default()
    });
    check_widths(fields.skip(1))?;
    minijinja::filters::format(state, text, arguments)
}

/// minijinja's `indent`, with a bounded width.
pub(super) fn indent(
    text: StringInput<'_>,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    named: Kwargs,
) -> Result<Value, Error> {
    let width = width.or(named.get("width")?);
    check_width(width.or(Some(0)))?;
    minijinja::filters::indent(text, width, first, blank, named)
}

/// Fails if the width or precision of a format field is too large.
pub(super) fn check_widths<'a>(fields: impl Iterator<Item = &'a str>) -> Result<(), Error> {
    let mut numbers = fields.flat_map(|field| field.split(|character: char| !character.is_ascii_digit()));
    numbers.try_for_each(|number| if number.is_empty() { Ok(()) } else { check_width(number.parse().ok()) })
}

pub(super) fn check_width(width: Option<usize>) -> Result<(), Error> {
    let fits = width.is_some_and(|width| width <= MAX_WIDTH);
    let error = || Error::new(ErrorKind::InvalidOperation, format!("a width or precision over {MAX_WIDTH}"));
    fits.then_some(()).ok_or_else(error)
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`: Python's separators, no HTML escaping.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    check_width(indent.or(Some(0)))?;
    let json = serde_json::to_value(value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, "value is not JSON").with_source(error))?;
    let mut text = String::new();
    write_python_json(&json, indent, 0, &mut text);
    Ok(Value::from_safe_string(text))
}

fn write_python_json(value: &serde_json::Value, indent: Option<usize>, depth: usize, out: &mut String) {
    let new_line = |out: &mut String, depth: usize| {
        if let Some(width) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * depth));
        }
    };
    let separator = if indent.is_some() { "," } else { ", " };
    match value {
        serde_json::Value::Array(items) if !items.is_empty() => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { separator } else { "" });
                new_line(out, depth + 1);
                write_python_json(item, indent, depth + 1, out);
            }
            new_line(out, depth);
            out.push(']');
        }
        serde_json::Value::Object(entries) if !entries.is_empty() => {
            out.push('{');
            for (index, (key, item)) in entries.iter().enumerate() {
                out.push_str(if index > 0 { separator } else { "" });
                new_line(out, depth + 1);
                out.push_str(&serde_json::Value::from(key.as_str()).to_string());
                out.push_str(": ");
                write_python_json(item, indent, depth + 1, out);
            }
            new_line(out, depth);
            out.push('}');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}
