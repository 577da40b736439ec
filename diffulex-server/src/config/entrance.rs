//! Where clients come in: flags, defaults and help in one struct, and its checks.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::config::error::ConfigError;
use crate::config::given::{OrEmpty, one_or_several_keys, or_empty, read_or_empty};
use crate::config::outbound::OutboundConfig;
use crate::http::{RootPath, TrustedProxies};

/// Where clients come in beside a port, and how they are told apart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Args)]
#[serde(default)]
pub struct EntranceConfig {
    /// Listen on a Unix socket at PATH instead of TCP; with --host or --port, on both.
    #[arg(long, value_name = "PATH")]
    pub uds: Option<PathBuf>,
    /// Path under which a proxy serves this server, such as /llm. Requests may come with it or without.
    #[arg(long, value_parser = or_empty::<RootPath>(), value_name = "PREFIX")]
    #[serde(deserialize_with = "read_or_empty")]
    pub root_path: OrEmpty<RootPath>,
    /// PEM file with the server's certificate and those between it and its root; the port then speaks HTTPS. Read again on SIGUSR1.
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the private key of --tls-cert.
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// YAML file with API keys by name: their hashes and limits (docs/operations.md). Read again on SIGUSR1.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Proxy whose X-Forwarded-For or Forwarded names clients in the log: an address, a network such as 10.0.0.0/8, or unix for
    /// --uds. Repeatable or comma-separated.
    #[arg(long, alias = "forwarded-allow-ips", value_delimiter = ',', value_name = "ADDR")]
    #[serde(deserialize_with = "one_or_several_keys")]
    pub trusted_proxy: Vec<String>,
    /// There is a Unix socket and no port.
    #[arg(skip)]
    #[serde(skip)]
    pub without_port: bool,
}

impl EntranceConfig {
    /// Refuses flags that need or contradict another. `api_key` is that of the server.
    pub(crate) fn check(&self, api_key: &[String], outbound: &OutboundConfig) -> Result<(), ConfigError> {
        if let Err(text) = TrustedProxies::parse(&self.trusted_proxy) {
            let hint = if text == "*" { " (every client could then choose its address in the log)" } else { "" };
            let problem = format!("expected an address, a network such as 10.0.0.0/8, or unix; got {text:?}{hint}");
            return Err(ConfigError::flag("--trusted-proxy", problem));
        }
        if self.trusted_proxy.iter().any(|proxy| proxy == "unix") && self.uds.is_none() {
            return Err(ConfigError::flag("--trusted-proxy unix", "requires --uds"));
        }
        for (flag, is_given, other, has_other) in [
            ("--tls-cert", self.tls_cert.is_some(), "--tls-key", self.tls_key.is_some()),
            ("--tls-key", self.tls_key.is_some(), "--tls-cert", self.tls_cert.is_some()),
        ] {
            if is_given && !has_other {
                return Err(ConfigError::flag(flag, format!("requires {other}")));
            }
        }
        if self.tls_cert.is_some() && self.without_port {
            let problem = "a Unix socket has no TLS; --host or --port adds a port to --uds";
            return Err(ConfigError::flag("--tls-cert", problem));
        }
        self.check_registration(api_key, outbound)
    }

    /// Refuses a registration at a controller that could not call this server.
    fn check_registration(&self, api_key: &[String], outbound: &OutboundConfig) -> Result<(), ConfigError> {
        const FLAG: &str = "--register-with";

        if outbound.register_with.is_none() {
            return Ok(());
        }
        if self.api_key_file.is_some() && api_key.is_empty() {
            let problem = "requires --api-key, which the controller is told; --api-key-file has hashes only";
            return Err(ConfigError::flag(FLAG, problem));
        }
        if outbound.advertise_url.is_some() {
            return Ok(());
        }
        for (flag, is_given) in [("--tls-cert", self.tls_cert.is_some()), ("--uds without a port", self.without_port)] {
            if is_given {
                let problem = format!("controllers call http:// on a port, which {flag} excludes; see --advertise-url");
                return Err(ConfigError::flag(FLAG, problem));
            }
        }
        Ok(())
    }

    /// The parsed list, which `check` has read before.
    pub(crate) fn proxies(&self) -> TrustedProxies {
        TrustedProxies::parse(&self.trusted_proxy).unwrap_or_default()
    }
}
