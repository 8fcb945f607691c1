//! Tests of a server: clients get the answers of a batch job, whatever other clients request and
//! whichever process dies.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::command::{
    Place, WATCHDOG, coordinator, finish, fixture, golden, lines, runs_all_cases, text,
};
use crate::death::{nothing_left, workers_of};

/// A running server, which is killed when this value is dropped.
pub(crate) struct Served {
    child: Child,
    /// Kept open, since the server may write to it.
    stderr: BufReader<ChildStderr>,
    address: String,
}

impl Served {
    pub(crate) fn start(options: &[&str]) -> Served {
        let model = fixture("llama").to_string_lossy().into_owned();
        Served::of(&[&["--model", &model], options].concat())
    }

    pub(crate) fn of(options: &[&str]) -> Served {
        Served::by(coordinator(), options)
    }

    /// Starts a server with a command that runs the binary with the arguments appended to its own.
    pub(crate) fn by(mut command: Command, options: &[&str]) -> Served {
        command.args(["serve", "--port", "0"]).args(options);
        command.stderr(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().expect("starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut said = String::new();
        let address = loop {
            let mut line = String::new();
            let read = stderr.read_line(&mut line).expect("text");
            assert!(read > 0, "it ended: {said}");
            said.push_str(&line);
            if let Some((_, address)) = line.split_once(" at http://") {
                let address = address.trim().to_owned();
                // Two lines explain how to send requests.
                (0..2).for_each(|_| drop(stderr.read_line(&mut said)));
                break address;
            }
        };
        Served { child, stderr, address }
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, String) {
        post(&self.address, path, body)
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        send(
            &self.address,
            &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
        )
    }

    /// Returns its process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the address on which it listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed()).expect("a process id")
    }

    /// Asks it to end.
    pub(crate) fn terminate(&self) {
        kill_process(self.pid(), Signal::TERM).expect("it runs");
    }

    /// Asks it to end; returns its messages since it was ready.
    pub(crate) fn end(self) -> String {
        self.terminate();
        self.wait()
    }

    /// Waits for its end; returns its messages since it was ready.
    pub(crate) fn wait(mut self) -> String {
        let until = Instant::now() + WATCHDOG;
        while self.child.try_wait().expect("a child").is_none() {
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).expect("text");
        said
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // An error means that it has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn post(address: &str, path: &str, body: &Value) -> (u16, String) {
    let body = body.to_string();
    let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    let length = body.len();
    send(address, &format!("{head}Content-Length: {length}\r\n\r\n{body}"))
}

/// Sends a request; returns the status and the body of the reply.
pub(crate) fn send(address: &str, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("a server");
    stream.set_read_timeout(Some(WATCHDOG)).expect("a socket");
    stream.write_all(request.as_bytes()).expect("it is taken");
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).expect("a reply");
    let reply = String::from_utf8(reply).expect("UTF-8");
    let (head, body) = reply.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if is_chunked { unchunked(body) } else { body.to_owned() };
    (status.expect("a status"), body)
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a size");
        whole.push_str(&rest[..size]);
        body = rest[size..].strip_prefix("\r\n").expect("an end");
    }
    whole
}

/// Returns the choices of a stream, each put together from its parts.
fn gathered(body: &str, count: usize) -> Vec<Value> {
    let mut choices = vec![(String::new(), Vec::<Value>::new(), Value::Null); count];
    for event in body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")) {
        if event == "[DONE]" {
            continue;
        }
        let event: Value = serde_json::from_str(event).expect("JSON");
        for choice in event["choices"].as_array().expect("choices") {
            let (text, ids, finish) =
                &mut choices[choice["index"].as_u64().expect("a place") as usize];
            let piece = choice["text"].as_str().or_else(|| choice["delta"]["content"].as_str());
            text.push_str(piece.unwrap_or_default());
            ids.extend(choice["token_ids"].as_array().cloned().unwrap_or_default());
            if !choice["finish_reason"].is_null() {
                *finish = choice["finish_reason"].clone();
            }
        }
    }
    let whole = |(text, ids, finish)| json!({"text": text, "token_ids": ids, "finish": finish});
    choices.into_iter().map(whole).collect()
}

/// Returns the choices of a whole answer in the format of [`gathered`].
fn whole(answer: &Value) -> Vec<Value> {
    let choice = |choice: &Value| {
        let text = choice.get("text").unwrap_or_else(|| &choice["message"]["content"]);
        let (ids, finish) = (&choice["token_ids"], &choice["finish_reason"]);
        json!({"text": text, "token_ids": ids, "finish": finish})
    };
    answer["choices"].as_array().unwrap_or_else(|| panic!("{answer}")).iter().map(choice).collect()
}

/// Returns requests of many lengths, greedy and sampled, each with a seed instead of its ID's.
pub(crate) fn bodies(count: usize) -> Vec<Value> {
    let body = |i: usize| {
        let prompt: Vec<usize> = (0..1 + i * 7 % 60).map(|j| 5 + (i * 31 + j * 13) % 300).collect();
        let mut body = json!({"prompt": prompt, "max_tokens": 1 + i * 5 % 24, "seed": i});
        body["temperature"] = json!(if i.is_multiple_of(3) { 0.0 } else { 0.8 });
        body["n"] = json!(1 + i % 2);
        match i % 7 {
            2 => body["stop"] = json!([" a", "e"]),
            4 => body["structured_outputs"] = json!({"choice": ["red", "green", "blue"]}),
            5 => body["logprobs"] = json!(3),
            _ => {}
        }
        body
    };
    (0..count).map(body).collect()
}

/// Returns the answers of a batch job.
pub(crate) fn expected(bodies: &[Value], options: &[&str]) -> Vec<Vec<Value>> {
    let place = Place::new();
    let line = |(i, body): (usize, &Value)| {
        let url = "/v1/completions";
        let line = json!({"custom_id": i.to_string(), "method": "POST", "url": url, "body": body});
        format!("{line}\n")
    };
    let input: String = bodies.iter().enumerate().map(line).collect();
    std::fs::write(place.path("in.jsonl"), input).expect("a writable folder");
    let mut command = coordinator();
    command.arg("--model").arg(fixture("llama")).arg("--input").arg(place.path("in.jsonl"));
    command.arg("--output").arg(place.path("out.jsonl")).arg("--quiet").args(options);
    let done = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let answers = lines(&place.path("out.jsonl"));
    answers.iter().map(|line| whole(&line["response"]["body"])).collect()
}

/// Sends all requests from several threads; returns the answers in order.
pub(crate) fn ask_all(served: &Served, bodies: &[Value]) -> Vec<Vec<Value>> {
    const THREADS: usize = 12;
    let ask = |i: usize| {
        let mut body = bodies[i].clone();
        let count = body["n"].as_u64().expect("a number") as usize;
        std::thread::sleep(Duration::from_millis(i as u64 * 17 % 23));
        if i.is_multiple_of(2) {
            let (status, reply) = served.post("/v1/completions", &body);
            assert_eq!(status, 200, "{reply}");
            return whole(&serde_json::from_str(&reply).expect("JSON"));
        }
        body["stream"] = json!(true);
        let (status, reply) = served.post("/v1/completions", &body);
        assert_eq!(status, 200, "{reply}");
        gathered(&reply, count)
    };
    let mut found = vec![Vec::new(); bodies.len()];
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let own = (thread..bodies.len()).step_by(THREADS);
                scope.spawn(move || own.map(|i| (i, ask(i))).collect::<Vec<_>>())
            })
            .collect();
        for thread in threads {
            for (i, answer) in thread.join().expect("its answers") {
                found[i] = answer;
            }
        }
    });
    found
}

#[test]
fn answers_over_http_are_those_of_a_batch_job() {
    let bodies = bodies(70);
    for options in [&[][..], &["--compress", "kv4"], &["--dtype", "f32"]] {
        let expected = expected(&bodies, options);
        let served = Served::start(&[&["--slots", "5"], options].concat());
        let found = ask_all(&served, &bodies);
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "{options:?}: {}", bodies[i]);
        }
        assert_eq!(served.end(), "", "{options:?}");
    }
}

/// Sends the signal to the worker at a time given by each seed, while requests are answered.
fn strike_workers(signal: Signal, seeds: Range<u64>) {
    let bodies = bodies(40);
    let expected = expected(&bodies, &[]);
    for seed in seeds {
        let served = Served::start(&["--slots", "5", "--step-ms", "1"]);
        let found = std::thread::scope(|scope| {
            let asking = scope.spawn(|| ask_all(&served, &bodies));
            std::thread::sleep(Duration::from_millis(5 + seed * 29 % 40));
            let workers = workers_of_any(served.child.id());
            let (pid, _) = &workers[0];
            let pid = Pid::from_raw(pid.cast_signed()).expect("a process id");
            kill_process(pid, signal).expect("it runs");
            asking.join().expect("all answers")
        });
        assert_eq!(found, expected, "{signal:?}, seed {seed}");
        assert_eq!(served.get("/health").0, 200);
        let metrics = served.get("/metrics").1;
        assert!(metrics.contains("engine_restarts_total 1"), "{metrics}");
        let said = served.end();
        assert!(said.contains("started again"), "{said}");
    }
}

/// Returns the seeds of the instants at which a worker is struck.
fn seeds() -> Range<u64> {
    0..if runs_all_cases() { 20 } else { 7 }
}

#[test]
fn answers_survive_the_death_of_a_worker() {
    strike_workers(Signal::KILL, seeds());
}

#[test]
fn answers_survive_a_worker_that_falls_silent() {
    strike_workers(Signal::STOP, seeds());
}

/// Returns the number of heap allocations of the workers.
pub(crate) fn allocations(served: &Served) -> f64 {
    // A heartbeat reports the number.
    std::thread::sleep(Duration::from_millis(500));
    let metrics = served.get("/metrics").1;
    let line = metrics.lines().find_map(|line| line.strip_prefix("tandem_worker_allocations "));
    line.expect("a metric").parse().expect("a number")
}

/// Returns the worker processes started by any thread, as a server's main thread starts none.
pub fn workers_of_any(coordinator: u32) -> Vec<(u32, String)> {
    let mut processes = processes_of_any(coordinator);
    processes.retain(|(_, name)| name.contains("worker"));
    processes
}

/// Returns all processes that any thread has started, with their names.
pub fn processes_of_any(coordinator: u32) -> Vec<(u32, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{coordinator}/task")).expect("its threads");
    let children = tasks
        .flatten()
        .map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let pids: Vec<u32> = children
        .flat_map(|list| {
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
        })
        .collect();
    let named = pids.into_iter().map(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        (pid, String::from_utf8_lossy(&line).into_owned())
    });
    named.collect()
}

#[test]
fn a_served_process_that_dies_leaves_nothing_behind() {
    let mut served = Served::start(&["--slots", "2"]);
    let mut pids: BTreeSet<u32> =
        workers_of_any(served.child.id()).into_iter().map(|w| w.0).collect();
    pids.extend(workers_of(served.child.id()).into_iter().map(|worker| worker.0));
    assert!(!pids.is_empty());
    served.child.kill().expect("it runs");
    served.child.wait().expect("it ends");
    nothing_left(&pids);
}

#[test]
fn what_was_taken_is_answered_after_sigterm() {
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 100, "ignore_eos": true, "seed": 1});
    // Large enough that it computes for a while.
    let model = ["--model", "smollm2-135m", "--dummy-weights", "--layers", "6"];
    let served = Served::of(&[&model[..], &["--slots", "2", "--context", "256"]].concat());
    let (status, alone) = served.post("/v1/completions", &body);
    assert_eq!(status, 200, "{alone}");
    let expected = whole(&serde_json::from_str(&alone).expect("JSON"));
    let address = served.address.clone();
    let asking: Vec<_> = (0..12)
        .map(|_| {
            let (address, body) = (address.clone(), body.clone());
            std::thread::spawn(move || post(&address, "/v1/completions", &body))
        })
        .collect();
    let until = Instant::now() + WATCHDOG;
    while !served.get("/metrics").1.contains("num_requests_running 2") {
        assert!(Instant::now() < until, "both slots are never taken");
    }
    let said = served.end();
    for asked in asking {
        let (status, reply) = asked.join().expect("a reply");
        // Requests that came too late are refused.
        if status == 200 {
            assert_eq!(whole(&serde_json::from_str(&reply).expect("JSON")), expected);
        } else {
            assert_eq!(status, 503, "{reply}");
        }
    }
    assert_eq!(said, "");
}

#[test]
fn beginnings_are_found() {
    let model = ["--model", "smollm2-135m", "--dummy-weights", "--layers", "2"];
    let served = Served::of(&[&model[..], &["--slots", "2"]].concat());
    let prompt: Vec<u32> = (0..300).map(|i| 5 + i * 13 % 300).collect();
    let body = json!({"prompt": prompt, "max_tokens": 4, "seed": 1, "temperature": 0});
    let answer = |body: &Value| -> Value {
        let (status, reply) = served.post("/v1/completions", body);
        assert_eq!(status, 200, "{reply}");
        serde_json::from_str(&reply).expect("JSON")
    };
    let (first, second) = (answer(&body), answer(&body));
    assert_eq!(whole(&first), whole(&second));
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    // A page of 256, and the next one's positions but the last, which predicts the first new token.
    assert_eq!((cached(&first), cached(&second)), (json!(0), json!(299)));
    let shorter: Vec<u32> = prompt[..201].to_vec();
    let body = json!({"prompt": shorter, "max_tokens": 4, "seed": 1, "temperature": 0});
    let third = answer(&body);
    assert_eq!(cached(&third), json!(200), "a part of the first page");
    let fresh = Served::of(&[&model[..], &["--slots", "2"]].concat());
    let (status, reply) = fresh.post("/v1/completions", &body);
    assert_eq!(status, 200, "{reply}");
    assert_eq!(whole(&third), whole(&serde_json::from_str(&reply).expect("JSON")));
}

/// In a conversation nothing of the previous turns is computed again.
#[test]
fn a_turn_computes_what_is_new_in_it() {
    let model = ["--model", "smollm2-135m", "--dummy-weights", "--layers", "2"];
    for options in [&[][..], &["--compress", "kv4"]] {
        let served = Served::of(&[&model[..], &["--slots", "2"], options].concat());
        let mut prompt: Vec<u64> = (0..40).map(|i| 5 + i * 13 % 300).collect();
        for turn in 0..6 {
            let body = json!({"prompt": prompt, "max_tokens": 20, "temperature": 0,
                              "ignore_eos": true});
            let (status, reply) = served.post("/v1/completions", &body);
            assert_eq!(status, 200, "{reply}");
            let answer: Value = serde_json::from_str(&reply).expect("JSON");
            let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
            // Neither the last new token nor the tokens added since then are cached.
            let expected = if turn == 0 { 0 } else { prompt.len() - 18 };
            assert_eq!(*cached, json!(expected), "{options:?}: turn {turn}");
            let said = answer["choices"][0]["token_ids"].as_array().expect("tokens");
            prompt.extend(said.iter().map(|token| token.as_u64().expect("a token")));
            prompt.extend((0..17).map(|i| 7 + (turn * 31 + i * 11) % 300));
        }
        assert_eq!(served.end(), "");
    }
}

/// Workers die as soon as they are started, and the server is asked to end in the meantime.
#[test]
fn an_end_is_heard_while_workers_are_started_again() {
    let served = Served::start(&["--slots", "2"]);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        for (pid, _) in workers_of_any(served.id()) {
            let pid = Pid::from_raw(pid.cast_signed()).expect("a process id");
            // The worker may have exited already.
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(served.get("/health").0, 503, "there are no workers");
    let said = served.end();
    assert!(said.contains("the workers are started again in "), "{said}");
    assert!(!said.contains("the server ends"), "{said}");
}

#[test]
fn echo_tells_what_the_model_says_of_a_prompt() {
    let served = Served::start(&["--slots", "2"]);
    let prompt: Vec<u32> = (0..60).map(|i| 5 + i * 13 % 300).collect();
    let body = json!({"prompt": prompt, "max_tokens": 4, "echo": true, "logprobs": 1,
        "ignore_eos": true});
    let (status, told) = served.post("/v1/completions", &body);
    assert_eq!(status, 200, "{told}");
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let logprobs = told["choices"][0]["logprobs"]["token_logprobs"].as_array().expect("numbers");
    assert_eq!(logprobs.len(), 64);
    assert!(logprobs[0].is_null() && logprobs[1..].iter().all(Value::is_number));
}

/// Layers with a recurrent state, of different sizes and with shared caches, or with a residual of
/// streams give transformers' tokens: in chunks, reused slots, and preempted.
#[test]
fn models_with_unusual_layers_answer_as_transformers_do() {
    let states = ["qwen35", "qwen3_next", "granite_hybrid", "granite_hybrid_dense"];
    let others = ["nemotron_h", "nemotron_h_moe", "gemma4", "gemma4_moe", "gemma4_shared"];
    let others = others.into_iter().chain(["deepseek_v4", "deepseek_v4_windows"]);
    let others = others.chain(["step3p5", "step3p7", "nemotron_h_latent"]);
    for name in states.into_iter().chain(others) {
        let golden = golden(name);
        let model = fixture(name).to_string_lossy().into_owned();
        let served =
            Served::of(&["--model", &model, "--slots", "3", "--dtype", "f32", "--context", "128"]);
        let (prompts, tokens) = (&golden["prompts"], &golden["tokens"]);
        let count = prompts.as_array().expect("prompts").len();
        let ask = |i: usize| {
            let mut body = json!({"prompt": prompts[i], "max_tokens": 32, "temperature": 0});
            body["ignore_eos"] = json!(true);
            let (status, reply) = served.post("/v1/completions", &body);
            assert_eq!(status, 200, "{reply}");
            let answer: Value = serde_json::from_str(&reply).expect("JSON");
            assert_eq!(answer["choices"][0]["token_ids"], tokens[i], "{name}, prompt {i}");
        };
        std::thread::scope(|scope| {
            // Each prompt is sent twice: the second request could reuse the first one's prefix.
            (0..2 * count).for_each(|i| drop(scope.spawn(move || ask(i % count))));
        });
    }
}
