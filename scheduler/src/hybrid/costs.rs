//! Cost of a decoder layer on a machine with two processors.

/// Times of one decoder layer in ms. All layers are equal.
///
/// The time of nothing (no rows, no sequences) is 0.
pub trait LayerCosts {
    /// Returns the number of layers of the model.
    fn layers(&self) -> u32;
    /// Returns the time of all linears of a layer on the device, for `rows` rows.
    fn linear_ms(&self, rows: u32) -> f64;
    /// Returns the time of attention of a whole prompt of `tokens` tokens on the device.
    fn prefill_attention_ms(&self, tokens: u32) -> f64;
    /// Returns the time of attention on the device of decode rows that attend to `positions`
    /// positions in total.
    fn device_decode_ms(&self, positions: u64) -> f64;
    /// Returns the time of attention on the host of `sequences` decode rows that attend to
    /// `positions` positions in total.
    fn host_decode_ms(&self, sequences: u32, positions: u64) -> f64;
    /// Returns the additional time of attention on the host, once per stage: threads, and the
    /// hand-over.
    fn launch_ms(&self) -> f64;
    /// Returns the time of the operations before and after the layers, for `rows` rows of which
    /// `samples` are sampled.
    fn ends_ms(&self, rows: u32, samples: u32) -> f64;
    /// Returns the additional time of an iteration with deferred rows, for transfers in every
    /// layer.
    fn deferred_rows_ms(&self) -> f64 {
        0.0
    }
    /// Returns the transfer costs between host and device.
    fn link(&self) -> LinkCosts;
}

/// Transfer times for one decoder layer, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LinkCosts {
    /// Weights that do not fit on the device and are streamed in each iteration.
    pub weights_ms: f64,
    /// Query, key and value of a row, to the host.
    pub row_out_ms: f64,
    /// The attention output of a row, back to the device.
    pub row_back_ms: f64,
    /// Key and value of a cached position, to the host.
    pub position_out_ms: f64,
    /// Key and value of a cached position, to the device.
    pub position_in_ms: f64,
    /// Fraction of host memory bandwidth used by attention on the host, transfers to the device,
    /// and transfers to the host.
    pub memory: MemoryShares,
}

/// Fractions of host memory bandwidth; 0: not considered.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MemoryShares {
    pub attention: f64,
    pub to_device: f64,
    pub to_host: f64,
}

impl MemoryShares {
    /// Returns the minimum time in which the given amounts can be transferred, in ms.
    pub fn min_ms(&self, attention_ms: f64, to_device_ms: f64, to_host_ms: f64) -> f64 {
        let transfers_ms = self.to_device * to_device_ms + self.to_host * to_host_ms;
        self.attention * attention_ms + transfers_ms
    }
}
