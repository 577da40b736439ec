//! The flags of `serve` that name other servers.
//!
//! As in [`crate::config::flags`], every flag is optional, and a key of the YAML file. Never here: what they come to.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

/// OpenTelemetry's name of the collector.
const OTLP_ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// Where the upstream's key may be instead of on the command line, which everybody on the machine can read.
const SPEECH_UPSTREAM_KEY_VARIABLE: &str = "DIFFULEX_SPEECH_UPSTREAM_KEY";

/// Flags of other servers, as they are typed. `Debug` prints passwords.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct OutboundFlags {
    /// Server that /v1/audio/speech is passed on to: http(s)://HOST:PORT of one with OpenAI's route.
    #[arg(long, value_name = "URL")]
    pub speech_upstream: Option<String>,
    /// API key of --speech-upstream.
    #[arg(long, env = SPEECH_UPSTREAM_KEY_VARIABLE, hide_env_values = true, value_name = "KEY")]
    pub speech_upstream_key: Option<String>,
    /// Certificates in PEM that --speech-upstream is trusted by, instead of the system's.
    #[arg(long, value_name = "FILE")]
    pub speech_upstream_ca: Option<PathBuf>,
    /// Controller to register with as one of its engines, as Parrot's do: http(s)://HOST:PORT of one with /register_engine.
    #[arg(long, value_name = "URL")]
    pub register_with: Option<String>,
    /// Address at which the controller calls this server, http://HOST:PORT; default: --host and the port.
    #[arg(long, value_name = "URL")]
    pub advertise_url: Option<String>,
    /// OpenTelemetry collector that takes traces of requests over OTLP/HTTP: http(s)://HOST:4318, or with the path /v1/traces.
    #[arg(long, alias = "otlp-traces-endpoint", env = OTLP_ENDPOINT_VARIABLE, hide_env_values = true, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}
