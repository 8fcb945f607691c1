//! A mixture of experts as kernel launches: the routing of rows to experts, and the experts'
//! linears.

use std::ops::Range;

use cuda::{CudaError, DeviceAddress};
use cuda_kernels::{
    DeviceExpertLinear, DeviceExpertShape, DeviceLinear, DeviceLinearOut, DeviceWeight,
    expert_combine, expert_linear, group_experts, route,
};
use model::experts::Experts;
use model::ops::{Op, Value};
use model::quantized_format::ROWS;
use program::ir::{Compute, Region};

use super::compute::{ComputeContext, gated};
use super::expert_sizes::PASS_ROWS;

impl ComputeContext<'_> {
    /// Returns the model's experts, for a layer that has some.
    fn mixture(&self) -> Experts {
        self.plan.config.experts.expect("a layer with experts is of a model with experts")
    }

    /// Selects the experts of each row. Their weights include the factor of contributions to the
    /// residual stream.
    pub(super) fn route(&self, compute: &Compute, rows: usize) -> Result<(), CudaError> {
        let Experts { count, per_token, scoring, selection, .. } = self.mixture();
        let (n, k) = self.matrix_shape(compute);
        let logits = self.device.scratch_address(self.device.scratch().experts.logits);
        let product = DeviceLinear {
            rows: rows as u32,
            n: n as u32,
            k: k as u32,
            x: self.rows(compute.inputs[0], Value::Normed1, rows),
            weight: self.weight(compute),
            bias: self.vector(compute, 0),
            out: DeviceLinearOut::StoreF32(logits),
        };
        self.multiply(compute, &product)?;
        let shape = expert_shape(rows, per_token, count);
        let factor = self.plan.config.scales.residual * selection.scale;
        self.launch(route(shape, scoring, factor, logits, self.output(compute, rows)))
    }

    /// Enqueues `ExpertGate`, `ExpertUp` or `ExpertDown`.
    pub(super) fn experts(&mut self, compute: &Compute, rows: usize) -> Result<(), CudaError> {
        for first in (0..rows).step_by(PASS_ROWS) {
            self.pass(compute, first..rows.min(first + PASS_ROWS))?;
        }
        Ok(())
    }

    /// Enqueues one of these operations for a range of rows.
    fn pass(&mut self, compute: &Compute, rows: Range<usize>) -> Result<(), CudaError> {
        let (config, dtype) = (&self.plan.config, self.plan.shape.dtype);
        let Experts { count, per_token, .. } = self.mixture();
        let (all, k) = self.matrix_shape(compute);
        let n = all / count;
        let weight = self.weight(compute);
        let is_whole = matches!(weight, DeviceWeight::Plain(_)) || n.is_multiple_of(ROWS);
        assert!(is_whole, "no two experts are in one block of grouped rows");
        let shape = expert_shape(rows.len(), per_token, count);
        let ranges = self.device.scratch().experts;
        let [starts, slots, parts] = [ranges.starts, ranges.slots, ranges.parts]
            .map(|range| self.device.scratch_address(range));
        let routed = self.part(compute.inputs[1], Value::Routing, &rows);
        if !self.uploads.has_grouped((self.program, compute.at, rows.start)) {
            self.launch(group_experts(shape, routed, starts, slots))?;
        }
        let Some(to) = compute.output else { panic!("{:?} writes no value", compute.op) };
        let input = |index: usize, value| self.part(compute.inputs[index], value, &rows);
        let (x, x_by_place, out) = match compute.op {
            Op::ExpertGate => {
                let out = DeviceLinearOut::Store(self.part(to, Value::ExpertGate, &rows));
                (input(0, Value::Normed1), false, out)
            }
            Op::ExpertUp => {
                let to = self.part(to, Value::ExpertFfn, &rows);
                let out = gated(config.activation, input(2, Value::ExpertGate), to);
                (input(0, Value::Normed1), false, out)
            }
            _ => (input(0, Value::ExpertFfn), true, DeviceLinearOut::StoreF32(parts)),
        };
        let (n, k, bias) = (n as u32, k as u32, self.vector(compute, 0));
        let linear =
            DeviceExpertLinear { shape, starts, slots, n, k, x, x_by_place, weight, bias, out };
        self.launch(expert_linear(dtype, &linear))?;
        if compute.op == Op::ExpertDown {
            let hidden = self.part(to, Value::Hidden, &rows);
            let DeviceExpertShape { rows, top_k, .. } = shape;
            self.launch(expert_combine(rows, top_k, n, routed, parts, hidden))?;
        }
        Ok(())
    }

    /// Returns the address of a range of rows of a value.
    fn part(&self, region: Region, value: Value, rows: &Range<usize>) -> DeviceAddress {
        let elements = value.row_elements(&self.plan.config).unwrap_or(0);
        let row_bytes = elements * value.element_bytes(self.plan.shape.dtype);
        self.rows(region, value, rows.end) + (rows.start * row_bytes) as u64
    }
}

fn expert_shape(rows: usize, per_token: usize, count: usize) -> DeviceExpertShape {
    DeviceExpertShape { rows: rows as u32, top_k: per_token as u32, experts: count as u32 }
}
