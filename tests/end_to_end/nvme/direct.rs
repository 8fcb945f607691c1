//! Tests of reads from drives directly to the device: to an emulated one, and by cuFile, which the
//! stand-in driver replaces, too. The answers equal those of the same run from memory.

use std::path::PathBuf;

use super::{Drives, Ran, SMALL, model, strs};
use crate::command::Place;
use crate::cuda;
use crate::cuda_fallbacks::logged;

const ALL: [&str; 4] = ["--batches", "2x2", "--nvme-ops", "all"];
const ON_GPU: [&str; 6] = ["--device", "cuda:0", "--policy", "gpu-only", "--dtype", "f32"];

/// Returns a directory with the stand-in under the driver's name and, if `with_cufile`, under
/// cuFile's.
pub fn libraries(place: &Place, with_cufile: bool) -> PathBuf {
    let library = std::fs::canonicalize(cuda::folder().join("libcuda.so.1")).expect("the stand-in");
    let folder = place.path(if with_cufile { "with_cufile" } else { "without_cufile" });
    if !folder.is_dir() {
        std::fs::create_dir(&folder).expect("the folder can be made");
        let names = ["libcuda.so", "libcuda.so.1", "libcufile.so.0"];
        for name in &names[..if with_cufile { 3 } else { 2 }] {
            std::os::unix::fs::symlink(&library, folder.join(name)).expect("a link can be made");
        }
    }
    folder
}

/// Runs a small model on the stand-in from two drives.
fn on_device(drives: &Drives, extra: &[&str], with_cufile: bool, set: &[(&str, &str)]) -> Ran {
    from(2, drives, extra, with_cufile, set)
}

fn from(
    count: usize,
    drives: &Drives,
    extra: &[&str],
    with_cufile: bool,
    set: &[(&str, &str)],
) -> Ran {
    let (model, nvme) = (model("llama"), drives.arguments(count));
    let arguments = [&strs(&model)[..], &ON_GPU, &ALL, &strs(&nvme), extra].concat();
    let _ = std::fs::remove_file(drives.place.path("report.json"));
    let mut command = drives.run_command(&arguments, "");
    command.env("LD_LIBRARY_PATH", libraries(&drives.place, with_cufile)).envs(set.iter().copied());
    drives.ended(command.spawn().expect("starts"))
}

/// Returns the answers of the same run from memory.
fn from_memory(drives: &Drives) -> String {
    let model = model("llama");
    let arguments = [&strs(&model)[..], &ON_GPU, &ALL[..2]].concat();
    let mut command = drives.run_command(&arguments, "");
    command.env("LD_LIBRARY_PATH", libraries(&drives.place, false));
    let ran = drives.ended(command.spawn().expect("starts"));
    assert_eq!(ran.code, Some(0), "{}", ran.said);
    ran.answers
}

/// Returns faults for the faster of two drives, which therefore reads most.
fn of_the_faster(fault: &str) -> String {
    format!("rate=60M,{fault};rate=15M")
}

/// Returns the planned bytes of host memory for weights and slots.
fn host_bytes(ran: &Ran) -> u64 {
    ran.report["budget_bytes"]["weights"].as_u64().expect("bytes")
}

#[test]
fn an_emulated_device_is_read_to_where_asked() {
    let drives = Drives::new();
    drives.requests(4, 6);
    let device = ["--device", "emulated", "--policy", "gpu-only"];
    let whole = drives.run(&[SMALL, &device, &ALL[..2]].concat()).answers;
    let run = |direct: &[&str]| {
        let ran = drives.run_from(2, &[SMALL, &device, &ALL, direct].concat());
        assert_eq!(ran.answers, whole, "{direct:?}");
        assert!(ran.read_bytes().iter().sum::<u64>() > 1 << 20, "{direct:?}");
        host_bytes(&ran)
    };
    let (unasked, off) = (run(&[]), run(&["--nvme-direct", "off"]));
    assert_eq!(unasked, off);
    // There are no slots on the host.
    let on = run(&["--nvme-direct", "on"]);
    assert!(on + (1 << 20) < off, "{on} of {off}");
    // A failing drive is taken over by the other.
    let nvme = drives.arguments(2);
    let on = [SMALL, &device, &ALL, &strs(&nvme), &["--nvme-direct", "on"]].concat();
    let ran = drives.run_with(&on, &of_the_faster("eio@100"));
    assert_eq!((ran.code, &ran.answers), (Some(0), &whole), "{}", ran.said);
    assert!(ran.said.contains("nvme0 was lost"), "{}", ran.said);
}

#[test]
fn without_a_device_there_is_nothing_to_read_to() {
    let drives = Drives::new();
    drives.requests(2, 2);
    let nvme = drives.arguments(1);
    let direct = ["--device", "none", "--nvme-direct", "on"];
    let ran = drives.run_with(&[SMALL, &ALL, &strs(&nvme), &direct].concat(), "");
    assert_eq!(ran.code, Some(2), "{}", ran.said);
    assert!(ran.said.contains("there is no device to read to"), "{}", ran.said);
}

#[test]
fn cufile_reads_to_a_cuda_device() {
    let drives = Drives::new();
    drives.requests(4, 5);
    let whole = from_memory(&drives);
    let compatible = [("STANDIN_CUFILE_COMPATIBILITY", "1")];
    let unpinned = [("STANDIN_CUDA_FAIL", "cuFileBufRegister:1:5036")];
    let short = [("STANDIN_CUFILE_SHORT", "3")];
    let on = ["--nvme-direct", "on"];
    for (direct, set, how) in [
        (&[][..], &[][..], "cuFile, pinned arena, 8 threads, blocks not verified as they are read"),
        (&on, &[], "cuFile, pinned arena"),
        (&[], &compatible, "cuFile in compatibility mode, pinned arena"),
        (&on, &unpinned, "cuFile, 8 threads"),
        (&[], &short, "cuFile, pinned arena"),
    ] {
        let ran = on_device(&drives, direct, true, set);
        assert_eq!(ran.code, Some(0), "{set:?}: {}", ran.said);
        assert_eq!(ran.answers, whole, "{set:?}");
        let hows = ran.hows();
        assert_eq!(hows.len(), 2, "{set:?}");
        assert!(hows.iter().all(|one| one.starts_with(how)), "{set:?}: {hows:?}");
    }
    let off = on_device(&drives, &["--nvme-direct", "off"], true, &[]);
    assert_eq!((off.code, &off.answers), (Some(0), &whole), "{}", off.said);
    assert_eq!(off.hows().len(), 2, "{}", off.said);
    assert!(off.hows().iter().all(|how| !how.contains("cuFile")), "{:?}", off.hows());
    // A drive that fails during the run is taken over by the other.
    let faults = [("TANDEM_NVME_FAULTS", &of_the_faster("eio@30")[..])];
    let ran = on_device(&drives, &[], true, &faults);
    assert_eq!((ran.code, &ran.answers), (Some(0), &whole), "{}", ran.said);
    assert!(ran.said.contains("nvme0 was lost"), "{}", ran.said);
}

/// Bytes that a drive writes to a device are visible there once they are flushed: by the process
/// that has read them, and by the streams that wait for the read.
#[test]
fn what_drives_write_to_the_device_is_flushed_before_it_is_used() {
    let drives = Drives::new();
    drives.requests(4, 5);
    let whole = from_memory(&drives);
    let log = drives.place.path("calls").display().to_string();
    for seed in ["1", "2"] {
        let set = [
            ("STANDIN_CUDA_REMOTE", "1"),
            ("STANDIN_CUDA_SEED", seed),
            ("STANDIN_CUDA_LOG", log.as_str()),
        ];
        let ran = on_device(&drives, &["--nvme-direct", "on"], true, &set);
        assert_eq!((ran.code, &ran.answers), (Some(0), &whole), "{}", ran.said);
    }
    let calls = logged(&drives.place.path("calls"));
    let has = |call: &str| calls.lines().any(|line| line == call);
    assert!(has("cuFlushGPUDirectRDMAWrites"), "the readers flush");
    assert!(has("note: flush"), "a wait of a stream flushes");
}

/// If cuFile is not supported, drives are read through host memory, or the run is refused if direct
/// reads were required.
#[test]
fn refusals_of_cufile_come_before_the_plan() {
    let drives = Drives::new();
    drives.requests(4, 3);
    let whole = from_memory(&drives);
    for (with_cufile, failure, said) in [
        (false, "none:1:0", "cuFile is not installed"),
        (true, "cuFileDriverOpen:1:5001", "the nvidia-fs driver is not loaded (error 5001)"),
        (true, "cuFileDriverGetProperties:1:5030", "cuFile call cuFileDriverGetProperties failed"),
        (true, "cuFileHandleRegister:1:5008", "the file system or the drive is not supported"),
        (true, "cuFileRead:1:5030", "cuFile call cuFileRead failed: error 5030"),
        (true, "cuFileRead:1:5", "Input/output error"),
        (true, "cuIpcOpenMemHandle:1:800", "CUDA IPC is refused here"),
    ] {
        let set = [("STANDIN_CUDA_FAIL", failure)];
        let ran = on_device(&drives, &[], with_cufile, &set);
        assert_eq!(ran.code, Some(0), "{failure}: {}", ran.said);
        assert_eq!(ran.answers, whole, "{failure}");
        assert!(ran.said.contains(said), "{failure}: {}", ran.said);
        assert!(ran.said.contains("through host memory"), "{failure}: {}", ran.said);
        assert_eq!(ran.hows().len(), 2, "{}", ran.said);
        assert!(ran.hows().iter().all(|how| !how.contains("cuFile")), "{:?}", ran.hows());
        let ran = on_device(&drives, &["--nvme-direct", "on"], with_cufile, &set);
        assert_eq!(ran.code, Some(2), "{failure}: {}", ran.said);
        let refused = ran.said.contains(said) && ran.said.contains("--nvme-direct off");
        assert!(refused, "{failure}: {}", ran.said);
    }
    // During the run, where the same reads worked before.
    for (failure, said) in [
        ("cuFileRead:40:5", "Input/output error"),
        ("cuFileRead:40:5030", "cuFile call cuFileRead failed: error 5030"),
    ] {
        let ran = from(1, &drives, &[], true, &[("STANDIN_CUDA_FAIL", failure)]);
        assert_eq!(ran.code, Some(1), "the only drive: {}", ran.said);
        assert!(ran.said.contains(said), "{failure}: {}", ran.said);
    }
}
