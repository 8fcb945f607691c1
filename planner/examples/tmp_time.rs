use std::time::Instant;
use model::config::Dtype;
use model::known::known as model;
use planner::budget::{Limits, Request};
use planner::machine::known;
use planner::policy::*;
use planner::priced::*;
use planner::split::Split;
use program::topology::MemoryId;
use program::simulate::simulate;
fn main() {
    let machine = known("ryzen7950x-a4000").unwrap().unwrap();
    let config = model("opt-30b").unwrap().config;
    let formats = Formats::plain(&config);
    let limits = Limits { dram_bytes: machine.dram_bytes(), vram_bytes: Some(machine.vram_bytes()), vram_is_dram: false, device_scratch: None };
    for (n, b, chunk) in [(1u16, 50u16, false), (2, 25, false), (4, 60, false), (2,25,true)] {
        let chunking = chunk.then(|| planner::split::parse_chunking("scores=8").unwrap());
        let policy = Policy::TwoSplit { split: Split { start: 3, end: 10 }, chunking };
        let request = Request { config: &config, policy: &policy, resident: DeviceResident::NONE, formats: &formats, fuse_attention: true, dtype: Dtype::Bf16, max_prompt: 512, shared_prompt: 0, max_context: 544, max_new: 32, logprobs: 0, prefill_chunk: None, limits: &limits };
        let homes = Homes { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
        let est = Estimator { request: &request, batches: n, batch_size: b, pricing: &machine, homes };
        for layers in [2usize, 4, 8, 48] {
            let t = Instant::now();
            let plan = est.plan(&policy, layers).unwrap();
            let tc = t.elapsed();
            let t = Instant::now();
            let costs = machine.costs(&plan, 512).unwrap();
            let tp = t.elapsed();
            let t = Instant::now();
            let d = simulate(plan.decode(), costs.as_ref(), 4).unwrap();
            let ts = t.elapsed();
            let t = Instant::now();
            let p = simulate(plan.prefill(), costs.as_ref(), 1).unwrap();
            let tf = t.elapsed();
            println!("{n}x{b} {layers} layers: compile {tc:?} price {tp:?} decode {ts:?} prefill {tf:?}; step {:.1} prefill {:.1}", (d.step_end_ns[3]-d.step_end_ns[1])/2e6, p.total_ns/1e6);
        }
        let t = Instant::now();
        println!("fits {:?} {:?}", request.fits(n, b), t.elapsed());
        let t = Instant::now();
        println!("{:?} {:?}", est.estimate(&policy), t.elapsed());
    }
}
