//! An operation table: the cost of each operation of a decoder layer, in the order of the layer
//! (Park-Egger §4.2: the arrays `O`, `C`, `G`, `H`, `D`, `S`).
//!
//! A table comes from a file (`--tables`, [`OperationTable::from_json`]), from a machine's
//! description ([`crate::machine`]), or from a profile. Everything above it (closed form,
//! simulator, search, policies) uses times only and does not know the model.

mod dataflow;
mod parse;
#[cfg(test)]
mod tests;

pub use dataflow::dataflow;
pub use parse::TableError;

use serde::Deserialize;

/// One operation, or a chunk of one. All times are for one batch, in milliseconds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpCost {
    pub name: String,
    /// `C`: time on the CPU.
    #[serde(default)]
    pub cpu_ms: f64,
    /// `G`: time on the GPU.
    #[serde(default)]
    pub gpu_ms: f64,
    /// `H`: transfer of its weights, or of one batch's KV, from host to device.
    #[serde(default)]
    pub h2d_ms: f64,
    /// Transfer from host to device in compressed form.
    #[serde(default)]
    pub h2d_compressed_ms: f64,
    /// `D`: decompression on the device.
    #[serde(default)]
    pub decompress_ms: f64,
    /// `S`: transfer of its weights from NVMe to the device; 0 if they cannot be read from there.
    #[serde(default)]
    pub s2d_ms: f64,
    /// The transfer is one batch's KV cache rather than a weight.
    #[serde(default)]
    pub kv: bool,
    /// Number of the chunk, if neighbouring operations are independent parts of one. Chunks with
    /// different numbers do not wait for each other.
    #[serde(skip)]
    pub chunk: Option<u16>,
}

/// Maps that the search considers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    #[default]
    Off,
    On,
    /// Both, keeping the better one.
    Search,
}

impl Compression {
    /// Returns the cases to search, lossless first.
    pub const fn search_cases(self) -> &'static [bool] {
        match self {
            Compression::Off => &[false],
            Compression::On => &[true],
            Compression::Search => &[false, true],
        }
    }
}

/// Name of a cost model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CostModelName {
    /// The closed form, eqs. 5-14.
    Paper,
    /// The steady layer as a timeline.
    #[default]
    Simulated,
}

/// Cost of neighbouring operations that one device runs as one (fused attention).
#[derive(Debug, Clone, PartialEq)]
pub struct FusedCost {
    /// Indices of the operations, half-open.
    pub range: std::ops::Range<usize>,
    /// Saving of the CPU relative to the separate operations, for one batch, in ms.
    pub cpu_saved_ms: f64,
    /// Saving of the GPU relative to the separate operations, for one batch, in ms.
    pub gpu_saved_ms: f64,
}

/// A layer's operations and the parameters of the search.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperationTable {
    pub ops: Vec<OpCost>,
    /// Number of batches, `n`.
    #[serde(default = "one")]
    pub batches: u32,
    #[serde(default)]
    pub compression: Compression,
    /// Weights may be read from NVMe.
    #[serde(default)]
    pub nvme: bool,
    #[serde(default)]
    pub cost: CostModelName,
    /// Fused operations; files contain only separate operations.
    #[serde(skip)]
    pub fused: Option<FusedCost>,
    /// For each operation, those whose results it needs, if that is known ([`dataflow()`]).
    #[serde(skip)]
    pub needs: Option<Vec<Vec<usize>>>,
}

const fn one() -> u32 {
    1
}

impl OpCost {
    /// Returns an operation that costs nothing.
    pub fn named(name: &str) -> OpCost {
        OpCost {
            name: name.to_owned(),
            cpu_ms: 0.0,
            gpu_ms: 0.0,
            h2d_ms: 0.0,
            h2d_compressed_ms: 0.0,
            decompress_ms: 0.0,
            s2d_ms: 0.0,
            kv: false,
            chunk: None,
        }
    }

    /// Returns the transfer time of a map with or without compression.
    pub const fn transfer_ms(&self, compressed: bool) -> f64 {
        if compressed { self.h2d_compressed_ms } else { self.h2d_ms }
    }

    /// Returns true if the weights may be read from NVMe. A KV cache changes with every step, so it
    /// cannot be.
    pub fn can_come_from_nvme(&self) -> bool {
        self.s2d_ms > 0.0 && !self.kv
    }

    /// Adds the costs of an operation that is placed with this one.
    pub(crate) fn add(&mut self, other: &OpCost) {
        self.cpu_ms += other.cpu_ms;
        self.gpu_ms += other.gpu_ms;
        self.h2d_ms += other.h2d_ms;
        self.h2d_compressed_ms += other.h2d_compressed_ms;
        self.decompress_ms += other.decompress_ms;
        self.s2d_ms += other.s2d_ms;
        self.kv |= other.kv;
    }

    /// Returns part `index` of `of` equal parts, named `name.index`.
    pub(crate) fn part(&self, index: u16, of: u16) -> OpCost {
        let share = 1.0 / f64::from(of);
        OpCost {
            name: format!("{}.{index}", self.name),
            cpu_ms: self.cpu_ms * share,
            gpu_ms: self.gpu_ms * share,
            h2d_ms: self.h2d_ms * share,
            h2d_compressed_ms: self.h2d_compressed_ms * share,
            decompress_ms: self.decompress_ms * share,
            s2d_ms: self.s2d_ms * share,
            kv: self.kv,
            chunk: Some(index),
        }
    }
}

impl OperationTable {
    /// Returns the weighted mean of tables with the same operations; `None` if the operations
    /// differ, or there are none.
    pub(crate) fn mean(weighted: &[(f64, OperationTable)]) -> Option<OperationTable> {
        let mut mean = weighted.first()?.1.clone();
        let names =
            |table: &OperationTable| table.ops.iter().map(|op| op.name.clone()).collect::<Vec<_>>();
        if weighted.iter().any(|(_, table)| names(table) != names(&mean)) {
            return None;
        }
        let of = |time: &dyn Fn(&OperationTable) -> f64| -> f64 {
            weighted.iter().map(|(weight, table)| weight * time(table)).sum()
        };
        for (index, op) in mean.ops.iter_mut().enumerate() {
            op.cpu_ms = of(&|table| table.ops[index].cpu_ms);
            op.gpu_ms = of(&|table| table.ops[index].gpu_ms);
            op.h2d_ms = of(&|table| table.ops[index].h2d_ms);
            op.h2d_compressed_ms = of(&|table| table.ops[index].h2d_compressed_ms);
            op.decompress_ms = of(&|table| table.ops[index].decompress_ms);
            op.s2d_ms = of(&|table| table.ops[index].s2d_ms);
        }
        if let Some(fused) = &mut mean.fused {
            let saved = |table: &OperationTable, cpu: bool| {
                let fused = table.fused.as_ref();
                fused.map_or(0.0, |one| if cpu { one.cpu_saved_ms } else { one.gpu_saved_ms })
            };
            fused.cpu_saved_ms = of(&|table| saved(table, true));
            fused.gpu_saved_ms = of(&|table| saved(table, false));
        }
        Some(mean)
    }

    /// Returns the table with `name` split into `chunks` equal parts (Park-Egger §3.2), every time
    /// divided evenly. `None` if there is no such operation, or `chunks` is 0.
    #[must_use]
    pub fn with_chunks(&self, name: &str, chunks: u16) -> Option<OperationTable> {
        let place = self.ops.iter().position(|op| op.name == name)?;
        if chunks == 0 || self.fused.is_some() {
            return None;
        }
        let mut table = OperationTable { needs: None, ..self.clone() };
        let parts: Vec<OpCost> =
            (0..chunks).map(|index| self.ops[place].part(index, chunks)).collect();
        table.ops.splice(place..=place, parts);
        Some(table)
    }

    /// Returns for each operation those whose results it needs. Unless the data flow is known, a
    /// layer is a chain except for chunks: the chunks of one operation need what precedes the first
    /// of them, and the next operation needs them all.
    pub fn dependencies(&self) -> Vec<Vec<usize>> {
        if let Some(needs) = &self.needs {
            return needs.clone();
        }
        let mut found: Vec<Vec<usize>> = Vec::with_capacity(self.ops.len());
        // What an operation after the group needs, and what the group itself needs.
        let mut exits: Vec<usize> = Vec::new();
        let mut entry: Vec<usize> = Vec::new();
        let mut in_group = false;
        for (index, op) in self.ops.iter().enumerate() {
            match op.chunk {
                Some(chunk) => {
                    if !in_group {
                        entry = std::mem::take(&mut exits);
                    }
                    in_group = true;
                    let same = exits.iter().position(|last| self.ops[*last].chunk == Some(chunk));
                    match same {
                        Some(place) => {
                            found.push(vec![exits[place]]);
                            exits[place] = index;
                        }
                        None => {
                            found.push(entry.clone());
                            exits.push(index);
                        }
                    }
                }
                None => {
                    in_group = false;
                    found.push(std::mem::replace(&mut exits, vec![index]));
                }
            }
        }
        found
    }

    /// Returns the operations that the next layer's first operation needs.
    pub fn exits(&self) -> Vec<usize> {
        let dependencies = self.dependencies();
        let needed: Vec<usize> = dependencies.into_iter().flatten().collect();
        (0..self.ops.len()).filter(|index| !needed.contains(index)).collect()
    }
}
