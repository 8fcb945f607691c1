//! What a driver cannot do, or says it does and does not, has another way: one process instead of
//! two, waits on the host instead of on streams, our own kernels instead of cuBLASLt.

use std::path::Path;

use crate::command::{Place, text, token_ids};
use crate::cuda::{folder_with_blas, run};

const ON_DEVICE: [&str; 6] = ["--device", "cuda:0", "--policy", "gpu-only", "--batches", "2x2"];

/// Four prompts for one group.
fn requests(place: &Place) -> std::path::PathBuf {
    let prompts: Vec<Vec<u32>> = (0..4u32).map(|i| vec![3 + i, 4, 9]).collect();
    place.requests("in.jsonl", &prompts, 4)
}

/// Answers, the report, and what was said on the way.
fn answers(
    place: &Place,
    input: &Path,
    extra: &[&str],
    set: &[(&str, &str)],
) -> (Vec<Vec<u32>>, String, String) {
    let done = run(place, "llama", input, extra, set);
    let said = text(&done.stderr);
    assert!(done.status.success(), "{set:?}: {said}");
    let report = std::fs::read_to_string(place.path("report")).expect("a report");
    (token_ids(&place.path("out.jsonl")), report, said)
}

/// Streams that share a channel of the device hold each other up. Programs that train models are
/// run with one channel, and leave the variable set in a user's shell.
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
    assert!(report.contains("waiting on the host: as TANDEM_WAITS asks"), "{report}");
    let files = std::fs::read_dir(place.path("calls").parent().expect("a folder"));
    let logs = files.expect("a folder").flatten().filter(|file| {
        file.file_name().as_encoded_bytes().starts_with(b"calls.")
    });
    let calls: String =
        logs.map(|log| std::fs::read_to_string(log.path()).expect("a log")).collect();
    assert!(calls.contains("cuLaunchKernel") && !calls.contains("cuStreamWaitValue32"));
}

/// As with a driver whose streams never see the word that they wait for.
#[test]
fn lanes_that_stand_still_at_the_start_start_once_more_with_waits_on_the_host() {
    let place = Place::new();
    let input = requests(&place);
    let (whole, ..) = answers(&place, &input, &ON_DEVICE, &[]);
    for extra in [&ON_DEVICE[..], &["--device", "cuda:0", "--split", "scores:wv"]] {
        let set = [("STANDIN_CUDA_DEAF", "1"), ("TANDEM_WAIT_S", "8")];
        let (same, report, said) = answers(&place, &input, extra, &set);
        assert_eq!(same, whole);
        assert!(said.contains("started once more"), "{said}");
        for how in ["copying for itself: lanes stood still", "waiting on the host: lanes stood"] {
            assert!(report.contains(how), "{how}: {report}");
        }
    }
    // Where that is how they were started, it was not the waits.
    let set = [("STANDIN_CUDA_HANG", "60"), ("TANDEM_WAIT_S", "8"), ("TANDEM_WAITS", "host")];
    let done = run(&place, "llama", &input, &ON_DEVICE, &set);
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(!said.contains("started once more") && said.contains("kernel may hang"), "{said}");
}

/// The exclusive compute mode, a partition, too little memory for another context.
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
        let words = ["copying for itself: a second process cannot use the device", code];
        assert!(words.iter().all(|word| report.contains(word)), "{code}: {report}");
    }
}

#[test]
fn a_product_that_refuses_a_number_of_rows_is_our_own_kernels() {
    let place = Place::new();
    let prompts: Vec<Vec<u32>> = (1..5u32).map(|n| (0..6 * n).map(|i| 3 + i + n).collect()).collect();
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
