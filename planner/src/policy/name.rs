//! The policies by name, and the intervals of a layer from which they choose.

use std::str::FromStr;

use super::Policy;
use crate::layer::search::all_intervals;
use crate::layer::table::OperationTable;

/// A policy as named by `--policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PolicyName {
    /// The best of all policies, as predicted.
    Auto,
    /// The GPU runs an interval of each layer (Park-Egger §4.2).
    TwoSplit,
    /// The CPU runs the first operations of each layer, the GPU the rest (Park-Egger fig. 14).
    OneSplit,
    /// Every layer on the GPU, its weights streamed (ZeRO-Inference).
    GpuOnly,
    /// Everything on the GPU, its weights in device memory.
    Resident,
    CpuOnly,
    /// The CPU alone, with contiguous caches (eLLM).
    Ellm,
    /// The offload vector with minimum latency (LIA eq. 1).
    Lia,
    /// LIA with the layers that stay in device memory spread among the others.
    LiaSpread,
    /// FlexGen's own schedule.
    Flexgen,
    /// FlexGen with a layer's weights spread over its batches.
    FlexgenSpread,
}

/// A name that no policy has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no policy {name}; available policies: {}",
    PolicyName::ALL.map(PolicyName::name).join(", ")
)]
pub struct UnknownPolicy {
    pub name: String,
}

impl PolicyName {
    /// All names, `auto` first.
    pub const ALL: [PolicyName; 11] = [
        PolicyName::Auto,
        PolicyName::TwoSplit,
        PolicyName::OneSplit,
        PolicyName::GpuOnly,
        PolicyName::Resident,
        PolicyName::CpuOnly,
        PolicyName::Ellm,
        PolicyName::Lia,
        PolicyName::LiaSpread,
        PolicyName::Flexgen,
        PolicyName::FlexgenSpread,
    ];

    /// Policies that `auto` compares, the plain ones first: of two names for one map the first is
    /// reported. A split at the layer's end is among all splits, and eLLM's map is that of the CPU
    /// alone.
    pub const AUTO_CANDIDATES: [PolicyName; 8] = [
        PolicyName::CpuOnly,
        PolicyName::Resident,
        PolicyName::GpuOnly,
        PolicyName::TwoSplit,
        PolicyName::Lia,
        PolicyName::LiaSpread,
        PolicyName::Flexgen,
        PolicyName::FlexgenSpread,
    ];

    /// Returns the name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            PolicyName::Auto => "auto",
            PolicyName::TwoSplit => "two-split",
            PolicyName::OneSplit => "one-split",
            PolicyName::GpuOnly => "gpu-only",
            PolicyName::Resident => "resident",
            PolicyName::CpuOnly => "cpu-only",
            PolicyName::Ellm => "ellm",
            PolicyName::Lia => "lia",
            PolicyName::LiaSpread => "lia:spread",
            PolicyName::Flexgen => "flexgen",
            PolicyName::FlexgenSpread => "flexgen:spread",
        }
    }

    /// Returns true if the policy uses no device.
    pub const fn is_cpu_only(self) -> bool {
        matches!(self, PolicyName::CpuOnly | PolicyName::Ellm)
    }

    /// Returns the policy of a name that has no parameters.
    pub const fn without_parameters(self) -> Option<Policy> {
        match self {
            PolicyName::CpuOnly => Some(Policy::CpuOnly),
            PolicyName::Ellm => Some(Policy::Ellm),
            PolicyName::GpuOnly => Some(Policy::GpuOnly),
            PolicyName::Resident => Some(Policy::Resident),
            _ => None,
        }
    }

    /// Returns the intervals from which the policy chooses; `None` for policies that are not
    /// intervals.
    pub fn intervals(self, table: &OperationTable) -> Option<Vec<(usize, usize)>> {
        let count = table.ops.len();
        match self {
            PolicyName::TwoSplit => Some(all_intervals(table)),
            PolicyName::OneSplit => {
                let split = (0..count).map(|start| (start, count));
                Some(std::iter::once((0, 0)).chain(split).collect())
            }
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

#[cfg(test)]
mod tests {
    use super::PolicyName;

    #[test]
    fn names_are_read_back() {
        for policy in PolicyName::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        let error = "two_split".parse::<PolicyName>().expect_err("unknown").to_string();
        assert!(error.contains("no policy two_split"), "{error}");
        assert!(error.contains("flexgen:spread"), "{error}");
    }
}
