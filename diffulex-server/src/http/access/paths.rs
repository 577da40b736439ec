//! Paths as clients make them: of a base URL and a route, with slashes too many or a prefix twice.
//!
//! Never here: which routes there are.

use std::collections::BTreeSet;

use axum::http::Uri;
use axum::http::uri::PathAndQuery;

/// The prefix of paths that end in the name of a model, which may have slashes.
const NAMES: &str = "/v1/models/";

/// Longest path for which another is looked for. Chosen by us: every route with a prefix.
const MAX_HINTED: usize = 200;

/// Prefixes of routes.
const PREFIXES: [&str; 3] = ["", "/v1", "/api"];

/// `uri` without empty segments in its path, if it has any. Access is checked for the path that is left.
pub(in crate::http) fn normalised(uri: &Uri) -> Option<Uri> {
    let path = uri.path();
    if path.len() < 2 || !path.contains("//") && !path.ends_with('/') {
        return None;
    }
    let mut clean = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(segment) = rest.strip_prefix('/') {
        if clean.len() + 1 == NAMES.len() && NAMES.starts_with(&clean) && !segment.trim_start_matches('/').is_empty() {
            clean.push('/');
            clean.push_str(segment.trim_start_matches('/'));
            break;
        }
        let end = segment.find('/').unwrap_or(segment.len());
        if end > 0 {
            clean.push('/');
            clean.push_str(&segment[..end]);
        }
        rest = &segment[end..];
    }
    if clean.is_empty() {
        clean.push('/');
    }
    if let Some(query) = uri.query() {
        clean.push('?');
        clean.push_str(query);
    }
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(clean).ok()?);
    Uri::from_parts(parts).ok()
}

/// The route that `path` is likely to mean: its longest end that is one of `routes`, with another prefix where need be.
pub(in crate::http) fn meant(path: &str, routes: &BTreeSet<&'static str>) -> Option<&'static str> {
    if path.len() > MAX_HINTED {
        return None;
    }
    let ends = path.match_indices('/').map(|(start, _)| &path[start..]).filter(|end| end.len() > 1);
    let candidates = ends.flat_map(|end| PREFIXES.map(|prefix| format!("{prefix}{end}")));
    candidates.filter_map(|candidate| routes.get(candidate.as_str()).copied()).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_segments_are_left_out_but_in_names_and_queries() {
        let path = |text: &str| normalised(&text.parse().expect("a URI")).map(|uri| uri.to_string());
        for clean in
            ["/", "/v1/models", "/v1/models/org/name", "/a/b?x=//&y=/", "*", "http://host/a", "/v1/models/a%2F%2Fb"]
        {
            assert_eq!(path(clean), None, "{clean}");
        }
        for (given, clean) in [
            ("//", "/"),
            ("///?a", "/?a"),
            ("//v1/models", "/v1/models"),
            ("/v1/models/", "/v1/models"),
            ("/v1//models//?q=//", "/v1/models?q=//"),
            ("//v1/models///models//tiny/", "/v1/models/models//tiny/"),
            ("/v1/modelsx//a", "/v1/modelsx/a"),
            ("http://host//a//b/", "http://host/a/b"),
        ] {
            assert_eq!(path(given).as_deref(), Some(clean), "{given}");
        }
    }
}
