//! Location of the weights of layers with Mamba2 in a checkpoint.

use super::tensors::{Layouts, TensorSlice};
use crate::config::ModelConfig;
use crate::ops::Op;
use crate::source::TensorPart;

/// Returns the possible layouts of a tensor of Mamba2, of which `at` returns the name within the
/// layer's module; `None` for other tensors.
pub(super) fn layouts(
    config: &ModelConfig,
    op: Op,
    part: TensorPart,
    at: &dyn Fn(&str) -> String,
) -> Option<Layouts> {
    let mamba = config.mamba?;
    let (hidden, channels) = (config.hidden_size, mamba.channels());
    let whole = |name: &str, shape: &[usize]| vec![vec![TensorSlice::whole(at(name), shape)]];
    Some(match (op, part) {
        (Op::MambaIn, _) => whole("in_proj.weight", &[mamba.input_size(), hidden]),
        // Stored by channel.
        (Op::MambaConv, TensorPart::Gain) => vec![vec![TensorSlice {
            names: vec![at("conv1d.weight")],
            shape: vec![channels, 1, mamba.taps],
            first: 0,
            rows: mamba.taps,
            columns: channels,
            strides: (1, mamba.taps),
            is_transposed: false,
        }]],
        (Op::MambaConv, _) => whole("conv1d.bias", &[channels]),
        (Op::Mamba, TensorPart::Gain) => whole("norm.weight", &[mamba.inner_size()]),
        (Op::Mamba, _) => {
            let numbers = ["A_log", "dt_bias", "D"].map(at);
            vec![numbers.map(|name| TensorSlice::whole(name, &[mamba.heads])).into()]
        }
        (Op::MambaOut, _) => whole("out_proj.weight", &[hidden, mamba.inner_size()]),
        _ => return None,
    })
}
