//! LIA's vectors as a device map.

use model::config::ModelConfig;
use model::ops::Op;
use program::map::{Device, DeviceMap, Home, layer_list};

use crate::policy::{Homes, Policy, device_map as policy_map};

use super::Vector;

/// Why a vector has no device map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LiaError {
    #[error(
        "in prefill attention runs whole on one device, so the offload vector cannot separate Q x K^T from S x V there"
    )]
    PrefillAttentionCut,
}

/// The sublayer that an operation belongs to. LIA fuses what it does not list with a neighbour: the
/// norms with what follows them, softmax with the scores.
pub(crate) const fn sublayer_of(op: Op) -> Option<usize> {
    match op {
        Op::Norm0 | Op::Q | Op::K | Op::V => Some(0),
        Op::Scores | Op::Softmax | Op::Attention => Some(1),
        Op::Wv => Some(2),
        Op::Out => Some(3),
        Op::Norm1 | Op::Gate | Op::Up | Op::Fc0 => Some(4),
        Op::Down | Op::Fc1 => Some(5),
        Op::Embed | Op::FinalNorm | Op::Head | Op::Sample => None,
    }
}

fn devices(config: &ModelConfig, Vector(cpu): Vector) -> Vec<Device> {
    layer_list(config, None)
        .iter()
        .map(|entry| match sublayer_of(entry.op) {
            Some(sublayer) if !cpu[sublayer] => Device::Gpu,
            _ => Device::Cpu,
        })
        .collect()
}

/// The map of a vector for each stage; the first `resident` layers run whole on the GPU from device
/// memory in both (LIA §5.2, optimisation 1). KV stays in host memory, embedding and head on the CPU.
///
/// # Errors
/// A prefill vector with attention cut in two.
pub fn device_map(
    prefill: Vector,
    decode: Vector,
    config: &ModelConfig,
    fuse_attention: bool,
    resident: usize,
) -> Result<DeviceMap, LiaError> {
    if prefill.0[1] != prefill.0[2] {
        return Err(LiaError::PrefillAttentionCut);
    }
    let homes = Homes { kv: Home::Host, prefill_hidden: Home::Host };
    let mut map = policy_map(&Policy::CpuOnly, config, fuse_attention, homes);
    map.policy = "lia".to_owned();
    for layer in 0..config.num_layers {
        let stays = layer < resident;
        let of = |vector| devices(config, if stays { Vector::FULL_GPU } else { vector });
        map.prefill.layers[layer] = of(prefill);
        map.decode.layers[layer] = of(decode);
        if stays {
            map.weights[layer].fill(Home::Vram);
        }
    }
    Ok(map)
}
