//! The policies by name, each as a question to an operation table: which maps it may choose from,
//! and what a layer then takes. Only FlexGen is a schedule of its own; all others are device maps.

#[cfg(test)]
#[path = "by_name_tests.rs"]
mod tests;

use crate::layer::flexgen::{Flexgen, layer_time as flexgen_layer};
use std::str::FromStr;

use crate::layer::closed_form::Candidate;
use crate::layer::cost::Simulated;
use crate::layer::search::{SearchResult, all_intervals, search_with};
use crate::layer::steady::{LayerMap, Shape, steady_map};
use crate::layer::table::{Table, TableError};
use crate::layer::time::Ps;

/// A policy as `--policy` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PolicyName {
    /// The best predicted of all.
    Auto,
    /// The GPU runs an interval of each layer (Park-Egger §4.2).
    TwoSplit,
    /// The CPU runs the first operations of each layer, the GPU the rest (Park-Egger fig. 14).
    OneSplit,
    /// Every layer on the GPU, its weights streamed (ZeRO-Inference).
    GpuOnly,
    CpuOnly,
    /// The offload vector of least latency (LIA eq. 1).
    Lia,
    /// FlexGen's own schedule.
    Flexgen,
    /// FlexGen with a layer's weights spread over the batches.
    FlexgenSpread,
}

/// A name that no policy has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no policy {name}; there are {}",
    PolicyName::ALL.map(PolicyName::name).join(", ")
)]
pub struct UnknownPolicy {
    pub name: String,
}

impl PolicyName {
    /// All of them, `auto` first.
    pub const ALL: [PolicyName; 8] = [
        PolicyName::Auto,
        PolicyName::TwoSplit,
        PolicyName::OneSplit,
        PolicyName::GpuOnly,
        PolicyName::CpuOnly,
        PolicyName::Lia,
        PolicyName::Flexgen,
        PolicyName::FlexgenSpread,
    ];

    /// Name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            PolicyName::Auto => "auto",
            PolicyName::TwoSplit => "two-split",
            PolicyName::OneSplit => "one-split",
            PolicyName::GpuOnly => "gpu-only",
            PolicyName::CpuOnly => "cpu-only",
            PolicyName::Lia => "lia",
            PolicyName::Flexgen => "flexgen",
            PolicyName::FlexgenSpread => "flexgen:spread",
        }
    }

    /// The intervals that it chooses from; `None` for those that are not intervals.
    pub fn intervals(self, table: &Table) -> Option<Vec<(usize, usize)>> {
        let count = table.ops.len();
        match self {
            PolicyName::TwoSplit => Some(all_intervals(table)),
            PolicyName::OneSplit => {
                let split = (0..count).map(|start| (start, count));
                Some(std::iter::once((0, 0)).chain(split).collect())
            }
            PolicyName::GpuOnly => Some(vec![(0, count)]),
            PolicyName::CpuOnly => Some(vec![(0, 0)]),
            _ => None,
        }
    }
}

impl FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<PolicyName, UnknownPolicy> {
        let found = PolicyName::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| UnknownPolicy { name: name.to_owned() })
    }
}

/// How a policy runs a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layer {
    /// The GPU runs an interval.
    Interval(Candidate),
    /// The GPU runs these operations (LIA).
    Devices(Vec<bool>),
    /// FlexGen's schedule.
    Flexgen(Flexgen),
}

/// A policy's layer and its time, all batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prediction {
    pub policy: PolicyName,
    pub layer: Layer,
    pub latency: Ps,
}

/// What a table does not say and some policies need.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Context {
    /// For each operation whether LIA's decode vector gives it to the GPU; `None`: LIA is not
    /// priced.
    pub lia: Option<Vec<bool>>,
    /// Whether FlexGen computes attention on the CPU.
    pub flexgen_cpu_attention: bool,
    /// Time of copying KV to pinned memory before its transfer, as a share of the transfer: 0 on
    /// this project's engine, which pins what it streams at the start.
    pub flexgen_pinning: f64,
}

/// The layer of a policy; `None` for LIA without a vector.
///
/// # Errors
/// A table that [`Table::validate`] refuses.
pub fn predict(
    policy: PolicyName,
    table: &Table,
    context: &Context,
) -> Result<Option<Prediction>, TableError> {
    table.validate()?;
    if let Some(intervals) = policy.intervals(table) {
        let found: SearchResult = search_with(table, &Simulated::of(table), intervals);
        let (layer, latency) = (Layer::Interval(found.best.candidate), found.best.latency);
        return Ok(Some(Prediction { policy, layer, latency }));
    }
    Ok(match policy {
        PolicyName::Lia => context.lia.as_ref().map(|devices| {
            // Compressed only where the table has nothing else.
            let compressed = table.compression.cases()[0];
            let map = LayerMap::of(devices.clone(), compressed);
            let latency = steady_map(table, &map, &Shape::default()).latency;
            Prediction { policy, layer: Layer::Devices(devices.clone()), latency }
        }),
        PolicyName::Flexgen | PolicyName::FlexgenSpread => {
            let flexgen = Flexgen {
                spread: policy == PolicyName::FlexgenSpread,
                cpu_attention: context.flexgen_cpu_attention,
            };
            let latency = flexgen_layer(table, &flexgen, context.flexgen_pinning);
            Some(Prediction { policy, layer: Layer::Flexgen(flexgen), latency })
        }
        _ => family(table, context)?.into_iter().next().map(|best| Prediction { policy, ..best }),
    })
}

/// All policies but `auto`, the fastest first; of equal ones in the order of [`PolicyName::ALL`].
///
/// # Errors
/// A table that [`Table::validate`] refuses.
pub fn family(table: &Table, context: &Context) -> Result<Vec<Prediction>, TableError> {
    let mut found = Vec::new();
    for policy in PolicyName::ALL.into_iter().filter(|policy| *policy != PolicyName::Auto) {
        found.extend(predict(policy, table, context)?);
    }
    found.sort_by_key(|prediction| prediction.latency);
    Ok(found)
}
