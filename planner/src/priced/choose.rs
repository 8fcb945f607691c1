//! From a policy's name to the plan that a run will execute: every map the name stands for is
//! estimated, the fastest one that fits memory is compiled whole, and its time is predicted.

use std::cell::RefCell;

use program::map::{Chunking, DeviceMap, layer_list};
use program::plan::Plan;

use super::programs::policy_of;
use super::{
    Estimate, Estimator, Predicted, Pricing, Programs, Rehearse, Unpriced, lia, predict, table,
};
use crate::budget::{PlanError, Request};
use crate::layer::closed_form::Candidate;
use crate::layer::flexgen::Flexgen;
use crate::layer::resident;
use crate::layer::resident::Room;
use crate::layer::search::{SearchResult, search_with};
use crate::layer::table::Table;
use crate::policy::by_name::PolicyName;
use crate::policy::{DeviceResident, Homes, Policy};
use crate::split::Split;

/// Maps that are rehearsed at most: about one of each policy.
const REHEARSALS_MAX: u32 = 6;

/// What is to be placed.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Its policy and its resident layers are not looked at.
    pub request: &'a Request<'a>,
    pub batches: u16,
    pub batch_size: u16,
    pub policy: PolicyName,
    /// Ways to cut attention that splits may use; at least one.
    pub chunkings: &'a [Option<Chunking>],
    pub pricing: &'a dyn Pricing,
    /// Where the fastest maps are rehearsed; `None`: estimates alone decide.
    pub stage: Option<&'a dyn Rehearse>,
}

/// A map that was estimated.
#[derive(Debug, Clone)]
pub struct Considered {
    pub name: PolicyName,
    pub policy: Policy,
    /// What the policy makes of the model, no layer resident. No two maps of a search are equal.
    pub map: DeviceMap,
    pub estimate: Estimate,
    /// Decode as rehearsed over decode as simulated: of this very map or, until it is rehearsed, of
    /// the policy's that was last. Maps of one policy err alike.
    pub slowed: f64,
    /// Whether this very map was rehearsed.
    pub rehearsed: bool,
}

impl Considered {
    /// One decode step in the middle of the output, all batches.
    pub fn step_ns(&self) -> f64 {
        self.estimate.step_ns * self.slowed
    }

    /// Prefill and all decode steps.
    pub fn total_ns(&self, max_new: u32) -> f64 {
        Estimate { step_ns: self.step_ns(), ..self.estimate }.total_ns(max_new)
    }
}

/// The search for the best split, to be shown.
#[derive(Debug, Clone)]
pub struct Searched {
    pub table: Table,
    pub chunking: Option<Chunking>,
    pub found: SearchResult,
}

/// The answer.
#[derive(Debug)]
pub struct Chosen {
    pub name: PolicyName,
    pub policy: Policy,
    pub resident: DeviceResident,
    pub plan: Plan,
    pub predicted: Predicted,
    /// What estimates took for granted of maps with everything on the GPU.
    pub homes: Homes,
    /// All maps, the fastest first.
    pub considered: Vec<Considered>,
    /// The place of the chosen one among them: the first that fits memory.
    pub place: usize,
    /// Of the chunking whose best split is fastest; `None` for policies that search no split.
    pub searched: Option<Searched>,
}

/// Why nothing was chosen.
#[derive(Debug, thiserror::Error)]
pub enum ChooseError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("{0}")]
    Unpriced(#[from] Unpriced),
}

/// Chooses.
///
/// # Errors
/// Nothing that fits, with the numbers of the fastest map; a plan that cannot be priced.
pub fn choose(question: &Question<'_>) -> Result<Chosen, ChooseError> {
    let Question { request, batches, batch_size, pricing, .. } = *question;
    let everything =
        Request { policy: &Policy::GpuOnly, resident: DeviceResident::NONE, ..*request };
    let homes = everything.homes(batches, batch_size)?;
    let estimator = Estimator { request, batches, batch_size, pricing, homes };
    let (mut considered, searched) = consider(question, &estimator)?;
    sort(&mut considered, request.max_new);
    // A split that leaves attention whole is the same however attention would have been cut.
    let total_ns = |one: &Considered| one.total_ns(request.max_new);
    considered.dedup_by(|b, a| a.name == b.name && total_ns(a) == total_ns(b));
    let Some((place, plan)) = fastest(question, &estimator, &mut considered)? else {
        let fastest = considered.first().map_or(Policy::CpuOnly, |one| one.policy);
        let request = Request { policy: &fastest, resident: DeviceResident::NONE, ..*request };
        return match request.plan(batches, batch_size) {
            Err(error) => Err(error.into()),
            Ok(_) => Err(Unpriced("a plan fits that was found not to fit".to_owned()).into()),
        };
    };
    let Considered { name, policy, slowed, .. } = considered[place].clone();
    let predicted = predict(&plan, pricing)?.slowed(slowed);
    let resident = DeviceResident::default();
    let mut chosen =
        Chosen { name, policy, resident, plan, predicted, homes, considered, place, searched };
    if let Some((policy, resident, plan, predicted)) = with_residents(question, &chosen, slowed)? {
        (chosen.policy, chosen.resident) = (policy, resident);
        (chosen.plan, chosen.predicted) = (plan, predicted);
    }
    Ok(chosen)
}

/// The fastest first.
fn sort(considered: &mut [Considered], max_new: u32) {
    considered.sort_by(|a, b| a.total_ns(max_new).total_cmp(&b.total_ns(max_new)));
}

/// The place of the fastest map that fits memory, and its plan. What looks fastest is rehearsed,
/// until what then is fastest was rehearsed already.
fn fastest(
    question: &Question<'_>,
    estimator: &Estimator<'_>,
    considered: &mut [Considered],
) -> Result<Option<(usize, Plan)>, ChooseError> {
    let Question { request, batches, batch_size, .. } = *question;
    let mut rehearsals = REHEARSALS_MAX;
    loop {
        let mut found = None;
        for (place, Considered { policy, rehearsed, .. }) in considered.iter().enumerate() {
            let request = Request { policy, resident: DeviceResident::NONE, ..*request };
            if request.fits(batches, batch_size)? {
                found = Some((place, *policy, *rehearsed));
                break;
            }
        }
        let Some((place, policy, rehearsed)) = found else { return Ok(None) };
        let stage = question.stage.filter(|_| !rehearsed && rehearsals > 0);
        let slowed = match stage {
            Some(stage) => estimator.rehearse(&policy, stage)?,
            None => None,
        };
        let Some(slowed) = slowed else {
            let request = Request { policy: &policy, resident: DeviceResident::NONE, ..*request };
            let plan = request.fitting(batches, batch_size)?;
            return Ok(plan.map(|plan| (place, plan)));
        };
        let one = &mut considered[place];
        (one.slowed, one.rehearsed) = (slowed, true);
        let name = one.name;
        for other in considered.iter_mut().filter(|one| one.name == name && !one.rehearsed) {
            other.slowed = slowed;
        }
        rehearsals -= 1;
        sort(considered, request.max_new);
    }
}

/// Estimates every map that the name stands for.
fn consider(
    question: &Question<'_>,
    estimator: &Estimator<'_>,
) -> Result<(Vec<Considered>, Option<Searched>), ChooseError> {
    let mut considered = Vec::new();
    let mut searched: Option<Searched> = None;
    let names: Vec<PolicyName> = match question.policy {
        // A split at the layer's end is among all splits.
        PolicyName::Auto => PolicyName::ALL
            .into_iter()
            .filter(|name| ![PolicyName::Auto, PolicyName::OneSplit].contains(name))
            .collect(),
        name => vec![name],
    };
    let mut add = |name, policy| -> Result<(), Unpriced> {
        let request =
            Request { policy: &policy, resident: DeviceResident::NONE, ..*estimator.request };
        let map = request.map(estimator.homes);
        if considered.iter().any(|other: &Considered| is_same(&other.map, &map)) {
            return Ok(());
        }
        let (slowed, rehearsed) = (1.0, false);
        let estimate = estimator.estimate(&policy)?;
        considered.push(Considered { name, policy, map, estimate, slowed, rehearsed });
        Ok(())
    };
    for name in names {
        match name {
            PolicyName::CpuOnly => add(name, Policy::CpuOnly)?,
            PolicyName::GpuOnly => add(name, Policy::GpuOnly)?,
            PolicyName::Lia => add(name, lia::vectors(estimator)?)?,
            PolicyName::Flexgen | PolicyName::FlexgenSpread => {
                let spread = name == PolicyName::FlexgenSpread;
                for cpu_attention in [false, true] {
                    add(name, Policy::Flexgen(Flexgen { spread, cpu_attention }))?;
                }
            }
            PolicyName::TwoSplit | PolicyName::OneSplit | PolicyName::Auto => {
                for chunking in question.chunkings {
                    let found = split(name, estimator, *chunking)?;
                    let config = estimator.request.config;
                    let candidates =
                        std::iter::once(&found.found.best).chain(&found.found.runner_up);
                    for choice in candidates {
                        let policy = policy_of(choice.candidate.interval, config, *chunking);
                        add(name, named(name, policy))?;
                    }
                    let best = |one: &Searched| one.found.best.latency;
                    if searched.as_ref().is_none_or(|other| best(&found) < best(other)) {
                        searched = Some(found);
                    }
                }
            }
        }
    }
    Ok((considered, searched))
}

/// Whether two maps differ in the name of their policy at most: LIA's vectors may leave all to the
/// CPU.
fn is_same(one: &DeviceMap, other: &DeviceMap) -> bool {
    *one == DeviceMap { policy: one.policy.clone(), ..other.clone() }
}

/// A split under the name of the policy that chose it.
fn named(name: PolicyName, policy: Policy) -> Policy {
    match policy {
        Policy::TwoSplit { split: Split { start, .. }, chunking }
            if name == PolicyName::OneSplit =>
        {
            Policy::OneSplit { start, chunking }
        }
        other => other,
    }
}

/// The best of a policy's splits with one way to cut attention.
fn split(
    name: PolicyName,
    estimator: &Estimator<'_>,
    chunking: Option<Chunking>,
) -> Result<Searched, Unpriced> {
    let table = table(estimator, chunking)?;
    let programs = Programs { estimator: *estimator, chunking, failed: RefCell::new(None) };
    let intervals = name.intervals(&table).unwrap_or_default();
    let found = search_with(&table, &programs, intervals);
    match programs.failed.into_inner() {
        Some(error) => Err(error),
        None => Ok(Searched { table, chunking, found }),
    }
}

/// A map with layers that stay.
type Resident = (Policy, DeviceResident, Plan, Predicted);

/// The same with layers that stay on a device of known size, if that is faster.
fn with_residents(
    question: &Question<'_>,
    chosen: &Chosen,
    slowed: f64,
) -> Result<Option<Resident>, ChooseError> {
    let Question { request, batches, batch_size, pricing, .. } = *question;
    let config = request.config;
    let interval = match chosen.policy {
        Policy::TwoSplit { split, .. } => (split.start, split.end),
        Policy::GpuOnly if question.policy == PolicyName::Auto => {
            (0, layer_list(config, None).len())
        }
        _ => return Ok(None),
    };
    let (Some(vram_bytes), Some(searched)) = (request.limits.vram_bytes, &chosen.searched) else {
        return Ok(None);
    };
    let chunking = chosen.policy.chunking();
    if chunking != searched.chunking {
        return Ok(None);
    }
    let taken = chosen.plan.footprint(request.limits.device_scratch);
    let slots_bytes = taken.device_bytes + taken.device_scratch_bytes;
    let kv_bytes = taken.host_kv_bytes / config.num_layers.max(1) as u64;
    let room = Room {
        free_bytes: vram_bytes.saturating_sub(slots_bytes),
        layer_weights_bytes: config.layer_weight_bytes(request.dtype) as u64,
        layer_kv_bytes: kv_bytes,
    };
    let splits = [Candidate::plain(interval.0, interval.1)];
    let Some(found) = resident::choose(&searched.table, config.num_layers, &splits, &room) else {
        return Ok(None);
    };
    let mut layers = found.layers;
    while !layers.is_empty() {
        let resident = DeviceResident { layers: layers.clone(), kv: found.with_kv };
        let policy = policy_of(interval, config, chunking);
        let request = Request { policy: &policy, resident: &resident, ..*request };
        if let Some(plan) = request.fitting(batches, batch_size)? {
            let predicted = predict(&plan, pricing)?.slowed(slowed);
            let faster = predicted.total_ns() < chosen.predicted.total_ns();
            return Ok(faster.then_some((policy, resident, plan, predicted)));
        }
        layers = resident::resident_layers(layers.len() - 1, config.num_layers, found.spread);
    }
    Ok(None)
}
