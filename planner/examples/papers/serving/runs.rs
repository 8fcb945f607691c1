//! The simulated runs of a figure.

use std::collections::BTreeMap;

use model::config::Dtype;
use model::known::find_known as known_model;
use planner::machine::find_bundled as known_machine;
use planner::serving::{RequestArrival, ServingCosts, ServingResults, simulate};
use scheduler::hybrid::{DeferredRows, IterationLimits, SchedulingPolicy};

use super::cells::{By, Figure, Series};

/// Positions per page, as in NEO.
const PAGE_POSITIONS: u32 = 16;
/// Maximum deviation of lengths from their mean, as a fraction.
const SPREAD: f64 = 0.1;
const SEED: u64 = 1;

/// Cache of simulated runs.
#[derive(Debug, Default)]
pub struct Runs(BTreeMap<(String, String, u32, SchedulingPolicy), ServingResults>);

/// Results of two policies to be compared.
#[derive(Debug, Clone)]
pub struct Ratio {
    pub served: ServingResults,
    pub over: ServingResults,
}

impl Ratio {
    /// Returns the ratio of requests per second between 30% and 70% of the completions, which is
    /// the window of NEO's evaluation.
    pub fn window(&self) -> f64 {
        let rate = |served: &ServingResults| served.window_requests_per_s.unwrap_or(f64::NAN);
        rate(&self.served) / rate(&self.over)
    }

    /// Returns the ratio that a figure compares.
    pub fn of(&self, by: By) -> f64 {
        match by {
            By::Window => self.window(),
            By::Makespan => self.makespan(),
        }
    }

    /// Returns the ratio over the whole run.
    pub fn makespan(&self) -> f64 {
        self.over.makespan_ms / self.served.makespan_ms
    }
}

impl Runs {
    /// Returns the runs of both policies of a figure.
    ///
    /// # Errors
    /// Fails if the model, the machine or a policy does not exist.
    pub fn ratio(
        &mut self,
        figure: &Figure,
        series: &Series,
        output: u32,
    ) -> Result<Ratio, String> {
        let mut served = |name: &str| -> Result<ServingResults, String> {
            let policy = policy(name)?;
            let key = (figure.model.clone(), series.machine.clone(), output, policy);
            if let Some(known) = self.0.get(&key) {
                return Ok(known.clone());
            }
            let served = run(figure, series, output, policy)?;
            self.0.insert(key, served.clone());
            Ok(served)
        };
        Ok(Ratio { served: served(&figure.policy)?, over: served(&figure.over)? })
    }
}

fn policy(name: &str) -> Result<SchedulingPolicy, String> {
    let found = SchedulingPolicy::ALL.into_iter().find(|policy| policy.name() == name);
    found.ok_or_else(|| format!("there is no policy {name}"))
}

fn run(
    figure: &Figure,
    series: &Series,
    output: u32,
    policy: SchedulingPolicy,
) -> Result<ServingResults, String> {
    let model = known_model(&figure.model).ok_or_else(|| format!("no model {}", figure.model))?;
    let config = model.config;
    let machine = known_machine(&series.machine);
    let machine = machine.ok_or_else(|| format!("no machine {}", series.machine))?;
    let machine = machine.map_err(|error| error.to_string())?;
    // All of the papers' models fit their devices.
    let costs = ServingCosts::new(&machine, &config, Dtype::Bf16, 0);
    let costs = costs.map_err(|error| error.to_string())?;
    let layers = config.num_layers as u32;
    let position_bytes = config.kv_bytes_per_position(Dtype::Bf16) as u64 * u64::from(layers);
    let host_positions = u64::from(series.host_gb) * 1_000_000_000 / position_bytes;
    let limits = IterationLimits {
        rows: figure.rows,
        page_positions: PAGE_POSITIONS,
        device_pages: match policy {
            SchedulingPolicy::GpuOnly => figure.device_pages,
            _ => figure.device_pages * layers / (layers + 1),
        },
        host_pages: (host_positions / u64::from(PAGE_POSITIONS)) as u32,
        patience: u32::MAX,
        deferred_rows: DeferredRows::SameLayer,
    };
    let arrivals = arrivals(figure.requests, figure.input, output);
    Ok(simulate(policy, &arrivals, &limits, &costs))
}

/// Returns simultaneous requests with lengths that are uniformly distributed around their means.
fn arrivals(requests: u32, input: u32, output: u32) -> Vec<RequestArrival> {
    let mut state = SEED;
    let mut length = |mean: u32| {
        let factor = 1.0 - SPREAD + 2.0 * SPREAD * unit(&mut state);
        (f64::from(mean) * factor).round().max(1.0) as u32
    };
    let one = |_| RequestArrival {
        at_ms: 0.0,
        prompt_tokens: length(input),
        answer_tokens: length(output),
    };
    (0..requests).map(one).collect()
}

/// Returns a number from 0 to 1 by the generator SplitMix64.
fn unit(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}
