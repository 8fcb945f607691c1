//! Tests of fallbacks for what a driver cannot do or wrongly reports as done: one process instead
//! of two, waits on the host instead of on streams, own kernels instead of cuBLASLt.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::{Place, coordinator, finish, text, token_ids};
use crate::cuda::{command, folder, folder_with_blas, loud};

const ON_DEVICE: [&str; 6] = ["--device", "cuda:0", "--policy", "gpu-only", "--batches", "2x2"];

/// Writes four prompts, which make one group.
fn requests(place: &Place) -> std::path::PathBuf {
    let prompts: Vec<Vec<u32>> = (0..4u32).map(|i| vec![3 + i, 4, 9]).collect();
    place.requests("in.jsonl", &prompts, 4)
}

/// Returns the answers, the report, and the messages of a run.
fn answers(
    place: &Place,
    input: &Path,
    extra: &[&str],
    set: &[(&str, &str)],
) -> (Vec<Vec<u32>>, String, String) {
    answers_of(place, command(place, "llama", input, extra, set))
}

/// Runs a command that answers requests; see [`answers`].
fn answers_of(place: &Place, mut command: Command) -> (Vec<Vec<u32>>, String, String) {
    let done = finish(command.spawn().expect("starts"));
    let said = text(&done.stderr);
    assert!(done.status.success(), "{command:?}: {said}");
    let report = std::fs::read_to_string(place.path("report")).expect("a report");
    (token_ids(&place.path("out.jsonl")), report, said)
}

/// Returns everything that processes have logged to `log.PID`, and removes the logs.
pub fn logged(log: &Path) -> String {
    let start = format!("{}.", log.file_name().expect("a name").to_string_lossy());
    let files = std::fs::read_dir(log.parent().expect("a folder")).expect("a folder");
    let names =
        files.flatten().filter(|file| file.file_name().to_string_lossy().starts_with(&start));
    let mut all = String::new();
    for file in names {
        all += &std::fs::read_to_string(file.path()).expect("a log");
        std::fs::remove_file(file.path()).expect("it can be removed");
    }
    all
}

/// Streams that share a channel of the device block each other. Training programs are run with a
/// single channel and leave the variable set in a user's shell.
#[test]
fn workers_have_a_channel_for_each_stream_whatever_the_environment_says() {
    let place = Place::new();
    let input = requests(&place);
    for split in ["scores:wv", "gate:"] {
        let set = [("CUDA_DEVICE_MAX_CONNECTIONS", "1"), ("TANDEM_WAIT_S", "8")];
        let extra = ["--device", "cuda:0", "--split", split, "--batches", "2x2"];
        answers(&place, &input, &extra, &set);
    }
}

#[test]
fn waits_are_done_on_the_host_where_that_is_asked() {
    let place = Place::new();
    let input = requests(&place);
    let (whole, report, _) = answers(&place, &input, &ON_DEVICE, &[]);
    assert!(!report.contains("waiting on the host"), "{report}");
    let log = place.path("calls").display().to_string();
    let set = [("TANDEM_WAITS", "host"), ("STANDIN_CUDA_LOG", log.as_str())];
    let (same, report, _) = answers(&place, &input, &ON_DEVICE, &set);
    assert_eq!(same, whole);
    assert!(report.contains("waiting on the host: TANDEM_WAITS is set"), "{report}");
    let calls = logged(&place.path("calls"));
    assert!(calls.contains("cuLaunchKernel") && !calls.contains("cuStreamWaitValue32"));
}

/// Simulates a driver whose streams never see the word that they wait for.
#[test]
fn lanes_that_stand_still_at_the_start_start_once_more_with_waits_on_the_host() {
    let place = Place::new();
    let input = requests(&place);
    let (whole, ..) = answers(&place, &input, &ON_DEVICE, &[]);
    let split = ["--device", "cuda:0", "--split", "scores:wv", "--batches", "2x2"];
    for extra in [&ON_DEVICE[..], &split] {
        let set = [("STANDIN_CUDA_DEAF", "1"), ("TANDEM_WAIT_S", "4")];
        let (same, report, said) = answers_of(&place, loud(&place, "llama", &input, extra, &set));
        assert_eq!(same, whole);
        assert!(said.contains("in safe mode"), "{said}");
        for how in
            ["copying in the gpu worker: lanes stalled", "waiting on the host: lanes stalled"]
        {
            assert!(report.contains(how), "{how}: {report}");
        }
    }
    // If waits were already on the host, they are not the cause.
    let set = [("STANDIN_CUDA_HANG", "60"), ("TANDEM_WAIT_S", "4"), ("TANDEM_WAITS", "host")];
    let done = finish(loud(&place, "llama", &input, &ON_DEVICE, &set).spawn().expect("starts"));
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(!said.contains("in safe mode") && said.contains("kernel may hang"), "{said}");
}

/// Simulates exclusive compute mode, a partition, and too little memory for another context.
#[test]
fn a_device_that_takes_one_process_is_used_by_one() {
    let place = Place::new();
    let input = requests(&place);
    let (whole, ..) = answers(&place, &input, &ON_DEVICE, &[]);
    let folder = place.path("contexts");
    std::fs::create_dir(&folder).expect("a folder");
    for code in ["46", "2", "801"] {
        let second = format!("{}:{code}", folder.display());
        let set = [("STANDIN_CUDA_SECOND", second.as_str())];
        let (same, report, _) = answers(&place, &input, &ON_DEVICE, &set);
        assert_eq!(same, whole, "{code}");
        let words = ["copying in the gpu worker: a second process cannot use the device", code];
        assert!(words.iter().all(|word| report.contains(word)), "{code}: {report}");
    }
}

#[test]
fn a_product_that_refuses_a_number_of_rows_is_our_own_kernels() {
    let place = Place::new();
    let prompts: Vec<Vec<u32>> =
        (1..5u32).map(|n| (0..6 * n).map(|i| 3 + i + n).collect()).collect();
    let input = place.requests("in.jsonl", &prompts, 3);
    let with_blas = folder_with_blas(&place).to_str().expect("a plain path").to_owned();
    let extra = [&ON_DEVICE[..], &["--dtype", "bf16"]].concat();
    let library = ("LD_LIBRARY_PATH", with_blas.as_str());
    let (whole, report, _) = answers(&place, &input, &extra, &[library]);
    assert!(report.contains("prefill's linears by libcublasLt"), "{report}");
    for rows in ["1", "9", "17"] {
        let set = [library, ("STANDIN_BLAS_ROWS", rows)];
        let (own, report, _) = answers(&place, &input, &extra, &set);
        assert!(report.contains("linears by its own kernels"), "{rows}: {report}");
        assert_eq!(own, whole, "{rows}");
    }
}

/// Precompiled code is used if it exists for the device; PTX is used for other devices, and by
/// drivers that do not accept the code.
#[test]
fn kernels_are_loaded_as_compiled_for_the_device_and_else_compiled_by_the_driver() {
    let place = Place::new();
    let input = requests(&place);
    let (whole, ..) = answers(&place, &input, &ON_DEVICE, &[]);
    let log = place.path("calls").display().to_string();
    for (capability, cubins, expected) in [
        ("80", "1", "cubin 8.0"),
        ("86", "1", "cubin 8.6"),
        ("87", "1", "cubin 8.6"),
        ("89", "1", "cubin 8.9"),
        ("90", "1", "cubin 9.0"),
        ("103", "1", "cubin 10.0"),
        ("121", "1", "cubin 12.0"),
        ("110", "1", "PTX"),
        ("90", "0", "PTX"),
    ] {
        let set = [
            ("STANDIN_CUDA_CAPABILITY", capability),
            ("STANDIN_CUDA_CUBINS", cubins),
            ("STANDIN_CUDA_LOG", log.as_str()),
        ];
        let (same, _, said) = answers(&place, &input, &ON_DEVICE, &set);
        assert_eq!(same, whole, "{capability}");
        let calls = logged(&place.path("calls"));
        let notes = calls.lines().filter_map(|line| line.strip_prefix("note: "));
        let images: Vec<&str> =
            notes.filter(|note| note.starts_with("cubin") || *note == "PTX").collect();
        assert_eq!(images, [expected], "{capability}, cubins {cubins}");
        assert!(!said.contains("compiling kernels"), "it takes no time: {said}");
    }
}

#[test]
fn compilation_that_takes_its_time_is_told_once() {
    let place = Place::new();
    let input = requests(&place);
    let set = [("STANDIN_CUDA_CUBINS", "0"), ("STANDIN_CUDA_COMPILE_MS", "1500")];
    let told = |mut command: Command| {
        let done = finish(command.spawn().expect("starts"));
        assert!(done.status.success(), "{}", text(&done.stderr));
        text(&done.stderr).matches("compiling kernels for this GPU, about half a minute").count()
    };
    assert_eq!(told(loud(&place, "llama", &input, &ON_DEVICE, &set)), 1);
    assert_eq!(told(command(&place, "llama", &input, &ON_DEVICE, &set)), 0);
}

#[test]
fn small_copies_are_timed_in_one_process_and_in_two() {
    let mut command = coordinator();
    command.env("LD_LIBRARY_PATH", folder()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.args(["device-rates", "0", "--small-copies", "--matrix", "64"]);
    let done = finish(command.spawn().expect("starts"));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let said: serde_json::Value = serde_json::from_str(&text(&done.stdout)).expect("JSON");
    let rows = said["small_copies"].as_array().expect("rows");
    assert_eq!(rows.len(), 8, "four sizes in two directions: {said}");
    for row in rows {
        for place in ["alone", "one_process", "two_processes"] {
            let (median, slow) = (&row[place]["median_us"], &row[place]["slow_us"]);
            let (median, slow) = (median.as_f64().expect("us"), slow.as_f64().expect("us"));
            assert!(0.0 < median && median <= slow, "{place}: {row}");
        }
    }
}
