//! Lanes of the canonical machine by name, as stored in profiles.

use program::topology::LaneId;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const NAMES: [(LaneId, &str); 7] = [
    (LaneId::CPU_COMPUTE, "CpuCompute"),
    (LaneId::CPU_APPEND, "CpuAppend"),
    (LaneId::GPU_COMPUTE, "GpuCompute"),
    (LaneId::GPU_DECOMPRESS, "GpuDecompress"),
    (LaneId::H2D_WEIGHTS, "H2dWeights"),
    (LaneId::H2D_ACTIVATIONS, "H2dActivations"),
    (LaneId::D2H, "D2h"),
];

/// A lane, serialised as its name.
#[derive(Debug, Clone, Copy)]
struct LaneName(LaneId);

impl Serialize for LaneName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match NAMES.iter().find(|(lane, _)| *lane == self.0) {
            Some((_, name)) => serializer.serialize_str(name),
            None => Err(serde::ser::Error::custom(format!("lane {} is not profiled", self.0))),
        }
    }
}

impl<'de> Deserialize<'de> for LaneName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LaneName, D::Error> {
        let name = String::deserialize(deserializer)?;
        let found = NAMES.iter().find(|(_, known)| *known == name);
        found
            .map(|(lane, _)| LaneName(*lane))
            .ok_or_else(|| D::Error::custom(format!("{name} is not a lane of a profiled machine")))
    }
}

pub(crate) fn serialize<S: Serializer>(lane: &LaneId, serializer: S) -> Result<S::Ok, S::Error> {
    LaneName(*lane).serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LaneId, D::Error> {
    LaneName::deserialize(deserializer).map(|named| named.0)
}

/// Serialisation of a list of lanes.
pub(crate) mod list {
    use super::{Deserialize, Deserializer, LaneId, LaneName, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        lanes: &[LaneId],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        lanes.iter().map(|lane| LaneName(*lane)).collect::<Vec<_>>().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<LaneId>, D::Error> {
        let named = Vec::<LaneName>::deserialize(deserializer)?;
        Ok(named.into_iter().map(|named| named.0).collect())
    }
}
