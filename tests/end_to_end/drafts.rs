//! Tests of drafted tokens through the whole server: whatever drafts them, answers are those of a
//! server without drafts. Requests are random by seed; a prediction equal to the answer is a draft
//! that is always right, and one that contains each pair of neighbouring tokens of the answer with
//! another token after it is a draft that is always wrong. `make fuzz` compares a tenth of its
//! cases, `make test` a few of them.

use std::path::PathBuf;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::batches::Batch;
use crate::command::{Place, fixture, golden, ids, runs_all_cases};
use crate::hostile::from_environment;
use crate::serve::{Served, workers_of_any};
use crate::tools::{CHAT, model_with_tools, tools};
use crate::turns::long_model;

const COMPLETIONS: &str = "/v1/completions";
const THREADS: usize = 6;

/// Number generator of requests.
struct Random(ChaCha8Rng);

impl Random {
    fn below(&mut self, max: usize) -> usize {
        self.0.next_u32() as usize % max
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())].clone()
    }
}

/// A request with its endpoint.
#[derive(Debug, Clone)]
struct Request {
    path: &'static str,
    body: Value,
}

/// Returns a random request for a model with `vocab_size` tokens. If `has_text`, the model has a
/// tokenizer and a template with tools.
fn request(random: &mut Random, vocab_size: usize, has_text: bool) -> Request {
    let mut body = json!({"seed": random.below(1 << 20), "max_tokens": 1 + random.below(48)});
    let is_chat = has_text && random.one_in(4);
    if is_chat {
        body["messages"] = json!([{"role": "user", "content": random.pick(&["A pet!", "Now?"])}]);
        body["max_tokens"] = json!(80);
        if random.one_in(2) {
            body["tools"] = tools();
            body["tool_choice"] = json!(random.pick(&["auto", "required"]));
        }
    } else {
        // Prompts that repeat themselves are looked up.
        let (len, period) = (1 + random.below(60), 1 + random.below(40));
        let first = random.below(vocab_size);
        let token = |place: usize| 5 + (first + place % period * 13) % (vocab_size - 5);
        body["prompt"] = (0..len).map(token).collect();
    }
    if !random.one_in(3) {
        body["temperature"] = json!(random.pick(&[0.3, 0.8, 1.2]));
        body["top_p"] = json!(random.pick(&[0.5, 0.9, 1.0]));
        body["top_k"] = json!(random.pick(&[0, 3, 40]));
        body["min_p"] = json!(random.pick(&[0.0, 0.05]));
    } else {
        body["temperature"] = json!(0);
    }
    if random.one_in(4) {
        body["repetition_penalty"] = json!(random.pick(&[0.8, 1.3]));
        body["presence_penalty"] = json!(random.pick(&[-0.5, 0.4]));
        body["frequency_penalty"] = json!(random.pick(&[0.0, 0.3]));
    }
    if has_text && random.one_in(4) {
        body["stop"] = random.pick(&[json!([" a", "e"]), json!("th"), json!(["qq", "o", " "])]);
    }
    if random.one_in(3) {
        body["n"] = json!(2);
    }
    if random.one_in(3) {
        let is_count = !is_chat;
        body["logprobs"] = if is_count { json!(random.below(5)) } else { json!(true) };
    }
    if random.one_in(5) {
        let biases = [(random.below(vocab_size), 3.0), (random.below(vocab_size), -100.0)];
        let biases = biases.map(|(token, bias)| (token.to_string(), json!(bias)));
        body["logit_bias"] = biases.into_iter().collect::<serde_json::Map<_, _>>().into();
    }
    if body.get("tools").is_none() {
        match random.below(6) {
            0 if has_text => body["structured_outputs"] = random.pick(&FORMATS.map(format)),
            1 => body["ignore_eos"] = json!(true),
            2 => body["min_tokens"] = json!(body["max_tokens"].as_u64().expect("a number") / 2),
            _ => {}
        }
    }
    Request { path: if is_chat { CHAT } else { COMPLETIONS }, body }
}

const FORMATS: [&str; 4] = [
    r#"{"choice": ["red", "green and green", "blue"]}"#,
    r#"{"regex": "[a-d]{4,20}(-[0-9]+)*"}"#,
    r#"{"json": {"type": "array", "items": {"enum": [10, 11]}, "maxItems": 6}}"#,
    r#"{"json": {"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}},
        "required": ["kind"], "additionalProperties": false}}"#,
];

fn format(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Kinds of predictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prediction {
    /// None: prompt lookup or a draft model drafts.
    None,
    Right,
    /// Nothing that is drafted is right.
    Wrong,
    /// Every fifth token is wrong, and another one is missing.
    Partial,
    /// The text of the answer, which may consist of other tokens.
    Text,
}

const PREDICTIONS: [Prediction; 5] =
    [Prediction::Right, Prediction::Wrong, Prediction::Partial, Prediction::Text, Prediction::None];

/// Returns a request with a prediction of the first choice of its `answer`, which has a text if
/// `has_text`.
fn with_prediction(request: &Request, answer: &Value, kind: Prediction, has_text: bool) -> Request {
    let choice = &answer["choices"][0];
    let ids = choice["token_ids"].as_array().expect("tokens");
    let ids: Vec<u64> = ids.iter().map(|id| id.as_u64().expect("a token")).collect();
    let wrong = |id: u64| 5 + (id + 1) % 250;
    let content: Value = match kind {
        Prediction::None => return request.clone(),
        Prediction::Wrong => {
            let first = ids.first().map(|first| wrong(*first));
            let pairs = ids.windows(3).flat_map(|ids| [ids[0], ids[1], wrong(ids[2])]);
            first.into_iter().chain(pairs).collect()
        }
        Prediction::Partial => {
            let changed = ids.iter().enumerate().filter_map(|(place, id)| match place % 10 {
                4 => Some(wrong(*id)),
                9 => None,
                _ => Some(*id),
            });
            changed.collect()
        }
        Prediction::Text if has_text => {
            let text = choice.get("text").unwrap_or_else(|| &choice["message"]["content"]);
            json!([{"type": "text", "text": text.as_str().unwrap_or_default()},
                   {"type": "text", "text": " and"}])
        }
        Prediction::Right | Prediction::Text => json!(ids),
    };
    let mut with = request.clone();
    // An empty list is an empty list of parts.
    with.body["prediction"] = json!({"type": "content", "content": content});
    with
}

/// Sends a request; returns its answer without what differs from request to request.
fn send(served: &Served, request: &Request) -> Value {
    let Request { path, body } = request;
    let (status, reply) = served.post(path, body);
    assert_eq!(status, 200, "{body}: {reply}");
    let mut answer: Value = serde_json::from_str(&reply).expect("JSON");
    for choice in answer["choices"].as_array_mut().expect("choices") {
        for call in choice["message"]["tool_calls"].as_array_mut().into_iter().flatten() {
            call["id"] = Value::Null;
        }
    }
    json!({"choices": answer["choices"], "usage": answer["usage"]})
}

/// Sends all requests from several threads; returns the answers in order.
fn ask_all(served: &Served, requests: &[Request]) -> Vec<Value> {
    let mut answers = vec![Value::Null; requests.len()];
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let indices = (thread..requests.len()).step_by(THREADS);
                scope.spawn(move || {
                    indices.map(|i| (i, send(served, &requests[i]))).collect::<Vec<_>>()
                })
            })
            .collect();
        for thread in threads {
            for (i, answer) in thread.join().expect("its answers") {
                answers[i] = answer;
            }
        }
    });
    answers
}

/// Returns the numbers of drafted tokens that were accepted and refused.
fn draft_counts(answers: &[Value]) -> [u64; 2] {
    let count = |name: &str| {
        let details = answers.iter().map(|answer| &answer["usage"]["completion_tokens_details"]);
        details.filter_map(|details| details[name].as_u64()).sum()
    };
    ["accepted_prediction_tokens", "rejected_prediction_tokens"].map(count)
}

/// A model, and how it is served.
struct Case {
    model: PathBuf,
    vocab_size: usize,
    /// Options of both servers.
    options: &'static [&'static str],
    /// Options of the server that drafts.
    drafts: Vec<String>,
    /// True if it has a tokenizer, and a template with tools.
    has_text: bool,
    /// True if drafts of the model can be refused; otherwise none are verified.
    verifies: bool,
    /// Number of times that a worker of the server that drafts is killed.
    kills: usize,
}

impl Case {
    fn serve(&self, more: &[&str]) -> Served {
        let model = self.model.to_str().expect("UTF-8");
        let with = ["--model", model, "--slots", "4"];
        Served::of(&[&with[..], self.options, more].concat())
    }

    /// Compares `count` requests. Returns the numbers of accepted and refused drafts.
    fn compare(&self, seed: u64, count: usize) -> [u64; 2] {
        let mut random = Random(ChaCha8Rng::seed_from_u64(seed));
        let requests: Vec<Request> =
            (0..count).map(|_| request(&mut random, self.vocab_size, self.has_text)).collect();
        let plain = self.serve(&["--speculate", "off"]);
        let expected = ask_all(&plain, &requests);
        assert_eq!(draft_counts(&expected), [0; 2]);
        assert_eq!(plain.end(), "");
        let drafts: Vec<&str> = self.drafts.iter().map(String::as_str).collect();
        let drafting = self.serve(&drafts);
        // Each request has a prediction of one kind; in all cases, of each kind.
        let kinds = if runs_all_cases() { PREDICTIONS.len() } else { 1 };
        let mut counts = [0; 2];
        for round in 0..kinds {
            let kind = |index: usize| PREDICTIONS[(index + round) % PREDICTIONS.len()];
            let drafted: Vec<Request> = requests
                .iter()
                .zip(&expected)
                .enumerate()
                .map(|(index, (request, answer))| {
                    with_prediction(request, answer, kind(index), self.has_text)
                })
                .collect();
            let found = std::thread::scope(|scope| {
                let asking = scope.spawn(|| ask_all(&drafting, &drafted));
                for _ in 0..if round == 0 { self.kills } else { 0 } {
                    std::thread::sleep(Duration::from_millis(5 + random.below(60) as u64));
                    let workers = workers_of_any(drafting.id());
                    if let Some((pid, _)) = workers.get(random.below(workers.len().max(1))) {
                        let pid = Pid::from_raw(pid.cast_signed()).expect("a process id");
                        // The worker may have ended with another one.
                        let _ = kill_process(pid, Signal::KILL);
                    }
                }
                asking.join().expect("all answers")
            });
            for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let (options, asked) = (self.options, &drafted[index].body);
                assert_eq!(
                    found["choices"],
                    expected["choices"],
                    "seed {seed}, request {index}, {options:?} {drafts:?} {:?}: {asked}",
                    kind(index)
                );
            }
            let more = draft_counts(&found);
            counts = [counts[0] + more[0], counts[1] + more[1]];
        }
        if !self.verifies {
            assert_eq!(counts, [0; 2]);
        }
        counts
    }
}

/// Options of servers of the model with attention alone, in groups: number formats and placements.
const OPTIONS: [&[&str]; 6] = [
    &[],
    &["--device", "emulated", "--split", "scores:norm1"],
    &["--compress", "kv4"],
    &["--compress", "kv8"],
    &["--dtype", "f32"],
    &["--device", "emulated", "--policy", "gpu-only", "--compress", "kv4"],
];

/// Returns all combinations of models, options and sources of drafts.
fn cases(place: &Place) -> Vec<Case> {
    let model = model_with_tools(place);
    let path = model.to_str().expect("UTF-8");
    let with_model = ["--draft-model", path, "--draft-max", "5"];
    let drafts: [&[&str]; 3] = [&["--speculate", "ngram"], &[], &with_model];
    let owned = |drafts: &[&str]| drafts.iter().map(|word| (*word).to_owned()).collect();
    let combinations = OPTIONS.iter().flat_map(|options| drafts.map(|drafts| (*options, drafts)));
    let attending = combinations.enumerate().map(|(index, (options, drafts))| Case {
        model: model.clone(),
        vocab_size: 320,
        options,
        drafts: owned(drafts),
        has_text: true,
        verifies: true,
        kills: index % 2,
    });
    let of_fixture = |model, drafts: &[&str], verifies| Case {
        model,
        vocab_size: 260,
        options: &["--context", "128"],
        drafts: owned(drafts),
        has_text: false,
        verifies,
        kills: 1,
    };
    // Layers overwrite what they keep of a sequence.
    let overwriting = ["qwen35", "kimi_linear", "nemotron_h", "lfm2", "gpt_oss", "gemma3"];
    let overwriting = overwriting.map(|name| of_fixture(fixture(name), drafts[0], true));
    // Slots of states have space for drafts only if they are asked for.
    let by_default = of_fixture(fixture("qwen35"), &[], false);
    // The context is within the windows.
    let within = ["gpt_oss", "gemma3"];
    let within = within.map(|name| of_fixture(long_model(place, name), drafts[0], true));
    // Layers for multi-token prediction.
    let predict = ["--speculate", "mtp", "--draft-max", "4"];
    let predicting = ["glm4_moe_mtp", "deepseek_v3_mtp"];
    let predicting = predicting.map(|name| of_fixture(fixture(name), &predict, true));
    attending.chain(overwriting).chain([by_default]).chain(within).chain(predicting).collect()
}

#[test]
fn drafts_change_no_answer() {
    let place = Place::new();
    let requests = from_environment("TANDEM_FUZZ_CASES").map_or(36, |cases| cases.div_ceil(10));
    let first_seed = from_environment("TANDEM_FUZZ_SEED").unwrap_or(1);
    let mut cases = cases(&place);
    if !runs_all_cases() {
        // Prompt lookup, predictions alone, a draft model with a worker that is killed, states, and
        // a layer for multi-token prediction.
        let mut index = 0..;
        cases.retain(|_| matches!(index.next(), Some(0 | 7 | 5 | 18 | 27)));
    }
    let count = requests.div_ceil(cases.len() as u64) as usize;
    let mut counts = [0; 2];
    for (case, seed) in cases.iter().zip(first_seed..) {
        let more = case.compare(seed, count);
        println!("{:?} {:?} {:?}: {more:?}", case.model.file_name(), case.options, case.drafts);
        counts = [counts[0] + more[0], counts[1] + more[1]];
    }
    println!("{} requests, drafts accepted and refused: {counts:?}", count * cases.len());
    // Few servers may measure rows that are too slow to be worth a draft.
    assert!(!runs_all_cases() || counts[0] > 0 && counts[1] > 0, "{counts:?}");
}

/// The lines of a job whose model has a layer for multi-token prediction are those of transformers,
/// and a few of its drafts are verified.
#[test]
fn prediction_layers_change_no_line_of_a_job() {
    let place = Place::new();
    for (name, same) in [("glm4_moe_mtp", "glm4_moe"), ("deepseek_v3_mtp", "deepseek_v3")] {
        let golden = golden(same);
        let prompts: Vec<Vec<u32>> =
            golden["prompts"].as_array().expect("prompts").iter().map(ids).collect();
        let expected: Vec<Vec<u32>> =
            golden["tokens"].as_array().expect("tokens").iter().map(ids).collect();
        let input = place.requests("in.jsonl", &prompts, 32);
        let report = place.path("report.json");
        let report_path = report.to_str().expect("UTF-8");
        let common = ["--dtype", "f32", "--speculate", "mtp", "--draft-max", "3"];
        let verified = |options: &[&str]| {
            let options = [&common[..], &["--report", report_path], options].concat();
            let found = place.answers(&fixture(name), &input, &options);
            assert_eq!(found, expected, "{name} {options:?}");
            let report = std::fs::read(&report).expect("a report");
            let report: Value = serde_json::from_slice(&report).expect("JSON");
            report["drafts"]["verified"].as_u64().unwrap_or(0)
        };
        verified(&["--prefill-chunk", "7", "--batches", "1x3"]);
        verified(&["--device", "emulated", "--split", "scores:norm1"]);
        // On a busy machine, rows may be measured as too slow to be worth a draft.
        let is_verified = (0..5).any(|_| verified(&["--batches", "1x2"]) > 0);
        assert!(is_verified, "{name}: drafts are verified");
    }
}

/// Jobs and batches of a server take predictions; one that is no text has an error line.
#[test]
fn predictions_change_no_line_of_a_job_or_batch() {
    let place = Place::new();
    let body = |index: usize| {
        let prompt: Vec<usize> = (0..9).map(|place| 5 + (index * 31 + place * 13) % 300).collect();
        json!({"prompt": prompt, "max_tokens": 40, "ignore_eos": true, "seed": index})
    };
    let bodies: Vec<Value> = (0..4).map(body).collect();
    let plain = place.answered(&bodies, &[]);
    let choice = |line: &Value| line["response"]["body"]["choices"][0].clone();
    let predicted = |(body, line): (&Value, &Value)| {
        let mut body = body.clone();
        let ids = choice(line)["token_ids"].take();
        body["prediction"] = json!({"type": "content", "content": ids});
        body
    };
    let mut bodies: Vec<Value> = bodies.iter().zip(&plain).map(predicted).collect();
    let report = place.path("report.json");
    let choices = |lines: &[Value]| lines.iter().map(choice).collect::<Vec<_>>();
    let accepted = |options: &[&str]| {
        let with = ["--report", report.to_str().expect("UTF-8")];
        let found = place.answered(&bodies, &[options, &with].concat());
        assert_eq!(choices(&found), choices(&plain), "{options:?}");
        let report = std::fs::read(&report).expect("a report");
        let report: Value = serde_json::from_slice(&report).expect("JSON");
        report["drafts"]["accepted"].as_u64().unwrap_or(0)
    };
    assert_eq!(accepted(&[]), 0, "without the server's scheduler");
    // On a busy machine, rows may be measured as too slow to be worth a draft.
    let is_accepted = (0..5).any(|_| accepted(&["--speculate", "prediction"]) > 0);
    assert!(is_accepted, "right predictions are accepted");
    bodies[3]["prediction"] = json!({"type": "image", "content": "x"});
    let line = |(index, body): (usize, &Value)| {
        let (id, url) = (index.to_string(), COMPLETIONS);
        let line = json!({"custom_id": id, "method": "POST", "url": url, "body": body});
        format!("{line}\n")
    };
    let input: String = bodies.iter().enumerate().map(line).collect();
    let (batch, served) = Batch::start_with(place, input, &[]);
    let (output, errors) = batch.results(&served);
    assert_eq!((output, errors.clone()), batch.job_results(&[]));
    assert!(errors.contains("Unsupported prediction of type 'image'"), "{errors}");
    assert_eq!(served.end(), "");
}
