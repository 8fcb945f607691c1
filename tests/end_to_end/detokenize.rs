//! Tests of texts decoded after their prompts by a tokenizer like SentencePiece's, of roles, of
//! unsupported tokenizer formats, and of tokenizer processes that are killed while they answer.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value, json};
use shm::sync::{AtomicBool, AtomicUsize, Ordering};

use crate::command::{Place, coordinator, finish, fixture, lines, text};
use crate::serve::{Served, processes_of_any};

const COMPLETIONS: &str = "/v1/completions";
const WORDS: u32 = 320;

/// Copies the fixture `llama` without its tokenizer.
fn bare_model(place: &Place) -> PathBuf {
    let model = place.path("model");
    std::fs::create_dir(&model).expect("writable");
    for entry in std::fs::read_dir(fixture("llama")).expect("a fixture").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("tokenizer") {
            std::fs::copy(entry.path(), model.join(name)).expect("copied");
        }
    }
    model
}

/// Copies the fixture with a tokenizer of words: token 17 is `▁w17`, and the decoder strips a
/// text's first space, as that of LLaMA 2 does.
fn model_of_words(place: &Place) -> PathBuf {
    let model = bare_model(place);
    let special = ["<unk>", "<s>", "</s>"];
    let word = |id: u32| {
        special.get(id as usize).map_or_else(|| format!("▁w{id}"), |word| (*word).to_owned())
    };
    let vocab: Map<String, Value> = (0..WORDS).map(|id| (word(id), json!(id))).collect();
    let added = special.iter().zip(0..).map(|(content, id)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    });
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": added.collect::<Vec<Value>>(),
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
            "split": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    });
    let settings = json!({"bos_token": "<s>", "eos_token": "</s>"});
    std::fs::write(model.join("tokenizer.json"), tokenizer.to_string()).expect("writable");
    std::fs::write(model.join("tokenizer_config.json"), settings.to_string()).expect("writable");
    model
}

/// Returns the text of words that follow others.
fn words(ids: &Value) -> String {
    let ids = ids.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id"));
    ids.filter(|id| *id > 2).map(|id| format!(" w{id}")).collect()
}

fn choice(served: &Served, body: &Value) -> Value {
    let (status, reply) = served.post(COMPLETIONS, body);
    assert_eq!(status, 200, "{body}: {reply}");
    serde_json::from_str::<Value>(&reply).expect("JSON")["choices"][0].clone()
}

/// Returns the text of a streamed answer.
fn streamed(served: &Served, body: &Value) -> String {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let (status, events) = served.post(COMPLETIONS, &body);
    assert_eq!(status, 200, "{events}");
    let events = events.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = events.filter(|event| *event != "[DONE]");
    let piece = |event: &str| {
        let event: Value = serde_json::from_str(event).expect("JSON");
        event["choices"][0]["text"].as_str().expect("a text").to_owned()
    };
    events.map(piece).collect()
}

fn batch(model: &Path, place: &Place, bodies: &[Value]) -> Vec<Value> {
    let input: String = bodies.iter().map(|body| format!("{body}\n")).collect();
    std::fs::write(place.path("in.jsonl"), input).expect("writable");
    let output = place.path("out.jsonl");
    let mut command = coordinator();
    command.arg("--model").arg(model).arg("--input").arg(place.path("in.jsonl"));
    command.arg("--output").arg(&output).args(["--force", "--quiet", "--device", "none"]);
    let done = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let lines = lines(&output).into_iter();
    lines.map(|line| line["response"]["body"]["choices"][0].clone()).collect()
}

#[test]
fn answers_keep_the_space_before_their_first_word() {
    let place = Place::new();
    let model = model_of_words(&place);
    let served = Served::of(&["--model", &model.to_string_lossy(), "--device", "none"]);
    let body = json!({"prompt": "w5 w6", "max_tokens": 6, "ignore_eos": true, "temperature": 0});
    let alone = choice(&served, &body);
    let said = words(&alone["token_ids"]);
    assert_eq!(alone["text"], said);
    assert_eq!(streamed(&served, &body), said);

    let with = |name: &str, value: Value| {
        let mut body = body.clone();
        body[name] = value;
        body
    };
    let mut echo = with("echo", json!(true));
    echo["logprobs"] = json!(0);
    let echoed = choice(&served, &echo);
    assert_eq!(echoed["text"], format!("w5 w6{said}"));
    assert_eq!(echoed["logprobs"]["text_offset"][3], 5, "the answer begins at its space");
    assert_eq!(streamed(&served, &echo), format!("w5 w6{said}"));

    // Stop strings that begin with the space: at the first word, and at a later one.
    let first = said[1..].find(' ').map_or(said.as_str(), |end| &said[..=end]);
    let stop = with("stop", json!(first));
    assert_eq!(choice(&served, &stop)["text"], "");
    assert_eq!(streamed(&served, &stop), "");
    let mut held = stop.clone();
    held["min_tokens"] = json!(1);
    assert!(choice(&served, &held)["text"].as_str().is_some_and(|text| text.starts_with(first)));

    // The text of a constrained answer matches the grammar exactly, also after a prompt without
    // text.
    let choices = json!({"choice": [" w7", " w9", " w9 w11"]});
    let regex = json!({"regex": "( w[0-9]+){2}"});
    let mut formed = Vec::new();
    for prompt in [json!("w5 w6"), json!([1])] {
        for form in [&choices, &regex] {
            let body = json!({"prompt": prompt, "max_tokens": 8, "temperature": 0,
                "structured_outputs": form});
            let found = choice(&served, &body);
            assert_eq!(found["finish_reason"], "stop", "{found}");
            let said = found["text"].as_str().expect("a text").to_owned();
            assert_eq!(said, words(&found["token_ids"]), "{body}");
            assert_eq!(said, streamed(&served, &body), "{body}");
            let list = form["choice"].as_array();
            assert!(list.is_none_or(|list| list.contains(&json!(said))), "{said}");
            formed.push((body, found));
        }
    }
    served.end();

    // A batch job gives the same answers.
    let asked = [&body, &echo, &stop].into_iter().chain(formed.iter().map(|(body, _)| body));
    let asked: Vec<Value> = asked.cloned().collect();
    let made = batch(&model, &place, &asked);
    assert_eq!(made[0]["text"], said);
    assert_eq!(made[1]["text"], echoed["text"]);
    assert_eq!(made[1]["logprobs"]["text_offset"], echoed["logprobs"]["text_offset"]);
    assert_eq!(made[2]["text"], "");
    for (made, (_, found)) in made[3..].iter().zip(&formed) {
        assert_eq!(made["text"], found["text"]);
    }
}

#[test]
fn a_developers_message_is_the_systems() {
    let served = Served::start(&["--device", "none"]);
    let tokens = |role: &str| {
        let messages = json!([{"role": role, "content": "Be brief."},
            {"role": "user", "content": "Hi"}]);
        let (status, reply) = served.post("/tokenize", &json!({"messages": messages}));
        assert_eq!(status, 200, "{reply}");
        serde_json::from_str::<Value>(&reply).expect("JSON")["tokens"].clone()
    };
    assert_eq!(tokens("developer"), tokens("system"));
    assert_ne!(tokens("developer"), tokens("assistant"));
}

#[test]
fn a_tokenizer_in_another_form_is_named() {
    let place = Place::new();
    let model = bare_model(&place);
    std::fs::write(model.join("tekken.json"), "{}").expect("writable");
    std::fs::write(place.path("in.jsonl"), "{\"prompt\": \"hi\"}\n").expect("writable");
    let output = place.path("out.jsonl");
    let mut command = coordinator();
    command.arg("--model").arg(&model).arg("--input").arg(place.path("in.jsonl"));
    command.arg("--output").arg(&output).args(["--device", "none"]);
    finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
    let error = lines(&output)[0]["error"].clone();
    assert_eq!(error["code"], "no_tokenizer");
    let message = error["message"].as_str().expect("a sentence");
    assert!(message.contains("tekken.json, which cannot be read"), "{message}");
}

fn tokenizers_of(coordinator: u32) -> Vec<u32> {
    let all = processes_of_any(coordinator).into_iter();
    all.filter(|(_, name)| name.contains("tokenizer")).map(|(pid, _)| pid).collect()
}

fn kill(pid: u32) -> bool {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process id");
    kill_process(pid, Signal::KILL).is_ok()
}

/// Sets its flag if its thread panics.
struct OnPanic<'a>(&'a AtomicBool);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(std::thread::panicking(), Ordering::Relaxed);
    }
}

/// All requests are answered as if no tokenizer were killed.
#[test]
fn answers_outlive_the_tokenizers_that_are_killed() {
    const CLIENTS: usize = 6;
    const ANSWERS: usize = 25;
    let served = Served::start(&["--slots", "4", "--device", "none"]);
    let bodies: Vec<Value> = (0..CLIENTS)
        .map(|client| {
            let prompt = "Once upon a time ".repeat(client + 1);
            json!({"prompt": prompt, "max_tokens": 4, "ignore_eos": true, "temperature": 0,
                "stop": "never said"})
        })
        .collect();
    let expected: Vec<Value> = bodies.iter().map(|body| choice(&served, body)).collect();
    let (answered, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let all = CLIENTS * ANSWERS;
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let (mut kills, mut seen) = (0, 0);
            // A client that panics gives no more answers.
            while answered.load(Ordering::Relaxed) < all && !failed.load(Ordering::Relaxed) {
                // Several requests are answered between two kills, so that no request is hit by
                // more than a few.
                if answered.load(Ordering::Relaxed) > seen + 3 {
                    seen = answered.load(Ordering::Relaxed);
                    let found = tokenizers_of(served.id());
                    let victim = found.get(kills % found.len().max(1));
                    kills += usize::from(victim.is_some_and(|pid| kill(*pid)));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            kills
        });
        for (body, expected) in bodies.iter().zip(&expected) {
            let (answered, failed, served) = (&answered, &failed, &served);
            scope.spawn(move || {
                let _on_panic = OnPanic(failed);
                for _ in 0..ANSWERS {
                    let found = choice(served, body);
                    // Counted before the assertions, since the killer waits for the count.
                    answered.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(&found, expected);
                    assert_eq!(streamed(served, body), expected["text"].as_str().expect("text"));
                }
            });
        }
        let kills = killer.join().expect("it kills");
        assert!(kills > 10, "only {kills} were killed");
    });
    served.end();
}

#[test]
fn a_job_outlives_the_tokenizers_that_are_killed() {
    let place = Place::new();
    let bodies: Vec<Value> = (0..40)
        .map(|line| {
            let prompt = format!("Once upon a time {line}");
            json!({"prompt": prompt, "max_tokens": 24, "ignore_eos": true, "stop": "never said"})
        })
        .collect();
    let model = fixture("llama");
    let expected = batch(&model, &place, &bodies);
    let output = place.path("killed.jsonl");
    let mut command = coordinator();
    command.arg("--model").arg(&model).arg("--input").arg(place.path("in.jsonl"));
    command.arg("--output").arg(&output).args(["--quiet", "--device", "none"]);
    let mut run = command.stderr(Stdio::piped()).spawn().expect("starts");
    let mut kills = 0;
    while run.try_wait().expect("a child").is_none() {
        kills += tokenizers_of(run.id()).into_iter().filter(|pid| kill(*pid)).count();
        std::thread::sleep(Duration::from_millis(250));
    }
    let done = finish(run);
    assert!(done.status.success(), "{kills} kills: {}", text(&done.stderr));
    let made = lines(&output).into_iter();
    let made: Vec<Value> =
        made.map(|line| line["response"]["body"]["choices"][0].clone()).collect();
    assert_eq!(made, expected);
}
