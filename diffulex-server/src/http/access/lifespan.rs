//! The routes as an embedder mounts them: without those of profiling, and with hooks before they serve and after.
//!
//! In: a front end and hooks. Out: a service, or a whole server on a listener, which may also start and end the front end's
//! worker. Never here: signals, what a worker is.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::sync::watch;

use crate::frontend::{Frontend, NotServing};
use crate::http::access::connection::{self, ConnectionOptions};
use crate::http::access::listeners::Listeners;
use crate::http::access::service::HttpService;
use crate::http::app::HttpOptions;
use crate::http::table::{self, ServiceError};
use crate::observe::telemetry::Telemetry;

type Hook = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// Routes that bind nothing and start nothing, and what an embedder wants done around them.
pub struct HttpApp {
    service: HttpService,
    on_start: Vec<Hook>,
    on_stop: Vec<Hook>,
    frontend: Frontend,
    /// The app starts and ends the engine; requests that run at the end get this time.
    engine_grace: Option<Duration>,
}

/// An app that cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// A thread cannot be started.
    #[error("cannot start the front end's thread: {0}")]
    Thread(std::io::Error),
    /// The engine will never take requests.
    #[error(transparent)]
    NotServing(#[from] NotServing),
}

/// Every route but those of profiling. Starts nothing: `frontend` runs already, or the app [owns its
/// engine](HttpApp::owning_engine).
pub fn create_app(
    frontend: Frontend,
    telemetry: Arc<Telemetry>,
    options: HttpOptions,
) -> Result<HttpApp, ServiceError> {
    let service = table::service(frontend.clone(), telemetry, HttpOptions { serves_profiles: false, ..options })?;
    Ok(HttpApp { service, on_start: Vec::new(), on_stop: Vec::new(), frontend, engine_grace: None })
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

    /// Makes the engine a part of the app's life, as Diffulex's `create_app`: [`Self::serve`] starts it and waits until it takes
    /// requests, before the hooks of the start, and ends it when it is told to stop; what runs then may finish within `grace`.
    #[must_use]
    pub fn owning_engine(mut self, grace: Duration) -> Self {
        self.engine_grace = Some(grace);
        self
    }

    /// The routes alone, for a program with a server of its own. Hooks are dropped, and the engine is neither started nor ended.
    pub fn into_router(self) -> Router {
        self.service.into_router()
    }

    /// Runs the hooks of the start, serves until `shutdown` turns true, runs the hooks of the stop. Fails only where the app owns
    /// an engine that cannot be started; no hook has run then, and no connection was accepted.
    pub async fn serve(
        self,
        listeners: impl Into<Listeners>,
        options: ConnectionOptions,
        mut shutdown: watch::Receiver<bool>,
    ) -> Result<(), AppError> {
        let Self { service, on_start, on_stop, frontend, engine_grace } = self;
        if engine_grace.is_some() {
            frontend.begin().map_err(AppError::Thread)?;
            tokio::select! {
                ready = frontend.ready() => drop(ready?),
                // Told to stop while it loads.
                _ = shutdown.wait_for(|stops| *stops) => {}
            }
        }
        for hook in on_start {
            hook().await;
        }
        let (stop_connections, stop) = watch::channel(false);
        let serving = connection::serve(listeners, service, options, stop);
        let stopping = async {
            // A sender that is gone will never say more: that is a stop, too.
            let _ = shutdown.wait_for(|stops| *stops).await;
            if let Some(grace) = engine_grace {
                frontend.shutdown(grace).await;
            }
            // Every stream has its last event; let them be written.
            stop_connections.send_replace(true);
        };
        tokio::join!(serving, stopping);
        for hook in on_stop {
            hook().await;
        }
        Ok(())
    }
}
