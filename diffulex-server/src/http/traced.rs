//! The traces of generation routes: begun when the head of a request is there, and handed on with it.
//!
//! Without a collector, the layer is not added. Never here: what spans say of accepted requests.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use crate::frontend::Requester;
use crate::http::answer::error::ApiError;
use crate::observe::traces::Traces;

/// A route whose requests have traces.
#[derive(Clone)]
pub(super) struct TracedRoute {
    pub(super) traces: Traces,
    pub(super) path: &'static str,
}

/// The layer: inside of those that admit calls, so that a stranger makes no traces.
pub(super) async fn trace(State(route): State<TracedRoute>, mut request: Request, next: Next) -> Response {
    let trace = route.traces.begin(request.method(), route.path, request.headers());
    if let Some(requester) = request.extensions_mut().get_mut::<Requester>() {
        requester.trace = Some(trace.clone());
    }
    let mut response = next.run(request).await;
    trace.answer(response.status().as_u16());
    let refusal = response.extensions().get::<ApiError>().filter(|error| !error.was_accepted());
    if let Some(code) = refusal.map(ApiError::code) {
        trace.fail(code);
        // For the line that tells of the refusal.
        response.extensions_mut().insert(trace.trace_id());
    }
    response
}
