//! The path under which a proxy serves this server (`--root-path`). Requests may have it or not: some proxies take it off, others
//! leave it.
//!
//! Never here: which routes there are.

use std::fmt;
use std::str::FromStr;

use axum::http::Uri;
use axum::http::uri::PathAndQuery;
use serde::{Serialize, Serializer};

/// Segments before the path of every route: with a slash at the beginning and none at the end. May be empty, which is the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootPath(String);

/// A text that is not such a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a path such as /llm, of letters, digits and - . _ ~ between slashes; got {0:?}")]
pub struct RootPathError(String);

impl RootPath {
    /// As it was given, without a slash at its end.
    pub(in crate::http) fn as_str(&self) -> &str {
        &self.0
    }

    /// `uri` without this path, if it begins with it.
    pub(in crate::http) fn strip(&self, uri: &Uri) -> Option<Uri> {
        let rest = uri.path().strip_prefix(self.0.as_str())?;
        if self.0.is_empty() || !rest.is_empty() && !rest.starts_with('/') {
            return None;
        }
        let path = if rest.is_empty() { "/" } else { rest };
        let path = uri.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::try_from(path).ok()?);
        Uri::from_parts(parts).ok()
    }

    /// True if the route `path` lies at this path or below: taking it off would hide the route.
    pub(in crate::http) fn hides(&self, path: &str) -> bool {
        let rest = path.strip_prefix(self.0.as_str()).filter(|_| !self.0.is_empty());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl FromStr for RootPath {
    type Err = RootPathError;

    fn from_str(text: &str) -> Result<Self, RootPathError> {
        let path = text.strip_suffix('/').unwrap_or(text);
        let is_segment = |segment: &str| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
            !matches!(segment, "" | "." | "..") && segment.bytes().all(is_plain)
        };
        match path.strip_prefix('/') {
            None if text == "/" => Ok(Self::default()),
            Some(segments) if segments.split('/').all(is_segment) => Ok(Self(path.to_owned())),
            Some(_) | None => Err(RootPathError(text.to_owned())),
        }
    }
}

impl fmt::Display for RootPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Serialize for RootPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_taken_off_whole_segments_once() {
        let root: RootPath = "/llm/".parse().expect("a path");
        let strip = |uri: &str| root.strip(&uri.parse().expect("a URI")).map(|uri| uri.to_string());
        for (given, rest) in [
            ("/llm", "/"),
            ("/llm/", "/"),
            ("/llm?a=/llm", "/?a=/llm"),
            ("/llm/v1/models?x", "/v1/models?x"),
            ("/llm/llm/health", "/llm/health"),
            ("/llm//health", "//health"),
            ("http://host/llm/health", "http://host/health"),
        ] {
            assert_eq!(strip(given).as_deref(), Some(rest), "{given}");
        }
        for other in ["/", "/v1/models", "/llmx", "/llmx/health", "/%6clm/health", "//llm/health", "/v1/llm", "*"] {
            assert_eq!(strip(other), None, "{other}");
        }
        assert_eq!(RootPath::default().strip(&"/health".parse().expect("a URI")), None);
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for good in ["/llm", "/a/b.c/", "/", "/~me/x_1-2"] {
            assert!(good.parse::<RootPath>().is_ok(), "{good}");
        }
        for bad in [
            "llm",
            "//",
            "/llm//",
            "/a//b",
            "/a/../b",
            "/a?b",
            "/a#b",
            "/a b",
            "/a\"b",
            "/ä",
            "/%61",
            "http://a/b",
            "/.",
        ] {
            assert!(bad.parse::<RootPath>().is_err(), "{bad}");
        }
    }
}
