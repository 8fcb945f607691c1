//! `coordinator profile --nvme`: read rates of drives that read concurrently, and the share of each
//! weight that each drive gets.

use std::fmt::Write as _;
use std::path::Path;

use weight_store::{Lookup, StagedCopy};

use report::plain_table::{plain_table, right_aligned};
use session::argument_error::ArgumentError;
use session::formats;
use session::interrupt::Interrupt;
use session::model::ModelHandle;
use session::request::{ModelChoice, ProfileRequest, Verbosity};
use session::staging::balance::{self, DriveBalance};
use session::staging::drive_measurement::BalancedWeight;
use session::staging::nvme::reader_options;
use session::staging::{StagedWeights, Staging};
use session::values::QuantizedChoice;

const MIB: f64 = (1u64 << 20) as f64;

/// Measures the drives of a profile, or finds the stored measurement, and returns the text to
/// print.
///
/// # Errors
/// A model that is not staged on one of them, or a drive that cannot be read.
pub fn balance_drives(request: &ProfileRequest, interrupt: &Interrupt) -> anyhow::Result<String> {
    let model = ModelChoice { dummy_weights: request.dummy_weights, ..request.model.clone() };
    let model_handle = ModelHandle::open(&model, 0)?;
    let quantized = QuantizedChoice::default_for(request.dtype);
    let formats = formats::resolve_weight_formats(
        &model_handle,
        quantized,
        request.compress.compresses_weights(),
    );
    let weights = StagedWeights { model: &model_handle, dtype: request.dtype, formats: &formats };
    let identity = weights.identity()?;
    let mut stagings = Vec::new();
    for directory in &request.nvme {
        match StagedCopy::lookup(directory, &identity)? {
            Lookup::Complete(staged) => {
                stagings.push(Staging { directory: directory.clone(), staged });
            }
            Lookup::Partial(_) | Lookup::Missing => {
                let (model, form) = (&identity.model, &identity.form);
                return Err(ArgumentError(format!(
                    "{}: {model} ({form}) is not staged there; run `coordinator stage` first",
                    directory.display()
                ))
                .into());
            }
        }
    }
    let options = reader_options(stagings.len())?;
    let verbosity = if request.quiet { Verbosity::Quiet } else { Verbosity::Normal };
    let (balanced, path) = balance::obtain(
        &stagings,
        &options,
        &model_handle.config,
        request.force,
        verbosity,
        interrupt,
    )?;
    Ok(format_balance(&balanced, path.as_deref()))
}

fn format_balance(balanced: &DriveBalance, path: Option<&Path>) -> String {
    let mut text = String::new();
    let rates = balanced.directories.iter().zip(&balanced.read_bytes_per_s).enumerate();
    for (drive, (directory, rate)) in rates {
        if let Some(Some(reason)) = balanced.failed.get(drive) {
            let _ = writeln!(text, "nvme{drive} ({directory}) cannot be read: {reason}");
            continue;
        }
        let latency_ms = balanced.latency_ns[drive] / 1e6;
        let rate = rate / 1e9;
        let concurrency_note =
            if balanced.directories.len() > 1 { " while the others are read" } else { "" };
        let _ = writeln!(
            text,
            "nvme{drive} ({directory}) reads {rate:.2} GB/s{concurrency_note}, with a latency of \
             {latency_ms:.2} ms"
        );
    }
    if balanced.directories.len() > 1 {
        balanced.weights.iter().for_each(|weight| text += &format_trajectory(weight));
    }
    if let Some(path) = path {
        let _ = writeln!(text, "stored in {}", path.display());
    }
    text
}

/// Returns a table of the iterations that balanced a weight's shares.
fn format_trajectory(weight: &BalancedWeight) -> String {
    let drives = weight.trajectory.sizes.len();
    let mut table = plain_table();
    let mut header = vec!["iteration".to_owned()];
    (0..drives).for_each(|drive| header.extend([format!("nvme{drive} MiB"), "ms".to_owned()]));
    header.push("spread".to_owned());
    table.set_header(header);
    right_aligned(&mut table, 0..2 * drives + 2);
    for (index, iteration) in weight.trajectory.iterations.iter().enumerate() {
        let mut row = vec![(index + 1).to_string()];
        for (size, time_s) in iteration.sizes.iter().zip(&iteration.times_s) {
            row.push(format!("{:.2}", (size * weight_store::BLOCK_BYTES) as f64 / MIB));
            row.push(
                time_s.map_or_else(|| "-".to_owned(), |time_s| format!("{:.2}", time_s * 1e3)),
            );
        }
        row.push(
            spread(&iteration.times_s)
                .map_or_else(String::new, |share| format!("{:.1}%", 100.0 * share)),
        );
        table.add_row(row);
    }
    let size = weight.size_bytes as f64 / MIB;
    let outcome = match weight.trajectory.is_balanced {
        true => "in balance",
        false => "not within 5%: the best of these is used",
    };
    let ops = weight.ops.join(", ");
    format!("{ops} of a layer, {size:.2} MiB each, divided over the drives: {outcome}\n{table}\n")
}

/// Returns the largest relative deviation of a finish time from the average.
fn spread(times_s: &[Option<f64>]) -> Option<f64> {
    let times_s: Vec<f64> = times_s.iter().flatten().copied().collect();
    let average_s = times_s.iter().sum::<f64>() / times_s.len() as f64;
    let farthest_s = times_s.iter().map(|time_s| (time_s - average_s).abs()).fold(0.0, f64::max);
    (average_s > 0.0).then_some(farthest_s / average_s)
}
