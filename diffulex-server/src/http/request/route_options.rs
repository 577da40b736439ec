//! The rules of a generation route for its bodies.
//!
//! Never here: how a body is read.

use diffulex_protocol::StreamMode;

/// Rules of a generation route for its bodies.
pub(in crate::http) struct RouteOptions {
    /// The route's path.
    pub(in crate::http) route: &'static str,
    /// Bodies have messages instead of a prompt.
    pub(in crate::http) is_chat: bool,
    /// The progress of streams that ask for none.
    pub(in crate::http) stream_mode: StreamMode,
    /// Several choices may be asked for, and, where prompts are read, several of those.
    pub(in crate::http) takes_choices: bool,
    /// Streams may be Diffulex's events.
    pub(in crate::http) takes_event_forms: bool,
}

impl RouteOptions {
    /// A route that answers one prompt once, streamed in deltas.
    pub(in crate::http) const fn of(route: &'static str) -> Self {
        let stream_mode = StreamMode::BlockAppend;
        Self { route, is_chat: false, stream_mode, takes_choices: false, takes_event_forms: false }
    }

    /// The same for messages.
    pub(in crate::http) const fn of_messages(self) -> Self {
        Self { is_chat: true, ..self }
    }

    /// The same, streamed in snapshots unless the request says otherwise.
    pub(in crate::http) const fn denoising(self) -> Self {
        Self { stream_mode: StreamMode::Denoise, ..self }
    }

    /// The same, with Diffulex's events as another form of the stream.
    pub(in crate::http) const fn with_event_forms(self) -> Self {
        Self { takes_event_forms: true, ..self }
    }

    /// The same with several answers.
    pub(in crate::http) const fn with_choices(self) -> Self {
        Self { takes_choices: true, ..self }
    }
}
