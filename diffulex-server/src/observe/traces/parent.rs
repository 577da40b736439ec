//! The caller's span, from the headers of W3C Trace Context (level 2).
//!
//! A `traceparent` that is not well-formed is as if it were not there, and so is a `tracestate` alone. Never here: our spans.

use axum::http::{HeaderMap, HeaderValue};

use super::{SpanId, TraceId};

/// Bytes of a `traceparent` of version 00: version, trace, span, flags, and three hyphens.
const TRACEPARENT_BYTES: usize = 55;

/// Members of a `tracestate` at most (3.3.1.1).
const MAX_MEMBERS: usize = 32;

/// Bytes of a member's key, and of its value, at most (3.3.1.3).
const MAX_MEMBER_BYTES: usize = 256;

/// The flag of callers that record their span.
const SAMPLED: u8 = 1;

/// The caller's span.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Parent {
    pub(super) trace_id: TraceId,
    pub(super) span_id: SpanId,
    pub(super) is_sampled: bool,
    /// Facts of other systems about the trace, passed on as they came.
    pub(super) state: String,
}

impl Parent {
    /// The span that `headers` name.
    pub(super) fn of_headers(headers: &HeaderMap) -> Option<Self> {
        let mut given = headers.get_all("traceparent").iter();
        // Of several, none can be told to be the caller's.
        let (Some(traceparent), None) = (given.next(), given.next()) else { return None };
        let (trace_id, span_id, flags) = fields(traceparent.to_str().ok()?)?;
        let state = state(headers.get_all("tracestate")).unwrap_or_default();
        Some(Self { trace_id, span_id, is_sampled: flags & SAMPLED != 0, state })
    }
}

/// Trace, span and flags of a `traceparent` (3.2).
fn fields(traceparent: &str) -> Option<(TraceId, SpanId, u8)> {
    let (known, rest) = traceparent.split_at_checked(TRACEPARENT_BYTES)?;
    let fields: Vec<&str> = known.split('-').collect();
    let [version, trace_id, span_id, flags] = fields[..] else { return None };
    let version = hex(version, 2)?;
    // Later versions may go on after another hyphen; 255 is none.
    let is_known_form = if version == 0 { rest.is_empty() } else { rest.is_empty() || rest.starts_with('-') };
    let (trace_id, span_id) = (hex(trace_id, 32)?, u64::try_from(hex(span_id, 16)?).ok()?);
    let is_valid = version != 0xff && is_known_form && trace_id != 0 && span_id != 0;
    is_valid.then_some((TraceId(trace_id), SpanId(span_id), u8::try_from(hex(flags, 2)?).ok()?))
}

/// A number of `n_digits` lower-case hexadecimal digits.
fn hex(digits: &str, n_digits: usize) -> Option<u128> {
    let is_hex = digits.len() == n_digits && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_hex { u128::from_str_radix(digits, 16).ok() } else { None }
}

/// The members of all `tracestate` headers, in order; `None` where one is malformed, which makes the others worthless (3.3.1).
fn state<'a>(headers: impl IntoIterator<Item = &'a HeaderValue>) -> Option<String> {
    let mut members: Vec<&str> = Vec::new();
    for header in headers {
        let listed = header.to_str().ok()?.split(',').map(|member| member.trim_matches([' ', '\t']));
        members.extend(listed.filter(|member| !member.is_empty()));
    }
    let mut keys = Vec::with_capacity(members.len());
    for member in &members {
        let (key, value) = member.split_once('=')?;
        if !is_key(key) || !is_value(value) || keys.contains(&key) {
            return None;
        }
        keys.push(key);
    }
    (members.len() <= MAX_MEMBERS).then(|| members.join(","))
}

fn is_key(key: &str) -> bool {
    let is_start = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_rest = |byte: u8| is_start(byte) || b"_-*/@".contains(&byte);
    key.len() <= MAX_MEMBER_BYTES && key.bytes().next().is_some_and(is_start) && key.bytes().all(is_rest)
}

fn is_value(value: &str) -> bool {
    let is_allowed = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'=';
    (1..=MAX_MEMBER_BYTES).contains(&value.len()) && value.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn parent(headers: &[(&'static str, &str)]) -> Option<Parent> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_bytes(value.as_bytes()).expect("a header"));
        }
        Parent::of_headers(&map)
    }

    fn of_traceparent(value: &str) -> Option<Parent> {
        parent(&[("traceparent", value)])
    }

    #[test]
    fn a_traceparent_names_trace_span_and_whether_it_is_sampled() {
        let expected = Parent {
            trace_id: TraceId(0x4bf92f3577b34da6a3ce929d0e0e4736),
            span_id: SpanId(0x00f067aa0ba902b7),
            is_sampled: true,
            state: String::new(),
        };
        assert_eq!(of_traceparent(&format!("00-{TRACE}-{SPAN}-01")), Some(expected.clone()));
        for (flags, is_sampled) in [("00", false), ("02", false), ("03", true), ("ff", true)] {
            let given = of_traceparent(&format!("00-{TRACE}-{SPAN}-{flags}"));
            assert_eq!(given, Some(Parent { is_sampled, ..expected.clone() }), "{flags}");
        }
    }

    #[test]
    fn later_versions_are_read_as_far_as_they_are_known() {
        for value in ["cc-T-S-01", "cc-T-S-01-what-comes", "01-T-S-01-"] {
            let value = value.replace('T', TRACE).replace('S', SPAN);
            assert!(of_traceparent(&value).is_some_and(|parent| parent.is_sampled), "{value}");
        }
        for value in ["cc-T-S-01.more", "cc-T-S-011", "ff-T-S-01", "00-T-S-01-", "00-T-S-01-more"] {
            let value = value.replace('T', TRACE).replace('S', SPAN);
            assert_eq!(of_traceparent(&value), None, "{value}");
        }
    }

    #[test]
    fn a_malformed_traceparent_is_none() {
        let zeros = "0".repeat(32);
        for value in [
            String::new(),
            "00".to_owned(),
            TRACE.to_owned(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-0g"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!("000-{TRACE}-{SPAN}-0"),
            format!("+0-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{}-01", SPAN.to_uppercase()),
            format!("00-{}-0{SPAN}-01", &TRACE[1..]),
            format!("00-+{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00_{TRACE}_{SPAN}_01"),
            format!("00-{TRACE}-{SPAN}é01"),
        ] {
            assert_eq!(of_traceparent(&value), None, "{value:?}");
        }
        let good = format!("00-{TRACE}-{SPAN}-01");
        assert_eq!(parent(&[("traceparent", &good), ("traceparent", &good)]), None, "two of them");
        assert_eq!(parent(&[("tracestate", "a=1")]), None, "no traceparent");
    }

    #[test]
    fn a_tracestate_is_passed_on_whole_or_not_at_all() {
        let good = format!("00-{TRACE}-{SPAN}-01");
        let state = |values: &[&str]| {
            let mut headers = vec![("traceparent", good.as_str())];
            headers.extend(values.iter().map(|value| ("tracestate", *value)));
            parent(&headers).expect("a parent").state
        };
        assert_eq!(state(&["a=1,b@x=p q", "\t0c/-_*=~ ,,"]), "a=1,b@x=p q,0c/-_*=~");
        let long = "k".repeat(256);
        assert_eq!(state(&[&format!("{long}={long}")]), format!("{long}={long}"));
        let members = |n: usize| (0..n).map(|k| format!("k{k}=v")).collect::<Vec<_>>().join(",");
        assert_eq!(state(&[&members(32)]), members(32));
        for value in ["a", "a=", "=1", "A=1", "a=1=2", "a =1", "_a=1", "a=1,a=2", "a=\té"] {
            assert_eq!(state(&["b=1", value]), "", "{value:?}");
        }
        assert_eq!(state(&[&format!("{long}k=1")]), "");
        assert_eq!(state(&[&format!("a={long}v")]), "");
        assert_eq!(state(&[&members(33)]), "");
    }
}
