//! The numbers of a stream's events.

use crate::http::answer::parts::Fields;
use crate::http::answer::sse::{EventHead, Frames};

/// The number of the next event.
#[derive(Default)]
pub(super) struct Numbered(u64);

impl Numbered {
    pub(super) fn push(&mut self, name: &'static str, frames: &mut Frames, write: impl FnOnce(&mut Fields<'_>)) {
        let head = EventHead::new(name, |fields| fields.add("sequence_number", &self.0));
        frames.push_event(&head, write);
        self.0 += 1;
    }

    /// An event of which there are many.
    pub(super) fn push_delta(&mut self, head: &EventHead, frames: &mut Frames, write: impl FnOnce(&mut Fields<'_>)) {
        frames.push_event(head, |fields| {
            fields.add("sequence_number", &self.0);
            write(fields);
        });
        self.0 += 1;
    }
}
