//! What a buffer holds, part by part.

use model::config::ModelConfig;
use model::ops::{Kv, Value};

use crate::map::Chunk;
use crate::weights::Weights;

use super::super::error::Site;
use super::super::shape::normal;

/// What a region holds. Activations belong to one step: those of the step before are stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Weights(Weights),
    /// The same, widened to what the GPU multiplies.
    Decompressed(Weights),
    /// The residual stream after so many in-place additions (two per layer).
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
    /// One part of a cache, with the rows of the first `streams` streams of prefill, and of
    /// `appended` decode steps behind those of all of them.
    Cache {
        kv: Kv,
        layer: Option<u16>,
        batch: u16,
        chunk: Chunk,
        streams: u16,
        appended: u32,
    },
}

impl Content {
    /// Whether content is what a reader needs. A cache may already hold the current step's rows, or
    /// those of later streams, which no reader looks at.
    pub(super) fn satisfies(self, needed: Content) -> bool {
        match (self, needed) {
            (
                Content::Cache { kv, layer, batch, chunk, streams, appended },
                Content::Cache { streams: streams_least, appended: appended_least, .. },
            ) => {
                let least = Content::Cache {
                    kv,
                    layer,
                    batch,
                    chunk,
                    streams: streams_least,
                    appended: appended_least,
                };
                streams >= streams_least && appended >= appended_least && needed == least
            }
            _ => self == needed,
        }
    }

    /// A cache with the rows of so many streams of prefill.
    pub(super) fn with_streams(self, streams: u16) -> Content {
        match self {
            Content::Cache { kv, layer, batch, chunk, appended, .. } => {
                Content::Cache { kv, layer, batch, chunk, streams, appended }
            }
            other => other,
        }
    }

    /// What it is, for errors.
    pub(super) fn text(self, config: &ModelConfig) -> String {
        let of_layer =
            |layer: Option<u16>| layer.map_or_else(String::new, |l| format!(" of layer {l}"));
        match self {
            Content::Weights(weights) => weights.name(config),
            Content::Decompressed(weights) => format!("{}, decompressed", weights.name(config)),
            Content::Hidden { at: Stream { batch, micro }, updates, step } => format!(
                "the residual stream of batch {batch}.{micro} after {updates} additions in step {step}"
            ),
            Content::Value { value, layer, at: Stream { batch, micro }, step } => {
                format!("{value:?}{} for batch {batch}.{micro} in step {step}", of_layer(layer))
            }
            Content::Cache { kv, layer, batch, chunk, streams, appended } => format!(
                "the {kv:?} cache{} for batch {batch}, part {} of {}, with {streams} streams of \
                 prefill and {appended} decoded positions",
                of_layer(layer),
                chunk.index,
                chunk.of
            ),
        }
    }
}

/// The rows that an activation is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stream {
    pub(super) batch: u16,
    pub(super) micro: u16,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Held {
    pub(super) content: Content,
    /// `None`: loaded, or left by prefill.
    pub(super) writer: Option<Site>,
}

/// A buffer as equal parts, each holding something, or nothing that is known.
#[derive(Debug, Clone, Default)]
pub(super) struct Parts {
    parts: Vec<Option<Held>>,
}

impl Parts {
    pub(super) fn write(&mut self, chunk: Option<Chunk>, held: Held) {
        let Some(chunk) = normal(chunk) else {
            self.parts = vec![Some(held)];
            return;
        };
        let count = usize::from(chunk.of);
        if self.parts.len() != count {
            // The cuts are elsewhere: what the old parts held is no longer whole.
            let whole = if self.parts.len() == 1 { self.parts[0].take() } else { None };
            self.parts = vec![whole; count];
        }
        self.parts[usize::from(chunk.index)] = Some(held);
    }

    pub(super) fn read(&self, chunk: Option<Chunk>) -> &[Option<Held>] {
        match normal(chunk) {
            Some(chunk) if self.parts.len() == usize::from(chunk.of) => {
                &self.parts[usize::from(chunk.index)..=usize::from(chunk.index)]
            }
            _ => &self.parts,
        }
    }
}
