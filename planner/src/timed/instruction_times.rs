//! Times of the instructions of a plan or of a table.

use model::ops::{Kv, Op};
use program::ir::{Instruction, Moved};
use program::map::Chunk;
use program::plan::Plan;
use program::simulate::{Place, SimulationCosts};
use program::topology::{LaneId, LaneSet};

use super::layer::TableLayer;
use crate::layer::table::{OpCost, OperationTable};

/// Nanoseconds of every entry of every decode list; waits, signals and work that is not priced (for
/// a table: activations, appends, operations outside the layers) take 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstructionTimes {
    lanes: Vec<(LaneId, Vec<u64>)>,
}

impl InstructionTimes {
    pub(super) fn new(
        plan: &Plan,
        layer: &TableLayer,
        table: &OperationTable,
        compressed: bool,
    ) -> InstructionTimes {
        let prices = TablePrices { layer, table, compressed };
        let lanes = plan.decode().lanes.iter().map(|list| {
            let times = list.instructions.iter().map(|work| prices.price_ms(list.lane, work));
            (list.lane, times.map(|ms| (ms * 1e6).round() as u64).collect())
        });
        InstructionTimes { lanes: lanes.collect() }
    }

    /// Returns times by lane, one for each entry of the lane's list.
    pub(super) const fn by_lane(lanes: Vec<(LaneId, Vec<u64>)>) -> InstructionTimes {
        InstructionTimes { lanes }
    }

    /// Returns the times by lane and index in the lane's list.
    pub fn lanes(&self) -> &[(LaneId, Vec<u64>)] {
        &self.lanes
    }
}

/// The costs have no contention, and waking up takes no time.
impl SimulationCosts for InstructionTimes {
    fn work_ns(&self, place: Place, _: &Instruction, _: u32) -> f64 {
        let lane = self.lanes.iter().find(|(lane, _)| *lane == place.lane);
        lane.and_then(|(_, times)| times.get(place.instruction as usize))
            .map_or(0.0, |ns| *ns as f64)
    }

    fn rate(&self, _: Place, _: LaneSet) -> f64 {
        1.0
    }

    fn wake_ns(&self) -> f64 {
        0.0
    }
}

struct TablePrices<'a> {
    layer: &'a TableLayer,
    table: &'a OperationTable,
    compressed: bool,
}

impl TablePrices<'_> {
    fn price_ms(&self, lane: LaneId, work: &Instruction) -> f64 {
        let transfer = |op: &OpCost| op.transfer_ms(self.compressed);
        match work {
            Instruction::Compute(compute) if compute.at.layer.is_some() => {
                self.sum(compute.op, compute.chunk, |op| match lane {
                    LaneId::CPU_COMPUTE => op.cpu_ms,
                    // The device reads a 4-bit cache directly, so its decompression belongs to the
                    // operation that reads it.
                    _ if op.kv && self.compressed => op.gpu_ms + op.decompress_ms,
                    _ => op.gpu_ms,
                })
            }
            Instruction::Copy(copy) if copy.at.layer.is_some() => match copy.moved {
                Moved::Weights(op) => self.sum(op, None, transfer),
                Moved::Cache(kv) => {
                    let op = if kv == Kv::K { Op::Scores } else { Op::Wv };
                    self.sum(op, copy.chunk, transfer)
                }
                Moved::Value(_) | Moved::Sequences(_) | Moved::Deferred(_) => 0.0,
            },
            Instruction::Decompress(decompress) => {
                self.sum(decompress.op, None, |op| op.decompress_ms)
            }
            _ => 0.0,
        }
    }

    /// Returns the sum over one chunk, or over all rows of the operation: chunks that one device
    /// runs are merged.
    fn sum(&self, op: Op, chunk: Option<Chunk>, time: impl Fn(&OpCost) -> f64) -> f64 {
        let chunk = chunk.filter(|chunk| chunk.of > 1).map(|chunk| chunk.index);
        let rows = self.layer.entry_indices.iter().zip(&self.table.ops);
        let matching = rows.filter(|(place, _)| {
            let (other, index) = self.layer.entries[**place];
            other == op && (chunk.is_none() || index.is_none() || index == chunk)
        });
        matching.map(|(_, row)| time(row)).sum()
    }
}
