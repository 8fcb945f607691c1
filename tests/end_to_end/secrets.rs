//! Tests of what other processes and users can see, and of the effect of names on a terminal.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

use crate::command::{Place, coordinator, finish, fixture, text};

/// Returns all descendants of a process.
fn descendants(of: u32) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut asked = vec![of];
    while let Some(pid) = asked.pop() {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            for child in list.split_whitespace().filter_map(|pid| pid.parse().ok()) {
                if found.insert(child) {
                    asked.push(child);
                }
            }
        }
    }
    found
}

#[test]
fn no_child_process_has_the_user_s_secrets() {
    let secrets =
        [("TANDEM_API_KEY", "key-1"), ("HF_TOKEN", "hf_2"), ("HUGGING_FACE_HUB_TOKEN", "hf_3")];
    let mut command = coordinator();
    command.args(["serve", "--port", "0", "--slots", "2", "--model"]).arg(fixture("llama"));
    command.envs(secrets).env("TANDEM_TEST_MARK", "seen");
    command.stderr(Stdio::piped()).stdout(Stdio::null());
    let mut served = command.spawn().expect("starts");
    let mut stderr = BufReader::new(served.stderr.take().expect("piped"));
    let mut said = String::new();
    while !said.contains(" at http://") {
        assert!(stderr.read_line(&mut said).expect("text") > 0, "it ended: {said}");
    }
    let children = descendants(served.id());
    let environments: Vec<String> = children
        .iter()
        .map(|pid| text(&std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default()))
        .collect();
    served.kill().expect("it runs");
    served.wait().expect("it ends");
    assert!(environments.len() >= 2, "a tokenizer and a worker: {environments:?}");
    for environment in &environments {
        assert!(environment.contains("TANDEM_TEST_MARK=seen"), "all else is inherited");
        for (name, value) in secrets {
            assert!(!environment.contains(name) && !environment.contains(value), "{name}");
        }
    }
}

/// Returns the entries of a directory tree that grant permissions to other users, with their mode.
fn opened_to_others(folder: &Path) -> Vec<String> {
    let mut open = Vec::new();
    let mut asked = vec![folder.to_path_buf()];
    while let Some(path) = asked.pop() {
        let metadata = path.symlink_metadata().expect("an entry");
        if metadata.mode() & 0o077 != 0 {
            open.push(format!("{} {:o}", path.display(), metadata.mode()));
        }
        if metadata.is_dir() {
            let entries = std::fs::read_dir(&path).expect("a folder");
            asked.extend(entries.flatten().map(|entry| entry.path()));
        }
    }
    open
}

#[test]
fn stored_prompts_are_their_owner_s_alone() {
    let place = Place::new();
    let prompt: Vec<u32> = (0..300).map(|i| 3 + i % 250).collect();
    let input = place.requests("in.jsonl", &[prompt], 2);
    let store = place.path("prompts");
    let mut command = coordinator();
    command.args(["--model", "smollm2-135m", "--dummy-weights", "--layers", "2"]);
    command.args(["--device", "none", "--quiet", "--input"]).arg(input);
    command.arg("--output").arg(place.path("out.jsonl"));
    command.arg("--prompt-cache").arg(&store).args(["--prompt-cache-min", "16"]);
    let done = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let folders: Vec<_> = std::fs::read_dir(&store).expect("a store").flatten().collect();
    assert_eq!(folders.len(), 1, "something was stored");
    assert_eq!(opened_to_others(&store), Vec::<String>::new());
}

#[test]
fn names_do_not_control_the_terminal() {
    let place = Place::new();
    let folder = place.path("m\u{1b}]0;owned\u{7}\u{9b}2J");
    std::fs::create_dir(&folder).expect("writable");
    for entry in std::fs::read_dir(fixture("llama")).expect("a fixture").flatten() {
        std::fs::copy(entry.path(), folder.join(entry.file_name())).expect("writable");
    }
    let missing = place.path("no\u{1b}[2Jsuch");
    for (model, arguments) in [
        (&missing, &["plan", "--device", "none"][..]),
        (
            &folder,
            &[
                "plan",
                "--device",
                "none",
                "--batches",
                "1x1",
                "--prompt-len",
                "4",
                "--gen-len",
                "2",
            ],
        ),
        (&folder, &["--prompt-len", "4", "--gen-len", "2", "--batches", "1x1"]),
    ] {
        let mut command = coordinator();
        command.args(arguments).arg("--model").arg(model);
        command.env("XDG_CACHE_HOME", place.path("cache"));
        let done = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        let done = finish(done);
        let said = text(&done.stdout) + &text(&done.stderr);
        let controls = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
        assert!(!said.contains(controls), "{arguments:?}: {said:?}");
        if model == &missing {
            assert!(said.contains("no\\u{1b}[2Jsuch"), "{said}");
        }
    }
}
