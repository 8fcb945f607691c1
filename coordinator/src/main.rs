//! Entry point: parses the command line, runs the command and maps its result to an exit code.
//! Everything else is in the library.

use std::io::Write;
use std::process::ExitCode;

use batch::error::JobError;
use coordinator::cli::command::Command;
use coordinator::cli::shell;
use coordinator::cli::{EarlyExit, parse};
use coordinator::commands::cache;
use coordinator::commands::doctor;
use coordinator::commands::plan;
use coordinator::commands::profile;
use coordinator::commands::pull;
use coordinator::commands::quantize;
use coordinator::commands::report;
use coordinator::commands::run;
use coordinator::commands::score;
use coordinator::commands::serve;
use coordinator::commands::stage;
use engine::launch::LaunchError;
use lab::bench_serve;
use lab::device_rates;
use lab::load::runner::LoadGenError;
use lab::timed;
use profiler::RunnerError;
use session::argument_error::ArgumentError;
use session::exit::Exit;
use session::interrupt::{Interrupt, ignore_file_size_signal};
use session::model::open_weights;
use session::staging::direct;
use session::terminal::printable;

/// Counts the allocations of workers while they run; there must be none.
#[global_allocator]
static ALLOCATOR: workers::alloc_counter::CountingAllocator =
    workers::alloc_counter::CountingAllocator;

/// Output of `coordinator formats`.
const FORMATS: &str = include_str!("../../docs/formats.md");

fn main() -> ExitCode {
    let command = match parse(std::env::args_os()) {
        Ok(command) => command,
        Err(EarlyExit::Help(text)) => {
            // If stdout is closed, there is no reader to report the error to.
            let _ = std::io::stdout().write_all(text.as_bytes());
            return Exit::Done.into();
        }
        Err(EarlyExit::Invalid(text, exit)) => {
            let _ = std::io::stderr().write_all(printable(&text).as_bytes());
            return exit.into();
        }
    };
    match command {
        Command::Worker { channel, .. } => {
            // Otherwise reaching the limit on file sizes would end the worker.
            let _ = ignore_file_size_signal();
            // SAFETY: needed to take over the inherited channel. The coordinator passes its number
            // to this process alone, and no code has opened or closed descriptors before.
            ExitCode::from(unsafe { workers::worker_main::worker_main(channel, &open_weights) })
        }
        Command::Text { channel } => {
            // SAFETY: needed to take over the inherited channel, as above.
            ExitCode::from(unsafe { tokenizer_host::serve::serve(channel) })
        }
        Command::Profile(request) => interruptible(|interrupt| profile::run(&request, interrupt)),
        Command::Stage(request) => interruptible(|interrupt| stage::run(&request, interrupt)),
        // Not interruptible: a signal ends the process at once, and the fetched bytes are kept.
        Command::Pull(request) => {
            pull::run(&request).unwrap_or_else(|error| report_error(&error)).into()
        }
        Command::Quantize(request) => interruptible(|interrupt| quantize::run(&request, interrupt)),
        Command::Serve(request) => interruptible(|interrupt| serve::run(&request, interrupt)),
        Command::Cache(request) => {
            cache::run(&request).unwrap_or_else(|error| report_error(&error)).into()
        }
        Command::Report(request) => {
            report::run(&request).unwrap_or_else(|error| report_error(&error)).into()
        }
        Command::Score(request) => interruptible(|interrupt| score::run(&request, interrupt)),
        Command::BenchServe(request) => {
            interruptible(|interrupt| bench_serve::run(&request, interrupt))
        }
        Command::Plan(request) => interruptible(|interrupt| plan::run(&request, interrupt)),
        Command::OpenDeviceMemory { device, handle } => {
            ExitCode::from(u8::from(!doctor::probe::can_open(device, &handle)))
        }
        Command::ReadToDevice { device, handle, staging } => {
            direct::read_test_main(device, &handle, &staging)
        }
        Command::DeviceRates(request) => {
            device_rates::run(request).unwrap_or_else(|error| report_error(&error)).into()
        }
        Command::Formats => print(FORMATS.as_bytes()),
        Command::Completions(shell) => print(&shell::completions(shell)),
        Command::ManPages(folder) => match shell::write_man_pages(&folder) {
            Ok(()) => Exit::Done.into(),
            Err(error) => report_error(&anyhow::Error::from(error)).into(),
        },
        Command::Man(command) => match shell::render_man_page(command.as_deref()) {
            Ok(render_man_page) => print(&render_man_page),
            Err(error) => report_error(&ArgumentError(error.to_string()).into()).into(),
        },
        Command::Doctor { json } => {
            doctor::run(json).unwrap_or_else(|error| report_error(&error)).into()
        }
        Command::Timed(request) => interruptible(|interrupt| timed::run(&request, interrupt)),
        Command::Run(run) => interruptible(|interrupt| run::run(&run, interrupt)),
    }
}

/// Writes `text` to stdout, ignoring errors.
fn print(text: &[u8]) -> ExitCode {
    // If stdout is closed, there is no reader to report the error to.
    let _ = std::io::stdout().write_all(text);
    Exit::Done.into()
}

/// Runs a command that signals may interrupt.
fn interruptible(run: impl FnOnce(&Interrupt) -> anyhow::Result<Exit>) -> ExitCode {
    let interrupt = Interrupt::install().map_err(anyhow::Error::from);
    let ran = interrupt.and_then(|interrupt| run(&interrupt));
    ran.unwrap_or_else(|error| report_error(&error)).into()
}

/// Maximum length of an error message in characters; messages may quote a file.
const MESSAGE_CHARS_MAX: usize = 4000;

/// Prints the error with its causes and returns the exit code.
fn report_error(error: &anyhow::Error) -> Exit {
    if matches!(error.downcast_ref(), Some(JobError::BrokenPipe)) {
        return Exit::BrokenPipe;
    }
    let exit = match error.downcast_ref::<ArgumentError>() {
        Some(_) => Exit::Usage,
        None if error.chain().any(is_interruption) => Exit::Interrupted,
        None => Exit::Failure,
    };
    let mut text = format!("coordinator: {error}");
    for cause in error.chain().skip(1).map(ToString::to_string) {
        // Most messages already end with their cause.
        if !text.contains(cause.trim_end_matches('.')) {
            text = format!("{text}: {cause}");
        }
    }
    if let Some((cut, _)) = text.char_indices().nth(MESSAGE_CHARS_MAX) {
        text.truncate(cut);
        text.push_str(" ...");
    }
    if !text.ends_with('.') {
        text.push('.');
    }
    let _ = writeln!(std::io::stderr(), "{}", printable(&text));
    exit
}

/// Returns true if a signal interrupted the run.
fn is_interruption(cause: &(dyn std::error::Error + 'static)) -> bool {
    matches!(cause.downcast_ref(), Some(LaunchError::Interrupted))
        || matches!(cause.downcast_ref(), Some(JobError::Interrupted))
        || matches!(cause.downcast_ref(), Some(LoadGenError::Interrupted))
        || matches!(cause.downcast_ref(), Some(RunnerError::Interrupted))
}
