//! The body of an answer about a new context: once it goes out, the context is its client's. Dropped before, it frees the context.
//!
//! Never here: what the answer says.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

use crate::frontend::UnclaimedContext;

struct ClaimedBody {
    body: Body,
    /// `None` once a part of the body was taken.
    context: Option<UnclaimedContext>,
}

/// `response`, with which the client gets to know of `context`.
pub(in crate::http) fn telling_of(context: UnclaimedContext, response: Response) -> Response {
    response.map(|body| Body::new(ClaimedBody { body, context: Some(context) }))
}

impl HttpBody for ClaimedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(Some(Ok(_)))) {
            self.context.take().into_iter().for_each(UnclaimedContext::claim);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
