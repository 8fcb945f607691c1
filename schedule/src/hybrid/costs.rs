//! What a decoder layer costs on a machine of two processors.

/// Times of one decoder layer, ms. All layers are alike.
///
/// A time of nothing (no rows, no sequences) is 0.
pub trait LayerCosts {
    /// Layers of the model.
    fn layers(&self) -> u32;
    /// All linears of a layer on the device, over so many rows.
    fn linear_ms(&self, rows: u32) -> f64;
    /// Attention of a whole prompt of so many tokens, on the device.
    fn prefill_attention_ms(&self, tokens: u32) -> f64;
    /// Attention of rows of decode that look at so many positions in all, on the device.
    fn device_decode_ms(&self, positions: u64) -> f64;
    /// Attention of so many rows of decode that look at so many positions in all, on the host.
    fn host_decode_ms(&self, sequences: u32, positions: u64) -> f64;
    /// What attention on the host takes beside that, once a stage: threads, and the hand-over.
    fn launch_ms(&self) -> f64;
    /// What precedes the layers and follows them, for so many rows, of which so many are sampled.
    fn ends_ms(&self, rows: u32, samples: u32) -> f64;
    /// What an iteration in which rows may lag takes beside its work, for what comes and goes in
    /// every layer.
    fn lagging_ms(&self) -> f64 {
        0.0
    }
    /// What passes between host and device.
    fn link(&self) -> LinkCosts;
}

/// Times of transfers for one decoder layer, ms.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LinkCosts {
    /// Weights that have no room on the device and come anew in each iteration.
    pub weights_ms: f64,
    /// Query, key and value of a row, to the host.
    pub row_out_ms: f64,
    /// What attention makes of a row, back to the device.
    pub row_back_ms: f64,
    /// Key and value of a cached position, to the host.
    pub position_out_ms: f64,
    /// The same to the device.
    pub position_in_ms: f64,
    /// What part of host memory's bandwidth each takes while it lasts: attention on the host,
    /// transfers to the device and those to the host.
    pub memory: MemoryShares,
}

/// Parts of host memory's bandwidth; 0: it is not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MemoryShares {
    pub attention: f64,
    pub to_device: f64,
    pub to_host: f64,
}

impl MemoryShares {
    /// The least time in which so much of each can pass, ms.
    pub fn least_ms(&self, attention_ms: f64, to_device_ms: f64, to_host_ms: f64) -> f64 {
        let transfers_ms = self.to_device * to_device_ms + self.to_host * to_host_ms;
        self.attention * attention_ms + transfers_ms
    }
}
