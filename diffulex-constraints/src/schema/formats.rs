//! The formats of strings, as expressions. Each is as strict as its RFC, or stricter: no leap seconds, no quoted local parts, no
//! two hyphens in a row in a host's name; counts keep addresses and names within the lengths of RFC 5321 and RFC 1035.

use crate::error::ConstraintError;
use crate::language::Language;
use crate::regex;

const MONTHS: &str =
    "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])";
/// Years but 0000, which not every calendar has.
const YEAR: &str = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)";
/// 01 to 99 divisible by four.
const FOURTH: &str = "(?:0[48]|[2468][048]|[13579][26])";
const TIME: &str =
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
const LABEL: &str = "[0-9A-Za-z](?:-?[0-9A-Za-z]){0,30}";
const TOP_LABEL: &str = "[A-Za-z](?:-?[0-9A-Za-z]){0,30}";
const LOCAL: &str = "[!#$%&'*+/-9=?A-Z^_`a-z{|}~-](?:\\.?[!#$%&'*+/-9=?A-Z^_`a-z{|}~-]){0,31}";
const OCTET: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
const PATH_CHARACTER: &str = "(?:[0-9A-Za-z._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
const HOST_CHARACTER: &str = "(?:[0-9A-Za-z._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})";
const PORT: &str = "(?::(?:[1-5]?[0-9]{1,4}|6[0-4][0-9]{3}))?";
const UUID: &str = "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}";
const DURATION: &str = "P(?:N+W|(?:N+D|N+M(?:N+D)?|N+Y(?:N+M(?:N+D)?)?)(?:TIME)?|TIME)";
const DURATION_TIME: &str = "T(?:N+H(?:N+M(?:N+S)?)?|N+M(?:N+S)?|N+S)";

/// The names of the formats, for messages.
pub(super) const NAMES: &str = "date, time, date-time, duration, email, hostname, ipv4, ipv6, uri, uuid";

/// The text of this format; `None`: not supported.
pub(super) fn language(format: &str) -> Result<Option<Language>, ConstraintError> {
    let expression = match format {
        "date" => date(),
        "time" => TIME.to_owned(),
        "date-time" => format!("(?:{})T{TIME}", date()),
        "duration" => DURATION.replace("TIME", DURATION_TIME).replace("N+", "[0-9]{1,9}"),
        "email" => format!(r"{LOCAL}@{LABEL}(?:\.{LABEL}){{0,1}}\.[A-Za-z]{{2,24}}"),
        "hostname" => format!(r"(?:{LABEL}\.){{0,3}}{TOP_LABEL}"),
        "ipv4" => format!(r"{OCTET}(?:\.{OCTET}){{3}}"),
        "ipv6" => ipv6(),
        "uri" => uri(),
        "uuid" => UUID.to_owned(),
        _ => return Ok(None),
    };
    regex::whole(&expression).map(Some)
}

fn date() -> String {
    format!("{YEAR}-(?:{MONTHS})|(?:[0-9]{{2}}{FOURTH}|{FOURTH}00)-02-29")
}

/// RFC 3986, appendix A: with an authority that has a host, or without one; addresses in brackets are left out.
fn uri() -> String {
    let authority = format!("(?:{HOST_CHARACTER}(?:{HOST_CHARACTER}|:)*@)?{HOST_CHARACTER}+{PORT}");
    let (segments, first) = (format!("(?:/{PATH_CHARACTER}*)*"), format!("{PATH_CHARACTER}+"));
    let rest = format!("(?:{PATH_CHARACTER}|[/?])*");
    format!(r"[A-Za-z][0-9A-Za-z+.-]*:(?://{authority}{segments}|/?{first}{segments}|/)(?:\?{rest})?(?:#{rest})?")
}

/// RFC 3986, section 3.2.2: each row has the groups before `::` and those behind it.
fn ipv6() -> String {
    let group = "[0-9A-Fa-f]{1,4}";
    let last = format!(r"(?:{group}:{group}|{OCTET}(?:\.{OCTET}){{3}})");
    let mut rows = vec![format!("(?:{group}:){{6}}{last}"), format!("::(?:{group}:){{5}}{last}")];
    rows.extend(
        (0..=4).map(|before| format!("(?:(?:{group}:){{0,{before}}}{group})?::(?:{group}:){{{}}}{last}", 4 - before)),
    );
    rows.push(format!("(?:(?:{group}:){{0,5}}{group})?::{group}"));
    rows.push(format!("(?:(?:{group}:){{0,6}}{group})?::"));
    rows.join("|")
}
