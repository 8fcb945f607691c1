//! Closed form of a layer's latency: Park-Egger eqs. 5-14, interpreted as follows.
//!
//! The GPU's interval is half-open in every equation, and may be empty or the whole layer. With `n`
//! batches the CPU term is `n` times eq. 6, since the table describes one batch. In eq. 8 `H[i]` is
//! the transfer of the first compressed operand of the interval; a weight is decompressed once, a
//! KV cache once per batch. Weights from NVMe are stored uncompressed, so they enter neither H2D
//! nor DC (eqs. 10-12). Every stage is assumed to overlap perfectly, which [`super::steady`] does
//! not assume.

use super::table::OperationTable;
use super::time::Ps;

/// A point of the search: a device map of a layer in terms of a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LayerCandidate {
    /// `[i, j)`: the operations that the GPU runs; `[0, 0)` is the CPU alone.
    pub interval: (usize, usize),
    pub compressed: bool,
    /// Indices of the weights read from NVMe, ascending, all inside the interval.
    pub nvme: Vec<usize>,
}

impl LayerCandidate {
    /// Returns a candidate without compression and NVMe.
    pub const fn plain(start: usize, end: usize) -> LayerCandidate {
        LayerCandidate { interval: (start, end), compressed: false, nvme: Vec::new() }
    }

    /// Returns true if the GPU runs operation `index`.
    pub const fn on_gpu(&self, index: usize) -> bool {
        self.interval.0 <= index && index < self.interval.1
    }
}

/// The terms of the maximum. `None` for a term that the map does not use, which takes no part in
/// the imbalance and counts as 0 in the maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatencyTerms {
    pub cpu: Ps,
    pub h2d: Ps,
    /// Used if the map is compressed (eq. 9).
    pub dc: Option<Ps>,
    /// Used if the map reads a weight from NVMe (eq. 10).
    pub s2d: Option<Ps>,
}

impl LatencyTerms {
    fn in_use(&self) -> impl Iterator<Item = Ps> {
        [Some(self.cpu), Some(self.h2d), self.dc, self.s2d].into_iter().flatten()
    }

    /// Returns the latency `L`, the largest term.
    pub fn latency(&self) -> Ps {
        self.in_use().max().unwrap_or_default()
    }

    /// Returns the largest minus the smallest of the terms in use.
    pub fn imbalance(&self) -> Ps {
        let smallest = self.in_use().min().unwrap_or_default();
        self.latency().saturating_sub(smallest)
    }
}

/// A table's times in the form that the equations use.
#[derive(Debug, Clone)]
pub(crate) struct TableTimes {
    pub(crate) batches: u128,
    pub(crate) ops: Vec<OpTimes>,
    /// Range of the fused operations, and the savings of the CPU and the GPU on them.
    fused: Option<(std::ops::Range<usize>, Ps, Ps)>,
}

/// Costs of one operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpTimes {
    pub(crate) cpu: Ps,
    pub(crate) gpu: Ps,
    plain: Ps,
    compressed: Ps,
    decompress: Ps,
    pub(crate) s2d: Ps,
    pub(crate) kv: bool,
    pub(crate) can_come_from_nvme: bool,
}

impl OpTimes {
    pub(crate) const fn transfer(&self, compressed: bool) -> Ps {
        if compressed { self.compressed } else { self.plain }
    }

    /// Returns the duration of one decompression, of a weight or of one batch's KV.
    pub(crate) const fn decompression(&self, compressed: bool) -> Ps {
        if compressed { self.decompress } else { Ps::ZERO }
    }
}

impl TableTimes {
    pub(crate) fn from_table(table: &OperationTable) -> TableTimes {
        let ops = table.ops.iter().map(|op| OpTimes {
            cpu: Ps::from_ms(op.cpu_ms),
            gpu: Ps::from_ms(op.gpu_ms),
            plain: Ps::from_ms(op.h2d_ms),
            compressed: Ps::from_ms(op.h2d_compressed_ms),
            decompress: Ps::from_ms(op.decompress_ms),
            s2d: Ps::from_ms(op.s2d_ms),
            kv: op.kv,
            can_come_from_nvme: op.can_come_from_nvme(),
        });
        let fused = table.fused.as_ref().map(|fused| {
            let (cpu, gpu) = (Ps::from_ms(fused.cpu_saved_ms), Ps::from_ms(fused.gpu_saved_ms));
            (fused.range.clone(), cpu, gpu)
        });
        TableTimes { batches: u128::from(table.batches), ops: ops.collect(), fused }
    }

    /// Eq. 6, for all batches.
    pub(crate) fn cpu(&self, start: usize, end: usize) -> Ps {
        let outside = self.ops[..start].iter().chain(&self.ops[end..]);
        let one: Ps = outside.map(|op| op.cpu).sum();
        let saved = match &self.fused {
            Some((range, cpu, _)) if range.end <= start || range.start >= end => *cpu,
            _ => Ps::ZERO,
        };
        one.saturating_sub(saved).times(self.batches)
    }

    /// Eq. 14 without weights from NVMe; eq. 7 for one batch.
    pub(crate) fn h2d(&self, start: usize, end: usize, compressed: bool) -> Ps {
        let inside = &self.ops[start..end];
        let all: Ps = inside.iter().map(|op| op.transfer(compressed)).sum();
        let kv: Ps = inside.iter().filter(|op| op.kv).map(|op| op.transfer(compressed)).sum();
        let gpu: Ps = inside.iter().map(|op| op.gpu).sum();
        let saved = match &self.fused {
            Some((range, _, gpu)) if start <= range.start && range.end <= end => *gpu,
            _ => Ps::ZERO,
        };
        all + (gpu.saturating_sub(saved) + kv).times(self.batches - 1)
    }

    /// Returns the duration of all decompressions of an operation in a layer.
    pub(crate) fn decompressions(&self, index: usize, compressed: bool) -> Ps {
        let op = &self.ops[index];
        op.decompression(compressed).times(if op.kv { self.batches } else { 1 })
    }

    /// Returns the terms of a candidate.
    pub(crate) fn terms(&self, candidate: &LayerCandidate) -> LatencyTerms {
        let LayerCandidate { interval, compressed, nvme } = candidate;
        let from_nvme: Ps = nvme.iter().map(|op| self.ops[*op].transfer(*compressed)).sum();
        let decompressed = || {
            (interval.0..interval.1).filter(|index| {
                !nvme.contains(index) && self.ops[*index].decompression(*compressed) > Ps::ZERO
            })
        };
        let first = decompressed().next().map(|index| self.ops[index].transfer(*compressed));
        let all: Ps = decompressed().map(|index| self.decompressions(index, *compressed)).sum();
        LatencyTerms {
            cpu: self.cpu(interval.0, interval.1),
            h2d: self.h2d(interval.0, interval.1, *compressed).saturating_sub(from_nvme),
            dc: compressed.then_some(all + first.unwrap_or_default()),
            s2d: (!nvme.is_empty()).then(|| nvme.iter().map(|op| self.ops[*op].s2d).sum()),
        }
    }
}

/// Returns the terms of a candidate of a table.
pub fn terms(table: &OperationTable, candidate: &LayerCandidate) -> LatencyTerms {
    TableTimes::from_table(table).terms(candidate)
}
