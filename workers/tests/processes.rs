//! The three workers as processes, driven as the coordinator drives them: the handshake, groups,
//! the absence of allocations, and the report of a worker's failure. The test program starts itself
//! again for each worker, see [`worker_child`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use kernels::{PoolOptions, Variant};
use model::config::{Activation, Dtype, Family, Features, ModelConfig, Rope, RopeScaling, Scales};
use model::layers::{LayerKind, Layers};
use model::source::dummy::DummySource;
use model::source::{SourceError, WeightSource};
use planner::policy::{DefaultTiers, Policy, device_map};
use planner::split::parse_split;
use program::compile::compile;
use program::plan::{Plan, RunShape};
use program::topology::{MemoryId, SegmentId, Topology, WorkerId};
use protocol::group::{BATCH_STAGES, list_work};
use protocol::messages::{FromWorker, SegmentNodes, ToWorker, WeightsOrigin, WorkerSetup};
use protocol::table::StepTable;
use shm::{Channel, Control, Segment, TraceSegment, WorkerState};
use workers::alloc_counter::CountingAllocator;
use workers::setup::LaneOptions;
use workers::testing::{GenerationRequest, InProcess, Outcome, PlacedRequest, fill};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const CHANNEL_VARIABLE: &str = "TANDEM_TEST_CHANNEL";
const LIMIT: Duration = Duration::from_secs(60);
const TRACE_CAPACITY: usize = 4096;
const SEED: u64 = 3;

/// Runs a worker process of the tests below; not a test of its own.
#[test]
#[ignore = "started by the other tests, with a channel"]
fn worker_child() {
    let Ok(number) = std::env::var(CHANNEL_VARIABLE) else {
        println!("SKIP worker_child: it runs only as a child of the other tests");
        return;
    };
    let number = number.parse().expect("a descriptor");
    settle_harness();
    // SAFETY: the number was inherited for this call, and nothing else here owns it.
    let code = unsafe { workers::worker_main::worker_main(number, &open_dummy) };
    #[expect(clippy::disallowed_methods, clippy::exit, reason = "the harness has its own codes")]
    std::process::exit(i32::from(code));
}

/// Waits until the harness's main thread sleeps: its allocations before that would count as the
/// worker's.
fn settle_harness() {
    let stat = format!("/proc/self/task/{}/stat", std::process::id());
    let until = Instant::now() + LIMIT;
    while Instant::now() < until {
        let text = std::fs::read_to_string(&stat).expect("the main thread's state");
        if text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S')) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn open_dummy(
    from: &WeightsOrigin,
    config: &ModelConfig,
) -> Result<Box<dyn WeightSource>, SourceError> {
    match from {
        WeightsOrigin::Dummy { seed } => Ok(Box::new(DummySource::new(config.clone(), *seed))),
        other => Err(SourceError::Format {
            path: format!("{other:?}"),
            reason: "this test has dummy weights only".to_owned(),
        }),
    }
}

fn config() -> ModelConfig {
    ModelConfig {
        name: "tiny".to_owned(),
        family: Family::Llama,
        num_layers: 3,
        hidden_size: 64,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 16,
        ffn_size: 96,
        vocab_size: 200,
        max_positions: 64,
        norm_eps: 1e-5,
        activation: Activation::Silu,
        learned_positions: None,
        layers: Layers::uniform(LayerKind::dense(Some(Rope::new(10_000.0, RopeScaling::None)))),
        experts: None,
        qkv_bias: false,
        out_bias: false,
        ffn_bias: false,
        tied_embeddings: false,
        qk_norm: None,
        pre_norms: true,
        post_norms: false,
        delta: None,
        latent: None,
        mamba: None,
        features: Features::default(),
        output_gate: false,
        sinks: false,
        scales: Scales::default(),
        bos_token_id: None,
        eos_token_ids: vec![],
    }
}

fn plan(split: Option<&str>) -> Plan {
    let config = config();
    let shape = RunShape {
        batches: 2,
        batch_size: 2,
        max_prompt: 8,
        shared_prompt: 0,
        max_context: 20,
        max_new: 12,
        logprobs: 0,
        micro_sequences: 2,
        prefill_chunk: 0,
        serves: false,
        page_positions: 0,
        kv_pages: 0,
        checkpoints: 0,
        logits_rows: 0,
        device_slots: 0,
        dtype: Dtype::Bf16,
    };
    let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::VRAM };
    let policy = match split {
        None => Policy::CpuOnly,
        Some(text) => Policy::TwoSplit {
            split: parse_split(text, &config, None).expect("a split"),
            chunking: None,
        },
    };
    compile(&config, &shape, &device_map(&policy, &config, true, homes)).expect("compiles")
}

fn group() -> Vec<PlacedRequest> {
    (0..4)
        .map(|index: usize| {
            let prompt = (0..2 * index as u32 + 1).map(|i| 11 * i + index as u32).collect();
            let mut request = GenerationRequest::greedy(prompt, 3 + 3 * index as u32);
            request.sampling.temperature = if index == 2 { 0.8 } else { 0.0 };
            PlacedRequest { batch: index / 2, slot: index % 2, request }
        })
        .collect()
}

struct Worker {
    id: WorkerId,
    process: Child,
    channel: Channel,
}

impl Worker {
    fn start(id: WorkerId) -> Worker {
        let (ours, theirs) = Channel::pair().expect("a channel");
        let mut command = Command::new(std::env::current_exe().expect("a program"));
        let number = theirs.hand_to(&mut command);
        command
            .args(["worker_child", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(CHANNEL_VARIABLE, number.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let process = command.spawn().expect("a process");
        Worker { id, process, channel: ours }
    }

    fn send(&self, message: &ToWorker, descriptors: &[BorrowedFd<'_>]) {
        let bytes = postcard::to_stdvec(message).expect("a message");
        self.channel.send_large(&bytes, descriptors).expect("sent");
    }

    fn receive(&self) -> (FromWorker, Vec<OwnedFd>) {
        let (bytes, descriptors) = self.channel.recv(LIMIT).expect("an answer");
        (postcard::from_bytes(&bytes).expect("a message"), descriptors)
    }

    fn wait(&mut self) -> ExitStatus {
        let until = Instant::now() + LIMIT;
        loop {
            match self.process.try_wait().expect("a child") {
                Some(status) => return status,
                None => assert!(Instant::now() < until, "worker {} does not end", self.id.0),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // An error means that the process has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts the workers that have lanes in a plan and sends their setup, without handling their
/// answers.
fn start(plan: &Plan, weights: &WeightsOrigin, link: Option<u64>) -> (Control, Vec<Worker>) {
    let lanes = plan.lanes();
    let works = |id: &WorkerId| lanes.iter().any(|lane| plan.topology.lane(*lane).worker == *id);
    start_workers(plan, plan.topology.worker_ids().filter(works), weights, link)
}

/// Starts the given workers, even those without work in the plan.
fn start_workers(
    plan: &Plan,
    ids: impl IntoIterator<Item = WorkerId>,
    weights: &WeightsOrigin,
    link: Option<u64>,
) -> (Control, Vec<Worker>) {
    let lanes = plan.lanes();
    let control = Control::create(lanes.len() as u32, plan.table.words() * 4).expect("control");
    let trace = TraceSegment::create(plan.topology.lanes.len(), TRACE_CAPACITY).expect("trace");
    let host = [SegmentId::HOST_WEIGHTS, SegmentId::HOST_KV, SegmentId::HOST_ACTIVATIONS];
    let segments = host.map(|memory| {
        let size_bytes = plan.segment_bytes(memory).max(4096) as usize;
        (memory, Segment::create("test", size_bytes).expect("a segment"))
    });
    let workers = ids.into_iter().map(|id| {
        let worker = Worker::start(id);
        let mapped: Vec<_> =
            segments.iter().filter(|(m, _)| plan.topology.maps(id, m.memory)).collect();
        let setup = WorkerSetup {
            worker: id,
            plan: plan.clone(),
            memories: mapped.iter().map(|(m, s)| (*m, s.size_bytes() as u64)).collect(),
            private: Vec::new(),
            nodes: SegmentNodes::default(),
            select_text: Vec::new(),
            control_bytes: control.segment().size_bytes() as u64,
            trace_capacity: TRACE_CAPACITY as u32,
            threads: 2,
            cpus: Vec::new(),
            spin_us: 0,
            weights: weights.clone(),
            link_bytes_per_s: link,
            wait_timeout_ms: 30_000,
            start_timeout_ms: None,
            durations: None,
            cuda: None,
            grammars: None,
            staged: None,
            prompts: None,
            draft_model: None,
        };
        let mut descriptors = vec![control.segment().fd(), trace.segment().fd()];
        descriptors.extend(mapped.iter().map(|(_, segment)| segment.fd()));
        worker.send(&ToWorker::Setup(Box::new(setup)), &descriptors);
        worker
    });
    let workers = workers.collect();
    (control, workers)
}

/// Performs the rest of the handshake, until all workers are ready.
fn make_ready(workers: &[Worker]) {
    let find = |id| workers.iter().find(|worker| worker.id == id);
    if let (Some(gpu), Some(transfer)) = (find(WorkerId::GPU), find(WorkerId::TRANSFER)) {
        let (exported, descriptors) = gpu.receive();
        let FromWorker::Exported { memory, size_bytes } = exported else { panic!("{exported:?}") };
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        transfer.send(&ToWorker::Attach { memory, size_bytes }, &borrowed);
    }
    let cpu = find(WorkerId::CPU).expect("a cpu worker");
    assert_eq!(cpu.receive().0, FromWorker::Loaded);
    if let Some(transfer) = find(WorkerId::TRANSFER) {
        transfer.send(&ToWorker::Load, &[]);
        assert_eq!(transfer.receive().0, FromWorker::Loaded);
    }
    for worker in workers {
        let (ready, _) = worker.receive();
        let FromWorker::Ready { kernel_variant } = ready else { panic!("{ready:?}") };
        assert_eq!(kernel_variant, Variant::from_env().expect("a variant").name());
    }
}

fn run_group(plan: &Plan, control: &Control, group: &[PlacedRequest]) -> Vec<Outcome> {
    let table = StepTable::new(control.extra(0, plan.table.words()), plan);
    fill(&table, plan, group);
    let target = control.drained().value() + 1;
    control.release(&BATCH_STAGES, list_work(&table));
    control.drained().wait_until(target, control.poison(), LIMIT).expect("the lanes drain");
    group.iter().map(|placed| Outcome::read(&table, placed)).collect()
}

fn in_process(plan: Plan) -> Vec<Outcome> {
    let options = LaneOptions {
        variant: Variant::from_env().expect("a variant"),
        pool: PoolOptions::unpinned(1),
        link_bytes_per_s: None,
        wait_timeout: LIMIT,
        grammars: None,
        routes_randomly: false,
        select_text: Vec::new(),
        drafter: None,
    };
    let source = DummySource::new(config(), SEED);
    let mut lanes = InProcess::start(plan, &source, options).expect("the lanes start");
    let outcomes = lanes.run_group(&group());
    assert!(lanes.finish().iter().all(Result::is_ok));
    outcomes
}

#[test]
fn processes_give_the_tokens_of_threads_and_allocate_nothing() {
    let expected = in_process(plan(None));
    for (split, link) in [(None, None), (Some("k:up"), None), (Some("scores:out"), Some(1 << 30))] {
        let plan = plan(split);
        let (control, mut workers) = start(&plan, &WeightsOrigin::Dummy { seed: SEED }, link);
        make_ready(&workers);
        for _ in 0..3 {
            assert_eq!(run_group(&plan, &control, &group()), expected, "{split:?}");
        }
        let loaded = control.worker(WorkerId::CPU.index()).load_progress_bytes();
        assert!(loaded.0 > 0 && loaded.0 == loaded.1, "{loaded:?}");
        control.release(&[], 0);
        for worker in &mut workers {
            let id = worker.id;
            assert!(worker.wait().success(), "{id:?}");
            let words = control.worker(id.index());
            assert_eq!(words.state(), WorkerState::Exit);
            assert_eq!(words.allocations_seen(), 0, "{id:?} {split:?}");
        }
    }
}

#[test]
fn a_worker_that_cannot_load_says_so_and_poisons() {
    let plan = plan(Some("scores:out"));
    let weights = WeightsOrigin::Gguf { path: "nowhere.gguf".to_owned() };
    let (control, mut workers) = start(&plan, &weights, None);
    let cpu = workers.iter_mut().find(|worker| worker.id == WorkerId::CPU).expect("a cpu worker");
    let (failed, _) = cpu.receive();
    let FromWorker::Failed { message, .. } = failed else { panic!("{failed:?}") };
    assert!(
        message.contains("nowhere.gguf") && message.contains("dummy weights only"),
        "{message}"
    );
    assert_eq!(cpu.wait().code(), Some(1));
    assert!(control.poison().cause().is_some());
}

#[test]
fn poison_ends_idle_workers_quietly() {
    let plan = plan(Some("scores:out"));
    let (control, mut workers) = start(&plan, &WeightsOrigin::Dummy { seed: SEED }, None);
    make_ready(&workers);
    control.stop(99, 7);
    for worker in &mut workers {
        let id = worker.id;
        // Workers stay alive so that the coordinator finds the culprit, and leave when the channel
        // closes.
        let (_, spare) = Channel::pair().expect("a channel");
        drop(std::mem::replace(&mut worker.channel, spare));
        assert_eq!(worker.wait().code(), Some(1), "{id:?}");
    }
}

#[test]
fn workers_without_work_do_not_leave_before_the_culprit_is_found() {
    let plan = Plan { topology: Topology::with_device(), ..plan(None) };
    let weights = WeightsOrigin::Dummy { seed: SEED };
    let ids = plan.topology.worker_ids();
    let (control, mut workers) = start_workers(&plan, ids, &weights, None);
    make_ready(&workers);
    control.stop(99, 7);
    std::thread::sleep(Duration::from_millis(300));
    for worker in &mut workers {
        let id = worker.id;
        assert!(worker.process.try_wait().expect("a child").is_none(), "{id:?} left");
        let (_, spare) = Channel::pair().expect("a channel");
        drop(std::mem::replace(&mut worker.channel, spare));
        assert_eq!(worker.wait().code(), Some(1), "{id:?}");
    }
}

#[test]
fn a_worker_whose_coordinator_is_gone_ends() {
    let worker = Worker::start(WorkerId::TRANSFER);
    let (_, spare) = Channel::pair().expect("a channel");
    let mut worker = worker;
    drop(std::mem::replace(&mut worker.channel, spare));
    assert_eq!(worker.wait().code(), Some(1));
}
