//! Batches of a server: their output is that of a job, byte for byte, and clients do not wait for
//! them.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::command::{Place, WATCHDOG, coordinator, finish, fixture, text};
use crate::serve::{Served, ask_all, bodies, expected, send};

/// A batch of a server, and the directory in which it is kept.
pub(crate) struct Batch {
    place: Place,
    input: String,
    options: Vec<String>,
    id: String,
    file: String,
}

/// Lines of completions; some are invalid.
pub(crate) fn input(count: usize) -> String {
    let line = |(i, mut body): (usize, Value)| {
        if i % 10 == 9 {
            body["max_tokens"] = json!(0);
        }
        let url = "/v1/completions";
        let line = json!({"custom_id": i.to_string(), "method": "POST", "url": url, "body": body});
        format!("{line}\n")
    };
    bodies(count).into_iter().enumerate().map(line).collect()
}

impl Batch {
    /// Starts a server and uploads an input of `count` lines for it.
    fn start(count: usize, options: &[&str]) -> (Batch, Served) {
        Batch::start_with(Place::new(), input(count), options)
    }

    /// Starts a server that keeps its batches in `place`, and a batch of this input.
    pub(crate) fn start_with(place: Place, input: String, options: &[&str]) -> (Batch, Served) {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut batch = Batch { place, input, options, id: String::new(), file: String::new() };
        let served = batch.serve();
        batch.file = upload(&served, &batch.input);
        set_modified(&batch.content_path(), uploaded_at());
        let body = json!({"input_file_id": batch.file, "endpoint": "/v1/completions",
            "completion_window": "24h"});
        let (status, reply) = served.post("/v1/batches", &body);
        assert_eq!(status, 200, "{reply}");
        batch.id = parse(&reply)["id"].as_str().expect("an id").to_owned();
        (batch, served)
    }

    fn folder(&self) -> PathBuf {
        self.place.path("batches")
    }

    /// Returns the path of the stored input.
    fn content_path(&self) -> PathBuf {
        self.folder().join(format!("{}.jsonl", self.file))
    }

    /// Starts a server that has the batch.
    pub(crate) fn serve(&self) -> Served {
        let folder = self.folder().to_string_lossy().into_owned();
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        Served::start(&[&["--store-batches", &folder], &*options].concat())
    }

    pub(crate) fn get(&self, served: &Served) -> Value {
        let (status, reply) = served.get(&format!("/v1/batches/{}", self.id));
        assert_eq!(status, 200, "{reply}");
        parse(&reply)
    }

    /// Waits until the batch has a status for which `holds` returns true; returns the batch.
    pub(crate) fn wait(&self, served: &Served, holds: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + WATCHDOG;
        loop {
            let batch = self.get(served);
            if holds(&batch) {
                return batch;
            }
            assert!(Instant::now() < until, "{batch}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the names of all files of the server: a lock, the record of the batch, and records
    /// and contents of three files.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder()).expect("a folder").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Waits for the end of the batch; returns its output and its errors.
    pub(crate) fn results(&self, served: &Served) -> (String, String) {
        let done = self.wait(served, |batch| batch["status"] == "completed");
        let content = |name: &str| {
            let id = done[name].as_str().unwrap_or_else(|| panic!("{done}"));
            let (status, content) = served.get(&format!("/v1/files/{id}/content"));
            assert_eq!(status, 200, "{content}");
            content
        };
        (content("output_file_id"), content("error_file_id"))
    }

    /// Returns the output and the errors of a job with the same input.
    pub(crate) fn job_results(&self, options: &[&str]) -> (String, String) {
        let [input, output] = ["in.jsonl", "out.jsonl"].map(|name| self.place.path(name));
        std::fs::write(&input, &self.input).expect("a writable folder");
        set_modified(&input, uploaded_at());
        let mut command = coordinator();
        command.arg("--model").arg(fixture("llama")).arg("--input").arg(input);
        command.arg("--output").arg(&output).args(["--quiet", "--force"]).args(options);
        let done = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
        assert_eq!(done.status.code(), Some(3), "{}", text(&done.stderr));
        let output = std::fs::read_to_string(&output).expect("an output");
        let (errors, answers): (Vec<&str>, Vec<&str>) =
            output.split_inclusive('\n').partition(|line| line.contains("\"response\":null"));
        (answers.concat(), errors.concat())
    }
}

/// Returns the time at which inputs are changed last, which is the creation time of their answers:
/// the same for all batches.
fn uploaded_at() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

fn set_modified(path: &Path, time: SystemTime) {
    let file = std::fs::File::options().write(true).open(path).expect("a file");
    file.set_modified(time).expect("ours");
}

pub(crate) fn parse(reply: &str) -> Value {
    serde_json::from_str(reply).unwrap_or_else(|error| panic!("{error}: {reply}"))
}

fn upload(served: &Served, content: &str) -> String {
    let body = format!(
        "--b\r\nContent-Disposition: form-data; name=\"file\"; \
         filename=\"in.jsonl\"\r\n\r\n{content}\r\n--b\r\nContent-Disposition: form-data; \
         name=\"purpose\"\r\n\r\nbatch\r\n--b--\r\n"
    );
    let head = "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: \
                multipart/form-data; boundary=b\r\n";
    let length = body.len();
    let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
    let (status, reply) = send(served.address(), &request);
    assert_eq!(status, 200, "{reply}");
    parse(&reply)["id"].as_str().expect("an id").to_owned()
}

#[test]
fn the_results_of_a_batch_are_those_of_a_job() {
    for options in [&[][..], &["--compress", "kv4"]] {
        let (batch, served) = Batch::start(70, &[&["--slots", "5"], options].concat());
        let results = batch.results(&served);
        assert_eq!(results, batch.job_results(options), "{options:?}");
        assert_eq!(results.1.lines().count(), 7);
        assert_eq!(served.end(), "");
    }
}

#[test]
fn a_batch_is_left_for_the_next_start_when_a_server_is_asked_to_end() {
    let (batch, served) = Batch::start(800, &["--slots", "2", "--step-ms", "1"]);
    batch.wait(&served, |batch| batch["status"] == "in_progress");
    let began = Instant::now();
    assert_eq!(served.end(), "");
    assert!(began.elapsed() < Duration::from_secs(20), "it waits for the batch");
    let served = batch.serve();
    assert_eq!(batch.results(&served), batch.job_results(&[]));
}

#[test]
fn clients_do_not_wait_for_a_batch_and_get_their_answers() {
    let bodies = bodies(30);
    let expected = expected(&bodies, &[]);
    let (batch, served) = Batch::start(1200, &["--slots", "2", "--step-ms", "1"]);
    let count = |name: &str| -> f64 {
        let metrics = served.get("/metrics").1;
        let value = metrics.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap_or_else(|| panic!("{metrics}")).trim().parse().expect("a number")
    };
    batch.wait(&served, |_| count("tandem_num_background_running ") == 2.0);
    assert_eq!(ask_all(&served, &bodies), expected);
    assert!(count("tandem_batches_open ") > 0.0, "the batch has not ended before");
    // Slots may become free just in time.
    for _ in 0..20 {
        if count("tandem_num_preemptions_total ") == 0.0 {
            assert_eq!(ask_all(&served, &bodies), expected);
        }
    }
    assert!(count("tandem_num_preemptions_total ") > 0.0, "batches leave their slots");
    assert_eq!(batch.results(&served), batch.job_results(&[]));
}
