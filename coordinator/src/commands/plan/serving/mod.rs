//! `--serve`: requests that come to a described machine one by one, under every policy.

mod show;
#[cfg(test)]
mod tests;

use model::config_json::check_context;
use planner::serving::{Arrival, Capacity, ServingCosts, simulate};
use schedule::hybrid::{Lags, Limits, Policy};

use crate::cli::request::ServingPlan;
use crate::commands::load_shape::load_shape;
use crate::engine::launch::LaunchError;
use crate::interrupt::Interrupt;
use crate::load::workload::{Draw, arrivals};
use crate::setup::described;
use crate::setup::model::Opened;
use crate::setup::usage::Usage;
use show::Answer;

/// Requests unless it is said how many.
const REQUESTS: usize = 1000;
/// Positions of a page of cache.
const PAGE_POSITIONS: u32 = 16;
/// No prompt begins while somebody has waited for so many iterations.
const PATIENCE: u32 = 10_000;

/// The answer, as text or JSON.
///
/// # Errors
/// A model, machine or trace that is not there or not what it should be; what has no room; an
/// interrupt.
pub(super) fn plan(
    machine: &str,
    serving: &ServingPlan,
    json: bool,
    interrupt: &Interrupt,
) -> anyhow::Result<String> {
    let machine = described::machine("--machine", machine)?;
    let opened = Opened::open(&serving.model, 0)?;
    let arrivals = requests(serving)?;
    let longest = arrivals.iter().map(|one| one.prompt_tokens + one.answer_tokens).max();
    let longest = longest.unwrap_or(1);
    check_context(&opened.config, longest as usize).map_err(|error| Usage(error.to_string()))?;
    let rows = serving.step_rows.max(longest);
    let capacity = Capacity::of(&machine, &opened.config, serving.dtype, rows)?;
    let costs =
        ServingCosts::new(&machine, &opened.config, serving.dtype, capacity.streamed_bytes)?;
    let limits = limits(&capacity, rows);
    let mut served = Vec::new();
    for policy in Policy::ALL {
        if interrupt.is_requested() {
            return Err(LaunchError::Interrupted.into());
        }
        served.push((policy, simulate(policy, &arrivals, &limits, &costs)));
    }
    let answer = Answer {
        model: &opened.config,
        machine: &machine.name,
        serving,
        requests: arrivals.len(),
        capacity: &capacity,
        rows,
        served: &served,
    };
    if json { Ok(serde_json::to_string_pretty(&answer.json())? + "\n") } else { Ok(answer.text()) }
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

/// The requests in the order in which they come.
fn requests(serving: &ServingPlan) -> anyhow::Result<Vec<Arrival>> {
    let (shape, requests) = load_shape(&serving.lengths, REQUESTS)?;
    let draw = Draw {
        rate: serving.rate,
        requests: serving.requests.unwrap_or(requests),
        vocab_size: 0,
        seed: serving.seed,
    };
    let arrival = |one: crate::load::workload::Arrival| Arrival {
        at_ms: one.at.as_secs_f64() * 1e3,
        prompt_tokens: one.prompt_tokens,
        answer_tokens: one.answer_tokens,
    };
    Ok(arrivals(&shape, draw).into_iter().map(arrival).collect())
}
