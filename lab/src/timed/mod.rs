//! Timed emulation: runs a table's layers, or a placement on a described machine, on the real
//! processes, programs and timelines without computing anything. It measures the runtime itself
//! (overlap, cost of communication, time outside work) at the speed of hardware that is not
//! present, and compares it with the simulation of the very same programs.

mod programs;
mod report;

use std::collections::BTreeMap;
use std::io::IsTerminal;

use anyhow::Context;
use program::ir::ProgramId;
use program::simulate::{SimulatedTimeline, Span, simulate};
use protocol::messages::WeightsOrigin;

use crate::benchmark::Benchmark;
use crate::request::TimedRequest;
use ::report::build;
use ::report::build::RunPrediction;
use ::report::file::ReplayReport;
use batch::progress;
use engine::launch::LaunchOptions;
use engine::trace_file::TraceFile;
use engine::{RunEngine, RunStats};
use engine_api::batch::EngineError;
use programs::TimedPrograms;
use report::{TimedDetails, TimedReport, render};
use session::exit::Exit;
use session::hardware::Hardware;
use session::interrupt::Interrupt;
use session::output::print_result;
use session::progress_reporter::ProgressReporter;
use session::request::Verbosity;

/// Runs programs whose instructions only take time, and prints the measured times.
///
/// # Errors
/// An error whose message is meant for the user.
pub fn run(request: &TimedRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let programs = TimedPrograms::load(request)?;
    let simulated = simulate_steps(&programs, request.gen_len)?;
    let Some((measured, spans)) = run_group(request, &programs, interrupt)? else {
        eprintln!("interrupted; the timed emulation has no results");
        return Ok(Exit::Interrupted);
    };
    let report = build_report(request, programs, simulated.as_ref(), &measured, &spans);
    let text = serde_json::to_string_pretty(&report)? + "\n";
    if let Some(path) = &request.report {
        std::fs::write(path, &text).with_context(|| format!("the report {}", path.display()))?;
    }
    let text = match (request.json, request.verbosity) {
        (true, _) => text,
        (false, Verbosity::Quiet) => String::new(),
        (false, _) => render(&report),
    };
    print_result(&text, request.json)?;
    Ok(Exit::Done)
}

/// Returns the simulated timeline; `None` if there is no decode step.
fn simulate_steps(
    programs: &TimedPrograms,
    gen_len: u32,
) -> anyhow::Result<Option<SimulatedTimeline>> {
    let decode = programs.plan.decode();
    Ok(match gen_len - 1 {
        0 => None,
        steps => Some(simulate(decode, &programs.times, steps)?),
    })
}

/// Runs one group in the workers. Returns `None` if it was interrupted.
fn run_group(
    request: &TimedRequest,
    programs: &TimedPrograms,
    interrupt: &Interrupt,
) -> anyhow::Result<Option<(RunStats, Vec<Span>)>> {
    let plan = &programs.plan;
    // The handshake names the weights, but they are not created: timed workers load nothing.
    let hardware = Hardware::timed(plan.map.uses_gpu());
    let options = LaunchOptions {
        cpus: Vec::new(),
        spin_us: 0,
        durations: Some(programs.durations()),
        ..hardware.launch_options(WeightsOrigin::Dummy { seed: 0 })
    };
    let trace = match &request.trace {
        Some(path) => Some(
            TraceFile::create(path, plan)
                .with_context(|| format!("the trace file {}", path.display()))?,
        ),
        None => None,
    };
    let signals = interrupt.clone();
    let stop = Box::new(move || signals.is_requested());
    let mut engine = RunEngine::start(plan.clone(), &options, trace, stop, &mut |_, _| true)?;
    let benchmark = Benchmark {
        sequences: usize::from(plan.shape.batches),
        prompt_len: 1,
        gen_len: request.gen_len,
        vocab_size: plan.config.vocab_size,
        seed: 0,
    };
    // A progress bar that ends with the last token on a terminal, and lines with the elapsed time
    // elsewhere: in slow motion there is nothing else to report.
    let is_terminal = std::io::stderr().is_terminal();
    let quiet = request.verbosity == Verbosity::Quiet || !is_terminal;
    let shown = if is_terminal { Verbosity::Quiet } else { request.verbosity };
    let _reporter = ProgressReporter::start("running the programs", shown);
    let expected = progress::EtaConfig { slots: benchmark.sequences, prior: None };
    match benchmark.run(&mut engine, progress::for_stderr(quiet, expected).as_mut()) {
        Ok(()) => {}
        Err(EngineError::Interrupted) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let mut spans = engine.spans();
    spans.retain(|span| span.program == ProgramId::DECODE);
    let spans = programs.to_machine_time(spans);
    Ok(Some((engine.finish().context("the trace file")?, spans)))
}

fn build_report(
    request: &TimedRequest,
    programs: TimedPrograms,
    simulated: Option<&SimulatedTimeline>,
    measured: &RunStats,
    spans: &[Span],
) -> TimedReport {
    let plan = &programs.plan;
    let prediction = RunPrediction::unknown((1, request.gen_len));
    let mut run = build::build(plan, measured, &prediction, BTreeMap::new());
    run.device = "emulated:timed".to_owned();
    let pair = programs.compare(spans, simulated.map(|timeline| timeline.spans.as_slice()));
    let decode_s = measured.totals.decode_ns as f64 / 1e9 / f64::from(programs.slow_motion);
    run.replayed = simulated.filter(|_| pair.has_simulated()).map(|timeline| ReplayReport {
        simulated_s: timeline.total_ns / 1e9,
        measured_s: decode_s,
        lanes: BTreeMap::new(),
        layers: None,
    });
    let (batches, layers) = (plan.shape.batches, plan.config.num_layers);
    let slow_motion = programs.slow_motion;
    TimedReport {
        run,
        timed: TimedDetails { origin: programs.origin, batches, layers, slow_motion, pair },
    }
}
