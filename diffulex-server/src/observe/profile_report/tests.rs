//! Reports of events that are written here.

use serde_json::json;

use super::*;

fn event(rid: &str, stage: Stage, name: &str, ms: u64, metadata: Value) -> Event {
    Event {
        request_id: rid.to_owned(),
        stage,
        event_name: name.to_owned(),
        timestamp_ns: ms * 1_000_000,
        run_id: "r".to_owned(),
        pid: 7,
        metadata,
    }
}

/// A request that is in every part for 10 ms, with one step of its own and one of another's in `denoise`.
fn events() -> Vec<Event> {
    let mut events = Vec::new();
    for (nth, interval) in (1..).zip(&INTERVALS) {
        let metadata = |stage: Stage, name: &str| match (stage, name) {
            (Stage::Frontend, "stage_hop_sent") => json!({"to_stage": "engine"}),
            (Stage::Engine, "stage_input_received") => json!({"from_stage": "frontend"}),
            _ => json!({}),
        };
        if nth == 1 {
            events.push(event("a", interval.open.0, interval.open.1, 0, json!({})));
        }
        let (stage, name) = interval.close;
        events.push(event("a", stage, name, nth * 10, metadata(stage, name)));
    }
    let step = |idx: u64, from: u64, to: u64| {
        let details =
            json!({"step": idx, "started_ns": from * 1_000_000, "forward_ns": 1_000_000, "requests": 2, "rows": 8});
        event(STEP_ID, Stage::Engine, "engine_step", to, details)
    };
    events.extend([step(1, 60, 64), step(2, 65, 68)]);
    events.push(event("a", Stage::Engine, "denoise_step", 63, json!({"step": 1, "accepted": 3, "blocks_done": [4]})));
    events
}

#[test]
fn the_parts_of_a_request_are_its_whole_time_but_what_no_step_explains() {
    let report = Report::of_events(events(), 2);
    assert_eq!((report.request_count, report.skipped_lines, report.stage_breakdown.len()), (1, 2, INTERVALS.len()));
    let request = &report.requests[0];
    assert_eq!((request.wall_ms, request.forwards, request.accepted), (100.0, 1, 3));
    let part = |name: &str| request.parts_ms[name];
    assert_eq!((part("denoise"), part("own_steps"), part("other_steps"), part("turns")), (10.0, 4.0, 3.0, 1.0));
    // Before the first step and after the last one.
    assert!((request.accounted - 0.98).abs() < 1e-9, "{}", request.accounted);
    let hop = &report.hop_breakdown[0];
    assert_eq!((hop.src.as_str(), hop.dst.as_str(), hop.kind, hop.summary.count), ("frontend", "engine", "payload", 1));
    assert_eq!(hop.summary.max_ms, 10.0);
    let denoise = &report.denoise_breakdown;
    assert_eq!((denoise.requests_per_step, denoise.tokens_per_forward, denoise.steps_per_block), (2.0, 3.0, 4.0));
    assert_eq!(denoise.parts[0].part, "step");
    assert_eq!(denoise.parts[0].summary.total_ms, 7.0);
    assert!(table::text(&report).contains("98.0 %"));
}

#[test]
fn a_missing_event_is_not_accounted_for() {
    let mut events = events();
    events.retain(|event| event.event_name != "preprocess_end");
    let report = Report::of_events(events, 0);
    let share = report.requests[0].accounted;
    assert!((share - 0.78).abs() < 1e-9, "two parts end or begin with it: {share}");
}

#[test]
fn percentiles_lie_between_the_nearest() {
    let summary = Summary::of(vec![4.0, 1.0, 2.0, 3.0]).expect("not empty");
    assert_eq!((summary.p50_ms, summary.max_ms, summary.total_ms), (2.5, 4.0, 10.0));
    assert!((summary.p95_ms - 3.85).abs() < 1e-9);
    assert_eq!(Summary::of(Vec::new()), None);
}
