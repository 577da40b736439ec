//! Denoise frames over HTTP: changes beside windows, their pace, their bytes.

use std::time::Instant;

use serde_json::{Value, json};

use crate::harness::{Server, frames, joined};

/// Pieces of every position, `None` where masked, and the final text: the replay of docs/http-api.md.
#[derive(Default)]
struct Replay {
    cells: Vec<Option<String>>,
    text: String,
    n_final: usize,
}

impl Replay {
    fn apply(&mut self, frame: &Value) {
        let number = |value: &Value| value.as_u64().unwrap() as usize;
        if let Some(keyframe) = frame.get("keyframe") {
            self.cells.truncate(number(&keyframe["start"]));
        }
        for op in frame["ops"].as_array().unwrap() {
            let position = number(&op[1]);
            match op[0].as_str().unwrap() {
                "s" => self.put(position, op[2].as_str().map(str::to_owned)),
                "m" => (0..op.get(2).map_or(1, number)).for_each(|n| self.put(position + n, None)),
                "e" => self.cells.truncate(position),
                "c" => {
                    let pieces = || self.cells[self.n_final..position].iter().flatten().map(String::as_str).collect();
                    let text: String = op.get(2).and_then(Value::as_str).map_or_else(pieces, str::to_owned);
                    self.text.push_str(&text);
                    self.n_final = position;
                }
                other => panic!("no op {other:?}"),
            }
        }
    }

    fn put(&mut self, position: usize, cell: Option<String>) {
        assert!(position <= self.cells.len(), "a hole before {position}");
        self.cells.resize(self.cells.len().max(position + 1), None);
        self.cells[position] = cell;
    }
}

fn with(body: &Value, fields: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

const CHAT: &str = "/v1/chat/completions";

fn story(path: &str) -> Value {
    let body = json!({"stream": true, "stream_mode": "denoise", "max_tokens": 96});
    with(
        &body,
        match path {
            CHAT => json!({"messages": [{"role": "user", "content": "Tell me a story about a dragon"}]}),
            _ => json!({"prompt": "Tell me a story about a dragon", "ignore_eos": true}),
        },
    )
}

#[test]
fn changes_replayed_are_the_windows_on_every_route() {
    let server = Server::logged("warn", &[]);
    for (path, text) in
        [("/generate", "/text"), (CHAT, "/choices/0/delta/content"), ("/v1/completions", "/choices/0/text")]
    {
        let windows = server.post(path, &with(&story(path), json!({"snapshot": "full"})));
        let changes = server.post(path, &with(&story(path), json!({"snapshot": "ops", "denoise": {"max_fps": 1000}})));
        assert!(changes.is_done(), "{}", changes.body);
        let shown: Vec<_> = windows.frames().into_iter().filter(|frame| frame["event"] == "buffer_snapshot").collect();
        let frames: Vec<_> = changes.frames().into_iter().filter(|frame| frame["event"] == "denoise_ops").collect();
        assert!(frames.len() > 8, "{path}: {} frames", frames.len());
        let (first, last) = (frames.first().unwrap(), frames.last().unwrap());
        assert_eq!((&first["keyframe"]["start"], &first["seq"]), (&json!(0), &json!(0)));
        assert_eq!(last["finished"], true);

        let mut replay = Replay::default();
        for frame in &frames {
            replay.apply(frame);
            // Snapshots may have been merged on one of the two ways.
            let Some(window) = shown.iter().find(|window| window["nfe"] == frame["nfe"]) else { continue };
            let pieces: Vec<_> =
                window["pieces"].as_array().unwrap().iter().map(|piece| piece.as_str().map(str::to_owned)).collect();
            assert_eq!(replay.cells, pieces, "{path}, forward {}", frame["nfe"]);
            assert_eq!(replay.n_final as u64, window["committed_len"]);
        }
        let whole = match path {
            "/generate" => changes.frames().last().unwrap()["text"].as_str().unwrap().to_owned(),
            _ => joined(&changes.frames(), text),
        };
        assert!(!whole.is_empty());
        assert_eq!(replay.text, whole, "{path}");
        assert_eq!(
            whole,
            joined(&windows.frames(), if path == "/generate" { "/committed_text" } else { text }),
            "{path}"
        );
    }
}

#[test]
fn a_slow_pace_folds_frames_and_delays_nothing_past_the_end() {
    let server = Server::logged("warn", &[]);
    for snapshot in ["ops", "window"] {
        // One frame in 100 s: the first, and at the end the rest.
        let slow = json!({"snapshot": snapshot, "denoise": {"max_fps": 0.01}});
        let frames = server.post("/generate", &with(&story("/generate"), slow)).frames();
        let [first, rest, answer] = &frames[..] else { panic!("{} frames", frames.len()) };
        assert_eq!((&first["seq"], &rest["seq"], &rest["finished"]), (&json!(0), &json!(1), &json!(true)));
        let text = if snapshot == "ops" {
            let mut replay = Replay::default();
            replay.apply(first);
            replay.apply(rest);
            replay.text
        } else {
            joined(&frames, "/committed_text")
        };
        assert_eq!(text, answer["text"].as_str().unwrap());
    }
    let n_frames = |fields: Value| server.post("/generate", &with(&story("/generate"), fields)).frames().len();
    let quick = n_frames(json!({"snapshot": "ops", "denoise": {"max_fps": 1000}}));
    assert!(quick > 3);
    // Unless a pace is named, changes come at that of a screen, which this engine is faster than.
    let asked = Instant::now();
    let n_changes = n_frames(json!({"snapshot": "ops"}));
    let most = 3.0 + asked.elapsed().as_secs_f64() * 60.0;
    assert!((n_changes as f64) < most, "{n_changes} frames in {:?}", asked.elapsed());
}

#[test]
fn a_denoise_field_that_cannot_be_served_is_named() {
    let server = Server::logged("warn", &[]);
    for (fields, param) in [
        (json!({"snapshot": "ops", "denoise": {"max_fps": 0}}), "denoise.max_fps"),
        (json!({"denoise": {"detail": "text"}}), "denoise.detail"),
    ] {
        let refused = server.post(CHAT, &with(&story(CHAT), fields));
        assert_eq!((refused.status, refused.error_param().as_deref()), (400, Some(param)));
    }
    let unknown = server.post(CHAT, &with(&story(CHAT), json!({"denoise": {"fps": 3}})));
    assert!(unknown.status == 400 && unknown.body.contains("fps"), "{}", unknown.body);
}

#[test]
fn a_stream_of_changes_is_at_most_three_times_as_long_as_appends() {
    let server = Server::logged("warn", &[]);
    let tokens = server.post("/tokenize", &json!({"messages": story(CHAT)["messages"]})).json()["tokens"].take();
    for (path, text) in [(CHAT, "/choices/0/delta/content"), ("/generate", "/text")] {
        let mut body = story(path);
        if path == "/generate" {
            body["prompt"] = tokens.clone();
        }
        // Two steps for a block of eight, which commits of their own make some 3.5 tokens per forward.
        body["decoding"] = json!({"accept_rule": "static", "denoising_steps": 2});
        body["ignore_eos"] = json!(false);
        let appends = server.post(path, &with(&body, json!({"stream_mode": "block_append"})));
        let changes = server.post(path, &with(&body, json!({"snapshot": "ops", "denoise": {"max_fps": 1000}})));
        let rate = appends.frames().iter().find_map(|frame| frame["diffulex"]["tokens_per_forward"].as_f64()).unwrap();
        assert!((3.0..4.0).contains(&rate), "{rate}");
        // Deltas that the client did not read in time are joined, and the ratio would be that of this machine's load. So each
        // block that has no delta of its own counts as one without text.
        let usage = appends.frames().iter().find_map(|frame| frame["usage"]["completion_tokens"].as_u64()).unwrap();
        let deltas = appends.body.split_inclusive("\n\n").filter_map(|frame| {
            let length = frames(frame).first()?.pointer(text)?.as_str()?.len();
            (length > 0).then_some(frame.len() - length)
        });
        let deltas: Vec<_> = deltas.collect();
        let n_joined = (usage as usize / 8).saturating_sub(deltas.len());
        let appended = appends.body.len() + n_joined * deltas.iter().min().unwrap();
        let ratio = changes.body.len() as f64 / appended as f64;
        assert!(ratio <= 3.0, "{path}: {ratio}, {n_joined} joined");
    }
}
