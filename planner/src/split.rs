//! `--split A:B` and `--split-chunks linears=8`: positions in a layer's list, by name.

use model::config::ModelConfig;
use program::map::{ChunkOrder, Chunking, OpChunk, leading_list};

/// The half-open interval `[start, end)` of a layer's list that the GPU runs (Park-Egger eq. 6,
/// interpreted as half-open). Empty if both are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    pub start: usize,
    pub end: usize,
}

/// Reason for which a split could not be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    #[error(
        "--split {text}: write it as FROM:BEFORE, for example scores:out; the GPU runs the \
         operations from FROM to before BEFORE, and either side may be empty"
    )]
    Syntax { text: String },
    #[error("--split {text}: this model has no operation {name}; its layer is {layer}")]
    Unknown { text: String, name: String, layer: String },
    #[error("--split {text}: {start} comes after {end} in the layer ({layer})")]
    Order { text: String, start: String, end: String, layer: String },
    #[error(
        "--split {text}: {name} names a chunk, but it is not split; add --split-chunks scores=8, \
         attention=8 or linears=8"
    )]
    NoChunks { text: String, name: String },
    #[error("--split-chunks {text}: write scores=N, attention=N or linears=N with N from 1 to 64")]
    Chunks { text: String },
}

/// Parses `scores=8`, `attention=8` or `linears=8`.
///
/// # Errors
/// Any other text.
pub fn parse_chunking(text: &str) -> Result<Chunking, SplitError> {
    let error = || SplitError::Chunks { text: text.to_owned() };
    let (name, count) = text.split_once('=').ok_or_else(error)?;
    let order = match name.trim() {
        "scores" => ChunkOrder::Scores,
        "attention" => ChunkOrder::Attention,
        "linears" => ChunkOrder::Linears,
        _ => return Err(error()),
    };
    let chunks: u16 = count.trim().parse().map_err(|_| error())?;
    if !(1..=64).contains(&chunks) {
        return Err(error());
    }
    Ok(Chunking { order, chunks })
}

/// Parses `A:B` for the layer of a model.
///
/// # Errors
/// A name that the layer does not have, the wrong order, or another syntax.
pub fn parse_split(
    text: &str,
    config: &ModelConfig,
    chunking: Option<Chunking>,
) -> Result<Split, SplitError> {
    let syntax = || SplitError::Syntax { text: text.to_owned() };
    let (start, end) = text.split_once(':').ok_or_else(syntax)?;
    let (start, end) = (start.trim(), end.trim());
    if end.contains(':') {
        return Err(syntax());
    }
    let list = leading_list(config, chunking);
    let split = Split {
        start: if start.is_empty() { 0 } else { position(text, start, config, &list, chunking)? },
        end: if end.is_empty() {
            list.len()
        } else {
            position(text, end, config, &list, chunking)?
        },
    };
    if split.start > split.end {
        return Err(SplitError::Order {
            text: text.to_owned(),
            start: start.to_owned(),
            end: end.to_owned(),
            layer: names(config, &list),
        });
    }
    Ok(split)
}

/// Returns the position of a name: an entry of the list (`scores.3`), or the first entry of an
/// operation.
fn position(
    text: &str,
    name: &str,
    config: &ModelConfig,
    list: &[OpChunk],
    chunking: Option<Chunking>,
) -> Result<usize, SplitError> {
    let found = list
        .iter()
        .position(|entry| entry.name(config) == name || entry.op.name(config.family) == name);
    found.ok_or_else(|| {
        let operation = name.split('.').next().unwrap_or(name);
        let known = list.iter().any(|entry| entry.op.name(config.family) == operation);
        if known && operation != name && chunking.is_none() {
            SplitError::NoChunks { text: text.to_owned(), name: name.to_owned() }
        } else {
            SplitError::Unknown {
                text: text.to_owned(),
                name: name.to_owned(),
                layer: names(config, list),
            }
        }
    })
}

fn names(config: &ModelConfig, list: &[OpChunk]) -> String {
    list.iter().map(|entry| entry.name(config)).collect::<Vec<_>>().join(" ")
}
