//! The spans of a request: what was asked, what became of it, and the times of its stages.
//!
//! Attributes have the names of OpenTelemetry's semantic conventions (HTTP, GenAI) and, for latencies, of vLLM's traces;
//! `diffulex.` is ours. Prompts and answers are not in them. Never here: how spans are sent.

use std::time::Instant;

use diffulex_protocol::SamplingParams;

use super::outcome::Outcome;
use crate::observe::traces::{KeyValue, RequestTrace, attribute};

/// Says what a request asks for: `operation` as the GenAI conventions call it, `n_choices` answers to each prompt.
pub(super) fn begin(
    trace: &RequestTrace,
    operation: &str,
    adapter: Option<&str>,
    params: &SamplingParams,
    n_choices: u32,
) {
    trace.describe(|| {
        let mut attributes = vec![
            attribute("gen_ai.operation.name", operation),
            attribute("gen_ai.provider.name", "diffulex"),
            attribute("gen_ai.request.model", adapter.unwrap_or(trace.model())),
        ];
        if operation != EMBEDDINGS {
            attributes.push(attribute("gen_ai.request.max_tokens", params.max_tokens));
            attributes.push(attribute("gen_ai.request.temperature", shown(params.temperature)));
            attributes.extend(params.top_p.map(|top_p| attribute("gen_ai.request.top_p", shown(top_p))));
        }
        if n_choices > 1 {
            attributes.push(attribute("gen_ai.request.choice.count", n_choices));
        }
        attributes
    });
}

/// The operation that writes nothing.
pub(super) const EMBEDDINGS: &str = "embeddings";

/// Says what became of an accepted request, which ends now.
pub(super) fn end(trace: &RequestTrace, outcome: &Outcome) {
    let (accepted, now) = (outcome.accepted, Instant::now());
    trace.describe(|| attributes(outcome, now));
    if let Some(failure) = outcome.failure() {
        trace.fail(failure);
    }
    let none = Vec::new;
    trace.stage("receive", (trace.start(), accepted), none);
    let tokenised = outcome.tokenised.unwrap_or(accepted);
    trace.stage("tokenize", (accepted, tokenised), none);
    let Some(arrived) = outcome.arrived else {
        // Only an answer tells how long its request waited for its first forward.
        return trace.stage("engine", (tokenised, now), none);
    };
    let started = (tokenised + outcome.least_queue).min(arrived);
    trace.stage("queue", (tokenised, started), none);
    let name = if outcome.nfe_counts.decoding() > 0 { "denoise" } else { "encode" };
    trace.stage(name, (started, arrived), || {
        let counts = &outcome.nfe_counts;
        let by_purpose = [
            ("diffulex.nfe.prefill", counts.prefill),
            ("diffulex.nfe.denoise", counts.denoise),
            ("diffulex.nfe.commit", counts.commit),
            ("diffulex.nfe.rebuild", counts.rebuild),
            ("diffulex.preemptions", outcome.n_preemptions),
        ];
        by_purpose.into_iter().map(|(key, count)| attribute(key, count)).collect()
    });
    trace.stage("respond", (arrived, now), none);
}

fn attributes(outcome: &Outcome, now: Instant) -> Vec<KeyValue> {
    let n_prompt_tokens = u32::try_from(outcome.n_prompt_tokens).unwrap_or(u32::MAX);
    let end_to_end = now.saturating_duration_since(outcome.accepted);
    let mut attributes = vec![
        attribute("gen_ai.request.id", outcome.rid.as_str()),
        attribute("gen_ai.usage.input_tokens", n_prompt_tokens),
        attribute("gen_ai.usage.output_tokens", outcome.n_answer_tokens),
        attribute("gen_ai.latency.e2e", end_to_end.as_secs_f64()),
        attribute("diffulex.nfe", outcome.nfe),
    ];
    if let Some(first) = outcome.first {
        attributes.push(attribute("gen_ai.latency.time_to_first_token", first.as_secs_f64()));
    }
    if outcome.has_answer() {
        // Ours are finer; these are the words that readers of traces know.
        let mut reasons: Vec<&str> = outcome.finishes().map(|reason| reason.openai()).collect();
        reasons.dedup();
        attributes.push(attribute("gen_ai.response.finish_reasons", reasons));
        attributes.push(attribute("gen_ai.latency.time_in_queue", outcome.queue.as_secs_f64()));
        attributes.push(attribute("gen_ai.usage.cache_read.input_tokens", outcome.n_cached_tokens));
    }
    attributes
}

/// As it was written: 0.7 and not the double next to the float.
fn shown(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}
