//! The sockets between front end and worker, and their folder: what becomes of them on a bad day.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::harness::{DEADLINE, Server, golden_model, kill, program, wait_until};

/// The private folder of a server that has one.
fn private_dir(server: &Server) -> PathBuf {
    std::fs::read_dir(server.folder.path()).unwrap().flatten().next().expect("a private folder").path()
}

fn sockets(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "ipc")).collect()
}

fn is_answering(server: &Server) -> bool {
    server.post("/generate", &json!({"prompt": [5], "max_tokens": 4})).status == 200
}

/// Kills the worker and waits until another one serves.
fn lose_a_worker(server: &Server) {
    let before = server.metric("worker_restarts_total");
    kill(server.worker_pid().expect("a worker"), Signal::KILL);
    wait_until("service again", || {
        server.metric("worker_restarts_total") > before && server.get("/ready").status == 200
    });
}

/// Asserts that the program exits, and returns its message.
fn refused(arguments: &[&str]) -> String {
    let mut command = program();
    command.args(["--port", "0", "--model"]).arg(golden_model()).args(arguments);
    let mut process = command.stderr(std::process::Stdio::piped()).stdout(std::process::Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + DEADLINE;
    while process.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = process.kill();
            panic!("{arguments:?}: it serves, or hangs");
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    let output = process.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_loading_error_is_said_once_and_without_a_tail() {
    for arguments in [&["--lora-path", "a=/nowhere"][..], &["--lora-path", "a=/nowhere", "--in-process"]] {
        let told = refused(&[&["--log-level", "off"], arguments].concat());
        assert!(told.starts_with("error: cannot serve sdar: "), "{told}");
        assert_eq!(told.matches("/nowhere").count(), 1, "{told}");
        for tail in ["its thread", "exit status"] {
            assert!(!told.contains(tail), "{told}");
        }
    }
}

/// Explicit addresses of sockets in a folder of our own.
fn ipc_addresses(folder: &TempDir) -> [String; 2] {
    ["commands.ipc", "events.ipc"].map(|name| format!("ipc://{}", folder.path().join(name).display()))
}

#[test]
fn an_address_that_cannot_be_ends_the_program_with_a_reason() {
    let told = refused(&["--zmq-command-addr", "ipc:///etc/passwd/x"]);
    assert!(told.contains("--zmq-command-addr") && told.contains("/etc/passwd"), "{told}");
    let told = refused(&["--zmq-event-addr", "ipc:///nowhere/x"]);
    assert!(told.contains("--zmq-event-addr") && told.contains("/nowhere"), "{told}");
}

#[test]
fn a_file_is_no_socket_address() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("letters.txt");
    std::fs::write(&file, "dear").unwrap();
    let told = refused(&["--zmq-command-addr", &format!("ipc://{}", file.display())]);
    assert!(told.contains("letters.txt"), "{told}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "dear", "it is untouched");
}

#[test]
fn a_private_folder_that_was_deleted_is_made_again() {
    let mut server = Server::start(&[]);
    std::fs::remove_dir_all(private_dir(&server)).unwrap();
    lose_a_worker(&server);
    assert!(is_answering(&server));
    server.signal(Signal::TERM);
    assert!(server.ended(DEADLINE).success());
    assert_eq!(std::fs::read_dir(server.folder.path()).unwrap().count(), 0);
}

/// A temporary folder that is moved away, so that no worker can start.
struct MovedFolder {
    folder: PathBuf,
    away: PathBuf,
}

impl MovedFolder {
    /// Moves the folder of `server` away, kills its worker, and waits until two more failed to start.
    fn of(server: &Server) -> Self {
        let folder = server.folder.path().to_owned();
        let away = folder.with_extension("away");
        std::fs::rename(&folder, &away).unwrap();
        // A file in its place, so that it cannot be made again.
        std::fs::write(&folder, "").unwrap();
        kill(server.worker_pid().expect("a worker"), Signal::KILL);
        wait_until("two failed starts", || server.metric("worker_restarts_total") >= 2.0);
        Self { folder, away }
    }

    /// Moves it back.
    fn restore(&self) {
        std::fs::remove_file(&self.folder).unwrap();
        std::fs::rename(&self.away, &self.folder).unwrap();
    }
}

#[test]
fn a_temporary_folder_that_was_away_is_taken_again() {
    let mut server = Server::start(&[]);
    MovedFolder::of(&server).restore();
    wait_until("service again", || server.get("/ready").status == 200);
    assert!(is_answering(&server));
    server.signal(Signal::TERM);
    assert!(server.ended(DEADLINE).success());
    assert_eq!(std::fs::read_dir(server.folder.path()).unwrap().count(), 0);
}

#[test]
fn sigterm_ends_a_server_that_cannot_start_workers() {
    let mut server = Server::start(&[]);
    let moved = MovedFolder::of(&server);
    server.signal(Signal::TERM);
    let status = server.ended(Duration::from_secs(5));
    moved.restore();
    assert!(status.success(), "{status}");
}

#[test]
fn dead_workers_leave_no_sockets() {
    let server = Server::start(&[]);
    for _ in 0..2 {
        lose_a_worker(&server);
    }
    assert_eq!(sockets(&private_dir(&server)).len(), 2);
}

#[test]
fn explicit_sockets_are_removed_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let [commands, events] = ipc_addresses(&folder);
    let mut server = Server::start(&["--zmq-command-addr", &commands, "--zmq-event-addr", &events]);
    let files = sockets(folder.path());
    assert_eq!(files.len(), 2);
    for file in files {
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} is for this user alone", file.display());
    }
    lose_a_worker(&server);
    assert!(is_answering(&server));
    server.signal(Signal::TERM);
    assert!(server.ended(DEADLINE).success());
    assert_eq!(sockets(folder.path()), Vec::<PathBuf>::new());
}

#[test]
fn the_folder_of_a_killed_server_is_swept_and_that_of_a_living_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let command = || {
        let mut command = Command::new("sh");
        // The harness names a TMPDIR of its own; this one is shared by three.
        command.args(["-c", "export TMPDIR=\"$0\"; exec \"$@\""]).arg(folder.path()).arg(program().get_program());
        command.args(["--port", "0", "--log-level", "warn", "--model"]).arg(golden_model());
        command
    };
    let folders = || std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
    // Folders that may belong to a live server are kept.
    let foreign = folder.path().join("diffulex-notes");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("a"), "dear").unwrap();

    let mut killed = Server::of_command(command());
    wait_until("a ready server", || killed.get("/ready").status == 200);
    let dead: Vec<_> = folders().into_iter().filter(|path| *path != foreign).collect();
    killed.signal(Signal::KILL);
    killed.ended(DEADLINE);
    let living = Server::of_command(command());
    wait_until("a ready server", || living.get("/ready").status == 200);
    assert!(dead.iter().all(|path| !path.exists()), "{dead:?}");
    let of_living: Vec<_> = folders().into_iter().filter(|path| *path != foreign).collect();
    assert_eq!(of_living.len(), 1);

    let third = Server::of_command(command());
    wait_until("a ready server", || third.get("/ready").status == 200);
    assert!(of_living[0].exists() && foreign.join("a").exists());
    lose_a_worker(&living);
}

#[test]
fn addresses_that_others_reach_are_refused_unless_they_are_meant() {
    let address = format!("tcp://127.0.0.1:{}", free_port());
    let told = refused(&["--zmq-event-addr", &address]);
    assert!(told.contains("--zmq-event-addr") && told.contains("--allow-shared-zmq"), "{told}");

    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let [commands, _] = ipc_addresses(&folder);
    let told = refused(&["--zmq-command-addr", &commands]);
    assert!(told.contains("--zmq-command-addr") && told.contains("--allow-shared-zmq"), "{told}");
    // Others may come in, but not to sockets of mode 0600.
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    Server::start(&["--zmq-command-addr", &commands]);
}

#[test]
fn every_loopback_address_works_as_it_is_written() {
    for host in ["127.0.0.1", "localhost", "[::1]"] {
        if host == "[::1]" && std::net::TcpListener::bind("[::1]:0").is_err() {
            // A machine without IPv6.
            continue;
        }
        let address = || format!("tcp://{host}:{}", free_port());
        let (commands, events) = (address(), address());
        let mut command = program();
        command.args(["--port", "0", "--log-level", "warn", "--allow-shared-zmq", "--model"]).arg(golden_model());
        command.args(["--zmq-command-addr", &commands, "--zmq-event-addr", &events]);
        let mut server = Server::of_command({
            command.stderr(std::process::Stdio::piped());
            command
        });
        let mut stderr = server.take_stderr();
        wait_until("a ready server", || server.get("/ready").status == 200);
        assert!(is_answering(&server), "{host}");
        lose_a_worker(&server);
        server.signal(Signal::TERM);
        assert!(server.ended(DEADLINE).success());
        let mut told = String::new();
        std::io::Read::read_to_string(&mut stderr, &mut told).unwrap();
        assert!(told.contains("WARN") && told.contains(&events), "a warning at the start: {told}");
    }
}

/// libzmq aborts a process that has no descriptor left when somebody connects to a file that it listens at.
#[test]
fn the_front_end_listens_at_no_socket_file() {
    let server = Server::start(&[]);
    let private = private_dir(&server);
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    // Num, RefCount, Protocol, Flags, Type, St, Inode, Path; the flag is __SO_ACCEPTCON.
    let listening: Vec<String> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|row| row.len() == 8 && row[3] == "00010000" && Path::new(row[7]).starts_with(&private))
        .map(|row| format!("socket:[{}]", row[6]))
        .collect();
    let held = |pid: u32| {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        targets.filter(|target| listening.iter().any(|socket| target == Path::new(socket))).count()
    };
    assert_eq!((held(server.pid()), held(server.worker_pid().expect("a worker"))), (0, 2));
}

#[test]
fn the_front_end_lives_without_descriptors() {
    const LIMIT: usize = 64;

    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {LIMIT}; exec \"$@\""), "sh"]).arg(program().get_program());
    command.args(["--port", "0", "--log-level", "off", "--model"]).arg(golden_model());
    let mut server = Server::of_command(command);
    wait_until("a ready server", || server.get("/ready").status == 200);
    let address = server.address.clone();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // As many as are about the limit with what the server needs: whatever it frees is taken at some moment of a start.
        for client in 0..38_u64 {
            let (address, is_over) = (&address, &is_over);
            scope.spawn(move || {
                let mut draw = client;
                while !is_over.load(Ordering::Relaxed) {
                    let connection = std::net::TcpStream::connect(address);
                    // Knuth's generator: held for up to 0.3 s, each time another.
                    draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    std::thread::park_timeout(Duration::from_millis((draw >> 33) % 300));
                    drop(connection);
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(8);
        let mut n_kills = 0;
        while Instant::now() < end && server.is_alive() {
            if let Some(worker) = server.worker_pid() {
                // It may be gone by itself.
                let pid = rustix::process::Pid::from_raw(worker as i32).unwrap();
                let _ = rustix::process::kill_process(pid, Signal::KILL);
                n_kills += 1;
                // Time for the next one to connect.
                std::thread::park_timeout(Duration::from_millis(400));
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(n_kills > 0);
    });
    assert!(server.is_alive(), "{:?}", server.ended(DEADLINE));
    wait_until("service again", || server.get("/ready").status == 200);
    server.signal(Signal::TERM);
    assert!(server.ended(DEADLINE).success());
}
