//! `coordinator stage`: writes a model's weights to NVMe drives, verifies staged weights, or lists
//! them.

use std::path::Path;

use anyhow::Context;
use comfy_table::Table;
use weight_store::{CopyProgress, CopyState, Lookup, StagedCopy};

use crate::cli::request::{StageAction, StageRequest};
use crate::cli::values::StagedFormat;
use report::plain_table::{plain_table, right_aligned};
use session::argument_error::ArgumentError;
use session::byte_progress_bar::ByteProgressBar;
use session::exit::Exit;
use session::formats;
use session::interrupt::Interrupt;
use session::model::ModelHandle;
use session::output::print_result;
use session::staging::{Interrupted, StagedWeights, stage};

const GIB: f64 = (1u64 << 30) as f64;

/// Stages, verifies or lists weights.
///
/// # Errors
/// An error whose message is meant for the user.
pub fn run(request: &StageRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    if request.action == StageAction::Status {
        return status(request);
    }
    let model = ModelHandle::open(&request.model, request.seed)?;
    let formats = formats::resolve_weight_formats(
        &model,
        request.quantized,
        request.format == StagedFormat::W4,
    );
    let weights = StagedWeights { model: &model, dtype: request.dtype, formats: &formats };
    match request.action {
        StageAction::Verify => verify(request, weights, interrupt),
        _ => write(request, weights, interrupt),
    }
}

fn write(
    request: &StageRequest,
    weights: StagedWeights<'_>,
    interrupt: &Interrupt,
) -> anyhow::Result<Exit> {
    let identity = weights.identity()?;
    let mut missing = Vec::new();
    for directory in &request.directories {
        match StagedCopy::lookup(directory, &identity)? {
            Lookup::Complete(staged) => print_status(request, &staged, "is already staged"),
            Lookup::Partial(CopyProgress { done_bytes, total_bytes, .. }) => {
                if !request.quiet {
                    let (done, total) = (done_bytes as f64 / GIB, total_bytes as f64 / GIB);
                    let directory = directory.display();
                    eprintln!("{directory}: resuming after {done:.2} of {total:.2} GiB");
                }
                missing.push(directory.clone());
            }
            Lookup::Missing => missing.push(directory.clone()),
        }
    }
    match stage(weights, &missing, request.quiet, interrupt) {
        Ok(written) => {
            written.iter().for_each(|staging| print_status(request, &staging.staged, "is staged"));
            Ok(Exit::Done)
        }
        Err(error) if error.is::<Interrupted>() => {
            eprintln!("{error}");
            Ok(Exit::Interrupted)
        }
        Err(error) => Err(error),
    }
}

fn print_status(request: &StageRequest, staged: &StagedCopy, what: &str) {
    if !request.quiet {
        let identity = staged.identity();
        eprintln!(
            "{} ({}), {:.2} GiB, {what} in {}",
            identity.model,
            identity.form,
            staged.total_bytes() as f64 / GIB,
            staged.path().display()
        );
    }
}

fn verify(
    request: &StageRequest,
    weights: StagedWeights<'_>,
    interrupt: &Interrupt,
) -> anyhow::Result<Exit> {
    let identity = weights.identity()?;
    let mut is_intact = true;
    for directory in &request.directories {
        let shown = directory.display();
        let staged = match StagedCopy::lookup(directory, &identity)? {
            Lookup::Complete(staged) => staged,
            Lookup::Partial(_) => {
                return Err(ArgumentError(format!(
                    "{shown}: the staging of {} is incomplete; run the same command without \
                     --verify to resume it",
                    identity.model
                ))
                .into());
            }
            Lookup::Missing => {
                let text = format!("{shown}: {} ({}) is not staged", identity.model, identity.form);
                return Err(ArgumentError(text).into());
            }
        };
        let mut bar = ByteProgressBar::new("verifying", request.quiet);
        let verified = staged.verify(&mut |done, total| {
            bar.update(done, total);
            !interrupt.is_requested()
        })?;
        bar.finish();
        if !verified.is_complete {
            eprintln!("interrupted");
            return Ok(Exit::Interrupted);
        }
        for damage in &verified.damaged {
            eprintln!("{}", damage.error);
        }
        is_intact &= verified.damaged.is_empty();
        if verified.damaged.is_empty() {
            print_status(request, &staged, "is intact");
        } else {
            let path = staged.path().display();
            eprintln!(
                "{path}: {} weights are damaged; remove the folder, stage again, and check the \
                 drive (smartctl, dmesg)",
                verified.damaged.len()
            );
        }
    }
    Ok(if is_intact { Exit::Done } else { Exit::Failure })
}

fn status(request: &StageRequest) -> anyhow::Result<Exit> {
    let mut table = plain_table();
    table.set_header(["directory", "staging", "model", "format", "GiB", "state"]);
    right_aligned(&mut table, 4..5);
    let mut rows = 0;
    for directory in &request.directories {
        let listed = weight_store::list(directory)
            .with_context(|| format!("the directory {}", directory.display()))?;
        rows += listed.len();
        for staging in listed {
            add_row(&mut table, directory, &staging.name, staging.state);
        }
    }
    let mut text = format!("{table}\n");
    if rows == 0 {
        text = "no weights are staged there\n".to_owned();
    }
    print_result(&text, false)?;
    Ok(Exit::Done)
}

fn add_row(table: &mut Table, directory: &Path, name: &str, state: CopyState) {
    let gib = |bytes: u64| format!("{:.2}", bytes as f64 / GIB);
    let (model, form, size, state) = match state {
        CopyState::Complete(staged) => {
            let identity = staged.identity();
            let size = gib(staged.total_bytes());
            (identity.model.clone(), identity.form.clone(), size, "complete".to_owned())
        }
        CopyState::Partial(CopyProgress { done_bytes, total_bytes, is_being_written }) => {
            let state = match is_being_written {
                true => format!("being written, {} done", gib(done_bytes)),
                false => {
                    format!("incomplete, {} done; `coordinator stage` resumes it", gib(done_bytes))
                }
            };
            (String::new(), String::new(), gib(total_bytes), state)
        }
        CopyState::Damaged(error) => {
            (String::new(), String::new(), String::new(), error.to_string())
        }
    };
    let directory = directory.display().to_string();
    table.add_row([directory, name.to_owned(), model, form, size, state]);
}
