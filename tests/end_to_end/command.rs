//! Helpers for running the binary: directories, arguments, results, and a watchdog.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Time limit of any run; longer ones count as hung.
pub const WATCHDOG: Duration = Duration::from_secs(120);

/// Returns true if all cases run (`make fuzz`), not only the sample of `make test`.
pub fn runs_all_cases() -> bool {
    std::env::var_os("TANDEM_FUZZ_CASES").is_some()
}

/// Returns the directory of a fixture model.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

/// Returns the golden answers of a fixture.
pub fn golden(name: &str) -> Value {
    let path = fixture(name).join("golden.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).expect("golden.json is JSON")
}

/// Returns the small real model if `scripts/model.sh` has fetched it.
pub fn real_model() -> Option<PathBuf> {
    let file = "../.cache/models/smollm2-135m-instruct-q4_1.gguf";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    path.is_file().then_some(path)
}

/// Returns the token IDs of a JSON array.
pub fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .expect("an array")
        .iter()
        .map(|id| id.as_u64().expect("an id") as u32)
        .collect()
}

/// Returns a command for the binary, without arguments.
pub fn coordinator() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coordinator"));
    command.env_remove("TANDEM_KERNELS").stdin(Stdio::null());
    command
}

/// Temporary directory for the files of one test.
#[derive(Debug)]
pub struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        Place { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    /// Creates a directory next to the build output, which is on a drive even if `/tmp` is in
    /// memory.
    pub fn on_drive() -> Place {
        let beside = env!("CARGO_TARGET_TMPDIR");
        std::fs::create_dir_all(beside).expect("a folder for tests");
        Place { folder: tempfile::tempdir_in(beside).expect("a temporary folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a batch file of token ID prompts that ignore EOS, with `max_tokens` new tokens each.
    pub fn requests(&self, name: &str, prompts: &[Vec<u32>], max_tokens: u32) -> PathBuf {
        let lines: Vec<String> = prompts
            .iter()
            .enumerate()
            .map(|(i, prompt)| {
                let body = json!({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true});
                let url = "/v1/completions";
                json!({"custom_id": format!("p{i}"), "method": "POST", "url": url, "body": body})
                    .to_string()
            })
            .collect();
        let path = self.path(name);
        std::fs::write(&path, lines.join("\n") + "\n").expect("a writable folder");
        path
    }

    /// Answers short lines with the fixture `llama`, asserts success and returns the lines of the
    /// output.
    pub fn answered(&self, bodies: &[Value], options: &[&str]) -> Vec<Value> {
        self.answered_by("llama", bodies, options)
    }

    /// Answers short lines with a fixture, asserts success and returns the lines of the output.
    pub fn answered_by(&self, name: &str, bodies: &[Value], options: &[&str]) -> Vec<Value> {
        let input: String = bodies.iter().map(|body| format!("{body}\n")).collect();
        std::fs::write(self.path("in.jsonl"), input).expect("a writable folder");
        let output = self.path("out.jsonl");
        let mut command = coordinator();
        command.arg("--model").arg(fixture(name)).arg("--input").arg(self.path("in.jsonl"));
        command.arg("--output").arg(&output).args(["--force", "--quiet"]).args(options);
        let done = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
        assert!(done.status.success(), "{options:?}: {}", text(&done.stderr));
        lines(&output)
    }

    /// Answers `in.jsonl` with the fixture `llama`, asserts success and returns the output and the
    /// report.
    pub fn reported(&self, options: &[&str]) -> (String, Value) {
        let (output, report) = (self.path("out.jsonl"), self.path("report.json"));
        let mut command = coordinator();
        command.arg("--model").arg(fixture("llama")).arg("--input").arg(self.path("in.jsonl"));
        command.arg("--output").arg(&output).arg("--report").arg(&report);
        command.args(["--force", "--quiet"]).args(options);
        let done = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
        assert!(done.status.success(), "{options:?}: {}", text(&done.stderr));
        let report = std::fs::read_to_string(&report).expect("a report");
        let report = serde_json::from_str(&report).expect("JSON");
        (std::fs::read_to_string(&output).expect("answers"), report)
    }

    /// Runs with `--input`, `--output` and the arguments in `extra`, asserts success and returns
    /// the token IDs of the answers.
    pub fn answers(&self, model: &Path, input: &Path, extra: &[&str]) -> Vec<Vec<u32>> {
        let output = self.path("out.jsonl");
        let mut command = coordinator();
        command.arg("--model").arg(model).arg("--input").arg(input).arg("--output").arg(&output);
        command.args(["--quiet", "--force"]).args(extra);
        let done = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
        assert!(done.status.success(), "{extra:?}: {}", text(&done.stderr));
        token_ids(&output)
    }
}

/// Waits for a process and collects its output; kills it and panics after [`WATCHDOG`].
pub fn finish(mut child: Child) -> Output {
    let begun = Instant::now();
    // Read while waiting: a full pipe would block the process.
    let stdout = child.stdout.take().map(read_whole);
    let stderr = child.stderr.take().map(read_whole);
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if begun.elapsed() > WATCHDOG {
            child.kill().expect("a child");
            panic!("still running after {WATCHDOG:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let read = |reader: Option<JoinHandle<Vec<u8>>>| {
        reader.map(|reader| reader.join().expect("its output")).unwrap_or_default()
    };
    Output { status, stdout: read(stdout), stderr: read(stderr) }
}

fn read_whole(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).expect("its output");
        bytes
    })
}

/// Converts bytes to text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the token IDs of the first choice of every line of an output file.
pub fn token_ids(output: &Path) -> Vec<Vec<u32>> {
    lines(output)
        .iter()
        .map(|line| ids(&line["response"]["body"]["choices"][0]["token_ids"]))
        .collect()
}

/// Parses the lines of an output file.
pub fn lines(output: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(output).expect("an output file");
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON line")).collect()
}
