//! Sequences that come while a run goes on, into slots that others leave: whatever is computed
//! beside them, in whatever chunks, and however often they are called off and begun again, their
//! bits are those of a batch job.

mod common;

use common::placed::{cpu_only, shape, start, two_split};
use common::{delta, delta_experts, llama, opt};
use kernels::{Sampling, Variant};
use model::config::{Dtype, ModelConfig};
use planner::policy::{Homes, Policy, device_map};
use planner::split::Split;
use program::formats::KvFormat;
use program::map::DeviceMap;
use program::plan::RunShape;
use program::step_table::{Field, SlotState};
use program::topology::MemoryId;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use schedule::Costs;
use workers::shared::serving::{
    Offer, PromptLogprobs, SERVE, clear, free, list_first, offer, state,
};
use workers::shared::table::StepTable;
use workers::testing::{InProcess, Outcome, Placed, Request};

const REQUESTS: usize = 12;

fn requests(config: &ModelConfig) -> Vec<Request> {
    let request = |index: usize| {
        let length = 1 + (index * 5) % 9;
        let vocab = config.vocab_size;
        let prompt = (0..length).map(|i| ((index * 17 + i * 7 + 3) % vocab) as u32).collect();
        let mut request = Request::greedy(prompt, 1 + (index as u32 * 2 + 5) % 6);
        if index % 3 == 1 {
            request.sampling = Sampling { temperature: 0.9, top_p: 0.95, top_k: 50, min_p: 0.01 };
            (request.seed, request.id_hash) = (11, index as u64);
        }
        request.logprobs = index as u16 % 5;
        request
    };
    (0..REQUESTS).map(request).collect()
}

/// Each alone, as a batch job.
fn alone(config: &ModelConfig, shape: &RunShape, map: &DeviceMap) -> Vec<Outcome> {
    let mut lanes = start(config, shape, map, Variant::best());
    let of = |request| lanes.run_group(&[Placed { batch: 0, slot: 0, request }]).remove(0);
    let found = requests(config).into_iter().map(of).collect();
    assert!(lanes.finish().iter().all(Result::is_ok));
    found
}

/// A request on its way.
struct Going {
    index: usize,
    placed: Placed,
    /// Whether it was called off, to begin again.
    called_off: bool,
}

/// Serves all requests, which come and are called off as `random` says.
struct Serve<'a> {
    table: StepTable,
    lanes: &'a mut InProcess,
    random: ChaCha8Rng,
    requests: Vec<Request>,
    /// To begin, with the tokens that they have.
    waiting: Vec<(usize, Vec<u32>)>,
    going: Vec<Going>,
    outcomes: Vec<Option<Outcome>>,
    arrivals: u32,
    restarts: usize,
}

impl Serve<'_> {
    fn draw(&mut self, below: u32) -> u32 {
        self.random.next_u32() % below
    }

    /// Offers some of those that wait to free slots, in any order.
    fn offer_some(&mut self) {
        for (batch, slot) in self.table.slots() {
            if state(&self.table, batch, slot) != SlotState::Free || self.draw(3) == 0 {
                continue;
            }
            let Some(place) = self.waiting.len().checked_sub(1) else { return };
            let (index, answered) =
                self.waiting.swap_remove(self.random.next_u32() as usize % (place + 1));
            let placed = Placed { batch, slot, request: self.requests[index].clone() };
            let room = self.lanes.plan().shape.max_context;
            let arrival = self.arrivals;
            self.arrivals = self.arrivals.wrapping_add(1);
            offer(
                &self.table,
                &Offer {
                    placed: &placed,
                    answered: &answered,
                    computed: 0,
                    room,
                    arrival,
                    said: PromptLogprobs::default(),
                },
            );
            self.going.push(Going { index, placed, called_off: false });
        }
    }

    /// Takes back what has ended; calls some off.
    fn take_ended(&mut self) {
        for mut going in std::mem::take(&mut self.going) {
            let Placed { batch, slot, .. } = going.placed;
            if state(&self.table, batch, slot) != SlotState::Ended {
                if self.draw(8) == 0 && self.restarts < 40 {
                    going.called_off = true;
                    self.table.set_field(batch, slot, Field::Cancel, 1);
                }
                self.going.push(going);
                continue;
            }
            let outcome = Outcome::read(&self.table, &going.placed);
            let is_whole = outcome.tokens.len() == self.requests[going.index].max_new as usize;
            free(&self.table, batch, slot);
            if going.called_off && !is_whole {
                self.restarts += 1;
                self.waiting.push((going.index, outcome.tokens));
            } else {
                self.outcomes[going.index] = Some(outcome);
            }
        }
    }

    fn run(mut self) -> (Vec<Outcome>, usize) {
        let control = self.lanes.control().clone();
        while self.outcomes.iter().any(Option::is_none) {
            self.offer_some();
            if !list_first(&self.table) {
                self.take_ended();
                continue;
            }
            let drained = control.drained().value().wrapping_add(1);
            control.release(&SERVE, u32::MAX - 1);
            let limit = std::time::Duration::from_millis(2);
            while control.drained().wait_at_least(drained, control.poison(), limit).is_err() {
                assert!(control.poison().cause().is_none(), "a lane failed");
                self.take_ended();
                self.offer_some();
                self.lanes.drain_trace();
            }
            self.take_ended();
        }
        (self.outcomes.into_iter().flatten().collect(), self.restarts)
    }
}

/// What a step costs: anything that makes chunks of many lengths.
fn costs(seed: u64) -> (u32, Costs) {
    let mut costs = Costs { position_ps: (seed % 3) as u32 * 100_000, ..Costs::NONE };
    costs.points[0] = (1, 100);
    costs.points[1] = (64, 6400);
    ([100, 400, 2000][(seed % 3) as usize], costs)
}

/// The outcomes, and how many sequences began again.
fn serve(
    config: &ModelConfig,
    shape: &RunShape,
    map: &DeviceMap,
    seed: u64,
) -> (Vec<Outcome>, usize) {
    let mut lanes = start(config, shape, map, Variant::best());
    let table = lanes.table().clone();
    let (aim_us, costs) = costs(seed);
    clear(&table, lanes.plan(), aim_us, &costs);
    let serve = Serve {
        table,
        requests: requests(config),
        waiting: (0..REQUESTS).map(|index| (index, Vec::new())).collect(),
        going: Vec::new(),
        outcomes: vec![None; REQUESTS],
        arrivals: u32::MAX - 5,
        restarts: 0,
        random: ChaCha8Rng::seed_from_u64(seed),
        lanes: &mut lanes,
    };
    let served = serve.run();
    assert!(lanes.finish().iter().all(Result::is_ok));
    served
}

/// Log-probabilities are those of the slot that an answer ended in.
fn tokens(outcomes: &[Outcome]) -> Vec<&[u32]> {
    outcomes.iter().map(|outcome| outcome.tokens.as_slice()).collect()
}

#[test]
fn sequences_that_come_and_go_have_the_bits_of_a_batch_job() {
    let mut restarts = 0;
    for (config, dtype, kv_format) in [
        (llama(), Dtype::Bf16, KvFormat::Plain),
        (opt(), Dtype::F32, KvFormat::Plain),
        (llama(), Dtype::Bf16, KvFormat::Four),
        (delta(), Dtype::F32, KvFormat::Plain),
        (delta_experts(), Dtype::Bf16, KvFormat::Plain),
    ] {
        let with_format = |map: DeviceMap| DeviceMap { kv_format, ..map };
        let expected = alone(&config, &shape(1, 1, 1, dtype), &with_format(cpu_only(&config)));
        let mut maps = vec![cpu_only(&config)];
        maps.push(two_split(&config, Split { start: 3, end: 8 }, None));
        let homes = Homes { kv: MemoryId::VRAM, prefill_hidden: MemoryId::VRAM };
        maps.push(device_map(&Policy::GpuOnly, &config, false, homes));
        for (map, seed) in maps.into_iter().map(with_format).zip(0..) {
            for batches in [1, 2] {
                let shape =
                    RunShape { serves: true, prefill_chunk: 5, ..shape(batches, 4, 1, dtype) };
                let (found, begun_again) = serve(&config, &shape, &map, seed);
                restarts += begun_again;
                let case = format!("{:?} {kv_format:?} {} x{batches}", config.family, map.policy);
                assert_eq!(tokens(&found), tokens(&expected), "{case}");
            }
        }
    }
    assert!(restarts > 0, "{restarts} sequences were called off and begun again");
}
