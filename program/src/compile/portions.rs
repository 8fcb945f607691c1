//! Order of a layer's experts if they are computed in portions.

use model::config::ModelConfig;
use model::ops::{Op, Value};

use crate::expert_portions::{first_read, portions};
use crate::map::{Chunk, ComputeDevice};
use crate::weights::Weights;

use super::emit::Emitter;
use super::schedule::Entry;

impl Emitter<'_, '_> {
    /// Returns entries in which linears of experts that rows are routed to are divided into
    /// portions: first the experts in the cache, then operations of the layer that do not depend on
    /// its experts, then the experts that are read, and the sum over a row's experts.
    pub(super) fn in_portions(&mut self, entries: &[Entry]) -> Vec<Entry> {
        let mut ordered = Vec::with_capacity(entries.len());
        let mut router = None;
        let mut rest = entries;
        while let Some(entry) = rest.first() {
            if entry.op == Op::Router {
                router = Some((entry.layer, entry.device));
            }
            let count = self.experts_of_layer(rest);
            if count == 0 {
                ordered.push(*entry);
                rest = &rest[1..];
                continue;
            }
            let (experts, after) = rest.split_at(count);
            let independent = independent(self.config, entry, after);
            let is_assigned = router == Some((entry.layer, ComputeDevice::Cpu));
            let has_cache = is_assigned && self.buffers.expert_cache().is_some();
            push_portions(experts, &after[..independent], has_cache, &mut ordered);
            rest = &after[independent..];
        }
        ordered
    }

    /// Returns the number of leading entries that are the linears of a layer's experts, if all of
    /// them are read by routing; 0 otherwise.
    fn experts_of_layer(&mut self, entries: &[Entry]) -> usize {
        let first = entries[0];
        let is_same = |entry: &&Entry| entry.op.is_expert() && entry.layer == first.layer;
        let experts = entries.iter().take_while(is_same);
        let (mut count, mut ends) = (0, false);
        for entry in experts {
            let is_stored = self.buffers.is_stored(Weights::of(entry.op, entry.layer));
            if !is_stored || self.routing(entry).is_none() {
                return 0;
            }
            (count, ends) = (count + 1, entry.op == Op::ExpertDown);
        }
        if ends { count } else { 0 }
    }
}

/// Returns the number of leading entries of `after` that neither read nor write what the experts of
/// `expert`'s layer write.
fn independent(config: &ModelConfig, expert: &Entry, after: &[Entry]) -> usize {
    let written = Op::ExpertDown.writes(config.at(expert.layer));
    let depends = |value: &Value| Some(*value) == written;
    let is_independent = |entry: &&Entry| {
        let model = config.at(entry.layer);
        (entry.layer, entry.device) == (expert.layer, expert.device)
            && entry.op != Op::Router
            && !entry.op.reads(model).iter().chain(&entry.op.writes(model)).any(depends)
    };
    after.iter().take_while(is_independent).count()
}

fn push_portions(
    experts: &[Entry],
    independent: &[Entry],
    has_cache: bool,
    ordered: &mut Vec<Entry>,
) {
    let (count, first) = (portions(has_cache), ordered.len());
    for index in 0..count {
        if index == first_read(has_cache) {
            ordered.extend(independent);
        }
        let chunk = Some(Chunk { index, of: count });
        ordered.extend(experts.iter().map(|entry| Entry { chunk, ..*entry }));
    }
    let last = experts[experts.len() - 1];
    ordered.push(Entry { op: Op::ExpertCombine, ..last });
    let ends_segment = experts.iter().chain(independent).any(|entry| entry.ends_segment);
    let added = ordered.len() - 1;
    ordered[first..added].iter_mut().for_each(|entry| entry.ends_segment = false);
    ordered[added].ends_segment = ends_segment;
}
