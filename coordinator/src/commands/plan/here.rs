//! This machine, as measured: what a run would choose, without running it.

use super::show::Answer;
use crate::cli::request::{PlanRequest, Run, Work};
use crate::commands::run;
use crate::interrupt::Interrupt;
use crate::report::explain;
use crate::setup::model::Opened;
use crate::setup::placement;
use crate::setup::placement::Measure;

/// The answer, as text or JSON.
///
/// # Errors
/// What a run would be refused for; a machine that could not be profiled.
pub(super) fn plan(
    run: &Run,
    request: &PlanRequest,
    interrupt: &Interrupt,
) -> anyhow::Result<String> {
    let opened = Opened::open(&run.model, run.seed)?;
    let Work::Benchmark { prompt_len, gen_len } = run.work else {
        unreachable!("the command line makes benchmarks only")
    };
    let decision = run::decide(run, &opened, prompt_len, gen_len, Measure::Always, interrupt)?;
    let Some(chosen) = &decision.chosen else {
        anyhow::bail!(
            "the profile of this machine does not price {}; leave --split-chunks out",
            decision.plan.map.policy
        );
    };
    let threads = |uses_gpu| placement::threads(run, uses_gpu);
    let answer = Answer {
        chosen,
        machine: "this machine",
        limits: decision.limits,
        notes: &decision.notes,
        threads: Some(&threads),
    };
    let mut text = answer.told(request)?;
    if !request.json {
        text += &format!("\n{}", explain::plan(&decision.plan));
    }
    Ok(text)
}
