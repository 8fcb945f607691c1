//! Command lines that predict speculative decoding.

use session::request::{PlannedDrafter, PlannedSpeculation};

use super::command::Command;
use super::request::PlanSource;
use super::{EarlyExit, parse};

const DESCRIBED: &str = "plan --model llama-3-70b --machine spr-a100";

fn parsed(line: &str) -> Result<Command, EarlyExit> {
    parse(std::iter::once("coordinator").chain(line.split_whitespace()))
}

/// Returns what a plan with these options for a described machine predicts.
fn planned(options: &str) -> Option<PlannedSpeculation> {
    match parsed(&format!("{DESCRIBED} {options}")) {
        Ok(Command::Plan(plan)) => match plan.source {
            PlanSource::Machine { workload, .. } => workload.speculation,
            other => panic!("{options}: {other:?}"),
        },
        other => panic!("{options}: {other:?}"),
    }
}

#[test]
fn drafts_are_predicted_for_a_described_machine_with_an_acceptance() {
    let of_ngrams = planned("--speculate ngram --acceptance 0.7").expect("drafts");
    assert_eq!((of_ngrams.max_drafts, of_ngrams.acceptance), (16, 0.7));
    assert_eq!(of_ngrams.drafter, PlannedDrafter::Free);
    let of_model = "--draft-model llama-3.2-1b --acceptance 1 --draft-max 4";
    let of_model = planned(of_model).expect("drafts");
    assert_eq!(of_model.max_drafts, 4);
    let PlannedDrafter::Model(model) = of_model.drafter else { panic!("{of_model:?}") };
    assert_eq!(model.name, "llama-3.2-1b");
    let of_layer = planned("--speculate mtp --acceptance 0.9").expect("drafts");
    assert_eq!(of_layer.drafter, PlannedDrafter::PredictionLayer);
    assert_eq!(planned(""), None);
    assert_eq!(planned("--speculate off"), None);
}

#[test]
fn drafts_without_a_machine_or_an_acceptance_are_refused() {
    for (line, expected) in [
        (format!("{DESCRIBED} --speculate ngram"), "--acceptance"),
        (format!("{DESCRIBED} --acceptance 0.5"), "--speculate"),
        (format!("{DESCRIBED} --speculate ngram --acceptance 1.5"), "from 0 to 1"),
        (format!("{DESCRIBED} --serve --speculate ngram --acceptance 0.5"), "--serve"),
        ("plan --model opt-30b --speculate ngram".to_owned(), "--machine"),
        ("plan --model opt-30b --compare spr-a100 --draft-model opt-125m".to_owned(), "--machine"),
    ] {
        let Err(EarlyExit::Invalid(text, _)) = parsed(&line) else { panic!("{line}") };
        assert!(text.contains(expected), "{line}: {text}");
    }
}
