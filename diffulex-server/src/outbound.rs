//! Clients of other servers' HTTP.

use reqwest::redirect::Policy;

/// A client that goes where it is told: a redirect is an answer, and the environment names no proxy.
pub(crate) fn client() -> reqwest::ClientBuilder {
    reqwest::Client::builder().redirect(Policy::none()).no_proxy()
}
