//! Files that are none and files without an end, in the place of a model's and of an adapter's.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use diffulex_engine::{Engine, EngineOptions, ModelFiles, ServingEngine};
use diffulex_protocol::{AdapterSource, ServingCommand, ServingEvent};
use serde_json::json;

use crate::harness::{Files, golden, greedy, options, prompt, request, run};

/// The result of `work`, which must not block.
fn at_once<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(Duration::from_secs(20)).expect("it waits for something")
}

/// Puts something at `path` that is no file.
type Special = fn(&Path);

const SPECIAL: [(&str, Special); 5] = [
    ("a FIFO", |path| assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success())),
    ("a socket", |path| drop(UnixListener::bind(path).unwrap())),
    ("a folder", |path| std::fs::create_dir(path).unwrap()),
    ("a link to /dev/zero", |path| symlink("/dev/zero", path).unwrap()),
    ("a link to /dev/tty", |path| symlink("/dev/tty", path).unwrap()),
];

#[test]
fn what_is_no_regular_file_is_refused_as_a_part_of_a_model_at_once() {
    let names =
        ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "model.safetensors.index.json"];
    for file in names {
        for (what, put) in SPECIAL {
            let folder = tempfile::tempdir().unwrap();
            for (name, bytes) in Files::golden("sdar").0 {
                std::fs::write(folder.path().join(name), bytes).unwrap();
            }
            let path = folder.path().join(file);
            let _ = std::fs::remove_file(&path);
            put(&path);
            let model = folder.path().to_owned();
            let load = || ModelFiles::open(model).and_then(|files| Engine::load(&files, &options(), &mut |_| {}));
            let message = at_once(move || load().err().map(|error| error.to_string()));
            assert_eq!(message, Some(format!("{}: is not a regular file", path.display())), "{what}");
        }
    }
}

#[test]
fn what_is_no_regular_file_is_refused_as_a_gguf_file_at_once() {
    for (what, put) in SPECIAL.iter().filter(|(what, _)| *what != "a folder") {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        put(&path);
        let model = path.clone();
        let message = at_once(|| ModelFiles::open(model).err().map(|error| error.to_string()));
        assert_eq!(message, Some(format!("{}: is not a regular file", path.display())), "{what}");
    }
}

/// The folder of a copy of D2F's adapter for Dream, to be spoilt.
fn adapter_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(golden("d2f_dream").join(name), folder.path().join(name)).unwrap();
    }
    folder
}

fn dream(options: &EngineOptions) -> Engine {
    Engine::load(&Files::golden("dream").leak(), options, &mut |_| {}).unwrap()
}

/// The error for the adapter in `folder`, or `None` if it loads.
fn refusal(engine: &mut Engine, name: &str, folder: &Path) -> Option<String> {
    let source = AdapterSource { name: name.to_owned(), path: folder.display().to_string() };
    match &engine.tick(vec![ServingCommand::LoadAdapter(source)])[..] {
        [ServingEvent::AdapterReply { message, .. }] => message.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_no_regular_file_is_refused_as_a_part_of_an_adapter_and_requests_go_on() {
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        for (what, put) in SPECIAL {
            let folder = adapter_folder();
            let path = folder.path().join(file);
            std::fs::remove_file(&path).unwrap();
            put(&path);
            let message = at_once(move || {
                let mut engine = dream(&options());
                let message = refusal(&mut engine, "a", folder.path());
                assert_eq!(
                    run(&mut engine, vec![request("r", &prompt(1, 5), greedy(4))]).reply("r").token_ids.len(),
                    4
                );
                message
            });
            assert_eq!(message, Some(format!("{}: is not a regular file", path.display())), "{what}");
        }
    }
}

/// Makes a file of `n_bytes` out of nothing.
fn write_sparse(path: &Path, n_bytes: u64) {
    std::fs::File::create(path).unwrap().set_len(n_bytes).unwrap();
}

#[test]
fn files_that_are_too_large_are_refused_unread() {
    let mut engine = dream(&EngineOptions { max_lora_bytes: 1 << 20, ..options() });
    let folder = adapter_folder();
    let path = folder.path().join("adapter_config.json");
    write_sparse(&path, 1 << 40);
    let message = refusal(&mut engine, "a", folder.path()).unwrap();
    assert_eq!(message, format!("{}: has 1099511627776 bytes; at most 1048576 are read", path.display()));

    let folder = adapter_folder();
    let path = folder.path().join("adapter_model.safetensors");
    write_sparse(&path, 1 << 30);
    let message = refusal(&mut engine, "a", folder.path()).unwrap();
    assert_eq!(
        message,
        format!("{}: has 1073741824 bytes; --max-lora-bytes leaves 1048576 for this adapter", path.display())
    );

    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in Files::golden("sdar").0 {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let path = folder.path().join("tokenizer.json");
    write_sparse(&path, 1 << 40);
    let loaded = Engine::load(&ModelFiles::folder(folder.path()).unwrap(), &options(), &mut |_| {});
    let message = loaded.err().unwrap().to_string();
    assert_eq!(message, format!("{}: has 1099511627776 bytes; at most 134217728 are read", path.display()));
}

#[test]
fn adapters_are_bounded_by_rank_number_and_bytes() {
    let mut engine = dream(&options());
    let folder = adapter_folder();
    let path = folder.path().join("adapter_config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["r"] = json!(100_000);
    std::fs::write(&path, config.to_string()).unwrap();
    let message = refusal(&mut engine, "a", folder.path()).unwrap();
    let place = folder.path().display();
    assert_eq!(message, format!("{place}: adapter_config.json: r is 100000; it must be in 1..=512"));

    let folder = adapter_folder();
    let mut engine = dream(&EngineOptions { max_loaded_loras: 2, ..options() });
    assert_eq!(refusal(&mut engine, "a", folder.path()), None);
    assert_eq!(refusal(&mut engine, "b", folder.path()), None);
    let message = refusal(&mut engine, "c", folder.path()).unwrap();
    assert_eq!(message, "2 adapters are loaded, the limit of --max-loaded-loras; unload one first");
    engine.tick(vec![ServingCommand::UnloadAdapter { name: "a".to_owned() }]);
    assert_eq!(refusal(&mut engine, "c", folder.path()), None);

    // The file has a few tensors of rank 4; held, they take about as many bytes.
    let n_bytes = std::fs::metadata(folder.path().join("adapter_model.safetensors")).unwrap().len();
    let mut engine = dream(&EngineOptions { max_lora_bytes: n_bytes * 3 / 2, ..options() });
    assert_eq!(refusal(&mut engine, "a", folder.path()), None);
    let message = refusal(&mut engine, "b", folder.path()).unwrap();
    assert!(message.contains("--max-lora-bytes leaves"), "{message}");
    engine.tick(vec![ServingCommand::UnloadAdapter { name: "a".to_owned() }]);
    assert_eq!(refusal(&mut engine, "b", folder.path()), None);
}
