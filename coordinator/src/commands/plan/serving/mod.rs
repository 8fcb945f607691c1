//! `--serve`: simulates requests that arrive over time under every policy, on a described machine
//! or on a server that measured its iterations.

mod show;
#[cfg(test)]
mod tests;
mod timed;

use std::path::Path;

use model::config_json::check_context;
use planner::serving::{Arrival, Capacity, Served, ServingCosts, simulate};
use schedule::hybrid::{Lags, LayerCosts, Limits, Policy};

use crate::cli::request::{LoadChoice, PlanRequest, ServingPlan, Verbosity};
use crate::commands::iteration_costs::IterationCosts;
use crate::commands::load_shape::load_shape;
use crate::engine::launch::LaunchError;
use crate::interrupt::Interrupt;
use crate::load::workload::{Draw, arrivals};
use crate::setup::described;
use crate::setup::model::Opened;
use crate::setup::progress_reporter::ProgressReporter;
use crate::setup::usage::Usage;
use show::Answer;
use timed::Replaying;

/// Default number of requests.
const REQUESTS: usize = 1000;
/// Number of positions of a cache page.
const PAGE_POSITIONS: u32 = 16;
/// Number of iterations after which a waiting sequence prevents prompts from starting.
const PATIENCE: u32 = 10_000;

/// Returns the simulation's results as text or JSON.
///
/// # Errors
/// A model, machine or trace that is missing or invalid; insufficient capacity; an interrupt.
pub(super) fn plan(
    machine: &str,
    serving: &ServingPlan,
    request: &PlanRequest,
    interrupt: &Interrupt,
) -> anyhow::Result<String> {
    let machine = described::machine("--machine", machine)?;
    let opened = Opened::open(&serving.model, 0)?;
    let arrivals = requests(&serving.load)?;
    let longest = arrivals.iter().map(|one| one.prompt_tokens + one.answer_tokens).max();
    let longest = longest.unwrap_or(1);
    check_context(&opened.config, longest as usize).map_err(|error| Usage(error.to_string()))?;
    let rows = serving.step_rows.max(longest);
    let capacity = Capacity::of(&machine, &opened.config, serving.dtype, rows)?;
    let costs =
        ServingCosts::new(&machine, &opened.config, serving.dtype, capacity.streamed_bytes)?;
    let served = under_all(&arrivals, &limits(&capacity, rows), &costs, interrupt)?;
    let kinds = opened.config.layers.kinds();
    let answer = Answer {
        model: &opened.config.name,
        has_windows: kinds.iter().any(|kind| kind.window.is_some()),
        machine: &machine.name,
        load: &serving.load,
        requests: arrivals.len(),
        capacity: &capacity,
        rows,
        served: &served,
    };
    let replayed = serving.timed.as_ref().map(|timed| {
        let replaying = Replaying {
            timed,
            config: &opened.config,
            capacity: &capacity,
            costs: &costs,
            arrivals: &arrivals,
            rows,
        };
        let _reporter = ProgressReporter::begin("replaying the iterations", Verbosity::Progress);
        replaying.run(request.chart.as_deref(), interrupt)
    });
    let Some(replayed) = replayed.transpose()? else { return said(&answer, request.json) };
    Ok(match request.json {
        true => {
            let mut all = answer.json();
            all["timed"] = replayed.json();
            serde_json::to_string_pretty(&all)? + "\n"
        }
        false => format!("{}\n{}", answer.text(), replayed.text()),
    })
}

/// Returns the results for a server that measured its iterations.
///
/// # Errors
/// Costs or a trace that are missing or invalid; an interrupt.
pub(super) fn plan_measured(
    path: &Path,
    load: &LoadChoice,
    request: &PlanRequest,
    interrupt: &Interrupt,
) -> anyhow::Result<String> {
    let measured = IterationCosts::read(path)?;
    let arrivals = requests(load)?;
    let served = under_all(&arrivals, &measured.limits(), &measured.costs(), interrupt)?;
    let positions = |slots: u32| u64::from(slots) * u64::from(measured.context);
    let capacity = Capacity {
        device_positions: positions(measured.device_slots),
        host_positions: positions(measured.slots),
        streamed_bytes: 0,
    };
    let answer = Answer {
        model: &measured.model,
        has_windows: false,
        machine: "a server that measured itself",
        load,
        requests: arrivals.len(),
        capacity: &capacity,
        rows: measured.limits().rows,
        served: &served,
    };
    said(&answer, request.json)
}

fn said(answer: &Answer<'_>, json: bool) -> anyhow::Result<String> {
    Ok(if json { serde_json::to_string_pretty(&answer.json())? + "\n" } else { answer.text() })
}

/// Simulates the requests under every policy.
fn under_all(
    arrivals: &[Arrival],
    limits: &Limits,
    costs: &impl LayerCosts,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<(Policy, Served)>> {
    let reporter = ProgressReporter::begin("planning", Verbosity::Progress);
    let mut served = Vec::new();
    for policy in Policy::ALL {
        if interrupt.is_requested() {
            return Err(LaunchError::Interrupted.into());
        }
        let share = served.len() as f64 / Policy::ALL.len() as f64;
        reporter.update(&format!("simulating {}", policy.name()), Some(share));
        served.push((policy, simulate(policy, arrivals, limits, costs)));
    }
    Ok(served)
}

fn limits(capacity: &Capacity, rows: u32) -> Limits {
    let pages =
        |positions: u64| u32::try_from(positions / u64::from(PAGE_POSITIONS)).unwrap_or(u32::MAX);
    Limits {
        rows,
        page_positions: PAGE_POSITIONS,
        device_pages: pages(capacity.device_positions),
        host_pages: pages(capacity.host_positions),
        patience: PATIENCE,
        lags: Lags::Apart,
    }
}

/// Returns the requests in the order of their arrival.
fn requests(load: &LoadChoice) -> anyhow::Result<Vec<Arrival>> {
    let (shape, requests) = load_shape(&load.lengths, REQUESTS)?;
    let draw = Draw {
        rate: load.rate,
        requests: load.requests.unwrap_or(requests),
        vocab_size: 0,
        seed: load.seed,
    };
    let arrival = |one: crate::load::workload::Arrival| Arrival {
        at_ms: one.at.as_secs_f64() * 1e3,
        prompt_tokens: one.prompt_tokens,
        answer_tokens: one.answer_tokens,
    };
    Ok(arrivals(&shape, draw).into_iter().map(arrival).collect())
}
