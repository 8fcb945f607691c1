//! Tests of long documents that are computed once, kept on disk and used by other processes.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::command::{Place, WATCHDOG, coordinator, finish, fixture, lines, text};
use crate::serve::Served;

/// Layers of a known model with seeded weights and a context of 8192 positions.
const MODEL: [&str; 7] =
    ["--model", "smollm2-135m", "--dummy-weights", "--layers", "2", "--device", "none"];

/// Positions per page.
const PAGE: usize = 256;
const DOCUMENT: usize = 2344;

fn serve(options: &[&str]) -> Served {
    Served::of(&[&MODEL[..], options].concat())
}

/// Returns a request for a document of `document` tokens followed by a question.
fn question(index: usize, document: usize) -> Value {
    let tokens = (0..document).map(|i| (i * 37 + 11) % 40_000);
    let asked = (0..3 + index).map(|i| (index * 101 + i * 13) % 40_000);
    let prompt: Vec<usize> = tokens.chain(asked).collect();
    json!({"prompt": prompt, "max_tokens": 5, "temperature": 0, "logprobs": 2})
}

/// Returns the choices of an answer, and the number of cached tokens.
fn ask(served: &Served, question: &Value) -> (Value, u64) {
    let (status, body) = served.post("/v1/completions", question);
    assert_eq!(status, 200, "{body}");
    let mut body: Value = serde_json::from_str(&body).expect("JSON");
    let cached = &body["usage"]["prompt_tokens_details"]["cached_tokens"];
    let cached = cached.as_u64().unwrap_or(0);
    (body["choices"].take(), cached)
}

fn metric(served: &Served, name: &str) -> u64 {
    let (_, metrics) = served.get("/metrics");
    let line = metrics.lines().find(|line| line.starts_with(&format!("tandem_{name}_total ")));
    let line = line.unwrap_or_else(|| panic!("{name} in {metrics}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a count")
}

fn pages(store: &Path) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(store).into_iter().flatten().flatten();
    let files = folders.flat_map(|folder| std::fs::read_dir(folder.path()).into_iter().flatten());
    let mut files: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "kv"));
    files
}

fn cache(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = coordinator();
    command.arg("cache").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = finish(command.spawn().expect("starts"));
    (done.status.code(), text(&done.stdout).to_owned() + &text(&done.stderr))
}

/// Four questions in another process compute none of the document's rows, and get the same
/// answers as without a store; other weights and another format do not use it.
#[test]
fn a_document_is_computed_once_for_all_processes() {
    let place = Place::new();
    let store = place.path("prompts");
    let store = store.to_str().expect("UTF-8");
    let with = ["--prompt-cache", store];
    let questions: Vec<Value> = (0..4).map(|index| question(index, DOCUMENT)).collect();
    let plain = serve(&[]);
    let expected: Vec<Value> = questions.iter().map(|question| ask(&plain, question).0).collect();
    plain.end();
    let first = serve(&with);
    assert_eq!(ask(&first, &questions[0]), (expected[0].clone(), 0));
    first.end();
    let document = (DOCUMENT / PAGE * PAGE) as u64;
    assert_eq!(pages(Path::new(store)).len(), DOCUMENT / PAGE);
    let other = serve(&with);
    for (index, (question, expected)) in questions.iter().zip(&expected).enumerate() {
        // After the first question the rest of the document is in memory, in a part of a page.
        let found = if index == 0 { document } else { DOCUMENT as u64 };
        assert_eq!(ask(&other, question), (expected.clone(), found), "question {index}");
    }
    let rows: usize =
        questions.iter().map(|one| one["prompt"].as_array().expect("tokens").len()).sum();
    let found = document + 3 * DOCUMENT as u64;
    assert_eq!(metric(&other, "prompt_tokens"), rows as u64 - found);
    assert_eq!(metric(&other, "prompt_store_tokens"), document, "read once, then in memory");
    assert_eq!(metric(&other, "prompt_store_hits"), 1);
    assert!(metric(&other, "prompt_store_read_bytes") > 0);
    assert_eq!(other.end(), "", "nothing is wrong with it");
    for options in [&["--seed", "7"][..], &["--compress", "kv8"]] {
        let foreign = serve(&[options, &with[..], &["--prompt-cache-min", "4000"]].concat());
        assert_eq!(ask(&foreign, &questions[0]).1, 0, "{options:?}");
        foreign.end();
    }
    lists_and_removes(store);
}

fn lists_and_removes(store: &str) {
    let (code, listed) = cache(&["list", store, "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap_or_else(|_| panic!("{listed}"));
    assert_eq!(code, Some(0));
    let beginnings = &listed["models"][0]["beginnings"];
    assert_eq!(beginnings[0]["tokens"], DOCUMENT / PAGE * PAGE, "{listed}");
    let size: u64 = pages(Path::new(store))
        .iter()
        .map(|page| std::fs::metadata(page).expect("a page").len())
        .sum();
    assert_eq!(listed["size_bytes"], size);
    let (_, table) = cache(&["list", store]);
    let name = &beginnings[0]["name"].as_str().expect("a name")[..12];
    assert!(table.contains(name) && table.contains("smollm2-135m"), "{table}");
    let (code, said) = cache(&["rm", store, "0123"]);
    assert_eq!(code, Some(2), "{said}");
    assert_eq!(cache(&["rm", store]).0, Some(2), "it must be said what");
    assert_eq!(cache(&["rm", store, "--unused-days", "1"]).0, Some(0));
    assert_eq!(pages(Path::new(store)).len(), DOCUMENT / PAGE, "all were used just now");
    let (code, said) = cache(&["rm", store, name]);
    assert!(code == Some(0) && said.contains("removed ") && said.contains(" MiB"), "{said}");
    assert_eq!(pages(Path::new(store)).len(), 0);
    assert!(cache(&["list", store]).1.contains("no prompt prefixes are stored"));
    assert_eq!(cache(&["list", "/nowhere/at/all"]).0, Some(1));
}

/// The computed part of a prompt is kept if its server is stopped in the middle.
#[test]
fn an_interrupted_prompt_goes_on_where_it_was() {
    const LONG: usize = 2900;
    let place = Place::new();
    let store = place.path("prompts");
    let with = ["--prompt-cache", store.to_str().expect("UTF-8"), "--drain-timeout", "0"];
    let asked = question(1, LONG);
    let plain = serve(&[]);
    let expected = ask(&plain, &asked).0;
    plain.end();
    let interrupted = serve(&with);
    let served = &interrupted;
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| served.post("/v1/completions", &asked));
        let until = Instant::now() + WATCHDOG;
        while pages(&store).len() < 3 && !asking.is_finished() {
            assert!(Instant::now() < until, "nothing is stored");
            std::thread::sleep(Duration::from_millis(2));
        }
        served.terminate();
        asking.join().expect("an answer, or a sentence");
    });
    interrupted.wait();
    let kept = (pages(&store).len() * PAGE) as u64;
    assert!(kept >= 3 * PAGE as u64, "{kept}");
    let again = serve(&with);
    assert_eq!(ask(&again, &asked), (expected, kept));
    again.end();
}

/// Uses pipes without writers in place of pages on a drive that does not answer.
#[test]
fn pages_that_are_no_files_hold_nobody_up() {
    let place = Place::new();
    let store = place.path("prompts");
    let with = ["--prompt-cache", store.to_str().expect("UTF-8"), "--prompt-cache-min", "256"];
    let asked = question(1, 700);
    let first = serve(&with);
    let expected = ask(&first, &asked).0;
    first.end();
    for page in pages(&store) {
        std::fs::remove_file(&page).expect("it is there");
        let made = std::process::Command::new("mkfifo").arg(&page).status().expect("it runs");
        assert!(made.success());
    }
    let served = serve(&with);
    assert_eq!(ask(&served, &asked), (expected, 0));
    assert_eq!(metric(&served, "prompt_store_refused"), 1);
    let said = served.end();
    assert!(said.contains("not a regular file; it is computed again"), "{said}");
}

/// Scoring reads what scoring has stored, here records of 8 bits, and reports a damaged page.
#[test]
fn scores_keep_and_find_beginnings() {
    let place = Place::new();
    let store = place.path("prompts");
    let line = |index: usize| {
        let asked = question(index, 700);
        json!({"prompt": asked["prompt"], "continuations": [[5, 6], [7]]}).to_string()
    };
    let input: Vec<String> = (0..3).map(line).collect();
    std::fs::write(place.path("in.jsonl"), input.join("\n")).expect("writable");
    let score = |options: &[&str]| {
        let mut command = coordinator();
        command.args(["score", "--force", "--input", "in.jsonl", "--output", "out.jsonl"]);
        command.args(MODEL).args(["--compress", "kv8"]).args(options);
        command.current_dir(place.path("")).stderr(Stdio::piped());
        let done = finish(command.spawn().expect("starts"));
        assert!(done.status.success(), "{}", text(&done.stderr));
        (lines(&place.path("out.jsonl")), text(&done.stderr).to_owned())
    };
    let store_text = store.to_str().expect("UTF-8");
    let with = ["--prompt-cache", store_text, "--prompt-cache-min", "256"];
    let (expected, _) = score(&[]);
    assert_eq!(score(&with).0, expected);
    assert_eq!(pages(&store).len(), 2);
    for page in pages(&store) {
        let mut bytes = std::fs::read(&page).expect("a page");
        *bytes.last_mut().expect("a byte") ^= 1;
        std::fs::write(&page, bytes).expect("writable");
    }
    let (found, said) = score(&with);
    assert_eq!(found, expected);
    assert!(said.contains("is not used: it is damaged"), "{said}");
    assert_eq!(score(&with).0, expected);
}

/// Caches that cannot be stored are refused before anything is loaded.
#[test]
fn caches_that_are_not_in_pages_are_refused() {
    let place = Place::new();
    let store = place.path("prompts");
    for family in ["deepseek_v4_windows", "gemma4", "mistral_window"] {
        if !fixture(family).exists() {
            println!("SKIP caches_that_are_not_in_pages_are_refused: no fixture {family}");
            continue;
        }
        let mut command = coordinator();
        command.args(["serve", "--port", "0", "--device", "none", "--model"]);
        command.arg(fixture(family)).arg("--prompt-cache").arg(&store);
        command.stderr(Stdio::piped()).stdout(Stdio::null());
        let done = finish(command.spawn().expect("starts"));
        assert_eq!(done.status.code(), Some(2), "{}", text(&done.stderr));
        assert!(text(&done.stderr).contains("--prompt-cache"), "{}", text(&done.stderr));
    }
}

/// Runs the commands under "Long documents" of docs/prompt-cache.md on layers of a known model.
#[test]
fn documented_commands_ask_about_a_document() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/prompt-cache.md");
    let page = std::fs::read_to_string(path).expect("a page");
    let section = page.split("\n## Long documents\n").nth(1).expect("a section");
    let block = section.split("```").nth(1).expect("a block").trim_start_matches("sh\n");
    assert_eq!(block.lines().filter(|line| line.starts_with("coordinator ")).count(), 3);
    let place = Place::new();
    let write = |name: &str, of: std::ops::Range<usize>| {
        let text: Vec<String> = of.map(|index| question(index, DOCUMENT).to_string()).collect();
        std::fs::write(place.path(name), text.join("\n")).expect("writable");
    };
    write("questions.jsonl", 0..4);
    write("more.jsonl", 4..10);
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_coordinator"));
    let (model, binary) = (MODEL[1..].join(" "), binary.display().to_string());
    let script = block.replace("coordinator ", &format!("{binary} ")).replace("./SmolLM2", &model);
    let run = |script: &str| {
        let mut command = std::process::Command::new("sh");
        command.arg("-ec").arg(script).current_dir(place.path(""));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let done = finish(command.spawn().expect("starts"));
        assert!(done.status.success(), "{script}\n{}", text(&done.stderr));
        (text(&done.stdout).to_owned(), text(&done.stderr).to_owned())
    };
    let (listed, said) = run(&script);
    assert!(
        listed.contains("smollm2-135m") && listed.contains(&(DOCUMENT / PAGE * PAGE).to_string()),
        "{listed}"
    );
    let read = format!("; {} were read from the prompt cache", DOCUMENT / PAGE * PAGE);
    assert!(said.contains(&read), "{said}");
    let kept = [lines(&place.path("answers.jsonl")), lines(&place.path("more-answers.jsonl"))];
    let without = script.replace(" --prompt-cache ./prompts", " --force");
    let without: String = without.lines().take(2).map(|line| format!("{line}\n")).collect();
    run(&without);
    let plain = [lines(&place.path("answers.jsonl")), lines(&place.path("more-answers.jsonl"))];
    let choices = |answers: &[Vec<Value>; 2]| -> Vec<Value> {
        answers.iter().flatten().map(|line| line["response"]["body"]["choices"].clone()).collect()
    };
    assert_eq!(choices(&kept).len(), 10);
    assert_eq!(choices(&kept), choices(&plain));
    refused(&["--prompt-cache", "p"], "of --input or of a server");
}

/// Asserts that a contradictory command line is refused with `sentence`.
fn refused(options: &[&str], sentence: &str) {
    let mut command = coordinator();
    command.args(MODEL).args(options).stderr(Stdio::piped()).stdout(Stdio::null());
    let done = finish(command.spawn().expect("starts"));
    assert_eq!(done.status.code(), Some(2), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains(sentence), "{}", text(&done.stderr));
}
