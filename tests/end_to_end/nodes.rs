//! Tests of the NUMA nodes of memory.

use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::json;

use crate::command::{Place, coordinator, finish, fixture, ids, text};

fn run(place: &Place, options: &[&str]) -> Output {
    let mut command = coordinator();
    command.arg("--model").arg(fixture("llama")).arg("--input").arg(place.path("in.jsonl"));
    command.arg("--output").arg(place.path("out.jsonl")).args(["--force", "--quiet"]);
    finish(command.args(options).stderr(Stdio::piped()).spawn().expect("starts"))
}

/// Uses the only node that every machine has; other nodes depend on the machine.
#[test]
fn answers_do_not_depend_on_where_memory_lies_and_missing_nodes_are_told() {
    let name = "answers_do_not_depend_on_where_memory_lies_and_missing_nodes_are_told";
    if !Path::new("/sys/devices/system/node/node0/meminfo").exists() {
        println!("SKIP {name}: this system tells of no NUMA nodes");
        return;
    }
    let place = Place::new();
    let body = json!({"prompt": [5, 9, 11, 13], "max_tokens": 8, "ignore_eos": true});
    let plain = place.answered(std::slice::from_ref(&body), &[]);
    for device in ["none", "emulated"] {
        let bound = ["--device", device, "--weights-nodes", "0", "--kv-nodes", "0"];
        let done = run(&place, &bound);
        let said = text(&done.stderr);
        if said.contains("not permitted") {
            println!("SKIP {name} ({device}): {}", said.trim());
            continue;
        }
        assert!(done.status.success(), "{said}");
        let answers = crate::command::lines(&place.path("out.jsonl"));
        let tokens = |lines: &[serde_json::Value]| {
            ids(&lines[0]["response"]["body"]["choices"][0]["token_ids"])
        };
        assert_eq!(tokens(&answers), tokens(&plain), "{device}");
    }
    let refused = run(&place, &["--kv-nodes", "0,1023"]);
    let said = text(&refused.stderr);
    assert!(said.contains("--kv-nodes 1023: this machine has no such NUMA node"), "{said}");
    assert_eq!(refused.status.code(), Some(2));
}
