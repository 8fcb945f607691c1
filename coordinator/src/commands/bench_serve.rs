//! `coordinator bench-serve`: measures a running server under load.

use std::io::Write;

use anyhow::Context;
use serde_json::json;

use super::load_shape::load_shape;
use super::serve::raise_descriptors;
use crate::cli::request::{BenchServeRequest, Verbosity};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::load::client::Client;
use crate::load::drive::drive;
use crate::load::figures::Figures;
use crate::load::table::table;
use crate::load::workload::{Draw, first_of_all, workload};
use crate::setup::progress_reporter::ProgressReporter;

/// Default number of requests.
const REQUESTS: usize = 64;

/// Maximum number of failures that are printed.
const FAILURES_TOLD: usize = 3;

/// Sends requests and prints statistics of the answers.
///
/// # Errors
/// A table that cannot be read, a server that does not answer a first request, or Ctrl-C.
pub fn run(request: &BenchServeRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    raise_descriptors();
    let (shape, requests) = load_shape(&request.lengths, REQUESTS)?;
    let draw = Draw {
        rate: request.rate,
        requests: request.requests.unwrap_or(requests),
        vocab_size: request.vocab_size,
        seed: request.seed,
    };
    let planned = workload(&shape, draw);
    let first = first_of_all(&planned, draw);
    let target = request.target.clone();
    let unknown = || format!("--url names {}, which is no host here", target.host);
    let client = Client {
        addresses: target.addresses().with_context(unknown)?,
        target: target.clone(),
        api: request.api,
        authorization: request.authorization.clone(),
        timeout: request.timeout,
    };
    let interrupted = || interrupt.is_requested();
    let reporter = ProgressReporter::begin("sending requests", Verbosity::Progress);
    let total = planned.len();
    let progress = |done: usize| {
        let share = done as f64 / total.max(1) as f64;
        reporter.update(&format!("{done} of {total} answered"), Some(share));
    };
    let model = request.model.as_deref();
    let records = drive(client, model, first.as_ref(), &planned, &progress, &interrupted)?;
    drop(reporter);
    let figures = Figures::of(&records, request.slo);
    let text = if request.json {
        let ms = |duration: std::time::Duration| duration.as_secs_f64() * 1000.0;
        let mut object = serde_json::to_value(&figures)?;
        object["slo_ms"] = json!({
            "ttft": ms(request.slo.first_token),
            "ttft_per_prompt_token": ms(request.slo.per_prompt_token),
            "tpot": ms(request.slo.per_token),
        });
        object["seed"] = request.seed.into();
        format!("{object}\n")
    } else {
        table(&figures, request.rate)
    };
    std::io::stdout().write_all(text.as_bytes())?;
    if figures.short > 0 {
        eprintln!("{} answers have fewer tokens than were interrupted for", figures.short);
    }
    for failure in records.failures.iter().take(FAILURES_TOLD) {
        eprintln!("not answered: {failure}");
    }
    Ok(if figures.failed > 0 { Exit::SomeFailed } else { Exit::Done })
}
