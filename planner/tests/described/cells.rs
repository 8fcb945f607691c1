//! The planner's estimate of a steady step agrees with the simulation of the compiled program.

use model::known::find_known;
use planner::machine::find_bundled as known_machine;
use planner::policy::name::PolicyName;
use planner::search::{Pricing, SearchEffort, SearchError, steady_step_ns};
use program::map::{ChunkOrder, Chunking};
use program::simulate::simulate;

use super::cases::{PlacementCase, layers_of, plain_machine, runs_all_cases};

/// Returns combinations of models, shapes, machines and compressions.
fn cells() -> Vec<PlacementCase> {
    let machine = |name| known_machine(name).expect("there").expect("valid");
    let a4000 = || machine("ryzen7950x-a4000");
    let config = |name: &str| find_known(name).expect("known").config;
    let of = |machine, model, batches| PlacementCase::new(machine, config(model), batches);
    let chunking = Some(Chunking { order: ChunkOrder::Scores, chunks: 4 });
    let small = |batches| PlacementCase::new(plain_machine(), layers_of("opt-1.3b", 6), batches);
    vec![
        of(a4000(), "opt-30b", (1, 50)),
        of(a4000(), "opt-30b", (2, 25)),
        of(a4000(), "opt-30b", (1, 100)).compressed(),
        of(a4000(), "opt-30b", (3, 16)).compressed(),
        of(a4000(), "llama-3-8b", (1, 1)),
        of(a4000(), "llama-3-8b", (2, 32)),
        of(a4000(), "llama-3-8b", (1, 64)).compressed(),
        of(a4000(), "llama-2-34b", (1, 16)).compressed(),
        of(machine("spr-a100"), "opt-30b", (1, 1)),
        of(machine("spr-a100"), "opt-30b", (1, 64)),
        of(machine("spr-a100"), "opt-66b", (2, 16)),
        of(machine("spr-h100"), "opt-30b", (1, 64)),
        of(machine("spr-h100"), "llama-3.2-3b", (1, 8)),
        of(machine("spr-h100"), "opt-66b", (1, 8)),
        of(plain_machine(), "llama-3.2-3b", (1, 1)),
        of(plain_machine(), "llama-3.2-3b", (2, 16)),
        of(plain_machine(), "llama-3-8b", (1, 8)).compressed(),
        PlacementCase { chunking, ..small((2, 8)) },
        PlacementCase { chunking, ..small((1, 16)) },
        small((4, 4)).compressed(),
    ]
}

#[test]
fn a_steady_step_is_that_of_the_compiled_program() {
    for (number, case) in cells().into_iter().enumerate() {
        let (model, batches) = (case.config.name.clone(), case.batches);
        // Every second or fourth policy, so that neighbouring cells have all of them.
        let stride = if runs_all_cases() { 2 } else { 4 };
        for policy in PolicyName::ALL.into_iter().skip(number % stride).step_by(stride) {
            let chosen = match case.choose_with(policy, SearchEffort::Quick) {
                Ok(chosen) => chosen,
                // Some models do not fit completely on some devices.
                Err(SearchError::Plan(_)) if policy == PolicyName::Resident => continue,
                Err(error) => panic!("{model} {batches:?} {policy:?}: {error}"),
            };
            let what = format!("{model} {batches:?} {policy:?} {:?}", chosen.placement);
            let said_ns = chosen.candidates[0].step_ns();
            let plan = &chosen.plan;
            let middle = case.prompt + case.new / 2;
            let program_ns = steady_step_ns(plan, &case.machine, middle).expect("priced");
            assert!((said_ns / program_ns - 1.0).abs() < 0.01, "{what}: {said_ns} {program_ns}");
            // All steps of the run; the first starts with empty lanes.
            let steps = case.new - 1;
            let costs = case.machine.costs(plan, plan.decode(), case.prompt).expect("priced");
            let whole = simulate(plan.decode(), costs.as_ref(), steps).expect("simulated");
            let mean_ns = (whole.step_end_ns[steps as usize - 1] - whole.step_end_ns[0])
                / f64::from(steps - 1);
            assert!((said_ns / mean_ns - 1.0).abs() < 0.01, "{what}: {said_ns} {mean_ns}");
        }
    }
}
