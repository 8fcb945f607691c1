//! Any refusal of the driver, at start or in the middle of a run, ends in an error with its name.

use program::topology::MemoryId;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use model::config::Dtype;

use crate::case::{group, llama, plan, runs_all_cases};
use crate::harness::{Setting, Workers, folder};

/// Parts of the names of calls that release resources, whose refusal at the end of a run does not
/// matter.
const GIVING_BACK: [&str; 6] = ["Free", "Destroy", "Unload", "Unregister", "Release", "Close"];

/// Parts of the workers' messages where the system forbids sharing device memory.
const UNSHARED: [&str; 2] = ["handle: Err", "refusal: Some"];

fn attempt(setting: &Setting<'_>) -> Result<(), String> {
    let plan = plan(&llama(), Dtype::F32, Some("k:up"), None, MemoryId::DRAM);
    let workers = Workers::start(&plan, setting)?;
    workers.run_group(&group())?;
    workers.finish().map(drop)
}

/// Returns the path of the logs of calls; each process writes its own file.
pub(crate) fn log(name: &str) -> String {
    for file in logs(name) {
        std::fs::remove_file(file).expect("a log can be removed");
    }
    folder().join(name).to_str().expect("a plain path").to_owned()
}

fn logs(name: &str) -> Vec<PathBuf> {
    let start = format!("{name}.");
    let entries = std::fs::read_dir(folder()).expect("a folder");
    entries
        .map(|entry| entry.expect("a file"))
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&start))
        .map(|entry| entry.path())
        .collect()
}

/// Returns the maximum number of calls of each function over the processes.
pub(crate) fn counted(name: &str) -> BTreeMap<String, u64> {
    let mut most = BTreeMap::new();
    for file in logs(name) {
        let mut counts = BTreeMap::new();
        for name in std::fs::read_to_string(file).expect("a log").lines() {
            *counts.entry(name.to_owned()).or_insert(0u64) += 1;
        }
        for (name, count) in counts {
            let known = most.entry(name).or_insert(0);
            *known = count.max(*known);
        }
    }
    most
}

/// Returns the maximum number of calls of each function in a run without failures.
fn calls() -> BTreeMap<String, u64> {
    let variables = vec![("STANDIN_CUDA_LOG", log("calls"))];
    attempt(&Setting { variables, ..Setting::default() }).expect("nothing is refused");
    let mut most = counted("calls");
    let is_call = |name: &str| !name.starts_with("note: ");
    most.retain(|name: &String, _| {
        is_call(name) && !GIVING_BACK.iter().any(|end| name.contains(end))
    });
    most
}

#[test]
fn a_refusal_of_any_call_ends_in_an_error() {
    let calls = calls();
    assert!(calls.len() >= 20, "{calls:?}");
    for (name, count) in calls {
        // The last call too if all cases run.
        let last = if runs_all_cases() { count } else { count / 2 };
        for nth in BTreeSet::from([1, count / 2, last]) {
            // The first wait only probes whether streams can wait; if they cannot, the host waits.
            let optional = name == "cuStreamWaitValue32" && nth == 1;
            let code = if nth % 2 == 0 { 700 } else { 999 };
            let failed = format!("{name}:{nth}:{code}");
            let with = |copies_in_gpu_worker| {
                let variables = vec![
                    ("STANDIN_CUDA_FAIL", failed.clone()),
                    ("STANDIN_CUDA_LOG", log("attempt")),
                ];
                attempt(&Setting { variables, copies_in_gpu_worker, ..Setting::default() })
            };
            // Like the coordinator: if memory cannot be shared, start over with the copies in the
            // gpu worker, whose error then appears if it was the cause.
            let unshared = |error: &String| UNSHARED.iter().any(|answer| error.contains(answer));
            let mut ended = with(false);
            let started_over = ended.as_ref().is_err_and(unshared);
            if started_over {
                ended = with(true);
            }
            match ended {
                Ok(()) => {
                    // The number of some calls depends on the progress of the device.
                    let made = counted("attempt").get(&name).copied().unwrap_or(0);
                    let excused = optional || nth == 0 || made < nth || started_over;
                    assert!(excused, "{failed} unnoticed");
                }
                Err(error) => {
                    assert!(error.contains("CUDA") && error.ends_with('.'), "{failed}: {error}");
                }
            }
        }
    }
}
