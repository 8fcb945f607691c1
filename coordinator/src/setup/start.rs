//! Launching the engine, with a bar while it loads.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Context;
use grammar::Grammars;
use indicatif::{ProgressBar, ProgressStyle};
use program::plan::Plan;

use super::hardware::Hardware;
use super::model::Opened;
use crate::cli::request::{Run, Verbosity};
use crate::engine::RunEngine;
use crate::engine::launch::LaunchOptions;
use crate::engine::trace_file::TraceFile;
use crate::interrupt::Interrupt;

/// Starts the workers and waits until the model is loaded.
///
/// # Errors
/// What kept a worker from getting ready, in its own words.
pub(crate) fn start(
    run: &Run,
    opened: &Opened,
    plan: Plan,
    grammars: Option<Grammars>,
    interrupt: &Interrupt,
) -> anyhow::Result<RunEngine> {
    let hardware = Hardware::resolve(run, plan.map.uses_gpu());
    let options = LaunchOptions { grammars, ..hardware.launch(opened.weights.clone()) };
    let trace = match &run.trace {
        Some(path) => Some(
            TraceFile::create(path, &plan)
                .with_context(|| format!("the trace file {}", path.display()))?,
        ),
        None => None,
    };
    let mut progress = LoadBar::new(run.verbosity == Verbosity::Quiet);
    let signals = interrupt.clone();
    let mut engine = RunEngine::start(
        plan,
        &options,
        trace,
        Box::new(move || signals.is_requested()),
        &mut |done, total| {
            progress.update(done, total);
            true
        },
    )?;
    progress.end();
    engine.share_prompts(run.shares_prompts);
    Ok(engine)
}

/// How far loading is: a bar on a terminal, a line now and then otherwise.
struct LoadBar {
    bar: ProgressBar,
    /// When the next line is due; `None` where a bar or nothing is shown.
    next_line: Option<Instant>,
}

/// Without a terminal a line is written so often; a short load writes none.
const LINE_EVERY: Duration = Duration::from_secs(5);

impl LoadBar {
    fn new(quiet: bool) -> LoadBar {
        let terminal = std::io::stderr().is_terminal();
        let shown = terminal && !quiet;
        let bar = if shown { ProgressBar::new(0) } else { ProgressBar::hidden() };
        let style = "loading {wide_bar} {bytes}/{total_bytes}, {bytes_per_sec}, ETA {eta}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        let next_line = (!terminal && !quiet).then(|| Instant::now() + LINE_EVERY);
        LoadBar { bar, next_line }
    }

    fn update(&mut self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        if self.next_line.is_some_and(|next| Instant::now() >= next) {
            let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
            eprintln!("loading: {:.2} of {:.2} GiB", gib(done), gib(total));
            self.next_line = Some(Instant::now() + LINE_EVERY);
        }
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}
