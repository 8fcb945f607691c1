//! Tests of `--device cuda:0` with the stand-in driver: whole jobs on the device's own lanes,
//! reported as running on the stand-in. The stand-in's own tests drive the workers directly and are
//! exhaustive (every interval, 200 orders of streams, a failure at every call).

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use crate::command::{
    Place, coordinator, finish, fixture, golden, ids, runs_all_cases, text, token_ids,
};

/// Returns a directory with the stand-in under the names of the driver and of NVML.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let program = std::env::current_exe().expect("a test has a path");
        let library = program.with_file_name("libcuda_standin.so");
        assert!(library.is_file(), "{} is built beside the test", library.display());
        let name = format!("cuda{}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).expect("the folder can be made");
        for name in ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"] {
            let link = folder.join(name);
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(&library, link).expect("a link can be made");
        }
        folder
    })
}

/// Like [`loud`], without progress lines.
pub fn command(
    place: &Place,
    model: &str,
    input: &Path,
    extra: &[&str],
    set: &[(&str, &str)],
) -> Command {
    let mut command = loud(place, model, input, extra, set);
    command.arg("--quiet");
    command
}

/// Returns a command with the stand-in as this machine's driver that answers `input`.
pub fn loud(
    place: &Place,
    model: &str,
    input: &Path,
    extra: &[&str],
    set: &[(&str, &str)],
) -> Command {
    let mut command = coordinator();
    command.env("LD_LIBRARY_PATH", folder()).envs(set.iter().copied());
    command.arg("--model").arg(fixture(model)).arg("--input").arg(input);
    command.arg("--output").arg(place.path("out.jsonl")).arg("--report").arg(place.path("report"));
    command.args(extra);
    if !extra.contains(&"--dtype") {
        command.args(["--dtype", "f32"]);
    }
    if !extra.contains(&"--resume") {
        command.arg("--force");
    }
    command.stderr(Stdio::piped());
    command
}

pub fn run(
    place: &Place,
    model: &str,
    input: &Path,
    extra: &[&str],
    set: &[(&str, &str)],
) -> Output {
    finish(command(place, model, input, extra, set).spawn().expect("starts"))
}

/// Asserts that the first `count` tokens of a few golden prompts equal those of transformers;
/// returns the report.
fn equals_transformers(model: &str, count: usize, extra: &[&str], set: &[(&str, &str)]) -> String {
    let golden = golden(model);
    let list = |name: &str| -> Vec<Vec<u32>> {
        golden[name].as_array().expect("a list").iter().take(4).map(ids).collect()
    };
    let (prompts, tokens) = (list("prompts"), list("tokens"));
    let place = Place::new();
    let input = place.requests("in.jsonl", &prompts, count as u32);
    let done = run(&place, model, &input, extra, set);
    assert!(done.status.success(), "{extra:?}: {}", text(&done.stderr));
    let expected: Vec<Vec<u32>> = tokens.iter().map(|tokens| tokens[..count].to_vec()).collect();
    assert_eq!(token_ids(&place.path("out.jsonl")), expected, "{model} {extra:?}");
    std::fs::read_to_string(place.path("report")).expect("a report")
}

#[test]
fn golden_tokens_on_the_device_alone() {
    for model in ["opt", "llama"] {
        let extra = ["--device", "cuda:0", "--policy", "gpu-only", "--batches", "2x2"];
        let report = equals_transformers(model, 6, &extra, &[]);
        assert!(report.contains("cuda:0 stand-in"), "the report says what ran: {report}");
    }
}

#[test]
fn golden_tokens_of_a_split() {
    let extra = ["--device", "cuda:0", "--split", "scores:norm1", "--batches", "2x2"];
    equals_transformers("llama", 6, &extra, &[("STANDIN_CUDA_SEED", "7")]);
}

/// Returns a directory that contains the stand-in also under the name of cuBLASLt.
pub fn folder_with_blas(place: &Place) -> PathBuf {
    let library = std::fs::canonicalize(folder().join("libcuda.so.1")).expect("the stand-in");
    let with_blas = place.path("libraries");
    std::fs::create_dir(&with_blas).expect("the folder can be made");
    for name in ["libcuda.so", "libcuda.so.1", "libcublasLt.so.12"] {
        std::os::unix::fs::symlink(&library, with_blas.join(name)).expect("a link can be made");
    }
    with_blas
}

/// Writes requests and returns a function that runs them with cuBLASLt, given the model, its
/// compression and environment variables.
fn job_with_blas(place: &Place) -> impl Fn(&str, &str, &[(&str, &str)]) -> Output {
    let prompts: Vec<Vec<u32>> =
        (1..5).map(|n| (0..4 * n).map(|i| 3 + 7 * i + n).collect()).collect();
    let input = place.requests("in.jsonl", &prompts, 4);
    let with_blas = folder_with_blas(place).to_str().expect("a plain path").to_owned();
    move |model, compress, set| {
        // Runs in f32 always use the project's own kernels.
        let extra = ["--device", "cuda:0", "--policy", "gpu-only", "--batches", "2x2"];
        let extra = [&extra[..], &["--dtype", "bf16", "--compress", compress]].concat();
        let set = [&[("LD_LIBRARY_PATH", with_blas.as_str())], set].concat();
        run(place, model, &input, &extra, &set)
    }
}

#[test]
fn prefill_goes_through_cublaslt_where_it_is_and_gives_the_same_tokens() {
    let place = Place::new();
    let run = job_with_blas(&place);
    for (model, compress) in [("opt", "none"), ("llama", "none"), ("llama", "w4")] {
        let answers = |set: &[(&str, &str)]| {
            let done = run(model, compress, set);
            assert!(done.status.success(), "{model} {compress}: {}", text(&done.stderr));
            let report = std::fs::read_to_string(place.path("report")).expect("a report");
            (token_ids(&place.path("out.jsonl")), report)
        };
        let (own, report) = answers(&[("TANDEM_BLAS", "own")]);
        assert!(report.contains("linears by its own kernels"), "{report}");
        let (library, report) = answers(&[]);
        assert!(report.contains("prefill's linears by libcublasLt.so.12 (120000)"), "{report}");
        // Prefill determines the first tokens. Expanded weights are rounded to bf16, after which
        // near ties in these models soon lead to different tokens.
        let of_prefill =
            |answers: &[Vec<u32>]| answers.iter().map(|one| one[0]).collect::<Vec<_>>();
        assert_eq!(of_prefill(&own), of_prefill(&library), "{model} {compress}");
        assert!(compress != "none" || own == library, "{model}");
        // A library that refuses is not used.
        let (refused, report) = answers(&[("STANDIN_CUDA_FAIL", "cublasLtMatmul:1:15")]);
        assert!(report.contains("linears by its own kernels"), "{report}");
        assert_eq!(own, refused, "{model} {compress}");
    }
}

#[test]
fn a_refusal_of_any_call_of_cublaslt_ends_in_a_sentence_or_our_own_kernels() {
    let place = Place::new();
    let run = job_with_blas(&place);
    let answers = |set: &[(&str, &str)]| {
        let _ = std::fs::remove_file(place.path("out.jsonl"));
        run("llama", "none", set)
    };
    assert!(answers(&[]).status.success());
    let whole = token_ids(&place.path("out.jsonl"));
    let (mut fell_back, mut ended) = (0, 0);
    for call in [
        "cublasLtCreate",
        "cublasLtMatmulDescCreate",
        "cublasLtMatmulDescSetAttribute",
        "cublasLtMatrixLayoutCreate",
        "cublasLtMatrixLayoutSetAttribute",
        "cublasLtMatmulPreferenceCreate",
        "cublasLtMatmulPreferenceSetAttribute",
        "cublasLtMatmulAlgoGetHeuristic",
        "cublasLtMatmul",
    ] {
        // The first call, one in the middle of the run, and one of a trial at the start, which for
        // most calls is refused like the first.
        let count = if call == "cublasLtMatmul" || runs_all_cases() { 3 } else { 2 };
        for nth in [1, 100, 12].into_iter().take(count) {
            let done = answers(&[("STANDIN_CUDA_FAIL", &format!("{call}:{nth}:14"))]);
            let said = text(&done.stderr);
            assert!(!said.contains("panicked"), "{call}, call {nth}: {said}");
            if done.status.success() {
                assert_eq!(token_ids(&place.path("out.jsonl")), whole, "{call}, call {nth}");
                fell_back += 1;
            } else {
                assert!(said.contains("cuBLASLt"), "{call}, call {nth}: {said}");
                ended += 1;
            }
        }
    }
    assert!(fell_back >= 1 && ended >= 1, "{fell_back} fell back, {ended} ended");
}

#[test]
fn without_ipc_the_gpu_worker_copies_and_the_report_says_so() {
    let extra = ["--device", "cuda:0", "--policy", "gpu-only", "--batches", "2x2"];
    for call in ["cuIpcGetMemHandle:1:800", "cuIpcOpenMemHandle:1:800"] {
        let report = equals_transformers("llama", 3, &extra, &[("STANDIN_CUDA_FAIL", call)]);
        assert!(report.contains("CUDA IPC is refused"), "{call}: {report}");
    }
}

#[test]
fn a_device_is_chosen_by_default_and_vram_caps_its_arena() {
    let extra = ["--policy", "gpu-only", "--batches", "2x2"];
    let whole = equals_transformers("llama", 3, &extra, &[]);
    assert!(whole.contains("cuda:0 stand-in"), "{whole}");
    let bytes = |report: &str| {
        let report: serde_json::Value = serde_json::from_str(report).expect("JSON");
        report["budget_bytes"]["device"].as_u64().expect("bytes")
    };
    // One byte less than the largest plan takes, so that something is placed on the host.
    let cap = bytes(&whole) - 1;
    let vram = cap.to_string();
    let capped = equals_transformers("llama", 3, &[&extra[..], &["--vram", &vram]].concat(), &[]);
    assert!(bytes(&capped) <= cap, "{} > {cap}", bytes(&capped));
    let none =
        equals_transformers("llama", 3, &["--batches", "2x2"], &[("STANDIN_CUDA_DEVICES", "0")]);
    assert!(none.contains("\"device\": \"none\""), "{none}");
}
