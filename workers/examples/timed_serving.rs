//! Requests to a server whose sequences belong to the device or to the host, on the real lanes,
//! programs and timelines, with instructions that last as a described machine says: each
//! iteration's time beside the simulator's, which decides by the very same costs.
//!
//!     cargo run --release -p workers --example timed_serving -- \
//!         MACHINE MODEL POLICY DEVICE_SLOTS REQUESTS INPUT OUTPUT [CHART.json]
//!
//! CHART.json is a layer of two batches in turn, for `scripts/plot.py gantt`.

use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use model::config::{Dtype, ModelConfig};
use model::known::known;
use planner::machine::known as known_machine;
use planner::policy::{Homes, Policy as Placing, device_map};
use planner::serving::{Arrival, ServingCosts, simulate};
use program::compile::compile;
use program::ir::{Instruction, ProgramId};
use program::owners::with_owners;
use program::plan::{Plan, RunShape};
use program::topology::{LaneId, MemoryId};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use schedule::Costs;
use schedule::hybrid::{Lags, LayerCosts, Limits, Policy, Shape, StepCosts};
use shm::{Control, TraceReader, TraceRecord, TraceSegment};
use workers::setup::{Building, build_timed_lanes};
use workers::shared::group::{Placed, Request};
use workers::shared::protocol::Durations;
use workers::shared::release::{list_first, stages};
use workers::shared::serving::{Offer, PromptLogprobs, clear, offer};
use workers::shared::table::{Deciding, StepTable};

type Failure = Box<dyn Error>;

const TRACE_CAPACITY: usize = 1 << 16;
const WAIT: Duration = Duration::from_secs(60);
/// Lengths are drawn evenly within this part of their means.
const SPREAD: f64 = 0.1;
/// Rows whose linears are priced.
const ROWS: [u32; 8] = [1, 8, 32, 128, 512, 1024, 2048, 4096];

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [machine, model, policy, device_slots, requests, input, output, chart @ ..] =
        arguments.as_slice()
    else {
        return Err(
            "usage: timed_serving MACHINE MODEL POLICY DEVICE_SLOTS REQUESTS INPUT OUTPUT \
                    [CHART.json]"
                .into(),
        );
    };
    let machine = known_machine(machine).ok_or("no such machine")??;
    let config = known(model).ok_or("no such model")?.config;
    let policy = Policy::ALL.into_iter().find(|one| one.name() == policy).ok_or("no policy")?;
    let costs = step_costs(&ServingCosts::new(&machine, &config, Dtype::Bf16, 0)?);
    let arrivals = arrivals(requests.parse()?, input.parse()?, output.parse()?);
    let plan = plan(&config, &arrivals, device_slots.parse()?)?;
    let limits = Limits {
        rows: plan.shape.prefill_chunk,
        page_positions: plan.shape.max_context,
        device_pages: plan.shape.device_slots.into(),
        host_pages: u32::from(plan.shape.batch_size) + u32::from(plan.shape.device_slots),
        patience: u32::MAX,
        lags: Lags::Never,
    };
    let simulated = simulate(policy, &arrivals, &limits, &costs);
    let run = run(plan, &arrivals, Deciding { policy, limits, costs })?;
    let measured = run.iterations();
    println!("{}", compared(&simulated.iterations, &measured));
    if let Some(path) = chart.first() {
        std::fs::write(path, run.chart().ok_or("no iteration of two batches ran")?)?;
    }
    Ok(())
}

/// A described machine's times as whole numbers, of all layers.
fn step_costs(of: &ServingCosts) -> StepCosts {
    let layers = f64::from(of.layers());
    let ps = |layer_ms: f64| (layer_ms * layers * 1e9) as u32;
    let us = |ms: f64| (ms * 1e3) as u32;
    let mut device = Costs::NONE;
    for (point, rows) in device.points.iter_mut().zip(ROWS) {
        *point = (rows, us(of.linear_ms(rows) * layers + of.ends_ms(rows, 1)));
    }
    let pairs = 1000.0 * 1001.0 / 2.0;
    device.position_ps = ps(of.prefill_attention_ms(1000) / pairs);
    let link = of.link();
    StepCosts {
        layers: of.layers(),
        device,
        weights_us: us(link.weights_ms * layers),
        device_position_ps: ps(of.device_decode_ms(1_000_000) / 1e6),
        host_position_ps: ps(of.host_decode_ms(1, 1_000_000) / 1e6),
        host_row_ps: ps(link.row_out_ms + link.row_back_ms),
        launch_us: us(of.launch_ms() * layers),
        lagging_us: 0,
        position_out_ps: ps(link.position_out_ms),
        position_in_ps: ps(link.position_in_ms),
    }
}

fn arrivals(requests: u32, input: u32, output: u32) -> Vec<Arrival> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut length = |mean: u32| {
        let part = f64::from(random.next_u32()) / f64::from(u32::MAX);
        (f64::from(mean) * (1.0 - SPREAD + 2.0 * SPREAD * part)).round().max(1.0) as u32
    };
    let one =
        |_| Arrival { at_ms: 0.0, prompt_tokens: length(input), answer_tokens: length(output) };
    (0..requests).map(one).collect()
}

/// As many layers as the model has, of next to nothing: nothing is computed.
fn plan(config: &ModelConfig, arrivals: &[Arrival], device_slots: u16) -> Result<Plan, Failure> {
    let config = ModelConfig {
        hidden_size: 16,
        num_heads: 2,
        num_kv_heads: 1,
        head_dim: 8,
        ffn_size: 32,
        vocab_size: 64,
        ..config.clone()
    };
    let longest = arrivals.iter().map(|one| one.prompt_tokens + one.answer_tokens).max();
    let longest = longest.ok_or("no requests")?;
    let slots = u16::try_from(arrivals.len())?;
    let homes = Homes { kv: MemoryId::VRAM, prefill_hidden: MemoryId::VRAM };
    let map = device_map(&Placing::Resident, &config, true, homes);
    let shape = RunShape {
        batches: 1,
        batch_size: slots,
        max_prompt: longest,
        shared_prompt: 0,
        max_context: longest,
        max_new: longest,
        logprobs: 0,
        micro_sequences: 1,
        prefill_chunk: 2048 + u32::from(slots),
        serves: true,
        page_positions: 0,
        kv_pages: 0,
        logits_rows: 0,
        device_slots,
        dtype: Dtype::Bf16,
    };
    Ok(compile(&config, &shape, &with_owners(&map, &config))?)
}

/// What ran.
struct Run {
    plan: Arc<Plan>,
    /// In the order of their ends.
    records: Vec<(LaneId, TraceRecord)>,
    begun_ns: u64,
}

fn run(plan: Plan, arrivals: &[Arrival], deciding: Deciding) -> Result<Run, Failure> {
    let plan = Arc::new(plan);
    let lanes = plan.lanes();
    let control = Control::create(lanes.len() as u32, plan.table.words() * 4)?;
    let trace = TraceSegment::create(plan.topology.lanes.len(), TRACE_CAPACITY)?;
    let mut threads = Vec::new();
    for worker in plan.topology.worker_ids() {
        let building = Building { worker, plan: &plan, control: &control, trace: &trace };
        for mut runner in build_timed_lanes(building, WAIT, &Durations::default())? {
            threads.push(std::thread::spawn(move || runner.run()));
        }
    }
    let mut readers: Vec<(LaneId, TraceReader)> = Vec::new();
    for lane in lanes {
        readers.push((lane, trace.reader(lane.index())?));
    }
    let table = StepTable::new(control.extra(0, plan.table.words()), &plan);
    clear(&table, &plan, u32::MAX, &Costs::NONE);
    table.set_deciding(&deciding);
    for (slot, one) in arrivals.iter().enumerate() {
        let request = Request::greedy(vec![0; one.prompt_tokens as usize], one.answer_tokens);
        let placed = Placed { batch: 0, slot, request };
        let (room, said) = (plan.shape.max_context, PromptLogprobs::default());
        let (arrival, answered, computed) = (slot as u32, &[][..], 0);
        offer(&table, &Offer { placed: &placed, answered, computed, room, arrival, said });
    }
    list_first(&table);
    let drained = control.drained().value() + 1;
    let begun_ns = shm::now_ns();
    control.release(&stages(&table), u32::MAX - 1);
    let mut records = Vec::new();
    let mut drain = |records: &mut Vec<(LaneId, TraceRecord)>| {
        for (lane, reader) in &mut readers {
            reader.drain(|record| records.push((*lane, *record)));
        }
    };
    let slice = Duration::from_millis(20);
    while control.drained().wait_at_least(drained, control.poison(), slice).is_err() {
        if control.poison().cause().is_some() {
            return Err("a lane failed".into());
        }
        drain(&mut records);
    }
    drain(&mut records);
    control.release(&[], 0);
    for thread in threads {
        thread.join().map_err(|_| "a lane panicked")??;
    }
    records.sort_by_key(|(_, record)| record.end_ns);
    Ok(Run { plan, records, begun_ns })
}

impl Run {
    fn instruction(&self, lane: LaneId, record: &TraceRecord) -> Option<&Instruction> {
        let list = self.plan.programs[record.program as usize].lane(lane)?;
        list.instructions.get(record.instruction as usize)
    }

    /// The shape of each iteration and its time, from the end of one to that of the next, ms; and
    /// when it ended.
    fn ends(&self) -> Vec<(ProgramId, u64)> {
        let mut ends: Vec<(ProgramId, u64)> = Vec::new();
        for (lane, record) in &self.records {
            let Some(Instruction::Compute(compute)) = self.instruction(*lane, record) else {
                continue;
            };
            let program = ProgramId(record.program as u8);
            let last = self.plan.program(program).shape.streams - 1;
            if compute.op == model::ops::Op::Sample && compute.at.stream == last {
                ends.push((program, record.end_ns));
            }
        }
        ends
    }

    fn iterations(&self) -> Vec<(Shape, f64)> {
        let mut before_ns = self.begun_ns;
        let of = |(program, end_ns): (ProgramId, u64)| {
            let ms = (end_ns - std::mem::replace(&mut before_ns, end_ns)) as f64 / 1e6;
            (if program == ProgramId::STEP { Shape::Gpu } else { Shape::Pipelined }, ms)
        };
        self.ends().into_iter().map(of).collect()
    }

    /// Two layers in the middle of the middle iteration of two batches, as JSON.
    fn chart(&self) -> Option<String> {
        let ends = self.ends();
        let paired: Vec<usize> =
            (1..ends.len()).filter(|place| ends[*place].0 == ProgramId::PIPELINED).collect();
        let middle = *paired.get(paired.len() / 2)?;
        let (from_ns, to_ns) = (ends[middle - 1].1, ends[middle].1);
        let layer = self.plan.config.num_layers as u16 / 2;
        let mut found = Vec::new();
        for (lane, record) in &self.records {
            let Some(instruction) = self.instruction(*lane, record) else { continue };
            let Some(at) = instruction.at() else { continue };
            let is_in = record.start_ns >= from_ns && record.end_ns <= to_ns;
            let lasts = record.end_ns - record.start_ns > 5_000;
            if let (Instruction::Compute(compute), true, Some(of)) =
                (instruction, is_in && lasts, at.layer)
                && (layer..layer + 2).contains(&of)
            {
                let name = match compute.op {
                    model::ops::Op::Attention => "attention",
                    _ => "linears",
                };
                let row = if *lane == LaneId::CPU_COMPUTE { "cpu" } else { "gpu" };
                found.push((row, name, of, at.stream, record.start_ns, record.end_ns));
            }
        }
        let first = found.iter().map(|one| one.4).min()?;
        let last = found.iter().map(|one| one.5).max()?;
        let ms = |ns: u64| (ns - first) as f64 / 1e6;
        let mut spans = String::new();
        for (row, name, of, stream, start, end) in found {
            let comma = if spans.is_empty() { "" } else { "," };
            write!(
                spans,
                r#"{comma}{{"lane":"{row}","op":"{name}","layer":{of},"batch":{stream},"#
            )
            .ok()?;
            write!(spans, r#""start_ms":{},"end_ms":{}}}"#, ms(start), ms(end)).ok()?;
        }
        let (window, layer) = (ms(last), ms(last) / 2.0);
        let ops = r#""ops":["linears","attention"],"gpu_interval":[0,1],"batches":2"#;
        let sizes = format!(r#""window_ms":{window},"layer_ms":{layer}"#);
        Some(format!(r#"{{{ops},{sizes},"spans":[{spans}]}}"#))
    }
}

/// How far the iterations are from the simulated ones.
fn compared(simulated: &[(Shape, f64)], measured: &[(Shape, f64)]) -> String {
    let shapes = |all: &[(Shape, f64)]| -> Vec<Shape> { all.iter().map(|one| one.0).collect() };
    let same = shapes(simulated) == shapes(measured);
    let mut errors: Vec<f64> =
        simulated.iter().zip(measured).map(|(told, found)| found.1 / told.1 - 1.0).collect();
    errors.sort_by(f64::total_cmp);
    let sum = |all: &[(Shape, f64)]| all.iter().map(|one| one.1).sum::<f64>();
    let within = errors.iter().filter(|error| error.abs() <= 0.05).count();
    let at = |part: f64| errors.get((part * (errors.len().max(1) - 1) as f64) as usize);
    let percent = |error: Option<&f64>| error.map_or(f64::NAN, |error| error * 100.0);
    let pipelined = measured.iter().filter(|one| one.0 == Shape::Pipelined).count();
    format!(
        "{} iterations simulated, {} measured ({pipelined} of two batches), {} shapes\n\
         all: {:.0} ms simulated, {:.0} ms measured ({:+.1}%)\n\
         each: median {:+.1}%, from {:+.1}% to {:+.1}%, 95th percentile {:+.1}%\n\
         {within} within 5%",
        simulated.len(),
        measured.len(),
        if same { "the same" } else { "other" },
        sum(simulated),
        sum(measured),
        (sum(measured) / sum(simulated) - 1.0) * 100.0,
        percent(at(0.5)),
        percent(at(0.0)),
        percent(at(1.0)),
        percent(at(0.95)),
    )
}
