//! All routes as one service: the order of access checks, routing and error responses.
//!
//! In: a request. Out: its response, errors included. Plain calls instead of a router's layers, each of which
//! costs every request several allocations. Never here: what is checked, what routes answer.

use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::{BoxError, Router};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

use super::error::ApiError;
use super::refusals::Outermost;
use super::{App, body, guard};

/// Every route, with the access checks and error responses that all of them share. Binds nothing and starts nothing; clones share what they have.
#[derive(Clone)]
pub struct HttpService(Arc<Parts>);

struct Parts {
    routes: TowerToHyperService<Router>,
    app: App,
    outermost: Outermost,
}

impl HttpService {
    pub(super) fn new(routes: Router, app: App) -> Self {
        let routes = TowerToHyperService::new(routes);
        Self(Arc::new(Parts { routes, app, outermost: Outermost::default() }))
    }

    /// The answer to a request.
    pub async fn answer<B>(self, request: Request<B>) -> Response
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let Parts { routes, app, outermost } = &*self.0;
        let request = body::read_away_rest(request.map(Body::new));
        let head = outermost.head(&request);
        let reader = guard::reader(&request, &app.options);
        let mut response = match reader.as_ref().and_then(|_| guard::preflight(&request)) {
            Some(response) => response,
            None => match admit(app, &request) {
                Ok(()) => routes.call(request).await.unwrap_or_else(|never| match never {}),
                Err(error) => error.into_response(),
            },
        };
        if let Some(origin) = reader {
            guard::let_read(&mut response, origin);
        }
        // After the checks, so that it writes and counts their errors, too.
        outermost.report(head, response)
    }

    /// A router that answers every path with this service, to be mounted in the router of another program.
    pub fn into_router(self) -> Router {
        Router::new().fallback(move |request: Request| self.clone().answer(request))
    }
}

/// Checks access. Probes and the playground are open to everyone. The other routes require the API key or, where none is configured,
/// refuse requests from pages of other origins.
fn admit(app: &App, request: &Request) -> Result<(), ApiError> {
    if app.open_paths.contains(request.uri().path()) {
        return Ok(());
    }
    match &app.options.api_key {
        Some(key) => guard::check_key(request.headers(), key),
        None => guard::check_caller(request, &app.options),
    }
}
