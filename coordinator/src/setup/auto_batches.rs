//! `--batches auto`: which N x B, by the profile's prices.

use planner::batches::choose as choose_shape;
use planner::budget::Request;
use planner::priced::{Estimator, Pricing, Question, choose};
use planner::policy::Policy;
use planner::policy::by_name::PolicyName;

use super::usage::Usage;
use crate::cli::values::Batches;

/// Largest batch that is tried.
pub(crate) const SIZE_MAX: u16 = 256;

/// The shape of highest predicted throughput with batches of at most `largest`, which was profiled.
/// The placement is searched for the largest shape; the others are estimated with that placement
/// and with those that need no search.
///
/// # Errors
/// Nothing that fits, or a plan that cannot be priced.
pub(crate) fn best(
    request: &Request<'_>,
    largest: Batches,
    sequences: usize,
    name: PolicyName,
    pricing: &dyn Pricing,
) -> anyhow::Result<Batches> {
    let question = Question {
        request,
        batches: largest.count,
        batch_size: largest.size,
        policy: name,
        chunkings: &[None],
        pricing,
        stage: None,
    };
    let chosen = choose(&question)?;
    let mut policies = vec![chosen.policy];
    if name == PolicyName::Auto {
        policies.extend([Policy::CpuOnly, Policy::GpuOnly]);
    }
    let sizes =
        |batches: u32, size: u32| Some((u16::try_from(batches).ok()?, u16::try_from(size).ok()?));
    let fits = |batches: u32, size: u32| {
        let within = (batches * size) as usize <= sequences.max(1);
        let Some((batches, size)) = sizes(batches, size).filter(|_| within) else { return false };
        let fits = |policy: &Policy| Request { policy, ..*request }.fits(batches, size);
        policies.iter().any(|policy| matches!(fits(policy), Ok(true)))
    };
    let rate = |batches: u32, size: u32| {
        let (batches, batch_size) = sizes(batches, size)?;
        let estimator = Estimator { request, batches, batch_size, pricing, homes: chosen.homes };
        let total_ns =
            |policy: &Policy| Some(estimator.estimate(policy).ok()?.total_ns(request.max_new));
        let best_ns = policies.iter().filter_map(total_ns).fold(f64::INFINITY, f64::min);
        let tokens = f64::from(batches) * f64::from(batch_size) * f64::from(request.max_new);
        best_ns.is_finite().then(|| tokens / (best_ns / 1e9))
    };
    let found = choose_shape(largest.size.into(), fits, rate)
        .and_then(|found| sizes(found.batches, found.batch_size))
        .ok_or_else(|| Usage("no batch fits memory".to_owned()))?;
    Ok(Batches { count: found.0, size: found.1 })
}
