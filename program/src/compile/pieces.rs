//! Values of a program that are in parts because linears are split.

use model::config::ModelConfig;
use model::ops::Value;

use crate::ir::{ProgramShape, Rows};
use crate::map::{ChunkOrder, DeviceMap};
use crate::pieces::own_input;

/// Parts of the programs that follow the decode map; other programs have whole linears.
#[derive(Debug)]
pub(super) struct Pieces {
    of: u16,
    /// Values in parts, for each layer.
    layers: Vec<Vec<Value>>,
    /// The residual stream is in parts in some layer, and hence in all.
    hidden: bool,
}

impl Pieces {
    pub(super) fn new(program: ProgramShape, config: &ModelConfig, map: &DeviceMap) -> Pieces {
        let cut = map.chunking.filter(|cut| cut.order == ChunkOrder::Linears);
        let Some(cut) = cut.filter(|_| program.rows == Rows::Single) else {
            return Pieces { of: 1, layers: Vec::new(), hidden: false };
        };
        let in_parts = |layer| {
            let model = config.of_layer(layer);
            let list = map.decode_layer(config, layer).into_iter();
            let cut = list.filter(|(entry, _)| entry.chunk.is_some());
            let ops = cut.map(|(entry, _)| entry.op);
            ops.flat_map(|op| op.writes(model).into_iter().chain(own_input(model, op))).collect()
        };
        let layers: Vec<Vec<Value>> = (0..config.num_layers).map(in_parts).collect();
        let hidden = layers.iter().flatten().any(|value| *value == Value::Hidden);
        Pieces { of: cut.chunks, layers, hidden }
    }

    /// Returns the number of parts into which linears split a value of a layer, or of the
    /// operations around all layers.
    pub(super) fn parts(&self, layer: Option<u16>, value: Value) -> u16 {
        let of_layer = layer.and_then(|layer| self.layers.get(usize::from(layer)));
        let is_cut = match value {
            Value::Hidden => self.hidden,
            _ => of_layer.is_some_and(|values| values.contains(&value)),
        };
        if is_cut { self.of } else { 1 }
    }
}
