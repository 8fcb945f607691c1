//! Attention as kernel launches, over the units of a chunk.
//!
//! Fresh K and V are read from the values of this step, as on every device. With a 4-bit cache the
//! kernels read them as the records that the append will store.

use cuda::{CudaError, DeviceAddress};
use cuda_kernels::{
    KvOperand, attention_decode, attention_prefill, quantise_kv, scores, softmax, weighted_values,
};
use model::ops::{Kv, Op, Value};
use program::cuda_gaps::CACHES_OF_8_BITS;
use program::formats::KvFormat;
use program::ir::{Compute, Region, Rows};

use super::compute::ComputeContext;
use super::scratch::{attention_shape, kind_of};
use crate::work_items::row_counts;

impl ComputeContext<'_> {
    /// Enqueues the operation and returns the number of bytes of cached K and V that it reads.
    pub(super) fn attention(&mut self, compute: &Compute) -> Result<u64, CudaError> {
        let kind = kind_of(&self.plan.config, compute.at);
        let context = self.upload_context();
        let (units, cached) = self.uploads.units(context, compute.at, kind, compute.chunk)?;
        if units.count == 0 {
            return Ok(0);
        }
        let (_, rows) = row_counts(self.table, self.program, compute.at);
        let (shape, dtype) = (attention_shape(&self.plan.config, kind), self.plan.shape.dtype);
        // The only weights of an attention operation are the sinks of a softmax.
        let sinks = self.vector(compute, 0);
        let q = |region| self.rows(region, Value::Query, rows);
        match compute.op {
            Op::Scores => {
                let q = q(compute.inputs[0]);
                let k = self.keys_or_values(compute, Kv::K, compute.inputs[1], rows)?;
                let out = self.scores_range(compute, self.whole_output(compute));
                self.launch(scores(dtype, &shape, &units, q, k, out))?;
            }
            Op::Softmax => {
                let from = self.scores_range(compute, compute.inputs[0]);
                let to = self.scores_range(compute, self.whole_output(compute));
                self.launch(softmax(&shape, &units, from, sinks, to))?;
            }
            Op::Wv => {
                let probabilities = self.scores_range(compute, compute.inputs[0]);
                let v = self.keys_or_values(compute, Kv::V, compute.inputs[1], rows)?;
                let out = self.output(compute, rows);
                self.launch(weighted_values(dtype, &shape, &units, probabilities, v, out))?;
            }
            _ => {
                let q = q(compute.inputs[0]);
                let k = self.keys_or_values(compute, Kv::K, compute.inputs[1], rows)?;
                let v = self.keys_or_values(compute, Kv::V, compute.inputs[2], rows)?;
                let out = self.output(compute, rows);
                if self.table.program(self.program).rows != Rows::Single {
                    self.launch(attention_prefill(dtype, &shape, &units, q, k, v, sinks, out))?;
                } else {
                    let scratch = self.device.scratch_address(self.device.scratch().attention);
                    let [parts, whole] =
                        attention_decode(dtype, &shape, &units, q, k, v, sinks, out, scratch);
                    self.launch(parts)?;
                    self.launch(whole)?;
                }
            }
        }
        let position_bytes =
            self.plan.map.kv_format.position_bytes(self.plan.config.head_dim, dtype);
        Ok(cached * (position_bytes * compute.op.caches(&self.plan.config).len()) as u64)
    }

    /// Returns the fresh rows and the cache of K or V, from the chunk's first unit on. The cache is
    /// absent if nothing is cached.
    fn keys_or_values(
        &self,
        compute: &Compute,
        kv: Kv,
        fresh: Region,
        rows: usize,
    ) -> Result<KvOperand, CudaError> {
        let (config, dtype) = (&self.plan.config, self.plan.shape.dtype);
        let place = compute.op.caches(config).iter().position(|other| *other == kv);
        let cache = match place.and_then(|place| compute.caches.get(place)) {
            Some(region) => {
                let (at, chunk) = (compute.at, compute.chunk);
                let origin = self.table.cache_origin(self.program, at, chunk, kv);
                let position_bytes = self.plan.map.kv_format.position_bytes(config.head_dim, dtype);
                let first = origin / config.head_dim * position_bytes;
                let places = self.device.buffer_addresses();
                places.address(region.buffer, first, places.size_bytes(region.buffer) - first)
            }
            None => 0,
        };
        let (value, index) = match kv {
            Kv::K => (Value::Key, 0),
            Kv::V => (Value::Value, 1),
        };
        let fresh = self.rows(fresh, value, rows);
        match self.plan.map.kv_format {
            KvFormat::Plain => return Ok(KvOperand::Plain { fresh, cache }),
            KvFormat::Four => {}
            KvFormat::Eight => {
                panic!("{CACHES_OF_8_BITS} was refused before the device was opened")
            }
        }
        let records = self.device.scratch_address(self.device.scratch().fresh[index]);
        let (positions, head_dim) = ((rows * config.num_kv_heads) as u32, config.head_dim as u32);
        self.launch(quantise_kv(dtype, positions, head_dim, fresh, records))?;
        Ok(KvOperand::Kv4 { fresh: records, cache })
    }

    fn whole_output(&self, compute: &Compute) -> Region {
        let Some(region) = compute.output else { panic!("{:?} writes no value", compute.op) };
        region
    }

    /// Returns the address that the chunk's score offsets are relative to.
    fn scores_range(&self, compute: &Compute, region: Region) -> DeviceAddress {
        let rows = self.table.program(self.program).rows;
        assert!(rows == Rows::Single, "prefill has the fused form only");
        let units = self.table.chunk_units(compute.at, compute.chunk);
        let stride_bytes = self.table.scores_stride(compute.at.layer) * size_of::<f32>();
        let (first, size_bytes) = (units.start * stride_bytes, units.len() * stride_bytes);
        self.device.buffer_addresses().address(region.buffer, first, size_bytes)
    }
}
