//! Log lines as JSON: one object a line, fields at top level beside `timestamp`, `level` and `message`.
//!
//! Never here: what is logged, where lines go.

use std::fmt::{self, Debug};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::is_command;

/// The format of `--log-format json`.
///
/// `tracing-subscriber` has one of its own, which writes C1 control characters and those of direction as they are.
pub(super) struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let mut object = Map::new();
        object.insert("timestamp".to_owned(), timestamp.into());
        object.insert("level".to_owned(), event.metadata().level().as_str().into());
        event.record(&mut Fields(&mut object));
        let line = Value::Object(object).to_string();
        // Outside of strings there is none of these, and inside they may be written like this (RFC 8259, 7).
        for character in line.chars() {
            if is_command(character) {
                // All of them are in the first plane.
                write!(writer, "\\u{:04x}", u32::from(character))?;
            } else {
                writer.write_char(character)?;
            }
        }
        writer.write_char('\n')
    }
}

struct Fields<'a>(&'a mut Map<String, Value>);

impl Fields<'_> {
    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add(field, value.to_string());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, format!("{value:?}"));
    }
}
