//! Human-readable names of instructions, for errors of the validator and spans of a trace.

use model::config::Family;
use model::ops::Op;

use crate::ir::{At, Instruction, Moved};
use crate::map::Chunk;
use crate::topology::Topology;

/// Describes an instruction and its part of the work, like `scores.3, layer 4, batch 1`.
pub fn describe(instruction: &Instruction, family: Family, topology: &Topology) -> String {
    match instruction {
        Instruction::Compute(compute) => {
            format!("{}{}", part(compute.op.name(family), compute.chunk), place(compute.at))
        }
        Instruction::Copy(copy) => {
            let what = match copy.moved {
                Moved::Weights(Op::Embed) => "embedding weights".to_owned(),
                Moved::Weights(op) => format!("{} weights", op.name(family)),
                Moved::Value(value) => format!("{value:?}").to_lowercase(),
                Moved::Cache(kv) => format!("{kv:?} cache"),
                Moved::Sequences(kv) => format!("sequences' {kv:?} cache"),
                Moved::Deferred(value) => format!("lagging {value:?}").to_lowercase(),
            };
            format!("copy of {}{}", part(&what, copy.chunk), place(copy.at))
        }
        Instruction::Append(append) => {
            format!(
                "append to {}{}",
                part(&format!("{:?} cache", append.kv), Some(append.chunk)),
                place(append.at)
            )
        }
        Instruction::Decompress(decompress) => {
            format!(
                "decompression of {} weights{}",
                decompress.op.name(family),
                place(decompress.at)
            )
        }
        Instruction::Read(read) => {
            let what = if read.routing.is_some() { "routed " } else { "" };
            format!("read of {what}{} weights{}", read.op.name(family), place(read.at))
        }
        Instruction::Wait(wait) => {
            let which = if wait.previous_step { " of the previous step" } else { "" };
            format!("wait for signal {} of {}{which}", wait.offset, topology.lane_name(wait.lane))
        }
        Instruction::Signal => "signal".to_owned(),
    }
}

fn part(name: &str, chunk: Option<Chunk>) -> String {
    match chunk {
        Some(chunk) if chunk.of > 1 => format!("{name}.{}", chunk.index),
        _ => name.to_owned(),
    }
}

fn place(at: At) -> String {
    let layer = at.layer.map_or_else(String::new, |layer| format!(", layer {layer}"));
    let stream = if at.stream == 0 { String::new() } else { format!(", stream {}", at.stream) };
    format!("{layer}, batch {}{stream}", at.batch)
}
