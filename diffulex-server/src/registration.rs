//! Registration with a controller: this server announces itself as an engine, and sends heartbeats.
//!
//! In: the controller's address and the front end. Out: calls of `/register_engine` and `/engine_heartbeat`. A controller that does
//! not answer, or does not know the engine any more, is registered with again. Never here: what controllers do with it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::frontend::{Frontend, WorkerStatus};
use crate::outbound;
use crate::parrot_engine::{EngineRuntimeInfo, engine_config};

/// Pauses between attempts to register; the last one repeats. Chosen by us.
const BACK_OFF: [Duration; 6] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
    Duration::from_secs(30),
];

/// Longest wait for an answer. Chosen by us: a controller answers at once, or is not there.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Heartbeats that may fail in a row before the engine registers again. Parrot's number of tries.
const MAX_MISSED: u32 = 3;

/// A failed call.
#[derive(Debug, thiserror::Error)]
enum CallError {
    /// Without an answer, or with an error status.
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    /// The answer names no engine.
    #[error("the controller's answer has no engine_id")]
    NoEngineId,
}

/// This server as a controller knows it.
#[derive(Clone, Debug)]
pub struct Announced {
    /// The controller's address.
    pub url: String,
    /// The model's public name.
    pub name: String,
    /// Where this server is reached.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Between heartbeats.
    pub heartbeat_interval: Duration,
}

/// Announces the server of `frontend` until its worker is stopped for good.
pub async fn keep_registered(announced: Announced, frontend: Frontend) -> Result<(), reqwest::Error> {
    let client = outbound::client().timeout(CALL_TIMEOUT).build()?;
    if frontend.ready().await.is_err() {
        return Ok(());
    }
    let mut n_failures = 0;
    while !is_over(&frontend) {
        match register(&client, &announced, &frontend).await {
            Ok(engine_id) => {
                tracing::info!(url = announced.url, %engine_id, "registered with the controller");
                n_failures = 0;
                send_heartbeats(&client, &announced, &engine_id, &frontend).await;
            }
            Err(error) => {
                let pause = BACK_OFF[n_failures.min(BACK_OFF.len() - 1)];
                n_failures += 1;
                tracing::warn!(url = announced.url, %error, ?pause, "could not register with the controller");
                tokio::time::sleep(pause).await;
            }
        }
    }
    Ok(())
}

fn is_over(frontend: &Frontend) -> bool {
    frontend.is_draining() || matches!(frontend.status(), WorkerStatus::Stopped | WorkerStatus::Failed { .. })
}

async fn register(client: &reqwest::Client, announced: &Announced, frontend: &Frontend) -> Result<Value, CallError> {
    let Announced { name, host, port, heartbeat_interval, .. } = announced;
    let config = engine_config(name, host, *port, *heartbeat_interval, frontend.max_in_flight(), &frontend.gauges());
    let answer = call(client, announced, "register_engine", &json!({"engine_config": config})).await?;
    let answer: Value = answer.json().await?;
    answer.get("engine_id").filter(|id| !id.is_null()).cloned().ok_or(CallError::NoEngineId)
}

/// Sends heartbeats until the controller has not taken several in a row.
async fn send_heartbeats(client: &reqwest::Client, announced: &Announced, engine_id: &Value, frontend: &Frontend) {
    let mut n_missed = 0;
    while n_missed < MAX_MISSED && !is_over(frontend) {
        let runtime_info = EngineRuntimeInfo::of(&frontend.gauges());
        let body = json!({"engine_id": engine_id, "engine_name": announced.name, "runtime_info": runtime_info});
        match call(client, announced, "engine_heartbeat", &body).await {
            Ok(_) => n_missed = 0,
            Err(error) => {
                tracing::warn!(url = announced.url, %error, "the controller did not take a heartbeat");
                // One that does not know the engine will not learn of it by heartbeats.
                if matches!(&error, CallError::Http(error) if error.is_status()) {
                    return;
                }
                n_missed += 1;
            }
        }
        tokio::time::sleep(announced.heartbeat_interval).await;
    }
}

async fn call(
    client: &reqwest::Client,
    announced: &Announced,
    route: &str,
    body: &Value,
) -> Result<reqwest::Response, CallError> {
    let url = format!("{}/{route}", announced.url.trim_end_matches('/'));
    Ok(client.post(url).json(body).send().await?.error_for_status()?)
}
