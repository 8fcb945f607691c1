//! `coordinator stage`: writes a model's weights to NVMe drives, verifies staged weights, or lists
//! them.

use std::path::Path;

use anyhow::Context;
use comfy_table::Table;
use staging::{Lookup, Progress, Staged, State};

use crate::cli::request::{StageAction, StageRequest};
use crate::cli::values::StagedForm;
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::report::plain_table::{plain_table, right_aligned};
use crate::setup::bar::Bar;
use crate::setup::formats;
use crate::setup::model::Opened;
use crate::setup::staging::{Interrupted, StagedWeights, stage};
use crate::setup::usage::Usage;
use crate::terminal::print;

const GIB: f64 = (1u64 << 30) as f64;

/// Stages, verifies or lists weights.
///
/// # Errors
/// An error whose message is meant for the user.
pub fn run(request: &StageRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    if request.action == StageAction::Status {
        return status(request);
    }
    let opened = Opened::open(&request.model, request.seed)?;
    let formats = formats::weights(&opened, request.quantized, request.form == StagedForm::W4);
    let weights = StagedWeights { opened: &opened, dtype: request.dtype, formats: &formats };
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
        match Staged::lookup(directory, &identity)? {
            Lookup::Whole(staged) => say(request, &staged, "is staged already"),
            Lookup::Partial(Progress { done_bytes, total_bytes, .. }) => {
                if !request.quiet {
                    let (done, total) = (done_bytes as f64 / GIB, total_bytes as f64 / GIB);
                    let directory = directory.display();
                    eprintln!("{directory}: going on behind {done:.2} of {total:.2} GiB");
                }
                missing.push(directory.clone());
            }
            Lookup::Missing => missing.push(directory.clone()),
        }
    }
    match stage(weights, &missing, request.quiet, interrupt) {
        Ok(written) => {
            written.iter().for_each(|one| say(request, &one.staged, "is staged"));
            Ok(Exit::Done)
        }
        Err(error) if error.is::<Interrupted>() => {
            eprintln!("{error}");
            Ok(Exit::Interrupted)
        }
        Err(error) => Err(error),
    }
}

fn say(request: &StageRequest, staged: &Staged, what: &str) {
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
    let mut sound = true;
    for directory in &request.directories {
        let shown = directory.display();
        let staged = match Staged::lookup(directory, &identity)? {
            Lookup::Whole(staged) => staged,
            Lookup::Partial(_) => {
                return Err(Usage(format!(
                    "{shown}: the staging of {} is not finished; the same command without --verify \
                     goes on with it",
                    identity.model
                ))
                .into());
            }
            Lookup::Missing => {
                let text = format!("{shown}: {} ({}) is not staged", identity.model, identity.form);
                return Err(Usage(text).into());
            }
        };
        let mut bar = Bar::new("verifying", request.quiet);
        let verified = staged.verify(&mut |done, total| {
            bar.update(done, total);
            !interrupt.is_requested()
        })?;
        bar.end();
        if !verified.is_complete {
            eprintln!("interrupted");
            return Ok(Exit::Interrupted);
        }
        for damage in &verified.damaged {
            eprintln!("{}", damage.error);
        }
        sound &= verified.damaged.is_empty();
        if verified.damaged.is_empty() {
            say(request, &staged, "is sound");
        } else {
            let path = staged.path().display();
            eprintln!(
                "{path}: {} weights are damaged; remove the folder and stage again, and look at \
                 the drive (smartctl, dmesg)",
                verified.damaged.len()
            );
        }
    }
    Ok(if sound { Exit::Done } else { Exit::Failure })
}

fn status(request: &StageRequest) -> anyhow::Result<Exit> {
    let mut table = plain_table();
    table.set_header(["directory", "staging", "model", "form", "GiB", "state"]);
    right_aligned(&mut table, 4..5);
    let mut rows = 0;
    for directory in &request.directories {
        let listed = staging::list(directory)
            .with_context(|| format!("the directory {}", directory.display()))?;
        rows += listed.len();
        for one in listed {
            add(&mut table, directory, &one.name, one.state);
        }
    }
    let mut text = format!("{table}\n");
    if rows == 0 {
        text = "Nothing is staged there.\n".to_owned();
    }
    print(&text)?;
    Ok(Exit::Done)
}

fn add(table: &mut Table, directory: &Path, name: &str, state: State) {
    let gib = |bytes: u64| format!("{:.2}", bytes as f64 / GIB);
    let (model, form, size, state) = match state {
        State::Whole(staged) => {
            let identity = staged.identity();
            let size = gib(staged.total_bytes());
            (identity.model.clone(), identity.form.clone(), size, "whole".to_owned())
        }
        State::Partial(Progress { done_bytes, total_bytes, is_being_written }) => {
            let state = match is_being_written {
                true => format!("being written, {} done", gib(done_bytes)),
                false => format!("not finished, {} done; stage goes on with it", gib(done_bytes)),
            };
            (String::new(), String::new(), gib(total_bytes), state)
        }
        State::Damaged(error) => (String::new(), String::new(), String::new(), error.to_string()),
    };
    let directory = directory.display().to_string();
    table.add_row([directory, name.to_owned(), model, form, size, state]);
}
