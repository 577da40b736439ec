//! Other servers that this one calls: flags, defaults and help in one struct, and its checks.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::config::error::ConfigError;
use crate::config::given::{OrEmpty, or_empty, read_or_empty};
use crate::controllers::engines::Reachable;
use crate::outbound::secrets::{SecretKey, SecretUrl, is_loopback};

/// OpenTelemetry's variable for the collector.
const OTLP_ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// Variable of the environment for the upstream's key, as everybody on the machine can read a command line.
const SPEECH_UPSTREAM_KEY_VARIABLE: &str = "DIFFULEX_SPEECH_UPSTREAM_KEY";

/// Other servers that this one calls; none by default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Args)]
#[serde(default)]
pub struct OutboundConfig {
    /// Forward /v1/audio/speech to the OpenAI-compatible server at this URL, http(s)://HOST:PORT.
    #[arg(long, value_parser = or_empty::<SecretUrl>(), value_name = "URL")]
    #[serde(deserialize_with = "read_or_empty")]
    pub speech_upstream: OrEmpty<SecretUrl>,
    /// API key for --speech-upstream.
    #[arg(long, value_parser = or_empty::<SecretKey>(), env = SPEECH_UPSTREAM_KEY_VARIABLE, hide_env_values = true, value_name = "KEY")]
    #[serde(deserialize_with = "read_or_empty")]
    pub speech_upstream_key: OrEmpty<SecretKey>,
    /// PEM file with the CA certificates for --speech-upstream [default: the system's].
    #[arg(long, value_name = "FILE")]
    pub speech_upstream_ca: Option<PathBuf>,
    /// Register as an engine with the Parrot controller at this URL, http(s)://HOST:PORT.
    #[arg(long, value_parser = or_empty::<SecretUrl>(), value_name = "URL")]
    #[serde(deserialize_with = "read_or_empty")]
    pub register_with: OrEmpty<SecretUrl>,
    /// URL at which the controller calls this server, http://HOST:PORT [default: --host and the port].
    #[arg(long, value_parser = or_empty::<SecretUrl>(), value_name = "URL")]
    #[serde(deserialize_with = "read_or_empty")]
    pub advertise_url: OrEmpty<SecretUrl>,
    /// OpenTelemetry collector for traces of requests (OTLP/HTTP): http(s)://HOST:4318, or with the path /v1/traces.
    #[arg(long, value_parser = or_empty::<SecretUrl>(), alias = "otlp-traces-endpoint", env = OTLP_ENDPOINT_VARIABLE, hide_env_values = true, value_name = "URL")]
    #[serde(deserialize_with = "read_or_empty")]
    pub otlp_endpoint: OrEmpty<SecretUrl>,
}

impl OutboundConfig {
    /// Refuses flags that need or contradict another. `host` is where this server listens.
    pub(crate) fn check(&self, host: &str) -> Result<(), ConfigError> {
        self.check_upstream()?;
        self.check_announcement(host)
    }

    /// The address at which the controller calls this server, which listens on `host` and `port`.
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
                return Err(ConfigError::flag(flag, "requires --speech-upstream"));
            }
        }
        if self.speech_upstream_key.is_some() && upstream.is_some_and(SecretUrl::has_user) {
            let problem = "cannot be combined with a user in --speech-upstream; a request has one Authorization header";
            return Err(ConfigError::flag("--speech-upstream-key", problem));
        }
        if self.speech_upstream_ca.is_some() && !upstream.is_some_and(SecretUrl::is_https) {
            return Err(ConfigError::flag("--speech-upstream-ca", "requires an https:// --speech-upstream"));
        }
        Ok(())
    }

    /// Refuses addresses that reach the controller itself, or nobody.
    fn check_announcement(&self, host: &str) -> Result<(), ConfigError> {
        const FLAG: &str = "--advertise-url";

        let Some(controller) = &self.register_with else {
            return match self.advertise_url {
                Some(_) => Err(ConfigError::flag(FLAG, "requires --register-with")),
                None => Ok(()),
            };
        };
        match &self.advertise_url {
            // Parrot's controllers keep a host and a port only.
            Some(url) if url.is_https() || url.has_more_than_a_host() || is_everywhere(url.host()) => {
                let problem = format!("expected http://HOST[:PORT] with a host that can be called, got \"{url}\"");
                Err(ConfigError::flag(FLAG, problem))
            }
            None if is_everywhere(host) || is_loopback(host) && !is_loopback(controller.host()) => {
                let problem = format!("required: the controller at {controller} cannot call this server at {host}");
                Err(ConfigError::flag(FLAG, problem))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// True for 0.0.0.0 and ::, which a server can listen on and no client can call.
fn is_everywhere(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified())
}
