//! The table of routes: a path, its methods, its handler, and its entry in the documents. Nothing else adds a route.
//!
//! Never here: handlers.

use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::middleware;
use axum::routing::{MethodFilter, MethodRouter, any, on};

use crate::http::app::App;
use crate::http::entry::{Entry, Route};
use crate::http::traced::{self, TracedRoute};
use crate::observe::traces::Traces;

/// Routes as they are added.
#[derive(Default)]
pub(super) struct Routes {
    router: Router<App>,
    table: Vec<Route>,
    traces: Option<Traces>,
}

impl Routes {
    /// None yet, with traces of requests where there is a collector.
    pub(super) fn traced_by(traces: Option<Traces>) -> Self {
        Self { traces, ..Self::default() }
    }

    /// Adds a route of `GET`.
    pub(super) fn get<H: Handler<T, App>, T: 'static>(self, path: &'static str, handler: H, entry: Entry) -> Self {
        self.add(path, vec![Method::GET], on(MethodFilter::GET, handler), entry)
    }

    /// Adds a route of `POST`.
    pub(super) fn post<H: Handler<T, App>, T: 'static>(self, path: &'static str, handler: H, entry: Entry) -> Self {
        self.add(path, vec![Method::POST], on(MethodFilter::POST, handler), entry)
    }

    /// Adds a route of `DELETE`.
    pub(super) fn delete<H: Handler<T, App>, T: 'static>(self, path: &'static str, handler: H, entry: Entry) -> Self {
        self.add(path, vec![Method::DELETE], on(MethodFilter::DELETE, handler), entry)
    }

    /// Adds a route of every method.
    pub(super) fn any<H: Handler<T, App>, T: 'static>(self, path: &'static str, handler: H, entry: Entry) -> Self {
        let methods = vec![Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        self.add(path, methods, any(handler), entry)
    }

    fn add(mut self, path: &'static str, methods: Vec<Method>, handlers: MethodRouter<App>, entry: Entry) -> Self {
        let handlers = match &self.traces {
            Some(traces) if entry.is_traced => {
                let route = TracedRoute { traces: traces.clone(), path };
                handlers.route_layer(middleware::from_fn_with_state(route, traced::trace))
            }
            _ => handlers,
        };
        self.router = self.router.route(path, handlers);
        self.table.push(Route { path, methods, entry });
        self
    }

    /// The router, and the table of what it serves.
    pub(super) fn into_parts(self) -> (Router<App>, Vec<Route>) {
        (self.router, self.table)
    }
}
