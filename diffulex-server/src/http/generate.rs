//! `POST /generate`: the native route. A prompt in, the whole answer or frames `append` / `buffer_snapshot`, then `final`.
//!
//! Never here: chat templates, OpenAI's shapes.

use axum::extract::{Request, State};
use axum::response::Response;

use crate::frontend::Submission;
use crate::http::answer::error::ApiError;
use crate::http::answer::native::{self, NativeForm};
use crate::http::app::App;
use crate::http::parrot::primitives::{self, Asked};
use crate::http::request::body::{self, Dialect, ParsedBody};

/// The route.
pub(super) async fn generate(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let parse = |app: &App, body: primitives::GenerateBody| body.parse(app);
    let ParsedBody { value: asked, held, requester } = body::json(&app, request, Dialect::Native, parse).await?;
    let (submission, form) = match asked {
        Asked::OnPrompt(submission, form) => (submission, form),
        // Boxed, so that its size does not add to the future of every request.
        Asked::OnContext(asked) => return Box::pin(primitives::generate_on_context(app, asked, requester)).await,
    };
    let streams = app.frontend.submit(Submission { requester, ..submission }).await?;
    drop(held);
    native::respond(app, streams, NativeForm::new(form)).await
}
