//! Tests of `TANDEM_KERNELS` with the real binary: supported variants can be forced in every worker
//! and give the expected answers; others are refused with a sentence before anything is computed.

use std::process::Stdio;

use serde_json::Value;

use crate::command::{Place, coordinator, finish, fixture, golden, ids, text, token_ids};

const VARIANT: &str = "TANDEM_KERNELS";

/// Returns golden prompts and their greedy tokens in f32.
fn golden_lists(model: &str) -> [Vec<Vec<u32>>; 2] {
    let golden = golden(model);
    ["prompts", "tokens"]
        .map(|key| golden[key].as_array().expect("lists").iter().map(ids).collect())
}

/// Returns the tokens and the report of a run in f32 with the kernels forced to `variant`.
fn forced(variant: &str, model: &str, extra: &[&str]) -> (Vec<Vec<u32>>, Value) {
    let [prompts, tokens] = golden_lists(model);
    let place = Place::new();
    let new = u32::try_from(tokens[0].len()).expect("few tokens");
    let input = place.requests("in.jsonl", &prompts, new);
    let (output, report) = (place.path("out.jsonl"), place.path("report.json"));
    let mut command = coordinator();
    command.env(VARIANT, variant).stderr(Stdio::piped());
    command.arg("--model").arg(fixture(model)).arg("--input").arg(input);
    command.arg("--output").arg(&output).arg("--report").arg(&report);
    command.args(["--quiet", "--dtype", "f32", "--batches", "2x3"]).args(extra);
    let done = finish(command.spawn().expect("starts"));
    assert!(done.status.success(), "{variant}: {}", text(&done.stderr));
    let report = std::fs::read_to_string(report).expect("a report");
    (token_ids(&output), serde_json::from_str(&report).expect("JSON"))
}

#[test]
fn every_variant_of_this_machine_can_be_forced_in_every_worker() {
    for variant in kernels::Variant::available() {
        let name = variant.name();
        for model in ["llama", "opt"] {
            let expected = golden_lists(model)[1].clone();
            assert_eq!(forced(name, model, &[]).0, expected, "{name}, {model}");
        }
        let device = ["--device", "emulated", "--split", "scores:out"];
        let (found, report) = forced(name, "llama", &device);
        assert_eq!(found, golden_lists("llama")[1], "{name} beside a device");
        let used = report["kernel_variants"].as_object().expect("a variant for each worker");
        assert!(used.len() >= 2 && used.values().all(|used| used == name), "{name}: {used:?}");
    }
}

/// Returns the sentence with which a run of `variant` ends.
fn refusal(variant: &str, extra: &[&str]) -> String {
    let place = Place::new();
    let input = place.requests("in.jsonl", &[vec![3, 4, 5]], 2);
    let output = place.path("out.jsonl");
    let mut command = coordinator();
    command.env(VARIANT, variant).stderr(Stdio::piped());
    command.arg("--model").arg(fixture("llama")).arg("--input").arg(input);
    command.arg("--output").arg(&output).arg("--quiet").args(extra);
    let done = finish(command.spawn().expect("starts"));
    // A signal, such as that for an illegal instruction, would leave no exit code.
    assert_eq!(done.status.code(), Some(1), "{variant}: {}", done.status);
    assert!(!output.exists(), "{variant}: something was answered");
    text(&done.stderr)
}

#[test]
fn what_the_machine_lacks_is_refused_with_a_sentence() {
    let test = "what_the_machine_lacks_is_refused_with_a_sentence";
    for variant in kernels::Variant::ALL {
        if variant.is_available() {
            println!("SKIP {test} ({}): this machine has it", variant.name());
            continue;
        }
        for extra in [&[][..], &["--device", "emulated", "--policy", "gpu-only"]] {
            let sentence = refusal(variant.name(), extra);
            let start = format!("{VARIANT}={} cannot be used", variant.name());
            assert!(sentence.contains(&start), "{sentence}");
            assert!(sentence.contains(kernels::Variant::best().name()), "{sentence}");
        }
    }
}

#[test]
fn a_name_of_no_variant_is_refused_with_those_there_are() {
    let sentence = refusal("zen", &[]);
    assert!(sentence.contains(&format!("{VARIANT}=zen names no kernel variant")), "{sentence}");
    for variant in kernels::Variant::ALL {
        assert!(sentence.contains(variant.name()), "{sentence}");
    }
}

#[test]
fn an_output_of_other_kernels_is_not_resumed() {
    let best = kernels::Variant::best().name();
    let scalar = kernels::Variant::Scalar.name();
    if best == scalar {
        println!("SKIP an_output_of_other_kernels_is_not_resumed: this machine has one variant");
        return;
    }
    let place = Place::new();
    let input = place.requests("in.jsonl", &[vec![3, 4, 5], vec![6, 7]], 3);
    let output = place.path("out.jsonl");
    let run = |variant: &str, extra: &[&str]| {
        let mut command = coordinator();
        command.env(VARIANT, variant).stderr(Stdio::piped());
        command.arg("--model").arg(fixture("llama")).arg("--input").arg(&input);
        command.arg("--output").arg(&output).arg("--quiet").args(extra);
        finish(command.spawn().expect("starts"))
    };
    let done = run(scalar, &[]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let whole = std::fs::read(&output).expect("answers");
    let refused = run(best, &["--resume"]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    let sentence = text(&refused.stderr);
    let words = [format!("the kernels {scalar},"), format!("are {best},"), VARIANT.to_owned()];
    assert!(words.iter().all(|word| sentence.contains(word)), "{sentence}");
    assert_eq!(std::fs::read(&output).expect("answers"), whole);
    let resumed = run(scalar, &["--resume"]);
    assert!(resumed.status.success(), "{}", text(&resumed.stderr));
    assert_eq!(std::fs::read(&output).expect("answers"), whole);
}
