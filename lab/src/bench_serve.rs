//! `coordinator bench-serve`: measures a running server under load.

use anyhow::Context;
use serde_json::json;

use crate::load::client::Client;
use crate::load::results::LoadTestResults;
use crate::load::runner::send_requests;
use crate::load::table::format_table;
use crate::load::workload::{WorkloadParams, warmup_request, workload};
use crate::request::BenchServeRequest;
use crate::workload_shape::read_workload_shape;
use session::descriptor_limit::raise_descriptor_limit;
use session::exit::Exit;
use session::interrupt::Interrupt;
use session::output::print_result;
use session::progress_reporter::ProgressReporter;
use session::request::Verbosity;

/// Default number of requests.
const DEFAULT_REQUESTS: usize = 64;

/// Maximum number of failures that are printed.
const MAX_PRINTED_FAILURES: usize = 3;

/// Sends requests and prints statistics of the answers.
///
/// # Errors
/// A table that cannot be read, a server that does not answer a first request, or Ctrl-C.
pub fn run(request: &BenchServeRequest, interrupt: &Interrupt) -> anyhow::Result<Exit> {
    raise_descriptor_limit();
    let (shape, requests) = read_workload_shape(&request.lengths, DEFAULT_REQUESTS)?;
    let params = WorkloadParams {
        rate: request.rate,
        requests: request.requests.unwrap_or(requests),
        vocab_size: request.vocab_size,
        seed: request.seed,
    };
    let planned = workload(&shape, params);
    let warmup = warmup_request(&planned, params);
    let target = request.target.clone();
    let unknown = || format!("--url: the host {} cannot be resolved", target.host);
    let client = Client {
        addresses: target.addresses().with_context(unknown)?,
        target: target.clone(),
        api: request.api,
        authorization: request.authorization.clone(),
        timeout: request.timeout,
    };
    let interrupted = || interrupt.is_requested();
    let reporter = ProgressReporter::start("sending requests", Verbosity::Progress);
    let total = planned.len();
    let progress = |done: usize| {
        let share = done as f64 / total.max(1) as f64;
        reporter.update(&format!("{done} of {total} answered"), Some(share));
    };
    let model = request.model.as_deref();
    let records = send_requests(client, model, warmup.as_ref(), &planned, &progress, &interrupted)?;
    drop(reporter);
    let results = LoadTestResults::from_records(&records, request.slo);
    let text = if request.json {
        let ms = |duration: std::time::Duration| duration.as_secs_f64() * 1000.0;
        let mut object = serde_json::to_value(&results)?;
        object["slo_ms"] = json!({
            "ttft": ms(request.slo.first_token),
            "ttft_per_prompt_token": ms(request.slo.per_prompt_token),
            "tpot": ms(request.slo.per_token),
        });
        object["seed"] = request.seed.into();
        format!("{object}\n")
    } else {
        format_table(&results, request.rate)
    };
    print_result(&text, request.json)?;
    if results.short > 0 {
        eprintln!("{} answers have fewer tokens than requested", results.short);
    }
    for failure in records.failures.iter().take(MAX_PRINTED_FAILURES) {
        eprintln!("request failed: {failure}");
    }
    Ok(if results.failed > 0 { Exit::PartialFailure } else { Exit::Done })
}
