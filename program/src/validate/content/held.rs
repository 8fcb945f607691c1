//! Content of a buffer, part by part.

use model::config::ModelConfig;
use model::ops::{Kv, Value};

use crate::expert_records::ExpertOps;
use crate::ir::Region;
use crate::map::Chunk;
use crate::weights::Weights;

use super::super::error::Site;
use super::super::parts::normal;

/// Content of a region. Activations belong to one step: those of the previous step are stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Weights(Weights),
    /// A weight blob expanded to the format that the GPU multiplies.
    Decompressed(Weights),
    /// Linears of the experts of a layer to which the rows of a stream are routed in a step.
    Routed {
        layer: Option<u16>,
        ops: ExpertOps,
        at: Stream,
        step: u32,
    },
    /// The residual stream after this number of in-place additions (two per layer).
    Hidden {
        at: Stream,
        updates: u32,
        step: u32,
    },
    Value {
        value: Value,
        layer: Option<u16>,
        at: Stream,
        step: u32,
    },
    /// One part of a cache, with the rows of all steps before `step`, and of the first `streams`
    /// streams of that step.
    Cache {
        kv: Kv,
        layer: Option<u16>,
        batch: u16,
        chunk: Chunk,
        step: u32,
        streams: u16,
    },
}

impl Content {
    /// Returns true if the content satisfies a reader. A cache may already hold the current step's
    /// rows, or those of later streams, which no reader accesses. Experts may have further linears.
    pub(super) fn satisfies(self, needed: Content) -> bool {
        match (self, needed) {
            (
                Content::Cache { kv, layer, batch, chunk, step, streams },
                Content::Cache { step: step_least, streams: streams_least, .. },
            ) => {
                let least = Content::Cache {
                    kv,
                    layer,
                    batch,
                    chunk,
                    step: step_least,
                    streams: streams_least,
                };
                (step, streams) >= (step_least, streams_least) && needed == least
            }
            (Content::Routed { layer, ops, at, step }, Content::Routed { ops: ops_needed, .. })
                if ops.includes(ops_needed) =>
            {
                needed == Content::Routed { layer, ops: ops_needed, at, step }
            }
            _ => self == needed,
        }
    }

    /// Returns the lasting content after `steps` steps of a program: caches grow.
    pub(super) fn after_steps(self, steps: u32) -> Content {
        match self {
            Content::Cache { kv, layer, batch, chunk, step, streams } => {
                Content::Cache { kv, layer, batch, chunk, step: step + steps, streams }
            }
            other => other,
        }
    }

    /// Returns a description for errors.
    pub(super) fn text(self, config: &ModelConfig) -> String {
        let of_layer =
            |layer: Option<u16>| layer.map_or_else(String::new, |l| format!(" of layer {l}"));
        match self {
            Content::Weights(weights) => weights.name(config),
            Content::Decompressed(weights) => format!("{}, decompressed", weights.name(config)),
            Content::Routed { layer, ops, at: Stream { batch, stream }, step } => {
                let names: Vec<&str> = ops.iter().map(|op| op.name(config.family)).collect();
                format!(
                    "{} of the experts of batch {batch}.{stream} in step {step}{}",
                    names.join(", "),
                    of_layer(layer)
                )
            }
            Content::Hidden { at: Stream { batch, stream }, updates, step } => format!(
                "the residual stream of batch {batch}.{stream} after {updates} additions in step \
                 {step}"
            ),
            Content::Value { value, layer, at: Stream { batch, stream }, step } => {
                format!("{value:?}{} for batch {batch}.{stream} in step {step}", of_layer(layer))
            }
            Content::Cache { kv, layer, batch, chunk, step, streams } => format!(
                "the {kv:?} cache{} for batch {batch}, part {} of {}, with the rows of {step} \
                 steps and {streams} streams",
                of_layer(layer),
                chunk.index,
                chunk.of
            ),
        }
    }
}

/// The rows to which an activation belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stream {
    pub(super) batch: u16,
    pub(super) stream: u16,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Held {
    pub(super) content: Content,
    /// `None` if the content existed before the program.
    pub(super) writer: Option<Site>,
}

/// A buffer as parts, each with known content or none: chunks of portions of experts.
#[derive(Debug, Clone, Default)]
pub(super) struct Parts {
    /// The chunks of each portion, portion after portion.
    parts: Vec<Option<Held>>,
    portions: usize,
}

impl Parts {
    pub(super) fn write(&mut self, region: Region, held: Held) {
        let chunk = normal(region.chunk).unwrap_or(Chunk::WHOLE);
        let portion = normal(region.portion).unwrap_or(Chunk::WHOLE);
        let (chunks, portions) = (usize::from(chunk.of), usize::from(portion.of));
        if self.parts.len() != chunks * portions || self.portions != portions {
            // The parts have different boundaries: the content of the old ones is no longer whole.
            let whole = if self.parts.len() == 1 { self.parts[0].take() } else { None };
            self.parts = vec![whole; chunks * portions];
            self.portions = portions;
        }
        self.parts[usize::from(portion.index) * chunks + usize::from(chunk.index)] = Some(held);
    }

    /// Returns true if `other` holds the same content, part by part.
    pub(super) fn same(&self, other: &Parts) -> bool {
        let content = |held: &Option<Held>| held.as_ref().map(|held| held.content);
        self.parts.iter().map(content).eq(other.parts.iter().map(content))
    }

    pub(super) fn read(&self, region: Region) -> &[Option<Held>] {
        let parts = match normal(region.portion) {
            Some(portion) if self.portions == usize::from(portion.of) => {
                let chunks = self.parts.len() / self.portions;
                &self.parts[usize::from(portion.index) * chunks..][..chunks]
            }
            _ if self.portions > 1 => return &self.parts,
            _ => &self.parts,
        };
        match normal(region.chunk) {
            Some(chunk) if parts.len() == usize::from(chunk.of) => {
                &parts[usize::from(chunk.index)..=usize::from(chunk.index)]
            }
            _ => parts,
        }
    }
}
