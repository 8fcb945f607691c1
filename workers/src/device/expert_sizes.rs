//! What mixtures of experts need on a device beside the plan's buffers.

use model::ops::Op;
use program::ir::Instruction;
use program::plan::DeviceWork;

/// Rows of experts at a time; more are computed in passes, each of which reads the experts' weights
/// anew.
pub(super) const PASS_ROWS: usize = 2048;

/// The linears of experts.
const LINEARS: [Op; 3] = [Op::ExpertGate, Op::ExpertUp, Op::ExpertDown];

/// Bytes that the device's work takes at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExpertSizes {
    /// Of the router, f32 `[rows, experts]`.
    pub(super) logits_bytes: u64,
    /// Where each expert's places begin, u32 `[experts + 1]`.
    pub(super) starts_bytes: u64,
    /// Places by expert, u32 `[rows of a pass, experts per row]`.
    pub(super) slots_bytes: u64,
    /// What a row's experts give, f32 `[rows of a pass, experts per row, hidden]`.
    pub(super) parts_bytes: u64,
}

impl ExpertSizes {
    /// Nothing for what the device does not run.
    pub(super) fn new(work: &DeviceWork<'_>) -> ExpertSizes {
        let (count, per_token) =
            work.config.experts.map_or((0, 0), |experts| (experts.count, experts.per_token));
        let rows = most_rows(work, &[Op::Router]);
        let in_pass = most_rows(work, &LINEARS).min(PASS_ROWS);
        let in_down = most_rows(work, &[Op::ExpertDown]).min(PASS_ROWS);
        let starts = if in_pass > 0 { count + 1 } else { 0 };
        // All are numbers of 32 bits.
        let bytes = |count: usize| count as u64 * 4;
        ExpertSizes {
            logits_bytes: bytes(rows * count),
            starts_bytes: bytes(starts),
            slots_bytes: bytes(in_pass * per_token),
            parts_bytes: bytes(in_down * per_token * work.config.hidden_size),
        }
    }
}

/// The most rows of any of the operations.
fn most_rows(work: &DeviceWork<'_>, ops: &[Op]) -> usize {
    let runs = |instruction: &&Instruction| match instruction {
        Instruction::Compute(compute) => ops.contains(&compute.op),
        _ => false,
    };
    let programs = work.programs.iter().filter(|program| program.instructions.iter().any(runs));
    programs.map(|program| program.shape.stream_rows as usize).max().unwrap_or(0)
}
