//! Work that differs only in name: Q, K and V of a model without grouped-query attention multiply
//! matrices of one shape, and their caches are copied and appended to identically.
//!
//! Equal work takes equal time, so any difference between its times is noise, which a search for
//! the minimum would mistake for a difference. Therefore all equal work has the samples of all, and
//! the layer's sum remains as measured. Times that differ by more than they spread are measured
//! again first.

use model::config::ModelConfig;
use model::ops::{Kv, Op};

use crate::key::{ProfiledWork, WorkKey};

/// Returns the key that represents all work equal to that of `key`.
pub(crate) fn representative(config: &ModelConfig, key: &WorkKey) -> WorkKey {
    let mut key = *key;
    match &mut key.work {
        // `Out` adds the residual stream, `Up` multiplies by the gate: they read more than `Q`.
        ProfiledWork::Compute { op, .. } if op.has_matrix(config) => {
            *op = first_equal(config, *op, &|a, b| a.reads(config).len() == b.reads(config).len());
        }
        ProfiledWork::CopyWeights { op, .. } | ProfiledWork::Decompress { op, .. } => {
            *op = first_equal(config, *op, &|_, _| true);
        }
        ProfiledWork::CopyCache { cache, .. } | ProfiledWork::Append { cache, .. } => {
            *cache = Kv::K
        }
        ProfiledWork::Compute { .. }
        | ProfiledWork::CopyValue { .. }
        | ProfiledWork::Read { .. } => {}
    }
    key
}

/// Returns the layer's first operation with weights of the same shape that is `is_equal`; an
/// operation outside the layer is returned unchanged.
fn first_equal(config: &ModelConfig, op: Op, is_equal: &dyn Fn(Op, Op) -> bool) -> Op {
    let ops = config.every_layer_op();
    let same = |other: &&Op| other.weights(config) == op.weights(config) && is_equal(**other, op);
    if ops.contains(&op) { ops.iter().find(same).copied().unwrap_or(op) } else { op }
}

#[cfg(test)]
mod tests {
    use model::known::find_known;
    use model::quantized_format::WeightFormat;
    use program::formats::KvFormat;
    use program::topology::LaneId;

    use super::*;

    fn compute(op: Op, lane: LaneId) -> WorkKey {
        let work =
            ProfiledWork::Compute { op, chunk: None, weights: WeightFormat::Plain, kv: None };
        WorkKey { lane, phase: None, work }
    }

    #[test]
    fn equal_work_has_one_representative() {
        let opt = find_known("opt-30b").expect("known").config;
        let cpu = |op| compute(op, LaneId::CPU_COMPUTE);
        let of = |key: WorkKey| representative(&opt, &key);
        assert_eq!(of(cpu(Op::K)), cpu(Op::Q));
        assert_eq!(of(cpu(Op::V)), cpu(Op::Q));
        assert_eq!(of(compute(Op::V, LaneId::GPU_COMPUTE)), compute(Op::Q, LaneId::GPU_COMPUTE));
        for op in [Op::Out, Op::Fc0, Op::Fc1, Op::Head, Op::Norm0, Op::Attention] {
            assert_eq!(of(cpu(op)), cpu(op), "{op:?} does work of its own");
        }
        let copy = |op| WorkKey {
            lane: LaneId::H2D_WEIGHTS,
            phase: None,
            work: ProfiledWork::CopyWeights { op, weights: WeightFormat::Plain },
        };
        assert_eq!(of(copy(Op::Out)), copy(Op::Q), "a copy does not care what is computed");
        let append = |cache| WorkKey {
            lane: LaneId::CPU_COMPUTE,
            phase: None,
            work: ProfiledWork::Append { cache, chunk: None, kv: KvFormat::Plain },
        };
        assert_eq!(of(append(Kv::V)), append(Kv::K));
    }

    #[test]
    fn grouped_heads_make_q_another_shape() {
        let llama = find_known("llama-3.2-3b").expect("known").config;
        let key = |op| compute(op, LaneId::CPU_COMPUTE);
        let of = |op| representative(&llama, &key(op));
        assert_eq!((of(Op::Q), of(Op::V)), (key(Op::Q), key(Op::K)));
        assert_eq!((of(Op::Gate), of(Op::Up)), (key(Op::Gate), key(Op::Up)));
    }
}
