//! Hugging Face chat templates, rendered by minijinja the way transformers' jinja2 renders them.

use diffulex_protocol::ChatMessage;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, StringInput, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, context, escape_formatter};

use super::panics::caught;
use crate::error::{LoadError, RequestError};
use crate::files::ModelFiles;

const NAME: &str = "chat";

/// Maximum instructions of one rendering, so that an endless template is an error. Chosen by us: released templates take up to
/// about 100 per message, so this is enough for 100,000 messages, and takes a second.
const MAX_INSTRUCTIONS: u64 = 10_000_000;

/// Maximum output of one rendering: this many bytes plus a multiple of the messages' size. Chosen by us: released templates
/// write each message once, and some write its reasoning twice.
const MAX_OWN_BYTES: usize = 1 << 20;
const MAX_REPEATS: usize = 4;

/// Maximum width and precision in format strings, because a few bytes of template could otherwise allocate any amount of
/// memory. Chosen by us: released templates indent by 4 and have no format strings.
const MAX_WIDTH: usize = 1000;

/// Default template for models without one: ChatML, which every block-diffusion family except LLaDA uses.
const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                      {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

pub(super) struct ChatTemplate {
    /// Globals include `bos_token`, `eos_token` and other special tokens that templates print.
    environment: Environment<'static>,
    source: String,
}

impl ChatTemplate {
    /// Loads `chat_template.jinja`, or else `chat_template` of tokenizer_config.json.
    pub(super) fn load(files: &ModelFiles, tokenizer_config: &serde_json::Value) -> Result<Self, LoadError> {
        let source = match files.read("chat_template.jinja")? {
            Some(bytes) => String::from_utf8(bytes.into_owned())
                .map_err(|error| LoadError::of(files.place(), format!("chat_template.jinja: {error}")))?,
            None => named_template(tokenizer_config).unwrap_or_else(|| CHATML.to_owned()),
        };
        let mut environment = Environment::new();
        // The same settings as transformers' jinja2.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| LoadError::of(files.place(), error))?);
        environment.set_fuel(Some(MAX_INSTRUCTIONS));
        environment.set_formatter(|out, state, value| {
            // It would go through all of its items after the last that fits.
            let is_sequence = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
            match value.len().filter(|n_items| is_sequence && *n_items > MAX_OWN_BYTES) {
                Some(n_items) => Err(Error::new(ErrorKind::InvalidOperation, format!("a list of {n_items} items"))),
                None => escape_formatter(out, state, value),
            }
        });
        environment.set_unknown_method_callback(|state, value, method, arguments| {
            if let ("format", Some(text)) = (method, value.as_str()) {
                check_widths(text.split('{').skip(1).filter_map(|field| field.split('}').next()))?;
            }
            minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
        });
        environment.add_filter("tojson", tojson);
        environment.add_filter("format", format);
        environment.add_filter("indent", indent);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        caught(|| environment.add_template_owned(NAME, source.clone()))
            .and_then(|added| added.map_err(|error| error.to_string()))
            .map_err(|what| LoadError::of(files.place(), format!("chat template: {what}")))?;
        let settings = tokenizer_config.as_object().into_iter().flatten();
        for (key, value) in settings.filter(|(key, _)| key.ends_with("_token")) {
            if let Some(content) = value.as_str().or_else(|| value.get("content")?.as_str()) {
                environment.add_global(key.clone(), content);
            }
        }
        Ok(Self { environment, source })
    }

    /// As it was loaded.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    pub(super) fn render(
        &self,
        messages: &[ChatMessage],
        options: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, RequestError> {
        let n_bytes: usize = messages.iter().map(|message| message.role.len() + message.content.len()).sum();
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| context! { role => message.role.as_str(), content => message.content.as_str() })
            .collect();
        let context = context! { messages, add_generation_prompt => true };
        let context = if options.is_empty() {
            context
        } else {
            let options = Value::from_pairs(options.iter().map(|(name, value)| (name.clone(), from_json(value))));
            context! { ..options, ..context }
        };
        let limit = MAX_OWN_BYTES + MAX_REPEATS * n_bytes;
        let mut out = Bounded { bytes: Vec::new(), limit, is_over: false };
        // It panics at some format strings: at names that are not ASCII.
        let rendered = caught(|| self.environment.get_template(NAME)?.render_captured_to(context, &mut out).map(drop));
        let fail = |reason: String| {
            RequestError::invalid("messages", format!("messages do not fit the model's chat template: {reason}"))
        };
        rendered.map_err(fail)?.map_err(|error| match error.kind() {
            _ if out.is_over => fail(format!("it writes more than {limit} bytes")),
            ErrorKind::OutOfFuel => fail(format!("it takes more than {MAX_INSTRUCTIONS} instructions")),
            // The template's own message (raise_exception) is the useful part.
            _ => fail(error.detail().map_or_else(|| error.to_string(), str::to_owned)),
        })?;
        String::from_utf8(out.bytes).map_err(|error| fail(error.to_string()))
    }
}

/// A writer with a size limit.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
    /// True after a write beyond the limit.
    is_over: bool,
}

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.is_over |= bytes.len() > self.limit - self.bytes.len();
        if self.is_over {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// tokenizer_config.json holds one template, or a list of named ones; `default` is used.
fn named_template(tokenizer_config: &serde_json::Value) -> Option<String> {
    match tokenizer_config.get("chat_template")? {
        serde_json::Value::String(source) => Some(source.clone()),
        serde_json::Value::Array(named) => named
            .iter()
            .find(|entry| entry.get("name").and_then(|name| name.as_str()) == Some("default"))
            .and_then(|entry| entry.get("template")?.as_str())
            .map(str::to_owned),
        _ => None,
    }
}

fn from_json(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(flag) => Value::from(*flag),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => Value::from(whole),
            (None, fraction) => Value::from(fraction.unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(from_json).collect(),
        serde_json::Value::Object(entries) => {
            Value::from_pairs(entries.iter().map(|(name, value)| (name.clone(), from_json(value))))
        }
    }
}

/// minijinja's `format`, with bounded widths and precisions.
fn format(state: &mut State<'_, '_>, text: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let fields = text.as_str().unwrap_or_default().split('%').map(|field| {
        let named = field.strip_prefix('(').and_then(|field| field.split_once(')'));
        let field = named.map_or(field, |(_, field)| field);
        field.split(char::is_alphabetic).next().unwrap_or_default()
    });
    check_widths(fields.skip(1))?;
    minijinja::filters::format(state, text, arguments)
}

/// minijinja's `indent`, with a bounded width.
fn indent(
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
fn check_widths<'a>(fields: impl Iterator<Item = &'a str>) -> Result<(), Error> {
    let mut numbers = fields.flat_map(|field| field.split(|character: char| !character.is_ascii_digit()));
    numbers.try_for_each(|number| if number.is_empty() { Ok(()) } else { check_width(number.parse().ok()) })
}

fn check_width(width: Option<usize>) -> Result<(), Error> {
    let fits = width.is_some_and(|width| width <= MAX_WIDTH);
    let error = || Error::new(ErrorKind::InvalidOperation, format!("a width or precision over {MAX_WIDTH}"));
    fits.then_some(()).ok_or_else(error)
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`: Python's separators, no HTML escaping.
fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
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
