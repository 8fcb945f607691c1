//! Devices on which the parts of each value of a stream are up to date.

use model::ops::Value;
use rustc_hash::FxHashMap;

use crate::map::ComputeDevice;

/// Indices of the values that outlive a layer.
const LASTING: [usize; 7] = [
    Value::Hidden as usize,
    Value::PerLayer as usize,
    Value::SharedKey as usize,
    Value::SharedValue as usize,
    Value::WindowKey as usize,
    Value::WindowValue as usize,
    Value::Selection as usize,
];

/// Devices on which a part of a value is up to date.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Valid {
    cpu: bool,
    pub(super) gpu: bool,
}

impl Valid {
    /// Returns the flag of a device.
    pub(super) fn on(&mut self, device: ComputeDevice) -> &mut bool {
        match device {
            ComputeDevice::Cpu => &mut self.cpu,
            ComputeDevice::Gpu => &mut self.gpu,
        }
    }
}

/// A stream of a batch, whose buffers hold values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct StreamKey {
    pub(super) batch: u16,
    pub(super) stream: u16,
}

/// Validity of the parts of each value, by stream.
#[derive(Debug, Default)]
pub(super) struct ValidParts {
    /// For each value, in the order of its declaration, its parts; none if it is unknown. Lists are
    /// kept from layer to layer, so that they are allocated once.
    streams: FxHashMap<StreamKey, Vec<Vec<Valid>>>,
}

impl ValidParts {
    /// Returns the parts of a value, `parts` invalid ones if it is unknown.
    pub(super) fn parts(
        &mut self,
        stream: StreamKey,
        value: Value,
        parts: usize,
    ) -> &mut Vec<Valid> {
        let (values, index) = (self.streams.entry(stream).or_default(), value as usize);
        if values.len() <= index {
            values.resize_with(index + 1, Vec::new);
        }
        let valid = &mut values[index];
        if valid.is_empty() {
            valid.resize(parts, Valid::default());
        }
        valid
    }

    /// Forgets the values of a layer; the residual stream and whatever else later layers read
    /// remains.
    pub(super) fn forget_layer(&mut self, stream: StreamKey) {
        let values = self.streams.get_mut(&stream).into_iter().flatten().enumerate();
        let of_layer = values.filter(|(index, _)| !LASTING.contains(index));
        of_layer.for_each(|(_, valid)| valid.clear());
    }
}
