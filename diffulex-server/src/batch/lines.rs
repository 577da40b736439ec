//! The lines of a batch: requests as OpenAI's batch API reads them, answers as it writes them.
//!
//! In: bytes of a line. Out: a [`Job`], and the file of answers, to which whole lines are added only. Never here: routes.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Routes that a line may ask for: those that answer, and none that steers the server.
const URLS: [&str; 6] =
    ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/generate"];

/// A request of a line.
#[derive(Debug, PartialEq)]
pub(super) struct Job {
    pub(super) line: u64,
    pub(super) custom_id: String,
    pub(super) url: String,
    pub(super) body: Value,
}

/// A line that is no request.
#[derive(Debug, PartialEq)]
pub(super) struct BadLine {
    pub(super) line: u64,
    custom_id: Option<String>,
    code: &'static str,
    message: String,
}

/// A route's answer to a line.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) line: u64,
    pub(super) custom_id: String,
    pub(super) status: StatusCode,
    pub(super) request_id: Option<String>,
    /// JSON, as it would travel.
    pub(super) body: String,
}

#[derive(Deserialize)]
struct Line {
    custom_id: String,
    #[serde(default = "post")]
    method: String,
    url: String,
    body: Value,
}

fn post() -> String {
    "POST".to_owned()
}

impl Job {
    /// The request of line `number`, counted from 1.
    pub(super) fn read(number: u64, line: &[u8]) -> Result<Self, BadLine> {
        let bad = |custom_id, code, message| BadLine { line: number, custom_id, code, message };
        let Line { custom_id, method, url, body } =
            serde_json::from_slice(line).map_err(|error| bad(None, "invalid_line", error.to_string()))?;
        let problem = if !method.eq_ignore_ascii_case("POST") {
            Some(("invalid_method", format!("method must be \"POST\", got {method:?}")))
        } else if !URLS.contains(&url.as_str()) {
            Some(("invalid_url", format!("url must be one of {}, got {url:?}", URLS.join(", "))))
        } else if body.get("stream").is_some_and(|stream| *stream == Value::Bool(true)) {
            Some(("invalid_body", "body.stream must be false in a batch, got true".to_owned()))
        } else {
            None
        };
        match problem {
            None => Ok(Self { line: number, custom_id, url, body }),
            Some((code, message)) => Err(bad(Some(custom_id), code, message)),
        }
    }
}

impl BadLine {
    /// A line whose name another line before it has.
    pub(super) fn duplicate(job: Job) -> Self {
        let message = format!("custom_id {:?} is the one of a line before", job.custom_id);
        Self { line: job.line, custom_id: Some(job.custom_id), code: "duplicate_custom_id", message }
    }
}

/// A file of answers that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The system refuses.
    #[error("cannot write {}: {error}", .path.display())]
    Io {
        /// `--output`.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// It is another kind of file, which nothing is added to.
    #[error("{}: line {line} is not an answer of a batch ({error}); nothing is added to such a file", .path.display())]
    Foreign {
        /// `--output`.
        path: PathBuf,
        /// The first such line.
        line: u64,
        /// The reason.
        error: serde_json::Error,
    },
}

/// The file of answers.
#[derive(Debug)]
pub(super) struct Output {
    path: PathBuf,
    file: File,
    answered: HashSet<String>,
    refused: HashSet<u64>,
}

/// A line of an earlier run, as far as it matters to this one.
#[derive(Deserialize)]
struct Written {
    custom_id: Option<String>,
    error: Option<WrittenError>,
}

#[derive(Deserialize)]
struct WrittenError {
    line: u64,
}

#[derive(Serialize)]
struct Refusal<'a> {
    code: &'a str,
    message: &'a str,
    line: u64,
}

impl Output {
    /// The file at `path`, with what an earlier run has written. A last line without an end, which that run was torn from,
    /// is removed.
    pub(super) fn open(path: &Path) -> Result<Self, OutputError> {
        let wrong = |error| OutputError::Io { path: path.to_owned(), error };
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path).map_err(wrong)?;
        let mut output = Self { path: path.to_owned(), file, answered: HashSet::new(), refused: HashSet::new() };
        let mut reader = BufReader::new(output.file.try_clone().map_err(wrong)?);
        let (mut end, mut line) = (0, Vec::new());
        for number in 1.. {
            line.clear();
            let n_bytes = reader.read_until(b'\n', &mut line).map_err(wrong)?;
            if !line.ends_with(b"\n") {
                break;
            }
            end += n_bytes as u64;
            let written: Written = serde_json::from_slice(&line).map_err(|error| OutputError::Foreign {
                path: path.to_owned(),
                line: number,
                error,
            })?;
            match (written.error, written.custom_id) {
                (Some(error), _) => drop(output.refused.insert(error.line)),
                (None, Some(custom_id)) => drop(output.answered.insert(custom_id)),
                (None, None) => {}
            }
        }
        output.file.set_len(end).map_err(wrong)?;
        output.file.seek(SeekFrom::Start(end)).map_err(wrong)?;
        Ok(output)
    }

    /// True if an earlier run has answered the line of this name.
    pub(super) fn is_answered(&self, custom_id: &str) -> bool {
        self.answered.contains(custom_id)
    }

    /// True if an earlier run has refused the line.
    pub(super) fn is_refused(&self, line: u64) -> bool {
        self.refused.contains(&line)
    }

    /// Adds an answer; its body as it is, to the byte.
    pub(super) fn write(&mut self, answer: &Answer) -> Result<(), OutputError> {
        let Answer { line, custom_id, status, request_id, body } = answer;
        let id = format!("batch_req_{line}");
        let request_id = json!(request_id.as_deref().unwrap_or(&id));
        self.add(&format!(
            "{{\"id\":{},\"custom_id\":{},\"response\":{{\"status_code\":{},\"request_id\":{request_id},\"body\":{body}}},\
             \"error\":null}}\n",
            json!(id),
            json!(custom_id),
            status.as_u16(),
        ))
    }

    /// Adds an error for a line that is no request.
    pub(super) fn refuse(&mut self, bad: &BadLine) -> Result<(), OutputError> {
        let BadLine { line, custom_id, code, message } = bad;
        let error = Refusal { code, message, line: *line };
        let id = format!("batch_req_{line}");
        self.add(&format!("{}\n", json!({"id": id, "custom_id": custom_id, "response": null, "error": error})))
    }

    /// In one write, so that what is torn is the end of the file.
    fn add(&mut self, line: &str) -> Result<(), OutputError> {
        self.file.write_all(line.as_bytes()).map_err(|error| OutputError::Io { path: self.path.clone(), error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_post_to_a_route_that_answers() {
        let read = |json: &str| Job::read(3, json.as_bytes());
        let job = read(r#"{"custom_id": "a", "method": "POST", "url": "/generate", "body": {"prompt": "x"}}"#);
        assert_eq!(job.map(|job| (job.line, job.custom_id)), Ok((3, "a".to_owned())));
        assert!(read(r#"{"custom_id": "a", "url": "/v1/completions", "body": {"stream": false}}"#).is_ok());
        for (json, code) in [
            ("nothing", "invalid_line"),
            (r#"{"method": "POST", "url": "/generate", "body": {}}"#, "invalid_line"),
            (r#"{"custom_id": "a", "method": "GET", "url": "/generate", "body": {}}"#, "invalid_method"),
            (r#"{"custom_id": "a", "url": "/flush_cache", "body": {}}"#, "invalid_url"),
            (r#"{"custom_id": "a", "url": "/generate", "body": {"stream": true}}"#, "invalid_body"),
        ] {
            assert_eq!(read(json).expect_err(json).code, code);
        }
    }

    #[test]
    fn a_torn_last_line_is_removed_and_the_rest_is_known() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let whole = "{\"id\":\"x\",\"custom_id\":\"a\",\"response\":{},\"error\":null}\n\
                     {\"id\":\"y\",\"custom_id\":null,\"response\":null,\"error\":{\"line\":7}}\n";
        std::fs::write(file.path(), format!("{whole}{{\"id\":\"z\",\"custom_id\":\"b\",\"resp")).expect("written");
        let mut output = Output::open(file.path()).expect("opened");
        assert!(output.is_answered("a") && output.is_refused(7) && !output.is_answered("b") && !output.is_refused(1));
        output.refuse(&BadLine { line: 9, custom_id: None, code: "c", message: "m".to_owned() }).expect("added");
        let now = std::fs::read_to_string(file.path()).expect("read");
        assert!(now.starts_with(whole) && now.lines().count() == 3, "{now}");
    }

    #[test]
    fn nothing_is_added_to_another_kind_of_file() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "dear diary\n").expect("written");
        assert!(Output::open(file.path()).expect_err("foreign").to_string().contains("line 1"));
        assert_eq!(std::fs::read_to_string(file.path()).expect("read"), "dear diary\n");
    }
}
