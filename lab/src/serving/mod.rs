//! `--serve`: simulates requests that arrive over time under every policy, on a described machine
//! or on a server that measured its iterations.

mod show;
#[cfg(test)]
mod tests;
mod timed;

use std::path::Path;

use model::config_json::check_context;
use planner::serving::{CacheCapacity, RequestArrival, ServingCosts, ServingResults, simulate};
use scheduler::hybrid::{DeferredRows, IterationLimits, LayerCosts, SchedulingPolicy};

use crate::iteration_costs::IterationCosts;
use crate::load::workload::{Arrival, WorkloadParams, generate_arrivals};
use crate::request::{LoadChoice, ServingWorkload};
use crate::workload_shape::read_workload_shape;
use engine::launch::LaunchError;
use session::argument_error::ArgumentError;
use session::interrupt::Interrupt;
use session::machine_plan;
use session::model::ModelHandle;
use session::progress_reporter::ProgressReporter;
use session::request::Verbosity;
use show::ServingComparison;
use timed::ServingReplay;

/// Default number of requests.
const DEFAULT_REQUESTS: usize = 1000;
/// Number of positions of a cache page.
const PAGE_POSITIONS: u32 = 16;
/// Number of iterations after which a waiting sequence prevents prompts from starting.
const MAX_WAIT_ITERATIONS: u32 = 10_000;

/// Returns the simulation's results as text or JSON, and writes the chart of a replay to `chart`.
///
/// # Errors
/// A model, machine or trace that is missing or invalid; insufficient capacity; an interrupt.
pub fn plan_serving(
    machine: &str,
    serving: &ServingWorkload,
    chart: Option<&Path>,
    json: bool,
    interrupt: &Interrupt,
) -> anyhow::Result<String> {
    let machine = machine_plan::load_machine("--machine", machine)?;
    let model = ModelHandle::open(&serving.model, 0)?;
    let arrivals = requests(&serving.load)?;
    let longest =
        arrivals.iter().map(|arrival| arrival.prompt_tokens + arrival.answer_tokens).max();
    let longest = longest.unwrap_or(1);
    check_context(&model.config, longest as usize)
        .map_err(|error| ArgumentError(error.to_string()))?;
    let rows = serving.step_rows.max(longest);
    let capacity = CacheCapacity::compute(&machine, &model.config, serving.dtype, rows)?;
    let costs = ServingCosts::new(&machine, &model.config, serving.dtype, capacity.streamed_bytes)?;
    let served = simulate_policies(&arrivals, &limits(&capacity, rows), &costs, interrupt)?;
    let kinds = model.config.layers.kinds();
    let comparison = ServingComparison {
        model: &model.config.name,
        has_windows: kinds.iter().any(|kind| kind.window.is_some()),
        machine: &machine.name,
        load: &serving.load,
        requests: arrivals.len(),
        capacity: &capacity,
        rows,
        served: &served,
    };
    let replayed = serving.timed.as_ref().map(|timed| {
        let replay = ServingReplay {
            timed,
            config: &model.config,
            capacity: &capacity,
            costs: &costs,
            arrivals: &arrivals,
            rows,
        };
        let _reporter = ProgressReporter::start("replaying the iterations", Verbosity::Progress);
        replay.run(chart, interrupt)
    });
    let Some(replayed) = replayed.transpose()? else { return render(&comparison, json) };
    Ok(match json {
        true => {
            let mut all = comparison.json();
            all["timed"] = replayed.json();
            serde_json::to_string_pretty(&all)? + "\n"
        }
        false => format!("{}\n{}", comparison.text(), replayed.text()),
    })
}

/// Returns the results for a server that measured its iterations.
///
/// # Errors
/// Costs or a trace that are missing or invalid; an interrupt.
pub fn plan_measured(
    path: &Path,
    load: &LoadChoice,
    json: bool,
    interrupt: &Interrupt,
) -> anyhow::Result<String> {
    let measured = IterationCosts::read(path)?;
    let arrivals = requests(load)?;
    let served = simulate_policies(&arrivals, &measured.limits(), &measured.costs(), interrupt)?;
    let positions = |slots: u32| u64::from(slots) * u64::from(measured.context);
    let capacity = CacheCapacity {
        device_positions: positions(measured.device_slots),
        host_positions: positions(measured.slots),
        streamed_bytes: 0,
    };
    let comparison = ServingComparison {
        model: &measured.model,
        has_windows: false,
        machine: "a server with measured costs",
        load,
        requests: arrivals.len(),
        capacity: &capacity,
        rows: measured.limits().rows,
        served: &served,
    };
    render(&comparison, json)
}

fn render(answer: &ServingComparison<'_>, json: bool) -> anyhow::Result<String> {
    Ok(if json { serde_json::to_string_pretty(&answer.json())? + "\n" } else { answer.text() })
}

/// Simulates the requests under every policy.
fn simulate_policies(
    arrivals: &[RequestArrival],
    limits: &IterationLimits,
    costs: &impl LayerCosts,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<(SchedulingPolicy, ServingResults)>> {
    let reporter = ProgressReporter::start("planning", Verbosity::Progress);
    let mut served = Vec::new();
    for policy in SchedulingPolicy::ALL {
        if interrupt.is_requested() {
            return Err(LaunchError::Interrupted.into());
        }
        let share = served.len() as f64 / SchedulingPolicy::ALL.len() as f64;
        reporter.update(&format!("simulating {}", policy.name()), Some(share));
        served.push((policy, simulate(policy, arrivals, limits, costs)));
    }
    Ok(served)
}

fn limits(capacity: &CacheCapacity, rows: u32) -> IterationLimits {
    let pages =
        |positions: u64| u32::try_from(positions / u64::from(PAGE_POSITIONS)).unwrap_or(u32::MAX);
    IterationLimits {
        rows,
        page_positions: PAGE_POSITIONS,
        device_pages: pages(capacity.device_positions),
        host_pages: pages(capacity.host_positions),
        patience: MAX_WAIT_ITERATIONS,
        deferred_rows: DeferredRows::AnyLayer,
    }
}

/// Returns the requests in the order of their arrival.
fn requests(load: &LoadChoice) -> anyhow::Result<Vec<RequestArrival>> {
    let (shape, requests) = read_workload_shape(&load.lengths, DEFAULT_REQUESTS)?;
    let params = WorkloadParams {
        rate: load.rate,
        requests: load.requests.unwrap_or(requests),
        vocab_size: 0,
        seed: load.seed,
    };
    let arrival = |arrival: Arrival| RequestArrival {
        at_ms: arrival.at.as_secs_f64() * 1e3,
        prompt_tokens: arrival.prompt_tokens,
        answer_tokens: arrival.answer_tokens,
    };
    Ok(generate_arrivals(&shape, params).into_iter().map(arrival).collect())
}
