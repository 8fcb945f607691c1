//! A group is any sequence of programs: the distribution of steps over groups and stages changes no
//! token.

use crate::common::llama;
use crate::common::placed::{cpu_only, group, shape, start, two_split};
use kernels::Variant;
use model::config::Dtype;
use planner::split::Split;
use program::ir::ProgramId;
use program::map::layer_list;
use shm::ProgramStage;
use workers::testing::{InProcess, Outcome, PlacedRequest, fill, list_work};

fn stage(program: ProgramId, steps: u32) -> ProgramStage {
    ProgramStage { program: program.0.into(), steps }
}

/// Runs groups one after the other, each with its stages and its last step.
fn run(
    lanes: &mut InProcess,
    full: &[PlacedRequest],
    groups: &[(&[ProgramStage], u32)],
) -> Vec<Outcome> {
    for (stages, last_step) in groups {
        lanes.release_stages(stages, *last_step).expect("drains");
    }
    full.iter().map(|placed| Outcome::read(lanes.table(), placed)).collect()
}

#[test]
fn steps_may_be_dealt_out_to_groups_and_stages() {
    let config = llama();
    let shape = shape(2, 3, 2, Dtype::Bf16);
    let full = group(&shape, config.vocab_size);
    let ops = layer_list(&config, 0, None).len();
    let all = Split { start: 0, end: ops };
    let some = Split { start: 3, end: 8 };
    let once = stage(ProgramId::PREFILL, 1);
    let decode = |steps| stage(ProgramId::DECODE, steps);
    for map in [cpu_only(&config), two_split(&config, all, None), two_split(&config, some, None)] {
        let mut lanes = start(&config, &shape, &map, Variant::best());
        let expected = lanes.run_group(&full);
        let begin = |lanes: &InProcess| {
            fill(lanes.table(), lanes.plan(), &full);
            list_work(lanes.table())
        };
        let last = begin(&lanes);
        assert!(last >= 3, "{last} decode steps are too few to deal out");
        // Decode in two stages of one group, the second of which ends with the sequences.
        let stages = [once, decode(2), decode(u32::MAX)];
        assert_eq!(run(&mut lanes, &full, &[(&stages, last)]), expected, "{}", map.policy);
        // Each program in groups of its own, the last of which ends before its stage does.
        begin(&lanes);
        let groups: [(&[ProgramStage], u32); 3] =
            [(&[once], 0), (&[decode(1), decode(1)], 1), (&[decode(u32::MAX)], last - 3)];
        assert_eq!(run(&mut lanes, &full, &groups), expected, "{}", map.policy);
        assert!(lanes.finish().iter().all(Result::is_ok));
    }
}
