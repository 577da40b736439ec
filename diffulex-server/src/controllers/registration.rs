//! Registration with a controller: this server announces itself as an engine, and sends heartbeats.
//!
//! In: the controller's address and the front end. Out: calls of `/register_engine` and `/engine_heartbeat`. A controller that does
//! not answer, or does not know the engine any more, is registered with again. Never here: what controllers do with it.

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::controllers::engines::{EngineRuntimeInfo, Reachable, engine_config};
use crate::frontend::{BackOff, Frontend, WorkerStatus};
use crate::outbound::secrets::SecretUrl;
use crate::outbound::{self, AnswerError, ClientError};

/// Longest wait for an answer. Chosen by us: a controller answers at once, or is not there.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Heartbeats that may fail in a row before the engine registers again. Parrot's number of tries.
const MAX_MISSED: u32 = 3;

/// Bytes of an engine's id. Chosen by us: Parrot's are integers, and a UUID has 36.
const MAX_ID_BYTES: usize = 256;

/// A failed call.
#[derive(Debug, thiserror::Error)]
enum CallError {
    /// No answer that can be read.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// An error status.
    #[error("it answers {0}")]
    Status(StatusCode),
    /// The answer names no engine.
    #[error("its answer has no engine_id: a number, or a text of 1 to {MAX_ID_BYTES} bytes")]
    NoEngineId,
}

impl From<reqwest::Error> for CallError {
    fn from(error: reqwest::Error) -> Self {
        Self::Answer(error.into())
    }
}

/// This server as a controller knows it.
#[derive(Clone)]
pub struct Announced {
    /// The controller's address.
    pub url: SecretUrl,
    /// The model's public name.
    pub name: String,
    /// Address and key of this server, for others.
    pub reachable: Reachable,
    /// Between heartbeats.
    pub heartbeat_interval: Duration,
}

/// The controller's last word about this server. Its changes are the lines of the log.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Standing {
    /// No answer yet.
    Unknown,
    /// The controller takes heartbeats.
    Registered,
    /// The controller does not answer, or refuses.
    Refused,
}

/// Keeps a server registered with its controller.
pub struct Registration {
    client: reqwest::Client,
    announced: Announced,
    frontend: Frontend,
    standing: Standing,
    /// Begun again by each heartbeat that it takes.
    back_off: BackOff,
}

impl Registration {
    /// The registration of the server of `frontend`. Sends nothing yet.
    pub fn new(announced: Announced, frontend: Frontend) -> Result<Self, ClientError> {
        let client = outbound::client(&announced.url, None)?.timeout(CALL_TIMEOUT).build()?;
        Ok(Self { client, announced, frontend, standing: Standing::Unknown, back_off: BackOff::slow() })
    }

    /// Registers, and sends heartbeats until the worker is stopped for good.
    pub async fn keep(mut self) {
        if self.frontend.ready().await.is_err() {
            return;
        }
        while !self.is_over() {
            if let Err(error) = self.register_and_beat().await {
                self.note_trouble(&error);
                tokio::time::sleep(self.back_off.fail()).await;
            }
        }
    }

    fn is_over(&self) -> bool {
        let status = self.frontend.status();
        self.frontend.is_draining() || matches!(status, WorkerStatus::Stopped | WorkerStatus::Failed { .. })
    }

    /// Registers, and sends heartbeats until the controller refuses one, or does not take several in a row.
    async fn register_and_beat(&mut self) -> Result<(), CallError> {
        let engine_id = self.register().await?;
        let mut n_missed = 0;
        while !self.is_over() {
            match self.beat(&engine_id).await {
                Ok(()) => {
                    n_missed = 0;
                    self.back_off.reset();
                    self.note_registered(&engine_id);
                }
                // One that does not know the engine will not learn of it by heartbeats.
                Err(error @ CallError::Status(_)) => return Err(error),
                Err(error) => {
                    n_missed += 1;
                    if n_missed == MAX_MISSED {
                        return Err(error);
                    }
                    self.note_trouble(&error);
                }
            }
            tokio::time::sleep(self.announced.heartbeat_interval).await;
        }
        Ok(())
    }

    async fn register(&self) -> Result<Value, CallError> {
        let (announced, frontend) = (&self.announced, &self.frontend);
        let Announced { name, reachable, heartbeat_interval, .. } = announced;
        let config = engine_config(name, reachable, *heartbeat_interval, frontend.max_in_flight(), &frontend.gauges());
        let answer = self.call("/register_engine", &json!({"engine_config": config})).await?;
        let answer: Value = serde_json::from_slice(&answer).map_err(|_| CallError::NoEngineId)?;
        let id = answer.get("engine_id").ok_or(CallError::NoEngineId)?;
        let is_id = id.is_u64() || id.as_str().is_some_and(|id| (1..=MAX_ID_BYTES).contains(&id.len()));
        if is_id { Ok(id.clone()) } else { Err(CallError::NoEngineId) }
    }

    async fn beat(&self, engine_id: &Value) -> Result<(), CallError> {
        let runtime_info = EngineRuntimeInfo::of(&self.frontend.gauges());
        let body = json!({"engine_id": engine_id, "engine_name": self.announced.name, "runtime_info": runtime_info});
        self.call("/engine_heartbeat", &body).await.map(drop)
    }

    async fn call(&self, route: &str, body: &Value) -> Result<Vec<u8>, CallError> {
        let answer = self.client.post(self.announced.url.at(route)).json(body).send().await?;
        let status = answer.status();
        if status.is_success() { Ok(outbound::read(answer).await?) } else { Err(CallError::Status(status)) }
    }

    fn note_registered(&mut self, engine_id: &Value) {
        if self.standing != Standing::Registered {
            self.standing = Standing::Registered;
            tracing::info!(url = %self.announced.url, %engine_id, "registered with the controller");
        }
    }

    fn note_trouble(&mut self, error: &CallError) {
        let url = &self.announced.url;
        if self.standing == Standing::Refused {
            tracing::debug!(%url, %error, "still not registered with the controller");
        } else {
            self.standing = Standing::Refused;
            tracing::warn!(%url, %error, "not registered with the controller, which is tried again");
        }
    }
}
