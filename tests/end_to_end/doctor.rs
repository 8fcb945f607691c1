//! `coordinator doctor` as a user meets it.

use std::process::Stdio;

use serde_json::Value;

use crate::command::{coordinator, finish, text};

fn doctor(arguments: &[&str]) -> String {
    let mut command = coordinator();
    command.arg("doctor").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = finish(command.spawn().expect("starts"));
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    text(&done.stdout)
}

#[test]
fn the_machine_is_told_for_people_and_for_machines() {
    let told: Value = serde_json::from_str(&doctor(&["--json"])).expect("JSON");
    let sections = told["sections"].as_array().expect("sections");
    let finding = |section: &str, name: &str| {
        let section = sections.iter().find(|s| s["name"] == section).expect("a section");
        let findings = section["findings"].as_array().expect("findings");
        findings.iter().find(|f| f["name"] == name).unwrap_or_else(|| panic!("{name}")).clone()
    };
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
    for part in ["processor", "memory", "disks", "io_uring", "AMX-BF16"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
