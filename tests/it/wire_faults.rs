//! The sockets between front end and worker, with somebody on them who means harm: garbage for the front end while a
//! stream runs, and a worker whose front end is this test.

use std::io::Write;
use std::process::{Child, Stdio};
use std::time::Duration;

use diffulex_engine::EngineOptions;
use diffulex_protocol::{SamplingParams, ServingCommand, ServingEvent, ServingGenerate, SettingValue, codec};
use diffulex_server::worker::process::WorkerBoot;
use serde_json::json;

use crate::harness::{DEADLINE, Server, golden_model, long_stream, program, read_rest, read_some, wait_until};
use crate::link::free_port;

/// Frames that are no message: lengths that are not there, nesting without end, values of other types.
fn hostile_frames() -> Vec<Vec<u8>> {
    vec![
        vec![],
        vec![0xc0],
        vec![0xc1; 1024],
        vec![0x91; 200_000],
        b"\x81\xa1a".repeat(200_000),
        b"\xdd\xff\xff\xff\xff\xc0\xc0".to_vec(),
        b"\xdf\xff\xff\xff\xff\xc0\xc0".to_vec(),
        b"\xdb\xff\xff\xff\xffabc".to_vec(),
        b"\xc6\xff\xff\xff\xff".to_vec(),
        b"\x81\xa4type\xa6nobody".to_vec(),
        b"\x82\xa4type\xa5batch\xa6events\xdd\xff\xff\xff\xff".to_vec(),
        b"\x82\xa4type\xa8generate\xa5input\x82\xa4type\xa6prompt\xa6prompt\xdd\xff\xff\xff\xff\x01".to_vec(),
    ]
}

/// Numbers that look drawn and are the same in every run (xorshift64, Marsaglia 2003).
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    /// `bytes` with some of them changed, and sometimes without their end.
    fn mutate(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        for _ in 0..=self.below(3) {
            let at = self.below(bytes.len());
            bytes[at] = self.below(256) as u8;
        }
        if self.below(10) == 0 {
            bytes.truncate(self.below(bytes.len()));
        }
        bytes
    }
}

#[test]
fn garbage_for_the_front_end_leaves_a_running_stream_whole() {
    let address = format!("tcp://127.0.0.1:{}", free_port());
    let server = Server::start(&["--zmq-event-addr", &address, "--allow-shared-zmq"]);
    let mut body = long_stream("denoise");
    body["max_tokens"] = json!(600);
    let mut stream = server.open("/generate", &body);
    let head = read_some(&mut stream);

    let context = zmq::Context::new();
    let socket = context.socket(zmq::PUSH).unwrap();
    // Missing trailing fields have defaults.
    socket.set_linger(0).unwrap();
    socket.connect(&address).unwrap();
    let frames = hostile_frames();
    for _ in 0..20 {
        for frame in &frames {
            socket.send(&frame[..], 0).unwrap();
        }
    }
    wait_until("every frame", || server.metric("malformed_frames_total") >= 20.0 * frames.len() as f64);
    // Over the limit of a message: the connection is cut, and it was nobody's but ours.
    socket.send(vec![0xc1; codec::MAX_FRAME_BYTES + 1], 0).unwrap();

    let answer = read_rest(head, stream);
    assert!(answer.is_done(), "{}", answer.body);
    let frames = answer.frames();
    let (last, snapshots) = frames.split_last().unwrap();
    let text: String = snapshots.iter().map(|frame| frame["committed_text"].as_str().unwrap()).collect();
    assert_eq!(text, last["text"].as_str().unwrap());
    for (seq, snapshot) in snapshots.iter().enumerate() {
        assert_eq!(snapshot["seq"], seq);
    }
    assert_eq!(server.metric("worker_restarts_total"), 0.0);
}

/// A worker process without a front end.
struct Worker {
    process: Child,
    commands: zmq::Socket,
    events: zmq::Socket,
    seen: Vec<ServingEvent>,
}

impl Worker {
    fn start() -> Self {
        let context = zmq::Context::new();
        let bind = |kind| {
            let socket = context.socket(kind).unwrap();
            socket.set_linger(0).unwrap();
            socket.set_sndtimeo(DEADLINE.as_millis() as i32).unwrap();
            socket.set_rcvtimeo(DEADLINE.as_millis() as i32).unwrap();
            socket.bind("tcp://127.0.0.1:*").unwrap();
            let address = socket.get_last_endpoint().unwrap().unwrap();
            (socket, address)
        };
        let (commands, command_address) = bind(zmq::PUSH);
        let (events, event_address) = bind(zmq::PULL);
        let boot = WorkerBoot {
            incarnation: 1,
            command_address,
            event_address,
            parent_pid: std::process::id(),
            heartbeat_interval_ms: 1000,
            log_level: "error".to_owned(),
            log_format: diffulex_server::observe::log::LogFormat::Text,
            model: Some(golden_model()),
            // Short, so that what a changed byte asks for ends soon.
            engine: EngineOptions { max_model_len: 128, ..EngineOptions::default() },
        };
        let mut process = program().arg("worker").stdin(Stdio::piped()).spawn().unwrap();
        process.stdin.take().unwrap().write_all(&serde_json::to_vec(&boot).unwrap()).unwrap();
        Self { process, commands, events, seen: Vec::new() }
    }

    fn send(&self, bytes: Vec<u8>) {
        self.commands.send(bytes, 0).unwrap();
    }

    fn command(&self, command: &ServingCommand) {
        self.send(codec::encode_command(command).unwrap());
    }

    /// Takes events until one fits.
    fn take_until(&mut self, what: &str, mut fits: impl FnMut(&ServingEvent) -> bool) {
        loop {
            let bytes = self.events.recv_bytes(0).unwrap_or_else(|error| panic!("{what}: {error}"));
            let events = codec::decode_batch(&bytes).unwrap().events;
            let is_found = events.iter().any(&mut fits);
            self.seen.extend(events);
            if is_found {
                return;
            }
        }
    }

    /// How a request ended, as often as it did.
    fn ends(&self, rid: &str) -> Vec<&ServingEvent> {
        self.seen.iter().filter(|event| event.is_terminal() && event.request_id() == Some(rid)).collect()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn generate(rid: &str) -> ServingGenerate {
    ServingGenerate {
        sampling_params: SamplingParams { max_tokens: 4, ignore_eos: true, ..SamplingParams::default() },
        ..ServingGenerate::new(rid, vec![5, 6])
    }
}

type Change = Box<dyn Fn(&mut ServingGenerate)>;

/// Requests that no front end of ours would send.
fn absurd_requests() -> Vec<ServingGenerate> {
    let changes: Vec<Change> = vec![
        Box::new(|request| request.prompt = vec![]),
        Box::new(|request| request.prompt = vec![512]),
        Box::new(|request| request.prompt = vec![u32::MAX]),
        Box::new(|request| request.prompt = vec![5; 5000]),
        Box::new(|request| request.masked = vec![0]),
        Box::new(|request| request.masked = vec![u32::MAX]),
        Box::new(|request| request.masked = vec![1, 0, 1]),
        Box::new(|request| request.suffix = vec![5]),
        Box::new(|request| request.suffix = vec![u32::MAX]),
        Box::new(|request| request.adapter = Some("nobody".to_owned())),
        Box::new(|request| request.user = Some("u".repeat(3_000_000))),
        Box::new(|request| request.created_time = f64::NAN),
        Box::new(|request| request.sampling_params.temperature = f32::NAN),
        Box::new(|request| request.sampling_params.temperature = f32::INFINITY),
        Box::new(|request| request.sampling_params.temperature = -1.0),
        Box::new(|request| request.sampling_params.max_tokens = 0),
        Box::new(|request| request.sampling_params.max_tokens = u32::MAX),
        Box::new(|request| request.sampling_params.max_nfe = Some(0)),
        Box::new(|request| request.sampling_params.max_repetition_run = Some(0)),
        Box::new(|request| request.sampling_params.top_p = Some(f32::NAN)),
        Box::new(|request| request.sampling_params.top_k = Some(0)),
        Box::new(|request| request.sampling_params.min_p = Some(f32::NEG_INFINITY)),
        Box::new(|request| request.sampling_params.stop_token_ids = vec![u32::MAX]),
        Box::new(|request| request.sampling_params.stop = vec!["a".to_owned(); 17]),
        Box::new(|request| request.sampling_params.decoding.set("accept_threshold", SettingValue::Number(f64::NAN))),
        Box::new(|request| {
            request.sampling_params.decoding.set("denoising_steps", SettingValue::Integer(i64::from(u32::MAX)))
        }),
    ];
    let numbered = changes.iter().enumerate().map(|(index, change)| {
        let mut request = generate(&format!("absurd-{index}"));
        change(&mut request);
        request
    });
    numbered.chain([generate(""), generate(&"x".repeat(1_000_000))]).collect()
}

#[test]
fn a_worker_outlives_hostile_commands_and_ends_each_request_once() {
    let mut worker = Worker::start();
    worker.take_until("ready", |event| matches!(event, ServingEvent::Ready(_)));

    let absurd = absurd_requests();
    for request in &absurd {
        worker.command(&ServingCommand::Generate(request.clone()));
    }
    for frame in hostile_frames() {
        worker.send(frame);
    }
    for name in ["", "a"] {
        worker.command(&ServingCommand::UnloadAdapter { name: name.to_owned() });
        worker.command(&ServingCommand::Abort { rid: name.to_owned() });
    }
    let mut draw = Draw(5);
    for index in 0..2000_u64 {
        // Ids of which a changed byte makes no other.
        let mut request = generate(&format!("{:016x}", index.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        request.stream = index % 2 == 0;
        let command = codec::encode_command(&ServingCommand::Generate(request)).unwrap();
        worker.send(draw.mutate(command));
    }
    worker.command(&ServingCommand::Generate(generate("alive")));
    worker.take_until("an answer after all of it", |event| event.is_terminal() && event.request_id() == Some("alive"));
    assert!(matches!(worker.ends("alive")[..], [ServingEvent::Reply(_)]));

    worker.command(&ServingCommand::Shutdown { grace_ms: Some(DEADLINE.as_millis() as u64) });
    worker.take_until("the end", |event| matches!(event, ServingEvent::Goodbye));
    for request in &absurd {
        assert_eq!(worker.ends(&request.rid).len(), 1, "{:.40}: {:?}", request.rid, worker.ends(&request.rid));
    }
    let mut ended: Vec<&str> =
        worker.seen.iter().filter(|event| event.is_terminal()).filter_map(|event| event.request_id()).collect();
    let n_ends = ended.len();
    ended.sort_unstable();
    ended.dedup();
    assert_eq!(ended.len(), n_ends, "each once");
    assert!(ended.len() > 500, "most of a request's bytes may change without making it unreadable: {}", ended.len());
    wait_until("its end", || worker.process.try_wait().unwrap().is_some_and(|status| status.success()));
}

#[test]
fn two_requests_of_one_id_are_two_ends() {
    let mut worker = Worker::start();
    worker.take_until("ready", |event| matches!(event, ServingEvent::Ready(_)));
    let mut first = generate("twin");
    first.sampling_params.max_tokens = 100;
    worker.command(&ServingCommand::Generate(first));
    worker.command(&ServingCommand::Generate(generate("twin")));
    worker.command(&ServingCommand::Generate(generate("after")));
    worker.command(&ServingCommand::Shutdown { grace_ms: Some(Duration::from_secs(30).as_millis() as u64) });
    worker.take_until("the end", |event| matches!(event, ServingEvent::Goodbye));
    assert!(
        matches!(worker.ends("twin")[..], [ServingEvent::Error(_), ServingEvent::Reply(_)]),
        "{:?}",
        worker.ends("twin")
    );
    assert_eq!(worker.ends("after").len(), 1);
}
