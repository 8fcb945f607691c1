//! Requests that arrive and are cancelled at any time, for the tests of serving runs.

use kernels::Variant;
use model::config::ModelConfig;
use program::map::DeviceMap;
use program::plan::RunShape;
use program::step_table::{Field, SlotState};
use protocol::release::{list_first, stages};
use protocol::serving::{OfferedSequence, free_slot, offer_sequence, slot_state};
use protocol::table::StepTable;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use workers::testing::{GenerationRequest, InProcess, Outcome, PlacedRequest};

use super::placed::{random_sampling, start};

pub const REQUESTS: usize = 12;

pub fn requests(config: &ModelConfig) -> Vec<GenerationRequest> {
    let request = |index: usize| {
        let length = 1 + (index * 5) % 9;
        let vocab = config.vocab_size;
        let prompt = (0..length).map(|i| ((index * 17 + i * 7 + 3) % vocab) as u32).collect();
        let mut request = GenerationRequest::greedy(prompt, 1 + (index as u32 * 2 + 5) % 6);
        if index % 3 == 1 {
            request.sampling = random_sampling();
            (request.seed, request.id_hash) = (11, index as u64);
        }
        request.logprobs = index as u16 % 5;
        request
    };
    (0..REQUESTS).map(request).collect()
}

/// Returns the result of each request when it runs alone, as a batch job.
pub fn run_alone(config: &ModelConfig, shape: &RunShape, map: &DeviceMap) -> Vec<Outcome> {
    let mut lanes = start(config, shape, map, Variant::best());
    let of = |request| lanes.run_group(&[PlacedRequest { batch: 0, slot: 0, request }]).remove(0);
    let found = requests(config).into_iter().map(of).collect();
    assert!(lanes.finish().iter().all(Result::is_ok));
    found
}

/// A request in a slot.
struct TrackedSequence {
    index: usize,
    placed: PlacedRequest,
    /// Set if the request was cancelled, to begin again.
    called_off: bool,
}

/// Serves all requests, with arrivals and cancellations determined by `random`.
pub struct ServingHarness<'a> {
    table: StepTable,
    lanes: &'a mut InProcess,
    random: ChaCha8Rng,
    requests: Vec<GenerationRequest>,
    /// Requests that wait to begin, with the tokens that they already have.
    waiting: Vec<(usize, Vec<u32>)>,
    going: Vec<TrackedSequence>,
    outcomes: Vec<Option<Outcome>>,
    arrivals: u32,
    /// Number of sequences that were cancelled and began again.
    pub restarts: usize,
    /// Number of instructions that ran, by program.
    pub ran: [usize; 5],
}

impl<'a> ServingHarness<'a> {
    /// Prepares to serve all requests, in an order determined by `seed`. The table must be empty.
    pub fn new(lanes: &'a mut InProcess, config: &ModelConfig, seed: u64) -> ServingHarness<'a> {
        ServingHarness {
            table: lanes.table().clone(),
            requests: requests(config),
            waiting: (0..REQUESTS).map(|index| (index, Vec::new())).collect(),
            going: Vec::new(),
            outcomes: vec![None; REQUESTS],
            arrivals: u32::MAX - 5,
            restarts: 0,
            ran: [0; 5],
            random: ChaCha8Rng::seed_from_u64(seed),
            lanes,
        }
    }

    fn draw(&mut self, below: u32) -> u32 {
        self.random.next_u32() % below
    }

    /// Offers some of the waiting requests to free slots, in any order.
    fn offer_some(&mut self) {
        for (batch, slot) in self.table.slots() {
            if slot_state(&self.table, batch, slot) != SlotState::Free || self.draw(3) == 0 {
                continue;
            }
            let Some(place) = self.waiting.len().checked_sub(1) else { return };
            let (index, answered) =
                self.waiting.swap_remove(self.random.next_u32() as usize % (place + 1));
            let placed = PlacedRequest { batch, slot, request: self.requests[index].clone() };
            let capacity = self.lanes.plan().shape.max_context;
            let arrival = self.arrivals;
            self.arrivals = self.arrivals.wrapping_add(1);
            offer_sequence(
                &self.table,
                &OfferedSequence {
                    placed: &placed,
                    generated: &answered,
                    computed: 0,
                    capacity,
                    arrival,
                },
            );
            self.going.push(TrackedSequence { index, placed, called_off: false });
        }
    }

    /// Takes back ended sequences and cancels others.
    fn take_ended(&mut self) {
        for mut going in std::mem::take(&mut self.going) {
            let PlacedRequest { batch, slot, .. } = going.placed;
            if slot_state(&self.table, batch, slot) != SlotState::Ended {
                if self.draw(8) == 0 && self.restarts < 40 {
                    going.called_off = true;
                    self.table.set_field(batch, slot, Field::Cancel, 1);
                }
                self.going.push(going);
                continue;
            }
            let outcome = Outcome::read(&self.table, &going.placed);
            let is_whole = outcome.tokens.len() == self.requests[going.index].max_new as usize;
            free_slot(&self.table, batch, slot);
            if going.called_off && !is_whole {
                self.restarts += 1;
                self.waiting.push((going.index, outcome.tokens));
            } else {
                self.outcomes[going.index] = Some(outcome);
            }
        }
    }

    /// Serves the requests and returns the outcomes. `between` is called whenever new requests may
    /// have been offered.
    pub fn run(&mut self, mut between: impl FnMut(&StepTable, &mut ChaCha8Rng)) -> Vec<Outcome> {
        let control = self.lanes.control().clone();
        while self.outcomes.iter().any(Option::is_none) {
            self.offer_some();
            between(&self.table, &mut self.random);
            if !list_first(&self.table) {
                self.take_ended();
                continue;
            }
            let drained = control.drained().value().wrapping_add(1);
            control.release(&stages(&self.table), u32::MAX - 1);
            let limit = std::time::Duration::from_micros(300);
            while control.drained().wait_until(drained, control.poison(), limit).is_err() {
                assert!(control.poison().cause().is_none(), "a lane failed");
                self.take_ended();
                self.offer_some();
                between(&self.table, &mut self.random);
                self.count();
            }
            self.take_ended();
        }
        self.count();
        self.outcomes.iter_mut().filter_map(Option::take).collect()
    }

    fn count(&mut self) {
        for (_, record) in self.lanes.drain_trace() {
            self.ran[record.program as usize] += 1;
        }
    }
}

/// Returns the tokens of the outcomes. Log-probabilities are not comparable, since they cover only
/// the slot in which an answer ended.
pub fn tokens(outcomes: &[Outcome]) -> Vec<&[u32]> {
    outcomes.iter().map(|outcome| outcome.tokens.as_slice()).collect()
}
