//! Layers of Nemotron-H, whose files have a block for each mixer: those with heads of k and v
//! attend, those with a width have a network or experts, and the others have Mamba2.

use super::super::metadata::MetadataValue;
use super::keys::{ConfigError, Keys, MAX_SIZE, wrong};
use super::states::KV_HEADS;
use crate::experts::Experts;
use crate::family::nemotron_h::{Mixer, paired};
use crate::layers::Layers;

const FFN: &str = "feed_forward_length";

/// Layers of a model, of which networks and experts are second halves.
pub(super) struct PairedLayers {
    pub(super) count: usize,
    pub(super) layers: Layers,
    /// Width of the network that computes every row: the shared one of a model with experts.
    pub(super) ffn_size: usize,
}

/// Returns the layers of a file of `blocks` blocks.
///
/// # Errors
/// Lists that contradict each other, or an order of mixers that the family does not have.
pub(super) fn layers(
    keys: &Keys<'_>,
    blocks: usize,
    experts: Option<Experts>,
) -> Result<PairedLayers, ConfigError> {
    let heads = of_blocks(keys, KV_HEADS, blocks)?;
    let widths = of_blocks(keys, FFN, blocks)?;
    let second = if experts.is_some() { Mixer::Experts } else { Mixer::Network };
    let mut mixers = Vec::with_capacity(blocks);
    for (heads, width) in heads.iter().zip(&widths) {
        mixers.push(match (heads, width) {
            (0, 0) => Mixer::Mamba,
            (_, 0) => Mixer::Attention,
            (0, _) => second,
            _ => return Err(wrong(keys.key(FFN), *width, "0 for a block that attends")),
        });
    }
    let Some(kinds) = paired(&mixers) else {
        let expected = "a network or experts that follow Mamba2 or attention";
        return Err(wrong(keys.key(FFN), format!("{widths:?}"), expected));
    };
    let ffn_size = match experts {
        Some(_) => keys.required_size("expert_shared_feed_forward_length")?,
        None => common_width(keys, &widths)?,
    };
    Ok(PairedLayers { count: kinds.len(), layers: Layers::from_kinds(kinds), ffn_size })
}

/// Returns the width of all networks, or 1 if there is none.
fn common_width(keys: &Keys<'_>, widths: &[u32]) -> Result<usize, ConfigError> {
    let mut used = widths.iter().copied().filter(|width| *width != 0);
    let first = used.next().unwrap_or(1);
    match used.find(|width| *width != first) {
        _ if first > MAX_SIZE => Err(wrong(keys.key(FFN), first, "a size from 1 to 16777216")),
        None => Ok(first as usize),
        Some(other) => Err(wrong(keys.key(FFN), other, "the same width for all networks")),
    }
}

/// Returns the integer of each block, which files without differences have once.
fn of_blocks(keys: &Keys<'_>, suffix: &str, blocks: usize) -> Result<Vec<u32>, ConfigError> {
    let key = keys.key(suffix);
    if !matches!(keys.metadata.value(&key), Some(MetadataValue::Array(_))) {
        let one = keys.metadata.integer(&key)?.unwrap_or(0);
        return Ok(vec![one; blocks]);
    }
    let list = keys.metadata.integers(&key)?.unwrap_or_default();
    match list.get(..blocks) {
        Some(list) => Ok(list.to_vec()),
        None => Err(wrong(key, list.len(), "a number for each block")),
    }
}
