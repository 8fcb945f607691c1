//! The sequences that are computed on the device: NEO's steps 1 to 3, with which all policies
//! begin.

use super::batches::Batches;
use super::costs::LayerCosts;
use super::iteration::{HostDecision, Iteration};
use super::queues::{IterationLimits, QueuedSequence, Queues};

/// Fraction of the device's pages up to which caches migrate back to the device, so that the ones
/// growing there have capacity for a while.
const MOVE_IN_LIMIT: (u64, u64) = (95, 100);

/// Prompts that may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AdmittedPrompts {
    /// Prompts that stay with the device, and none while the host has sequences.
    Device,
    /// Prompts of both owners.
    Both,
    /// Prompts that go to the host; no sequences are with the device.
    Host,
}

/// Fills the first batch.
#[derive(Debug)]
pub(super) struct IterationBuilder<'a, 'q, C> {
    pub(super) iteration: Iteration,
    pub(super) batches: Batches<'a, C>,
    /// Pages that the host's caches fill without decodes there.
    pub(super) host_pages: u64,
    device_pages: u64,
    /// Maximum number of pages of the device's caches.
    device_pages_max: u64,
    queues: &'a Queues<'q>,
    limits: &'a IterationLimits,
}

impl<C> Clone for IterationBuilder<'_, '_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for IterationBuilder<'_, '_, C> {}

impl<'a, 'q, C: LayerCosts> IterationBuilder<'a, 'q, C> {
    /// Selects decodes of the device, migrations in both directions, and prompts. There are as many
    /// `decisions` as sequences of device and host.
    pub(super) fn new(
        queues: &'a Queues<'q>,
        limits: &'a IterationLimits,
        costs: &'a C,
        prompts: AdmittedPrompts,
        decisions: &mut [HostDecision],
    ) -> Self {
        decisions.fill(HostDecision::Waits);
        let batches = Batches::new(costs);
        let host_pages = queues.host.iter().map(|one| u64::from(limits.held_pages(one))).sum();
        let device_pages_max = match prompts {
            AdmittedPrompts::Host => 0,
            AdmittedPrompts::Device | AdmittedPrompts::Both => u64::from(limits.device_pages),
        };
        let mut builder = IterationBuilder {
            iteration: Iteration::NONE,
            batches,
            host_pages,
            device_pages: 0,
            device_pages_max,
            queues,
            limits,
        };
        builder.decode();
        let is_alone = match (builder.iteration.moves_out, builder.iteration.evicted) {
            (0, 0) => builder.move_in(decisions),
            _ => false,
        };
        if prompts != AdmittedPrompts::Device || is_alone {
            builder.prefill(prompts);
        }
        builder
    }

    /// Returns the number of remaining rows.
    pub(super) fn remaining_rows(&self) -> u32 {
        self.limits.rows.saturating_sub(self.batches.rows[0] + self.batches.rows[1])
    }

    /// Returns the number of pages that a sequence fills now.
    pub(super) fn held_pages(&self, sequence: &QueuedSequence) -> u64 {
        u64::from(self.limits.held_pages(sequence))
    }

    /// Returns true if the host has capacity for the newest position of a sequence, and its cache.
    pub(super) fn has_host_capacity(&self, sequence: &QueuedSequence) -> bool {
        let grows =
            u64::from(self.limits.needed_pages(sequence) - self.limits.held_pages(sequence));
        self.host_pages + grows <= u64::from(self.limits.host_pages)
    }

    /// Reserves that capacity.
    pub(super) fn reserve_host_pages(&mut self, sequence: &QueuedSequence) {
        self.host_pages +=
            u64::from(self.limits.needed_pages(sequence) - self.limits.held_pages(sequence));
    }

    /// Selects all of the device's decodes except the last ones that do not fit.
    fn decode(&mut self) {
        let (limits, device) = (self.limits, self.queues.device);
        let needed = |one: &QueuedSequence| u64::from(limits.needed_pages(one));
        let mut kept_decodes = device.len();
        self.device_pages = device.iter().map(needed).sum();
        while kept_decodes > limits.rows as usize || self.device_pages > self.device_pages_max {
            kept_decodes -= 1;
            self.device_pages -= needed(&device[kept_decodes]);
        }
        self.iteration.decodes = kept_decodes;
        for one in &device[..kept_decodes] {
            self.batches.add_device_decode(one.tokens);
        }
        for one in device[kept_decodes..].iter().rev() {
            let held = u64::from(limits.held_pages(one));
            if self.host_pages + held > u64::from(limits.host_pages) {
                break;
            }
            self.host_pages += held;
            self.iteration.moves_out += 1;
        }
        self.iteration.evicted = device.len() - kept_decodes - self.iteration.moves_out;
    }

    /// Migrates the host's first sequences as long as there is ample capacity. Returns true if no
    /// sequence remains with the host.
    fn move_in(&mut self, decisions: &mut [HostDecision]) -> bool {
        let all = self.device_pages_max;
        let (share, of) = MOVE_IN_LIMIT;
        for (one, place) in self.queues.host.iter().zip(decisions) {
            // A deferred row has values of its newest token on the device, and stays until it is
            // done.
            if one.layer > 0 {
                return false;
            }
            let pages = self.device_pages + u64::from(self.limits.needed_pages(one));
            let max_pages = if self.device_pages == 0 { all } else { all * share / of };
            if pages > max_pages || self.remaining_rows() == 0 {
                return false;
            }
            *place = HostDecision::MovesIn;
            self.device_pages = pages;
            self.host_pages -= u64::from(self.limits.held_pages(one));
            self.batches.add_device_decode(one.tokens);
        }
        true
    }

    /// Selects prompts in the order of arrival; once one goes to the host, all later ones do.
    fn prefill(&mut self, prompts: AdmittedPrompts) {
        let limits = self.limits;
        let is_impatient = |one: &QueuedSequence| one.idle_iterations >= limits.patience;
        if self.queues.host.iter().any(is_impatient) {
            return;
        }
        // The device's sequences may have to migrate to the host.
        let max_host_pages = u64::from(limits.host_pages).saturating_sub(self.device_pages_max);
        for one in self.queues.waiting {
            if one.tokens > self.remaining_rows() {
                return;
            }
            let pages = u64::from(limits.needed_pages(one));
            let has_device = self.device_pages + pages <= self.device_pages_max;
            if has_device && self.iteration.host_prefills == 0 {
                self.device_pages += pages;
                self.iteration.device_prefills += 1;
            } else if prompts != AdmittedPrompts::Device
                && self.host_pages + pages <= max_host_pages
            {
                self.host_pages += pages;
                self.iteration.host_prefills += 1;
            } else {
                return;
            }
            self.batches.add_prefill(one.tokens);
        }
    }

    /// Drops the last prompt whose caches go to the host.
    pub(super) fn drop_host_prefill(&mut self) {
        let Some(last) = self.iteration.prefills_to_host(self.queues).last() else { return };
        self.batches = self.batches.without_prefill(last.tokens);
        self.host_pages -= u64::from(self.limits.needed_pages(last));
        self.iteration.host_prefills -= 1;
    }

    pub(super) const fn limits(&self) -> &'a IterationLimits {
        self.limits
    }

    pub(super) const fn costs(&self) -> &'a C {
        self.batches.costs
    }

    pub(super) const fn queues(&self) -> &'a Queues<'q> {
        self.queues
    }
}
