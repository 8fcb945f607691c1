//! Tests of storages that are lost during a run: the others take over, and no token changes.

use std::ops::ControlFlow;
use std::path::Path;

use engine_api::batch::{BatchEngine, EngineError};
use engine_api::event::{BatchSink, EngineEvent};
use model::config::Dtype;
use program::map::DeviceMap;
use program::plan::Plan;
use program::validate::replay;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{
    GROUPS, READ_TARGETS, ReadTarget, RecordedTokens, TestStagings, expected, maps, on_storages,
    prompts, routed_plans, run_groups, runs_all_cases, sequences, start,
};

/// Indices of the requests that fail, so that faults occur in prefill, in early and late decode of
/// a group, and in the second group.
const FAULTY_REQUESTS: [u64; 4] = [3, 40, 150, 250];

pub fn another_storage_goes_on_for_one_that_fails() {
    assert_survives(&maps()[0], ReadTarget::Host, &FAULTY_REQUESTS);
}

pub fn another_goes_on_reading_straight_to_the_device() {
    for map in &maps()[1..] {
        assert_survives(map, ReadTarget::Device, &FAULTY_REQUESTS[1..3]);
    }
}

pub fn another_storage_goes_on_with_routed_experts() {
    let (plain, plan) = routed_plans(Dtype::Bf16, 2, 4, 0);
    let expected = run_groups(plain, &[], GROUPS).0;
    assert_plan_survives(&plan, &expected, &FAULTY_REQUESTS[..3], "routed experts");
    let (_, cached) = routed_plans(Dtype::Bf16, 2, 4, 20);
    assert_plan_survives(&cached, &expected, &FAULTY_REQUESTS[..2], "cached experts");
}

fn assert_survives(map: &DeviceMap, to: ReadTarget, requests: &[u64]) {
    let expected = expected(map, Dtype::Bf16, GROUPS);
    let plan = on_storages(map, Dtype::Bf16, 2, to);
    assert_plan_survives(&plan, &expected, requests, &format!("to {to:?}"));
}

fn assert_plan_survives(plan: &Plan, expected: &[Vec<u32>], requests: &[u64], what: &str) {
    let stagings = TestStagings::for_plan(plan);
    let faults =
        [("eio", "Input/output error"), ("flip", "checksum"), ("silence", "has not answered")];
    for (index, (fault, said)) in faults.into_iter().enumerate() {
        for (number, request) in requests.iter().enumerate() {
            // Either storage has each fault.
            let one = &[(index + number) % 2][..];
            for &storage in if runs_all_cases() { &[0, 1] } else { one } {
                let staged = stagings.with_faults(&[(storage, &format!("{fault}@{request}"))]);
                let (with_losses, spans, measured) = run_groups(plan.clone(), &staged, GROUPS);
                let what = format!("{fault}@{request} of storage {storage}, {what}");
                assert_eq!(with_losses, expected, "{what}");
                replay(plan, &spans).unwrap_or_else(|error| panic!("{what}: {error}"));
                let [lost] = &measured.lost_storages[..] else {
                    panic!("{what}: {:?}", measured.lost_storages)
                };
                assert!(lost.reason.contains(said), "{what}: {}", lost.reason);
                assert_eq!(lost.worker, format!("storage worker {storage}"), "{what}");
                assert_eq!(lost.successor, format!("storage worker {}", 1 - storage), "{what}");
            }
        }
    }
}

pub fn any_of_three_storages_can_be_the_last() {
    let map = &maps()[1];
    let expected = expected(map, Dtype::F32, GROUPS);
    let plans = READ_TARGETS.map(|to| on_storages(map, Dtype::F32, 3, to));
    let stagings = TestStagings::for_plan(&plans[0]);
    let both = [(0, 1), (1, 0), (1, 2), (2, 0)].into_iter().zip(plans.iter().cycle());
    for ((first, second), plan) in both {
        let staged = stagings.with_faults(&[(first, "eio@30"), (second, "flip@160")]);
        let (with_losses, _, measured) = run_groups(plan.clone(), &staged, GROUPS);
        assert_eq!(with_losses, expected, "{first}, {second}");
        assert_eq!(measured.lost_storages.len(), 2, "{:?}", measured.lost_storages);
    }
}

pub fn without_any_storage_the_run_ends() {
    let plan = on_storages(&maps()[0], Dtype::Bf16, 2, ReadTarget::Host);
    let stagings = TestStagings::for_plan(&plan);
    let mut engine = start(plan, &stagings.with_faults(&[(0, "eio@5"), (1, "eio@90")]))
        .expect("the workers start");
    let prompts = prompts();
    let mut tokens = RecordedTokens::default();
    let failed = (0..50).find_map(|_| engine.run(&sequences(&prompts), &mut tokens).err());
    let EngineError::Failed(said) = failed.expect("nobody reads any more") else {
        panic!("interrupted")
    };
    assert!(said.contains("Input/output error") && said.contains("storage worker"), "{said}");
}

pub fn a_cut_file_or_a_removed_folder_costs_a_storage() {
    let map = &maps()[0];
    let expected = expected(map, Dtype::Bf16, GROUPS);
    let plan = on_storages(map, Dtype::Bf16, 2, ReadTarget::Host);
    // A file that was truncated before the run is refused, with advice.
    let stagings = TestStagings::for_plan(&plan);
    let file = Path::new(&stagings.at[1].path).join("weights.bin");
    let cut = |bytes| {
        let file = std::fs::File::options().write(true).open(&file).expect("the file");
        file.set_len(bytes).expect("it can be cut");
    };
    cut(4096);
    let error = start(plan.clone(), &stagings.at).expect_err("a file that is cut").to_string();
    assert!(error.contains("weights.bin") && error.contains("stage"), "{error}");
    // Truncating a file while it is read loses its storage; removing the directory of an open file
    // has no effect.
    let stagings = TestStagings::for_plan(&plan);
    let file = Path::new(&stagings.at[1].path).join("weights.bin");
    let mut engine = start(plan, &stagings.at).expect("the workers start");
    let prompts = prompts();
    let mut tokens = RecordedTokens::default();
    engine.run(&sequences(&prompts), &mut tokens).expect("a group");
    std::fs::remove_dir_all(stagings.directory.path().join("0")).expect("it can be removed");
    std::fs::File::options().write(true).open(&file).expect("the file").set_len(0).expect("cut");
    engine.run(&sequences(&prompts), &mut tokens).expect("a group");
    let measured = engine.finish().expect("no trace file");
    tokens.finished.sort();
    let with_losses: Vec<Vec<u32>> =
        tokens.finished.into_iter().map(|(_, tokens)| tokens).collect();
    assert_eq!(with_losses, expected);
    let [lost] = &measured.lost_storages[..] else { panic!("{:?}", measured.lost_storages) };
    assert!(lost.worker == "storage worker 1" && lost.reason.contains("cut"), "{}", lost.reason);
}

pub fn another_staging_is_refused() {
    let map = &maps()[0];
    let stagings = TestStagings::for_plan(&on_storages(map, Dtype::Bf16, 2, ReadTarget::Host));
    let plan = on_storages(map, Dtype::F32, 2, ReadTarget::Host);
    let error = start(plan, &stagings.at).expect_err("another form").to_string();
    assert!(error.contains("stage the model in this format"), "{error}");
}

/// Kills a worker of this process at the first token.
struct WorkerKiller {
    worker: &'static str,
    signal: Signal,
    killed: Option<Pid>,
    tokens: RecordedTokens,
}

impl WorkerKiller {
    fn find_worker(&self) -> Option<Pid> {
        let tasks = std::fs::read_dir("/proc/self/task").ok()?;
        let children = tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok())
            .collect::<String>();
        let pids = children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
        let named = |pid: &i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(self.worker)
        };
        Pid::from_raw(pids.into_iter().find(named)?)
    }
}

impl BatchSink for WorkerKiller {
    fn on_event(&mut self, request: usize, event: EngineEvent) -> ControlFlow<()> {
        if self.killed.is_none() && matches!(event, EngineEvent::Token { .. }) {
            let pid = self.find_worker().expect("the worker runs");
            kill_process(pid, self.signal).expect("it lives");
            self.killed = Some(pid);
        }
        self.tokens.on_event(request, event)
    }
}

pub fn another_storage_goes_on_for_a_killed_one() {
    let map = &maps()[0];
    const MORE: usize = 6;
    let expected = expected(map, Dtype::Bf16, MORE);
    for signal in [Signal::KILL, Signal::STOP] {
        let plan = on_storages(map, Dtype::Bf16, 2, ReadTarget::Host);
        let stagings = TestStagings::for_plan(&plan);
        let mut engine = start(plan, &stagings.at).expect("the workers start");
        let prompts = prompts();
        let tokens = RecordedTokens::default();
        let mut killer = WorkerKiller { worker: "storage worker 1", signal, killed: None, tokens };
        // A group may end before the loss is noticed, but not all of them do.
        for _ in 0..MORE {
            engine.run(&sequences(&prompts), &mut killer).expect("a group");
        }
        assert_eq!(killer.find_worker(), None, "the lost worker is gone");
        let measured = engine.finish().expect("no trace file");
        let [lost] = &measured.lost_storages[..] else { panic!("{:?}", measured.lost_storages) };
        assert!(lost.reason.contains("signal"), "{}", lost.reason);
        killer.tokens.finished.sort();
        let with_losses: Vec<_> =
            killer.tokens.finished.into_iter().map(|(_, tokens)| tokens).collect();
        assert_eq!(with_losses, expected, "{signal:?}");
    }
}
