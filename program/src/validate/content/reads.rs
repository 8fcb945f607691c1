//! Reads of weights from storages.

use model::ops::Value;

use crate::ir::{Compute, Read, RoutingRegions};
use crate::map::Chunk;
use crate::weights::Weights;

use super::super::error::ValidateError;
use super::super::parts::normal;
use super::cached::CachedExperts;
use super::held::Content;
use super::{Now, Walk};

impl Walk<'_> {
    /// Writes the content of the first portion of a layer's experts: the router lists those that
    /// are in the cache there.
    pub(super) fn find_cached(&mut self, now: &Now<'_>, router: &Compute) {
        let Some(CachedExperts { regions, ops }) = self.cached.get(&router.at.layer) else {
            return;
        };
        let content = now.routed(*ops, router.at);
        for region in regions.clone() {
            self.write(now, region, content);
        }
    }

    pub(super) fn read(&mut self, now: &Now<'_>, read: &Read) -> Result<(), ValidateError> {
        let blobs = self.weights_of(read.op, read.at.layer);
        let Some(weights) = blobs.first().copied() else {
            let problem = "it reads weights of an operation that has none".into();
            return Err(ValidateError::Malformed { site: now.site(), problem });
        };
        // The storage determines the bytes of its share: the chunks must agree.
        let storages = self.plan.topology.storages();
        let memory = self.plan.buffer(read.from.buffer).segment.memory;
        let index = storages.iter().position(|(storage, _)| *storage == memory);
        let of = storages.len() as u16;
        let own = index.and_then(|index| normal(Some(Chunk { index: index as u16, of })));
        let joined = read.joined.iter().map(|joined| joined.from);
        if joined.chain([read.from, read.to]).any(|region| normal(region.chunk) != own) {
            let problem = "it reads a share that is not its storage's".into();
            return Err(ValidateError::Malformed { site: now.site(), problem });
        }
        self.need(now, read.from, Content::Weights(weights))?;
        for joined in &read.joined {
            let weights = Weights::of(joined.op, read.at.layer);
            self.need(now, joined.from, Content::Weights(weights))?;
        }
        let content = match read.routing {
            None => Content::Weights(weights),
            Some(RoutingRegions { routing, table }) => {
                self.table(now, table, read.at, false)?;
                self.need_value(now, routing, now.value(Value::Routing, read.at, 0))?;
                now.routed(read.expert_ops(), read.at)
            }
        };
        self.write(now, read.to, content);
        Ok(())
    }
}
