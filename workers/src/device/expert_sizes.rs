//! Device scratch of mixtures of experts, in addition to the plan's buffers.

use model::ops::Op;
use program::ir::Instruction;
use program::plan::DeviceWork;

/// Maximum number of rows of experts computed in one pass. Each pass reads the experts' weights
/// again.
pub(super) const PASS_ROWS: usize = 2048;

/// Linears of the experts.
const LINEARS: [Op; 3] = [Op::ExpertGate, Op::ExpertUp, Op::ExpertDown];

/// Maximum sizes that the device's work requires, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExpertSizes {
    /// Logits of the router, f32 `[rows, experts]`.
    pub(super) logits_bytes: u64,
    /// First place of each expert, u32 `[experts + 1]`.
    pub(super) starts_bytes: u64,
    /// Places by expert, u32 `[rows of a pass, experts per row]`.
    pub(super) slots_bytes: u64,
    /// Outputs of the experts of each row, f32 `[rows of a pass, experts per row, row]`.
    pub(super) parts_bytes: u64,
}

impl ExpertSizes {
    /// Returns the sizes for the device's work; 0 for everything that the device does not run.
    pub(super) fn new(work: &DeviceWork<'_>) -> ExpertSizes {
        let (count, per_token) =
            work.config.experts.map_or((0, 0), |experts| (experts.count, experts.per_token));
        let rows = max_rows(work, &[Op::Router]);
        let in_pass = max_rows(work, &LINEARS).min(PASS_ROWS);
        let in_down = max_rows(work, &[Op::ExpertDown]).min(PASS_ROWS);
        let starts = if in_pass > 0 { count + 1 } else { 0 };
        // All values have 32 bits.
        let bytes = |count: usize| count as u64 * 4;
        ExpertSizes {
            logits_bytes: bytes(rows * count),
            starts_bytes: bytes(starts),
            slots_bytes: bytes(in_pass * per_token),
            parts_bytes: bytes(in_down * per_token * work.config.expert_row_size()),
        }
    }
}

/// Returns the maximum number of rows of any of the operations.
fn max_rows(work: &DeviceWork<'_>, ops: &[Op]) -> usize {
    let runs = |instruction: &&Instruction| match instruction {
        Instruction::Compute(compute) => ops.contains(&compute.op),
        _ => false,
    };
    let programs = work.programs.iter().filter(|program| program.instructions.iter().any(runs));
    programs.map(|program| program.shape.stream_rows as usize).max().unwrap_or(0)
}
