//! Timed emulation: a table's layers on the real processes, programs and timelines, with no model.
//! It measures the runtime itself (overlap, what handing over costs, time outside work) at the
//! speed of hardware that is not there, beside what the simulator says of the very same programs.

mod report;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::Context;
use planner::layer::table::Table;
use planner::timed::{SteadyLayer, Timed, steady};
use program::ir::ProgramId;
use program::simulate::{Span, simulate};
use workers::shared::protocol::Durations;
use workers::shared::protocol::WeightsFrom;

use super::benchmark::Benchmark;
use crate::boundary::engine::EngineError;
use crate::cli::request::{TimedRequest, Verbosity};
use crate::engine::launch::LaunchOptions;
use crate::engine::trace_file::TraceFile;
use crate::engine::{Measured, RunEngine};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::job::error::JobError;
use crate::job::progress;
use crate::report::build;
use crate::report::build::RunPrediction;
use crate::report::file::Replayed;
use crate::setup::hardware::Hardware;
use report::{TimedPart, TimedReport, render};

/// What was expected before any worker started.
struct Simulated {
    layer: SteadyLayer,
    decode_s: f64,
}

/// Runs the layers of a table, and says how long they took.
///
/// # Errors
/// A sentence for the user.
pub fn run(request: &TimedRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    let table = read(&request.tables)?;
    let timed = Timed::of(&table, request.layers, request.gen_len)
        .with_context(|| format!("the table {}", request.tables.display()))?;
    let simulated = expect(&timed, request.gen_len)?;
    let Some((measured, spans)) = execute(request, &timed, interrupt)? else {
        eprintln!("interrupted; timed emulation keeps nothing");
        return Ok(Exit::Interrupted);
    };
    let report = report(request, &table, &timed, simulated.as_ref(), &measured, &spans);
    let text = serde_json::to_string_pretty(&report)? + "\n";
    if let Some(path) = &request.report {
        std::fs::write(path, &text).with_context(|| format!("the report {}", path.display()))?;
    }
    let text = match (request.json, request.verbosity) {
        (true, _) => text,
        (false, Verbosity::Quiet) => String::new(),
        (false, _) => render(&report),
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            Err(JobError::BrokenPipe.into())
        }
        text => Ok(text.map(|()| Exit::Done)?),
    }
}

fn read(path: &Path) -> anyhow::Result<Table> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("the table {shown}"))?;
    Table::from_json(&text).with_context(|| format!("the table {shown}"))
}

/// What the simulator says; `None` when there is no decode step, or too few layers for a middle.
fn expect(timed: &Timed, gen_len: u32) -> anyhow::Result<Option<Simulated>> {
    let steps = gen_len - 1;
    if steps == 0 {
        return Ok(None);
    }
    let decode = timed.plan.decode();
    let timeline = simulate(decode, &timed.times, steps)?;
    let layer = steady(&timed.plan, &timeline.spans);
    Ok(layer.map(|layer| Simulated { layer, decode_s: timeline.total_ns / 1e9 }))
}

/// Runs one group in the workers. `None`: interrupted.
fn execute(
    request: &TimedRequest,
    timed: &Timed,
    interrupt: &Interrupt,
) -> anyhow::Result<Option<(Measured, Vec<Span>)>> {
    let plan = &timed.plan;
    // The weights are named in the handshake, and not made: timed workers load nothing.
    let hardware = Hardware::timed(plan.map.uses_gpu());
    let options = LaunchOptions {
        cpus: Vec::new(),
        spin_us: 0,
        durations: Some(Durations { lanes: timed.times.lanes().to_vec() }),
        ..hardware.launch(WeightsFrom::Dummy { seed: 0 })
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
    let quiet = request.verbosity == Verbosity::Quiet || !std::io::stderr().is_terminal();
    let expected = progress::Expected { slots: benchmark.sequences, prior: None };
    match benchmark.run(&mut engine, progress::for_stderr(quiet, expected).as_mut()) {
        Ok(()) => {}
        Err(EngineError::Interrupted) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let mut spans = engine.spans();
    spans.retain(|span| span.program == ProgramId::DECODE);
    Ok(Some((engine.finish().context("the trace file")?, spans)))
}

fn report(
    request: &TimedRequest,
    table: &Table,
    timed: &Timed,
    simulated: Option<&Simulated>,
    measured: &Measured,
    spans: &[Span],
) -> TimedReport {
    let plan = &timed.plan;
    let layers = plan.config.num_layers;
    let lengths = (1, request.gen_len);
    let prediction =
        RunPrediction { lengths, predicted: None, groups: 0, decode_steps: 0, notes: Vec::new() };
    let mut run = build::build(plan, measured, &prediction, BTreeMap::new());
    run.device = "emulated:timed".to_owned();
    let decode_s = measured.totals.decode_ns as f64 / 1e9;
    run.replayed =
        simulated.map(|one| Replayed { simulated_s: one.decode_s, measured_s: decode_s });
    let layer = steady(plan, spans);
    let timed = TimedPart::new(table, &timed.found, layers, layer, simulated.map(|s| &s.layer));
    TimedReport { run, timed }
}
