//! Tests of `coordinator doctor` from a user's perspective.

use std::process::Stdio;

use serde_json::Value;

use crate::command::{coordinator, finish, text};
use crate::cuda::folder;

fn doctor(arguments: &[&str]) -> String {
    doctor_with(arguments, &[])
}

fn doctor_with(arguments: &[&str], set: &[(&str, &str)]) -> String {
    let mut command = coordinator();
    command.envs(set.iter().copied());
    command.arg("doctor").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = finish(command.spawn().expect("starts"));
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    text(&done.stdout)
}

/// Returns a finding of a report in JSON.
fn found(stderr: &str, section: &str, name: &str) -> Value {
    let stderr: Value = serde_json::from_str(stderr).expect("JSON");
    let sections = stderr["sections"].as_array().expect("sections");
    let section = sections.iter().find(|s| s["name"] == section).expect("a section");
    let findings = section["findings"].as_array().expect("findings");
    findings.iter().find(|f| f["name"] == name).unwrap_or_else(|| panic!("{name}")).clone()
}

#[test]
fn a_cuda_device_is_told_with_its_link_and_what_it_shares() {
    let library = ("LD_LIBRARY_PATH", folder().to_str().expect("a plain path"));
    let stderr = doctor_with(&["--json"], &[library]);
    let device = found(&stderr, "gpu", "cuda_device");
    assert_eq!(device["value"]["name"], "stand-in", "labelled as what it is: {device}");
    assert_eq!(device["value"]["compute_capability"], "8.0");
    assert_eq!(device["value"]["memory_bytes"], 1 << 30);
    assert_eq!(device["value"]["pcie_link"], "3.0 x8");
    assert_eq!(device["value"]["pcie_link_max"], "4.0 x16");
    assert!(device["costs"].as_str().is_some_and(|costs| costs.contains("slot")), "{device}");
    assert_eq!(found(&stderr, "gpu", "cuda_driver")["value"]["release"], "525.00 stand-in");
    assert_eq!(found(&stderr, "gpu", "cuda_ipc")["value"], true);
    assert!(found(&stderr, "gpu", "gpu_direct_storage")["costs"].is_string());
    for refused in ["cuIpcGetMemHandle:1:800", "cuIpcOpenMemHandle:1:800"] {
        let stderr = doctor_with(&["--json"], &[library, ("STANDIN_CUDA_FAIL", refused)]);
        let ipc = found(&stderr, "gpu", "cuda_ipc");
        assert!(ipc["value"] == false && ipc["costs"].is_string(), "{refused}: {ipc}");
    }
    let text = doctor_with(&[], &[library]);
    assert!(text.contains("cuda:0") && text.contains("PCIe 3.0 x8, at most 4.0 x16"), "{text}");
}

#[test]
fn without_cuda_each_absence_is_a_sentence() {
    let library = ("LD_LIBRARY_PATH", folder().to_str().expect("a plain path"));
    // A driver without a device, so that the test also works on machines with a device.
    let stderr = doctor_with(&["--json"], &[library, ("STANDIN_CUDA_DEVICES", "0")]);
    let driver = found(&stderr, "gpu", "cuda_driver");
    assert!(driver["value"].is_null(), "{driver}");
    assert!(driver["costs"].as_str().is_some_and(|costs| costs.contains("on the CPU")), "{driver}");
    for name in ["cublaslt", "cufile"] {
        let library = found(&stderr, "gpu", name);
        assert_eq!(library["value"].is_null(), library["costs"].is_string(), "{library}");
    }
}

#[test]
fn the_machine_is_told_for_people_and_for_machines() {
    let stderr = doctor(&["--json"]);
    let finding = |section: &str, name: &str| found(&stderr, section, name);
    let available = std::thread::available_parallelism().map_or(1, |count| count.get());
    assert!(finding("processor", "cores")["value"].as_u64().is_some_and(|n| n >= 1));
    assert!(finding("processor", "hardware_threads")["value"].as_u64() >= Some(available as u64));
    assert!(finding("memory", "total_bytes")["value"].as_u64() > Some(1 << 20));
    for (section, name) in
        [("processor", "avx2"), ("processor", "amx_bf16"), ("system", "io_uring")]
    {
        let found = finding(section, name);
        let there = found["value"].as_bool().expect("a yes or a no");
        assert_eq!(there, found["costs"].is_null(), "{found}");
    }
    let text = doctor(&[]);
    for part in ["processor", "memory", "disks", "io_uring", "AMX-BF16", "CUDA driver", "cuBLASLt"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}
