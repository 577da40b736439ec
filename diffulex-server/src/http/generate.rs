//! `POST /generate`: the native route. A prompt in, the whole answer or frames `append` / `buffer_snapshot`, then `final`.
//!
//! Never here: chat templates, OpenAI's shapes.

use axum::extract::{Request, State};
use axum::response::Response;

use super::App;
use super::body::{self, Dialect, Read};
use super::contexts;
use super::error::ApiError;
use super::native::{self, AnswerForm};
use super::parrot::{self, Asked};
use super::request::Order;
use crate::frontend::Submission;

/// The route.
pub(super) async fn generate(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let owner = contexts::owner(&app, request.headers());
    let order = |app: &App, body: parrot::GenerateBody| body.order(app);
    let Read { value: asked, held, trace } = body::json(&app, request, Dialect::Native, order).await?;
    let order = match asked {
        Asked::Plain(order) => order,
        // Boxed, so that its size does not add to the future of every request.
        Asked::OnContext(asked) => return Box::pin(parrot::generate_on_context(app, owner, asked, trace)).await,
    };
    let Order { model, submission, denoise, .. } = order;
    let is_stream = submission.stream;
    let streams = app.frontend.submit(Submission { trace, ..submission }).await?;
    drop(held);
    native::respond(app, streams, is_stream, AnswerForm::new(model, denoise)).await
}
