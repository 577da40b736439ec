//! The routes as an embedder mounts them: without those of profiling, and with hooks before they serve and after.
//!
//! In: a front end and hooks. Out: a service, or a whole server on a listener. Never here: signals, workers.

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::connection::{self, ConnectionOptions};
use super::{HttpOptions, HttpService, ServiceError, service};
use crate::frontend::Frontend;
use crate::telemetry::Telemetry;

type Hook = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// Routes that bind nothing and start nothing, and what an embedder wants done around them.
pub struct HttpApp {
    service: HttpService,
    on_start: Vec<Hook>,
    on_stop: Vec<Hook>,
}

/// Every route but those of profiling. Starts nothing: `frontend` runs already.
pub fn create_app(
    frontend: Frontend,
    telemetry: Arc<Telemetry>,
    options: HttpOptions,
) -> Result<HttpApp, ServiceError> {
    let service = service(frontend, telemetry, HttpOptions { serves_profiles: false, ..options })?;
    Ok(HttpApp { service, on_start: Vec::new(), on_stop: Vec::new() })
}

impl HttpApp {
    /// Adds a hook that runs, after those added before it, before the first connection is accepted.
    #[must_use]
    pub fn on_start<F: Future<Output = ()> + Send + 'static>(
        mut self,
        hook: impl FnOnce() -> F + Send + 'static,
    ) -> Self {
        self.on_start.push(Box::new(move || Box::pin(hook())));
        self
    }

    /// Adds a hook that runs, after those added before it, once no connection is open any more.
    #[must_use]
    pub fn on_stop<F: Future<Output = ()> + Send + 'static>(
        mut self,
        hook: impl FnOnce() -> F + Send + 'static,
    ) -> Self {
        self.on_stop.push(Box::new(move || Box::pin(hook())));
        self
    }

    /// The routes alone, for a program with a server of its own. Hooks are dropped.
    pub fn into_router(self) -> Router {
        self.service.into_router()
    }

    /// Runs the hooks of the start, serves until `shutdown` turns true, runs the hooks of the stop.
    pub async fn serve(self, listener: TcpListener, options: ConnectionOptions, shutdown: watch::Receiver<bool>) {
        for hook in self.on_start {
            hook().await;
        }
        connection::serve(listener, self.service, options, shutdown).await;
        for hook in self.on_stop {
            hook().await;
        }
    }
}
