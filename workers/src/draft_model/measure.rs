//! Durations of a draft model's steps.

use std::time::Instant;

use protocol::group::{GenerationRequest, PlacedRequest};
use protocol::serving::{OfferedSequence, free_slot, offer_sequence};
use scheduler::{COST_POINTS, StepCostCurve};

use super::DraftModel;

/// Steps of a measurement.
const STEPS: u32 = 4;

impl DraftModel {
    /// Measures steps of 1, 2, 4, ... sequences, up to all slots. All slots must be free.
    pub(super) fn measure_costs(&mut self) -> StepCostCurve {
        let mut costs = StepCostCurve::NONE;
        let slots = self.slots.len() as u32;
        // The very first step touches memory that was never touched before.
        self.measure_step(1);
        let mut sequences = 1;
        for point in &mut costs.points[..COST_POINTS] {
            *point = (sequences, self.measure_step(sequences));
            if sequences == slots {
                break;
            }
            sequences = (2 * sequences).min(slots);
        }
        costs
    }

    /// Returns the duration of a step of the given number of sequences, in µs.
    fn measure_step(&mut self, sequences: u32) -> u32 {
        let slots = 0..sequences as usize;
        for slot in slots.clone() {
            let reserved = self.pages.reserve(&self.table, slot, 1 + STEPS as usize);
            assert!(reserved, "a page for each slot");
            let request = GenerationRequest::greedy(vec![0], STEPS);
            let placed = PlacedRequest { batch: 0, slot, request };
            let (generated, computed, capacity, arrival) = (&[][..], 0, u32::MAX, 0);
            let offer = OfferedSequence { placed: &placed, generated, computed, capacity, arrival };
            offer_sequence(&self.table, &offer);
        }
        let begun = Instant::now();
        self.run_group();
        let us = begun.elapsed().as_micros() / u128::from(STEPS);
        for slot in slots {
            free_slot(&self.table, 0, slot);
            self.pages.free(slot);
        }
        u32::try_from(us).unwrap_or(u32::MAX).max(1)
    }
}
