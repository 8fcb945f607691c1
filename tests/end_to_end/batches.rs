//! Batches of a server: their output is that of a job, byte for byte, whichever process dies, and
//! clients do not wait for them.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::command::{Place, WATCHDOG, coordinator, finish, fixture, runs_all_cases, text};
use crate::serve::{Served, ask_all, bodies, expected, send, workers_of_any};

/// A batch of a server, and the directory in which it is kept.
struct Batch {
    place: Place,
    input: String,
    options: Vec<&'static str>,
    id: String,
    file: String,
}

/// Lines of completions; some are invalid.
fn input(count: usize) -> String {
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
    fn start(count: usize, options: &[&'static str]) -> (Batch, Served) {
        let (place, options) = (Place::new(), options.to_vec());
        let (id, file, input) = (String::new(), String::new(), input(count));
        let mut batch = Batch { place, input, options, id, file };
        let served = batch.serve();
        batch.file = upload(&served, &batch.input);
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

    /// Starts a server that has the batch.
    fn serve(&self) -> Served {
        let folder = self.folder().to_string_lossy().into_owned();
        Served::start(&[&["--store-batches", &folder], &*self.options].concat())
    }

    fn get(&self, served: &Served) -> Value {
        let (status, reply) = served.get(&format!("/v1/batches/{}", self.id));
        assert_eq!(status, 200, "{reply}");
        parse(&reply)
    }

    /// Waits until the batch has a status for which `holds` returns true; returns the batch.
    fn wait(&self, served: &Served, holds: impl Fn(&Value) -> bool) -> Value {
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
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder()).expect("a folder").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Waits for the end of the batch; returns its output and its errors.
    fn results(&self, served: &Served) -> (String, String) {
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
    fn job_results(&self, options: &[&str]) -> (String, String) {
        let [input, output] = ["in.jsonl", "out.jsonl"].map(|name| self.place.path(name));
        std::fs::write(&input, &self.input).expect("a writable folder");
        // Answers take their creation time from the input.
        let stored = self.folder().join(format!("{}.jsonl", self.file));
        set_modified(
            &input,
            stored.metadata().and_then(|stored| stored.modified()).expect("a file"),
        );
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

fn set_modified(path: &Path, time: SystemTime) {
    let file = std::fs::File::options().write(true).open(path).expect("a file");
    file.set_modified(time).expect("ours");
}

fn parse(reply: &str) -> Value {
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

/// Kills the server at a time given by each seed, from validation to after the end of the batch.
#[test]
fn a_batch_survives_the_death_of_its_server() {
    let mut expected = None;
    for seed in 0..if runs_all_cases() { 20 } else { 6 } {
        let (batch, mut served) = Batch::start(800, &["--slots", "3", "--step-ms", "1"]);
        match seed % 3 {
            0 => std::thread::sleep(Duration::from_millis(seed * 61 % 200)),
            1 => {
                let is_written =
                    |batch: &Value| batch["request_counts"]["completed"].as_u64() > Some(0);
                batch.wait(&served, is_written);
                std::thread::sleep(Duration::from_millis(seed * 137 % 900));
            }
            _ => drop(batch.wait(&served, |batch| !batch["finalizing_at"].is_null())),
        }
        for _ in 0..1 + seed % 2 {
            drop(served);
            served = batch.serve();
        }
        let results = batch.results(&served);
        // Creation times differ from batch to batch.
        let strip = |text: &str| -> Vec<Value> {
            let mut lines: Vec<Value> = text.lines().map(parse).collect();
            lines.iter_mut().for_each(|line| line["response"]["body"]["created"] = json!(0));
            lines
        };
        if seed == 0 {
            assert_eq!(results, batch.job_results(&[]));
        }
        let expected = expected.get_or_insert_with(|| (strip(&results.0), results.1.clone()));
        assert_eq!((strip(&results.0), results.1), *expected, "seed {seed}");
        batch.wait(&served, |_| batch.names().len() == 8);
    }
}

#[test]
fn a_batch_survives_the_death_of_a_worker() {
    let (batch, served) = Batch::start(800, &["--slots", "3", "--step-ms", "1"]);
    batch.wait(&served, |batch| batch["status"] == "in_progress");
    std::thread::sleep(Duration::from_millis(100));
    let (pid, _) = &workers_of_any(served.id())[0];
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process id");
    kill_process(pid, Signal::KILL).expect("it runs");
    let results = batch.results(&served);
    assert_eq!(results, batch.job_results(&[]));
    assert!(served.end().contains("started again"));
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
    assert!(count("tandem_num_preemptions_total ") > 0.0, "batches leave their slots");
    assert_eq!(batch.results(&served), batch.job_results(&[]));
}
