//! Progress of prefill, derived from the position of its busiest lane.

use model::config::ModelConfig;
use model::ops::Op;
use program::ir::{Compute, Instruction, LaneProgram};
use program::plan::{Plan, RunShape};
use program::topology::LaneId;

/// Arithmetic of prefill before each instruction of the lane with the most arithmetic.
#[derive(Debug)]
pub(super) struct PrefillShare {
    pub(super) lane: LaneId,
    /// Number of additions and multiplications before each instruction, and before the end of the
    /// list.
    work_before: Vec<f64>,
}

impl PrefillShare {
    /// Computes the arithmetic of full batches of the longest prompts. Returns `None` if no lane
    /// computes.
    pub(super) fn new(plan: &Plan) -> Option<PrefillShare> {
        let of_lane = |list: &LaneProgram| {
            let mut work_before = vec![0.0];
            for instruction in &list.instructions {
                let work = match instruction {
                    Instruction::Compute(compute) => operations(&plan.config, &plan.shape, compute),
                    _ => 0.0,
                };
                work_before.push(work_before[work_before.len() - 1] + work);
            }
            PrefillShare { lane: list.lane, work_before }
        };
        let lanes = plan.prefill().lanes.iter().map(of_lane);
        lanes
            .max_by(|a, b| a.total_work().total_cmp(&b.total_work()))
            .filter(|share| share.total_work() > 0.0)
    }

    fn total_work(&self) -> f64 {
        self.work_before[self.work_before.len() - 1]
    }

    /// Returns the fraction of prefill that is done when the lane begins an instruction, from 0 to
    /// 1.
    pub(super) fn fraction_at(&self, instruction: u32) -> f64 {
        let place = (instruction as usize).min(self.work_before.len() - 1);
        self.work_before[place] / self.total_work()
    }
}

fn operations(config: &ModelConfig, shape: &RunShape, compute: &Compute) -> f64 {
    let config = config.at(compute.at.layer);
    let total_rows = u64::from(shape.batch_size) * u64::from(shape.max_prompt);
    let max_rows = shape.stream_rows() as u64;
    let begin = (u64::from(compute.at.stream) * max_rows).min(total_rows);
    let rows = max_rows.min(total_rows - begin) as f64;
    if compute.op.is_attention() {
        let past = match shape.is_chunked() {
            true => (begin % u64::from(shape.max_prompt)) as f64 + rows / 2.0,
            false => f64::from(shape.max_prompt) / 2.0,
        };
        let parts = compute.chunk.map_or(1.0, |chunk| f64::from(chunk.of));
        return 4.0 * rows * past * config.q_size() as f64 / parts;
    }
    let matrix = compute.op.weights(config).and_then(|weights| weights.matrix);
    match (compute.op, matrix) {
        (Op::Embed | Op::Head, _) | (_, None) => 0.0,
        (_, Some((n, k))) => 2.0 * rows * n as f64 * k as f64,
    }
}

#[cfg(test)]
mod tests {
    use model::config::Dtype;
    use model::known::find_known;
    use planner::policy::{DefaultTiers, Policy, device_map};
    use program::compile::compile;
    use program::topology::MemoryId;

    use super::*;

    #[test]
    fn later_chunks_of_a_prompt_are_more_work() {
        let mut config = find_known("llama-3.2-1b").expect("a known model").config;
        config.keep_layers(1);
        let shape = RunShape {
            batches: 1,
            batch_size: 1,
            max_prompt: 65536,
            shared_prompt: 0,
            max_context: 65540,
            max_new: 4,
            logprobs: 0,
            micro_sequences: 1,
            prefill_chunk: 2048,
            serves: false,
            page_positions: 0,
            kv_pages: 0,
            checkpoints: 0,
            logits_rows: 0,
            device_slots: 0,
            dtype: Dtype::Bf16,
        };
        let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
        let map = device_map(&Policy::CpuOnly, &config, true, homes);
        let plan = compile(&config, &shape, &map).expect("compiles");
        let share = PrefillShare::new(&plan).expect("there is work");
        let instructions = plan.prefill().lane(share.lane).expect("its list").instructions.len();
        let half = share.fraction_at(instructions as u32 / 2);
        assert!(half > 0.2 && half < 0.45, "{half}");
        assert!((share.fraction_at(instructions as u32) - 1.0).abs() < 1e-9);
        assert!(share.fraction_at(0) < 1e-9);
    }
}
