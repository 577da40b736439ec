//! Ends of requests: each accepted one ends in exactly one reply or error.

use diffulex_protocol::{ErrorCode, FinishReason, ServingEvent};

use super::state::Engine;
use crate::error::{DeviceError, RequestError};
use crate::plan::pooling::PooledStates;
use crate::plan::scheduler::{RequestKey, Scheduled};

impl Engine {
    /// Ends a request with a reply.
    pub(super) fn finish(&mut self, key: RequestKey, reason: FinishReason, events: &mut Vec<ServingEvent>) {
        let Some((mut request, mut output)) = self.requests.remove(key) else { return };
        output.usage.preemptions = request.preemptions;
        output.usage.embedding = request.pooled.as_ref().map(PooledStates::embedding);
        let nfe = request.sequence.decoding().nfe();
        self.profiler.request_completed(&output.rid, reason, nfe);
        // Aborted while the prompt was scored: the reply is about the answer, which is empty.
        let sequence = output.answer.as_ref().unwrap_or(&request.sequence);
        let mut ended = output.emitter.finish(sequence, &self.text, &output.usage, reason);
        if let Some(ServingEvent::Reply(reply)) = ended.last_mut() {
            if reason != FinishReason::Aborted {
                reply.context = self.scheduler.hold_answer(&request, reply.token_ids.len());
            }
            self.counters.count_reply(reply, nfe, output.emitter.n_counted());
        }
        self.release(key, &mut request);
        self.profiler.sent(&ended);
        events.extend(ended);
    }

    /// Ends a request if it is finished before its first forward: nothing is to be written, or the client gave all of it. True if
    /// it was.
    pub(super) fn finish_if_whole(&mut self, key: RequestKey, events: &mut Vec<ServingEvent>) -> bool {
        let Some((request, output)) = self.requests.get_mut(key) else { return false };
        let Some(reason) = request.sequence.finished() else { return false };
        let found_stop = output.emitter.absorb(request.sequence.answer(), &self.text);
        self.finish(key, if found_stop { FinishReason::StopString } else { reason }, events);
        true
    }

    /// Ends a request with an error.
    pub(super) fn fail(&mut self, key: RequestKey, error: RequestError, events: &mut Vec<ServingEvent>) {
        if let Some((mut request, output)) = self.requests.remove(key) {
            self.release(key, &mut request);
            self.profiler.request_failed(&output.rid, error.code);
            events.push(ServingEvent::Error(error.into_event(output.rid)));
        }
    }

    /// Ends every request with the same error.
    pub(super) fn fail_requests(&mut self, code: ErrorCode, message: &str) -> Vec<ServingEvent> {
        let mut events = Vec::new();
        for key in self.requests.keys() {
            let error = RequestError { message: message.to_owned(), code, param: None };
            self.fail(key, error, &mut events);
        }
        for request in self.constraints.remove_all() {
            let error = RequestError { message: message.to_owned(), code, param: None };
            events.push(ServingEvent::Error(error.into_event(request.rid)));
        }
        events
    }

    /// Ends every request, then reports that the engine cannot go on: weights and cache may be lost with the device.
    pub(super) fn give_up(&mut self, error: &DeviceError, events: &mut Vec<ServingEvent>) {
        let message = error.to_string();
        events.extend(self.fail_requests(ErrorCode::EngineFailed, &message));
        events.push(ServingEvent::Fatal { message, backtrace: None });
    }

    fn release(&mut self, key: RequestKey, request: &mut Scheduled) {
        self.scheduler.remove(key, request);
        if let Some(adapter) = request.adapter {
            self.adapters.drop_if_unused(adapter, self.requests.use_adapter(adapter), self.runner.as_mut());
        }
    }
}
