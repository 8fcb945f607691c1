//! Results for requests that arrive at a described machine.

use model::config::Dtype;
use scheduler::StepCostCurve;
use scheduler::hybrid::{IterationLimits, StepCosts};
use serde_json::Value;

use super::{plan_measured, plan_serving};
use crate::iteration_costs::IterationCosts;
use crate::load::arrivals::Rate;
use crate::request::{LengthsChoice, LoadChoice, ServingWorkload};
use session::interrupt::Interrupt;
use session::request::ModelChoice;

fn serving(lengths: LengthsChoice) -> ServingWorkload {
    ServingWorkload {
        model: ModelChoice {
            name: "llama-2-7b".to_owned(),
            revision: None,
            dummy_weights: true,
            layers: Some(8),
            positions: None,
        },
        dtype: Dtype::Bf16,
        load: LoadChoice { lengths, rate: None, requests: Some(20), seed: 3 },
        step_rows: 512,
        timed: None,
    }
}

fn planned(serving: &ServingWorkload, json: bool) -> anyhow::Result<String> {
    plan_serving("g4dn-4xlarge", serving, None, json, &Interrupt::default())
}

const ALIKE: LengthsChoice = LengthsChoice::Fixed { prompt_tokens: 100, answer_tokens: 12 };

#[test]
fn every_policy_has_a_row_and_json_says_all_of_it() {
    let mut serving = serving(ALIKE);
    serving.load.rate = Some(Rate::PerSecond(50.0));
    let text = planned(&serving, false).expect("planned");
    let head = "llama-2-7b on g4dn-4xlarge · 20 requests, 100 + 12 tokens, 50 per second";
    assert!(text.starts_with(head), "{text}");
    let answer: Value =
        serde_json::from_str(&planned(&serving, true).expect("planned")).expect("JSON");
    let policies = answer["policies"].as_array().expect("a list");
    assert_eq!(policies.len(), 5);
    for policy in policies {
        let name = policy["policy"].as_str().expect("a name");
        let row = text.lines().find(|line| line.trim_start().starts_with(name));
        let cells: Vec<&str> = row.expect("a row").split_whitespace().collect();
        let tokens_per_s = policy["tokens_per_s"].as_f64().expect("a number");
        assert_eq!(cells[1], format!("{tokens_per_s:.1}"), "{text}");
        let counts = (&policy["answer_tokens"], &policy["requests"]);
        assert_eq!(counts, (&240.into(), &20.into()));
        let ttft = policy["ttft_ms"]["p50"].as_f64().expect("a number");
        assert!(ttft > 0.0 && policy["lane_use"]["device"].as_f64().expect("a number") > 0.0);
    }
    assert_eq!(policies[0]["shapes"]["pipelined"]["iterations"], 0, "gpu-only");
    assert!(policies[1]["host_gap_ms"]["p50"].as_f64().expect("a number") > 0.0, "fastdecode");
}

#[test]
fn a_trace_is_replayed_and_one_with_a_mistake_refused_with_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.csv");
    let trace = |text: &str| {
        std::fs::write(&path, text).expect("written");
        let mut serving = serving(LengthsChoice::Trace(path.clone()));
        serving.load.requests = None;
        planned(&serving, true)
    };
    let rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:33.9799600,396,10\n";
    let answer: Value = serde_json::from_str(&trace(rows).expect("planned")).expect("JSON");
    let first = &answer["policies"][0];
    assert_eq!((&first["prompt_tokens"], &first["answer_tokens"]), (&770.into(), &54.into()));
    assert!(first["makespan_ms"].as_f64().expect("a number") > 30_000.0, "half a minute apart");
    let refused = trace("0.5,374,44\n0.7,39x,10\n").expect_err("no number").to_string();
    assert!(refused.contains("line 2, column 2"), "{refused}");
    let refused = trace("0.5,5000,44\n").expect_err("4096 positions").to_string();
    assert!(refused.contains("4096"), "{refused}");
}

#[test]
fn what_does_not_fit_the_device_streams_and_is_said() {
    let mut serving = serving(ALIKE);
    serving.model = ModelChoice { name: "llama-2-13b".to_owned(), layers: None, ..serving.model };
    let text = planned(&serving, false).expect("planned");
    assert!(text.contains(" GB of weights stream to the device in each iteration"), "{text}");
    serving.model.name = "llama-2-70b".to_owned();
    let refused = planned(&serving, false).expect_err("138 GB").to_string();
    assert!(refused.contains("host memory"), "{refused}");
}

#[test]
fn a_server_that_measured_itself_is_planned_for() {
    // A row takes 10 ms, and nothing else takes time.
    let mut device = StepCostCurve::NONE;
    device.points[0] = (1, 10_000);
    let costs = StepCosts { device, ..StepCosts::NONE };
    let limits = IterationLimits::from_extents(300, 256, 3, 1);
    let file = tempfile::NamedTempFile::new().expect("a file");
    let measured = IterationCosts::new("small".to_owned(), &limits, &costs);
    measured.write(file.path()).expect("written");
    let load = LoadChoice { lengths: ALIKE, rate: None, requests: Some(2), seed: 3 };
    let planned_from_costs = |json| plan_measured(file.path(), &load, json, &Interrupt::default());
    let answer: Value =
        serde_json::from_str(&planned_from_costs(true).expect("planned")).expect("JSON");
    let gpu_only = &answer["policies"][0];
    assert_eq!(gpu_only["policy"], "gpu-only");
    // Both prompts, 100 rows each, and eleven more tokens of each, one after the other.
    assert_eq!(gpu_only["makespan_ms"].as_f64(), Some(2.0 * (1000.0 + 110.0)));
    let text = planned_from_costs(false).expect("planned");
    assert!(text.starts_with("small on a server with measured costs · 2 requests"), "{text}");
}
