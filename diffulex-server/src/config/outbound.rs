//! Other servers, as they are configured.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::Serialize;

use crate::config::error::ConfigError;
use crate::config::outbound_flags::OutboundFlags;
use crate::controllers::engines::Reachable;
use crate::outbound::secrets::{SecretKey, SecretUrl, is_loopback};

/// Other servers that this one calls; none by default.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OutboundConfig {
    /// Server that requests for speech are passed on to.
    pub speech_upstream: Option<SecretUrl>,
    /// Its key.
    pub speech_upstream_key: Option<SecretKey>,
    /// Certificates that it is trusted by; `None` is the system's.
    pub speech_upstream_ca: Option<PathBuf>,
    /// Controller to register with.
    pub register_with: Option<SecretUrl>,
    /// Where it calls this server; `None` is where this server listens.
    pub advertise_url: Option<SecretUrl>,
    /// Collector of traces; `None` makes none.
    pub otlp_endpoint: Option<SecretUrl>,
}

impl OutboundConfig {
    /// The flags' servers. `host` is where this server listens.
    pub(crate) fn of_flags(flags: OutboundFlags, host: &str) -> Result<Self, ConfigError> {
        let OutboundFlags {
            speech_upstream,
            speech_upstream_key,
            speech_upstream_ca,
            register_with,
            advertise_url,
            otlp_endpoint,
        } = flags;
        let config = Self {
            speech_upstream: url("--speech-upstream", speech_upstream)?,
            speech_upstream_key: speech_upstream_key
                .filter(|key| !key.is_empty())
                .map(|key| {
                    let wrong = || ConfigError::flag("--speech-upstream-key", "expected visible ASCII characters");
                    SecretKey::parse(&key).ok_or_else(wrong)
                })
                .transpose()?,
            speech_upstream_ca,
            register_with: url("--register-with", register_with)?,
            advertise_url: url("--advertise-url", advertise_url)?,
            otlp_endpoint: url("--otlp-endpoint", otlp_endpoint)?,
        };
        config.check_upstream()?;
        config.check_announcement(host)?;
        Ok(config)
    }

    /// Where the controller calls this server, which listens on `host` and `port`.
    pub fn reachable(&self, host: &str, port: u16, api_key: Option<String>) -> Reachable {
        match &self.advertise_url {
            Some(url) => Reachable { host: url.host().to_owned(), port: url.port(), api_key },
            None => Reachable { host: host.to_owned(), port, api_key },
        }
    }

    fn check_upstream(&self) -> Result<(), ConfigError> {
        let upstream = self.speech_upstream.as_ref();
        for (flag, is_given) in [
            ("--speech-upstream-key", self.speech_upstream_key.is_some()),
            ("--speech-upstream-ca", self.speech_upstream_ca.is_some()),
        ] {
            if is_given && upstream.is_none() {
                return Err(ConfigError::flag(flag, "has no effect without --speech-upstream"));
            }
        }
        if self.speech_upstream_key.is_some() && upstream.is_some_and(SecretUrl::has_user) {
            let problem = "contradicts the user in --speech-upstream; a request has one Authorization";
            return Err(ConfigError::flag("--speech-upstream-key", problem));
        }
        if self.speech_upstream_ca.is_some() && !upstream.is_some_and(SecretUrl::is_https) {
            return Err(ConfigError::flag(
                "--speech-upstream-ca",
                "has no effect unless --speech-upstream is https://",
            ));
        }
        Ok(())
    }

    /// Refuses addresses at which the controller would call itself, or nobody.
    fn check_announcement(&self, host: &str) -> Result<(), ConfigError> {
        const FLAG: &str = "--advertise-url";

        let Some(controller) = &self.register_with else {
            return match self.advertise_url {
                Some(_) => Err(ConfigError::flag(FLAG, "has no effect without --register-with")),
                None => Ok(()),
            };
        };
        match &self.advertise_url {
            // A host and a port is all that Parrot's controllers keep.
            Some(url) if url.is_https() || url.has_more_than_a_host() || is_everywhere(url.host()) => {
                let problem = format!("expected http://HOST[:PORT] of a host that can be called, got \"{url}\"");
                Err(ConfigError::flag(FLAG, problem))
            }
            None if is_everywhere(host) || is_loopback(host) && !is_loopback(controller.host()) => {
                let problem = format!("needed, as the controller at {controller} cannot call this server at {host}");
                Err(ConfigError::flag(FLAG, problem))
            }
            Some(_) | None => Ok(()),
        }
    }
}

fn url(flag: &str, text: Option<String>) -> Result<Option<SecretUrl>, ConfigError> {
    let given = text.filter(|text| !text.is_empty());
    given.map(|text| SecretUrl::parse(&text).map_err(|error| ConfigError::flag(flag, error.to_string()))).transpose()
}

/// True for 0.0.0.0 and ::, on which a server listens everywhere, and at which no client finds it.
fn is_everywhere(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified())
}
