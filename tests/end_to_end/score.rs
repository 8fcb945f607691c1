//! Tests of scoring: log-probabilities equal those of transformers, whatever computes them and
//! whatever dies during the run.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::command::{
    Place, WATCHDOG, coordinator, finish, fixture, lines, real_model, runs_all_cases, text,
};
use crate::serve::workers_of_any;

/// Maximum difference of a log-probability from transformers'.
const CLOSE: f64 = 1e-4;
/// Maximum relative difference of a perplexity.
const CLOSE_PERPLEXITY: f64 = 1e-3;

fn expected(name: &str) -> Value {
    let text = std::fs::read_to_string(fixture(name).join("scores.json")).expect("scores.json");
    serde_json::from_str(&text).expect("JSON")
}

fn array(value: &Value) -> &[Value] {
    value.as_array().expect("an array")
}

fn numbers(value: &Value) -> Vec<f64> {
    array(value).iter().map(|number| number.as_f64().expect("a number")).collect()
}

/// Scores `in.jsonl`, or the file that the options name.
fn run(place: &Place, model: &Path, options: &[&str]) -> Output {
    let mut command = coordinator();
    command.arg("score").arg("--model").arg(model).arg("--output").arg(place.path("out.jsonl"));
    if !options.contains(&"--input") {
        command.arg("--input").arg(place.path("in.jsonl"));
    }
    command.args(options).stderr(Stdio::piped());
    finish(command.spawn().expect("starts"))
}

/// Scores, asserts success and returns the lines.
fn scored(place: &Place, model: &Path, options: &[&str]) -> Vec<Value> {
    let done = run(place, model, &[options, &["--force"]].concat());
    assert!(done.status.success(), "{options:?}: {}", text(&done.stderr));
    lines(&place.path("out.jsonl"))
}

fn ask(place: &Place, questions: impl Iterator<Item = Value>) {
    let input: String = questions.map(|question| format!("{question}\n")).collect();
    std::fs::write(place.path("in.jsonl"), input).expect("writable");
}

fn asked(question: &Value) -> Value {
    json!({"prompt": question["prompt"], "continuations": question["continuations"]})
}

fn assert_close(found: &Value, expected: &Value, case: &str) {
    let (found, expected) = (numbers(found), numbers(expected));
    assert_eq!(found.len(), expected.len(), "{case}");
    for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!((found - expected).abs() < CLOSE, "{case}, token {place}: {found} {expected}");
    }
}

fn check_questions(place: &Place, name: &str, model: &Path, options: &[&str]) {
    let expected = expected(name);
    let questions = array(&expected["questions"]);
    ask(place, questions.iter().map(asked));
    let found = scored(place, model, &[&["--dtype", "f32"], options].concat());
    for (line, question) in found.iter().zip(questions) {
        let scores = array(&line["scores"]).iter().zip(array(&question["scores"]));
        for (score, expected) in scores {
            let case = format!("{name} {options:?} {line}");
            assert_close(&score["token_logprobs"], &expected["token_logprobs"], &case);
            assert_eq!(score["greedy"], expected["greedy"], "{case}");
            let sum: f64 = numbers(&score["token_logprobs"]).iter().sum();
            assert!((score["logprob"].as_f64().expect("a sum") - sum).abs() < CLOSE, "{case}");
        }
        let count = array(&line["scores"]).len();
        assert_eq!(count, array(&question["scores"]).len(), "{name}");
    }
    assert_eq!(found.len(), questions.len(), "{name}");
}

#[test]
fn scores_are_transformers() {
    let place = Place::new();
    for name in ["llama", "opt", "gemma3", "olmoe"] {
        for options in [&[][..], &["--device", "emulated"], &["--slots", "1"]] {
            check_questions(&place, name, &fixture(name), options);
        }
    }
}

/// Compares the perplexity of an excerpt, computed in windows, with transformers.
fn check_text(place: &Place, name: &str, model: &Path) {
    let expected = expected(name);
    let (found, sums) = score_excerpt(place, &expected, usize::MAX, model);
    let of_text = &expected["text"];
    assert_close(&json!(found), &of_text["token_logprobs"], name);
    for key in ["perplexity", "perplexity_of_windows"] {
        let [found, expected] = [&sums, of_text].map(|all| all[key].as_f64().expect("a number"));
        println!("{name}: {key} {found}, transformers {expected}");
        assert!((found / expected - 1.0).abs() < CLOSE_PERPLEXITY, "{name} {key} {sums}");
    }
    let tokens = of_text["tokens"].as_u64().expect("a number");
    assert_eq!(sums["tokens"], json!(tokens - 1), "every token but the first, once");
}

/// Scores at most `bytes` of an excerpt in windows, and returns the log-probabilities of its tokens
/// and the summary.
fn score_excerpt(
    place: &Place,
    expected: &Value,
    bytes: usize,
    model: &Path,
) -> (Vec<Value>, Value) {
    let (file, of_text) = (place.path("text.txt"), &expected["text"]);
    let excerpt = expected["excerpt"].as_str().expect("a text");
    let end = excerpt.floor_char_boundary(bytes.min(excerpt.len()));
    std::fs::write(&file, &excerpt[..end]).expect("writable");
    let number = |key: &str| of_text[key].as_u64().expect("a number").to_string();
    let summary = place.path("sums.json");
    let (context, stride) = (number("context"), number("stride"));
    let [file, sums] = [&file, &summary].map(|path| path.to_str().expect("UTF-8"));
    let options = ["--input", file, "--context", &context, "--stride", &stride];
    let more = ["--dtype", "f32", "--tokens", "--summary", sums];
    let found = scored(place, model, &[&options[..], &more].concat());
    let of_window = |line: &Value| array(&line["scores"][0]["token_logprobs"]).to_vec();
    let all = found.iter().flat_map(of_window).collect();
    let sums = std::fs::read(&summary).expect("sums");
    (all, serde_json::from_slice(&sums).expect("JSON"))
}

#[test]
fn a_text_has_the_perplexity_of_transformers_windows() {
    check_text(&Place::new(), "llama", &fixture("llama"));
}

fn check_texts(place: &Place, name: &str, model: &Path) {
    let expected = expected(name);
    let texts = array(&expected["texts"]);
    ask(place, texts.iter().map(asked));
    let found = scored(place, model, &["--tokens"]);
    for (line, text) in found.iter().zip(texts) {
        for (score, split) in array(&line["scores"]).iter().zip(array(&text["tokens"])) {
            assert_eq!(score["tokens"], split[1], "{name}: {text}");
        }
    }
    assert_eq!(found.len(), texts.len());
}

#[test]
fn texts_are_split_as_lm_eval_does_it() {
    check_texts(&Place::new(), "llama", &fixture("llama"));
}

/// Compares the real model over the first tokens of a text of 2,000 (`make fuzz`: all of them) with
/// transformers loading the same file.
#[test]
fn smollm2_is_scored() {
    let Some(model) = real_model() else {
        println!("SKIP smollm2_is_scored: the model is not there; scripts/model.sh fetches it");
        return;
    };
    let place = Place::new();
    check_texts(&place, "smollm2", &model);
    if runs_all_cases() {
        return check_text(&place, "smollm2", &model);
    }
    let expected = expected("smollm2");
    let (found, _) = score_excerpt(&place, &expected, 2400, &model);
    // What the cut leaves of the last word may be other tokens.
    let count = found.len() - 2;
    assert!(count > 400, "{count} tokens");
    let of_text = &array(&expected["text"]["token_logprobs"])[..count];
    assert_close(&json!(found[..count]), &json!(of_text), "smollm2");
}

/// Writes questions whose prompts share prefixes, for a model that takes a while to score them.
fn many(place: &Place, count: u32) {
    ask(
        place,
        (0..count).map(|i| {
            let prompt: Vec<u32> =
                (0..20 + i % 30).map(|j| 5 + j * 3 % 200 + (j / 12) * (i % 4)).collect();
            let after = |k: u32| (0..1 + k).map(|j| 9 + (i + j * k) % 300).collect::<Vec<u32>>();
            json!({"custom_id": format!("q{i}"), "prompt": prompt,
            "continuations": (0..4).map(after).collect::<Vec<_>>()})
        }),
    );
}

fn bytes(place: &Place) -> Vec<u8> {
    std::fs::read(place.path("out.jsonl")).expect("written")
}

#[test]
fn no_slots_chunks_or_placement_change_a_bit() {
    let place = Place::new();
    many(&place, 40);
    scored(&place, &fixture("llama"), &["--top", "5"]);
    let whole = bytes(&place);
    for options in [
        &["--slots", "1"][..],
        &["--slots", "7", "--prefill-chunk", "16"],
        &["--device", "emulated", "--split", "scores:norm1"],
        &["--device", "emulated", "--policy", "gpu-only", "--slots", "3"],
    ] {
        scored(&place, &fixture("llama"), &[&["--top", "5"], options].concat());
        assert!(bytes(&place) == whole, "{options:?}");
    }
}

#[test]
fn a_prompt_is_computed_once_for_its_continuations() {
    let place = Place::new();
    let prompt: Vec<u32> = (0..65).map(|i| 5 + i * 7 % 300).collect();
    let continuations: Vec<[u32; 2]> = (0..8).map(|i| [5 + i, 9]).collect();
    ask(&place, std::iter::once(json!({"prompt": prompt, "continuations": continuations})));
    let sums = place.path("sums.json");
    scored(&place, &fixture("llama"), &["--summary", sums.to_str().expect("UTF-8")]);
    let sums: Value = serde_json::from_slice(&std::fs::read(sums).expect("sums")).expect("JSON");
    // Whole pages of 16 before the prompt's last token, whose row predicts the first token of a
    // continuation.
    assert_eq!(sums["cached_tokens"], json!(7 * 64), "{sums}");
    assert_eq!(sums["computed_tokens"], json!(66 + 7 * 2), "{sums}");
}

#[test]
fn all_of_a_vocabulary_adds_up_to_one() {
    let place = Place::new();
    many(&place, 2);
    let found = scored(&place, &fixture("llama"), &["--top", "320", "--dtype", "f32"]);
    let top = array(&found[1]["scores"][3]["top_logprobs"][2]);
    let logprob = |pair: &Value| pair[1].as_f64().expect("a number");
    assert_eq!(top.len(), 320);
    let sum: f64 = top.iter().map(|pair| logprob(pair).exp()).sum();
    assert!((sum - 1.0).abs() < 1e-4, "{sum}");
    assert!(top.windows(2).all(|pair| logprob(&pair[0]) >= logprob(&pair[1])));
    let done = run(&place, &fixture("llama"), &["--top", "321", "--force"]);
    assert_eq!(done.status.code(), Some(2), "{}", text(&done.stderr));
}

/// Options for a model large enough that scoring takes a while.
const SLOW: [&str; 6] = ["--dummy-weights", "--layers", "6", "--slots", "1", "--quiet"];

/// Starts scoring, and waits until some lines are on disk.
fn begin(place: &Place, model: &str, extra: &[&str]) -> std::process::Child {
    let mut command = coordinator();
    command.arg("score").args(["--model", model]).args(SLOW).args(extra);
    command.arg("--input").arg(place.path("in.jsonl"));
    command.arg("--output").arg(place.path("out.jsonl")).stderr(Stdio::piped());
    let child = command.spawn().expect("starts");
    let until = Instant::now() + WATCHDOG;
    let written = || std::fs::read(place.path("out.jsonl")).unwrap_or_default();
    while written().is_empty() {
        assert!(Instant::now() < until, "nothing is written");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child
}

fn pid(child: u32) -> Pid {
    Pid::from_raw(child.cast_signed()).expect("a process id")
}

#[test]
fn deaths_change_no_byte() {
    let place = Place::new();
    many(&place, 24);
    let slow =
        |extra: &[&str]| run(&place, Path::new("smollm2-135m"), &[&SLOW[..], extra].concat());
    let done = slow(&[]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let whole = bytes(&place);
    let remove = || std::fs::remove_file(place.path("out.jsonl")).expect("removed");

    // The coordinator is killed during the run.
    remove();
    let mut child = begin(&place, "smollm2-135m", &[]);
    kill_process(pid(child.id()), Signal::KILL).expect("it runs");
    child.wait().expect("it ends");
    let left = bytes(&place);
    assert!(left.len() < whole.len(), "it was killed too late");
    let done = slow(&["--resume"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(bytes(&place) == whole, "as if nothing had happened");

    // A worker is killed during the run.
    remove();
    let child = begin(&place, "smollm2-135m", &[]);
    let workers = workers_of_any(child.id());
    kill_process(pid(workers[0].0), Signal::KILL).expect("it runs");
    let done = finish(child);
    let said = text(&done.stderr);
    assert!(done.status.success(), "{said}");
    assert!(said.contains("started again"), "{said}");
    assert!(bytes(&place) == whole, "as if nothing had happened");

    // Ctrl-C during the run.
    remove();
    let child = begin(&place, "smollm2-135m", &[]);
    kill_process(pid(child.id()), Signal::INT).expect("it runs");
    let done = finish(child);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(130), "{said}");
    assert!(said.contains("continue with --resume"), "{said}");
    assert!(slow(&["--resume"]).status.success());
    assert!(bytes(&place) == whole, "as if nothing had happened");
}

#[test]
fn scores_have_reports_and_traces() {
    let place = Place::new();
    many(&place, 12);
    scored(&place, &fixture("llama"), &[]);
    let whole = bytes(&place);
    let [report, trace] = ["report.json", "trace.json"].map(|name| place.path(name));
    let [report_arg, trace_arg] = [&report, &trace].map(|path| path.to_str().expect("UTF-8"));
    let measured = ["--report", report_arg, "--trace", trace_arg];
    scored(&place, &fixture("llama"), &measured);
    assert!(bytes(&place) == whole, "the same scores");
    let read = |path: &Path| -> Value {
        serde_json::from_slice(&std::fs::read(path).expect("written")).expect("JSON")
    };
    let counts = json!({"answered": 12, "failed": 0, "cut": 0, "not_run": 0});
    assert_eq!(read(&report)["requests"], counts);
    assert!(read(&trace)["traceEvents"].as_array().is_some_and(|spans| !spans.is_empty()));
    let done = run(&place, &fixture("llama"), &["--force", "--report", "-", "--trace", "-"]);
    assert_eq!(done.status.code(), Some(2), "{}", text(&done.stderr));
    let output = place.path("out.jsonl");
    let done =
        run(&place, &fixture("llama"), &["--force", "--report", output.to_str().expect("UTF-8")]);
    assert_eq!(done.status.code(), Some(2), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("--report and --output"), "{}", text(&done.stderr));
}

#[test]
fn what_goes_wrong_is_said() {
    let place = Place::new();
    let refused = |options: &[&str], code: i32, sentence: &str| {
        let done = run(&place, &fixture("llama"), options);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{options:?}: {said}");
        assert!(said.contains(sentence), "{options:?}: {said}");
    };
    let input: Vec<String> = [r#"{"prompt": "a", "continuations": ["b"]}"#, r#"{"prompt": "a"}"#]
        .map(str::to_owned)
        .into();
    std::fs::write(place.path("in.jsonl"), input.join("\n")).expect("writable");
    refused(&[], 3, "line 2: Missing required parameter: 'continuations'.");
    refused(&[], 1, "--resume");
    refused(&["--force", "--stride", "4"], 2, "--stride");
    refused(&["--resume", "--dtype", "f32"], 1, "another model, dtype");
    let file = place.path("short.txt");
    std::fs::write(&file, "").expect("writable");
    let file = file.to_str().expect("UTF-8");
    refused(&["--force", "--input", file], 1, "tokens; at least two");
    refused(&["--force", "--input", file, "--context", "4096"], 2, "positions");
}

/// Runs the first commands of docs/evaluation.md on a tiny model.
#[test]
fn documented_commands_evaluate() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/evaluation.md");
    let page = std::fs::read_to_string(path).expect("a page");
    let block = page.split("```").nth(1).expect("a block").trim_start_matches("sh\n");
    assert_eq!(block.lines().filter(|line| line.contains("coordinator score")).count(), 2);
    let place = Place::new();
    std::fs::write(place.path("text.txt"), expected("llama")["excerpt"].as_str().expect("a text"))
        .expect("writable");
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_coordinator"));
    let script = block
        .replace("coordinator score", &format!("{} score", binary.display()))
        .replace("./SmolLM2-135M-Instruct", &fixture("llama").display().to_string())
        .replace("--context 1024 --stride 512", "--context 64 --stride 32");
    let mut command = std::process::Command::new("sh");
    command.arg("-ec").arg(&script).current_dir(place.path("")).stderr(Stdio::piped());
    let done = finish(command.spawn().expect("starts"));
    assert!(done.status.success(), "{script}\n{}", text(&done.stderr));
    let found = lines(&place.path("scores.jsonl"));
    assert_eq!(array(&found[0]["scores"]).len(), 2, "{found:?}");
    assert!(text(&done.stderr).contains("perplexity"), "{}", text(&done.stderr));
}
