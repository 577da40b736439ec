//! Clients behind proxies: the address that a trusted proxy names in `X-Forwarded-For` or `Forwarded` (RFC 7239).
//!
//! Anybody can send these headers. Each proxy adds the address of its own peer at the end, so they are read from the end, and no
//! further than the first address that is not a trusted proxy's: what stands before it is that client's own word. Never here: what
//! addresses are used for.

use std::net::IpAddr;

use axum::http::header::FORWARDED;
use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use crate::frontend::ClientAddress;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The name of clients of the Unix socket among proxies.
const UNIX: &str = "unix";

/// Proxies in a row that are followed. Chosen by us: more than stand before any server.
const MAX_HOPS: usize = 16;

/// Proxies whose word is believed; none by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrustedProxies {
    networks: Vec<IpNet>,
    /// All that reach the Unix socket.
    has_unix: bool,
}

impl TrustedProxies {
    /// Proxies by address, network (`10.0.0.0/8`) or `unix`. The error is the text that is none of these.
    pub fn parse(texts: &[String]) -> Result<Self, String> {
        let mut proxies = Self::default();
        for text in texts {
            if text == UNIX {
                proxies.has_unix = true;
                continue;
            }
            let address = text.parse::<IpAddr>().map(|address| IpNet::from(address.to_canonical()));
            proxies.networks.push(address.or_else(|_| text.parse()).map_err(|_| text.clone())?);
        }
        Ok(proxies)
    }

    fn trusts(&self, address: ClientAddress) -> bool {
        match address {
            ClientAddress::Unix => self.has_unix,
            ClientAddress::Ip(address) => self.networks.iter().any(|network| network.contains(&address.to_canonical())),
        }
    }

    /// The client of a request that came from `peer` with `headers`. Where both headers are there and name different clients, one
    /// of them is the client's own, and neither is believed.
    pub(in crate::http) fn client(&self, peer: ClientAddress, headers: &HeaderMap) -> ClientAddress {
        if !self.trusts(peer) {
            return peer;
        }
        let lists = [(X_FORWARDED_FOR, item_of_x_forwarded_for as fn(&str) -> _), (FORWARDED, item_of_forwarded)];
        let mut named = lists.into_iter().filter(|(name, _)| headers.contains_key(name)).map(|(name, item)| {
            let values = headers.get_all(name).iter().rev();
            // A value that is not text ends the list like an address that is none.
            let items = values.flat_map(|value| value.to_str().unwrap_or("?").rsplit(','));
            self.follow(peer, items.map(item))
        });
        match (named.next(), named.next()) {
            (Some(one), None) => one,
            (Some(one), Some(other)) if one == other => one,
            _ => peer,
        }
    }

    /// The first of `hops`, from the last to the first, that is not a trusted proxy; the last trusted one before what is no address.
    fn follow(&self, peer: ClientAddress, hops: impl Iterator<Item = Option<IpAddr>>) -> ClientAddress {
        let mut client = peer;
        for hop in hops.take(MAX_HOPS) {
            let Some(address) = hop else { return client };
            client = ClientAddress::Ip(address.to_canonical());
            if !self.trusts(client) {
                return client;
            }
        }
        client
    }
}

fn item_of_x_forwarded_for(item: &str) -> Option<IpAddr> {
    address(item.trim())
}

/// The address in `for` of one element of `Forwarded`.
fn item_of_forwarded(element: &str) -> Option<IpAddr> {
    let mut pairs = element.split(';').filter_map(|pair| pair.trim().split_once('='));
    let (_, value) = pairs.find(|(name, _)| name.eq_ignore_ascii_case("for"))?;
    let bare = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    address(bare.unwrap_or(value))
}

/// An address that may have a port.
fn address(text: &str) -> Option<IpAddr> {
    if let Some((address, port)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
        return is_port.then(|| address.parse().ok().filter(IpAddr::is_ipv6)).flatten();
    }
    text.parse().ok().or_else(|| text.parse().ok().map(|address: std::net::SocketAddrV4| (*address.ip()).into()))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    /// What such headers have, in any order.
    const TEXT: &str = "([0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}|10\\.0\\.0\\.2|for=|\"|;|,| |::1|\\[|\\]|:[0-9]{1,5}|[ -~]){0,12}";

    fn client(trusted: &[&str], peer: &str, headers: &[(HeaderName, &str)]) -> String {
        let texts: Vec<String> = trusted.iter().map(|text| (*text).to_owned()).collect();
        let peer = peer.parse().map_or(ClientAddress::Unix, ClientAddress::Ip);
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
        }
        TrustedProxies::parse(&texts).expect("proxies").client(peer, &map).to_string()
    }

    fn x(value: &str) -> (HeaderName, &str) {
        (X_FORWARDED_FOR, value)
    }

    #[test]
    fn only_a_trusted_proxy_is_believed() {
        assert_eq!(client(&[], "10.0.0.1", &[x("1.2.3.4")]), "10.0.0.1");
        assert_eq!(client(&["10.0.0.2"], "10.0.0.1", &[x("1.2.3.4")]), "10.0.0.1");
        assert_eq!(client(&["10.0.0.0/8"], "10.0.0.1", &[x("1.2.3.4")]), "1.2.3.4");
        assert_eq!(client(&["10.0.0.1"], "::ffff:10.0.0.1", &[x("1.2.3.4")]), "1.2.3.4");
        assert_eq!(client(&["10.0.0.0/8"], "-", &[x("1.2.3.4")]), "unix");
        assert_eq!(client(&["unix"], "-", &[x("::ffff:1.2.3.4")]), "1.2.3.4");
        assert_eq!(client(&["unix"], "10.0.0.1", &[x("1.2.3.4")]), "10.0.0.1");
        assert_eq!(client(&["unix"], "-", &[]), "unix");
    }

    #[test]
    fn the_list_is_read_from_its_end_to_the_first_stranger() {
        let trusted = &["10.0.0.0/8", "fd00::/8"][..];
        for (headers, expected) in [
            (&[x("6.6.6.6, 1.2.3.4")][..], "1.2.3.4"),
            (&[x("6.6.6.6, 1.2.3.4, 10.9.9.9")], "1.2.3.4"),
            (&[x("6.6.6.6"), x("1.2.3.4")], "1.2.3.4"),
            (&[x("1.2.3.4:5678")], "1.2.3.4"),
            (&[x("[2001:db8::1]:5678")], "2001:db8::1"),
            (&[x("2001:db8::1, fd00::2")], "2001:db8::1"),
            (&[x("10.1.1.1, 10.2.2.2")], "10.1.1.1"),
            // What is no address ends the list.
            (&[x("1.2.3.4, unknown")], "10.0.0.1"),
            (&[x("1.2.3.4, , 10.2.2.2")], "10.2.2.2"),
            (&[x("1.2.3.4\u{e9}")], "10.0.0.1"),
            (&[x("")], "10.0.0.1"),
            (&[x("1.2.3.4:x")], "10.0.0.1"),
            (&[x("[1.2.3.4]")], "10.0.0.1"),
            (&[x("1.2.3.4\" level=error")], "10.0.0.1"),
        ] {
            assert_eq!(client(trusted, "10.0.0.1", headers), expected, "{headers:?}");
        }
        let long = format!("6.6.6.6{}", ", 10.0.0.9".repeat(1000));
        assert_eq!(client(trusted, "10.0.0.1", &[x(&long)]), "10.0.0.9");
    }

    #[test]
    fn the_standard_header_is_read_and_a_contradiction_is_not() {
        let f = |value| (FORWARDED, value);
        for (headers, expected) in [
            (&[f("for=6.6.6.6, for=1.2.3.4;proto=https")][..], "1.2.3.4"),
            (&[f("proto=https; For=\"[2001:db8::1]:80\"")], "2001:db8::1"),
            (&[f("for=1.2.3.4"), x("1.2.3.4")], "1.2.3.4"),
            (&[f("for=6.6.6.6"), x("1.2.3.4")], "10.0.0.1"),
            (&[f("for=_hidden")], "10.0.0.1"),
            (&[f("for=unknown")], "10.0.0.1"),
            (&[f("by=1.2.3.4")], "10.0.0.1"),
            (&[f("for=\"1.2.3.4, for=\"6.6.6.6\"\"")], "10.0.0.1"),
        ] {
            assert_eq!(client(&["10.0.0.1"], "10.0.0.1", headers), expected, "{headers:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_another_client_than_one_that_it_names(x_text in TEXT, f_text in TEXT, has_both: bool) {
            let both = [x(&x_text), (FORWARDED, f_text.as_str())];
            let headers = if has_both { &both[..] } else { &both[..1] };
            let named = client(&["10.0.0.0/8"], "10.0.0.1", headers);
            let is_in = |text: &str| text.contains(&named) || text.contains("::");
            prop_assert!(named == "10.0.0.1" || is_in(&x_text), "{named}");
            prop_assert!(named.parse::<IpAddr>().is_ok());
            // The proxy's own word at the end wins over everything before it.
            let proxied = format!("{x_text}, 192.0.2.1");
            prop_assert_eq!(client(&["10.0.0.0/8"], "10.0.0.1", &[x(&proxied)]), "192.0.2.1");
        }
    }

    #[test]
    fn what_is_no_proxy_is_refused() {
        for text in ["*", "localhost", "10.0.0.0/33", "", "10.0.0"] {
            assert_eq!(TrustedProxies::parse(&[text.to_owned()]), Err(text.to_owned()));
        }
    }
}
