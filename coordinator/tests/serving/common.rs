//! A tiny model as a batch job and as a server.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use engine::RunEngine;
use engine::launch::LaunchOptions;
use engine::serving::{ServingEngine, ServingOptions, StepTime};
use engine_api::batch::BatchEngine;
use engine_api::event::{BatchSink, FinishCause};
use engine_api::request::{AnswerGrammar, Penalties, Priority, Sampling};
use engine_api::serving::{
    Engine, EngineEvent, EventSink, GenerationId, GenerationRequest, Logprob, SubmitError,
};
use engine_api::token_rules::{ReasoningBudget, TokenRules};
use grammar::{Grammar, GrammarSet, Vocabulary};
use model::config::{Dtype, ModelConfig};
use model::known::find_known;
use planner::policy::{DefaultTiers, Policy, device_map};
use planner::split::parse_split;
use program::compile::compile;
use program::formats::KvFormat;
use program::kv_owner::with_owners;
use program::map::DeviceMap;
use program::plan::{Plan, RunShape};
use program::topology::MemoryId;
use program::validate::validate;
use protocol::messages::{PrefixStoreConfig, SegmentNodes, WeightsOrigin};
use rustix::process::Pid;
use scheduler::StepCostCurve;
use scheduler::hybrid::StepCosts;

const CONTEXT: u32 = 120;
const LOGPROBS: u16 = 4;
const EOS: u32 = 17;

fn config() -> ModelConfig {
    ModelConfig {
        name: "tiny".to_owned(),
        num_layers: 3,
        hidden_size: 128,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 32,
        ffn_size: 256,
        vocab_size: 200,
        max_positions: 128,
        tied_embeddings: false,
        eos_token_ids: vec![EOS],
        ..find_known("smollm2-135m").expect("it is known").config
    }
}

/// Returns the number formats of the computation and of the KV cache to test.
pub fn dtypes() -> [(Dtype, KvFormat); 3] {
    [(Dtype::Bf16, KvFormat::Plain), (Dtype::Bf16, KvFormat::Four), (Dtype::F32, KvFormat::Eight)]
}

/// Returns three placements: the CPU alone, a split, and everything streamed to the device.
pub fn maps(kv_format: KvFormat) -> Vec<DeviceMap> {
    let config = config();
    let split = parse_split("k:up", &config, None).expect("a split");
    let policies = [Policy::CpuOnly, Policy::TwoSplit { split, chunking: None }, Policy::GpuOnly];
    let homes = DefaultTiers { kv: MemoryId::DRAM, prefill_hidden: MemoryId::DRAM };
    let of = |policy| DeviceMap { kv_format, ..device_map(policy, &config, true, homes) };
    policies.iter().map(of).collect()
}

/// Organization of the KV caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvLayout {
    /// One extent for each slot.
    Extents,
    /// The given number of pages.
    Pages(u32),
    /// The given number of pages, which have more positions than the minimum that is copied.
    LargePages(u32),
    /// Caches of two sequences on the device, which computes all linears, and of the others on the
    /// host, with this policy.
    Owners(scheduler::hybrid::SchedulingPolicy),
    /// Like `HybridConfig`, on a machine whose CPU computes attention eight times slower than its
    /// device.
    SlowHost(scheduler::hybrid::SchedulingPolicy),
}

/// Returns costs for which APEX's inequality does not hold with a few hundred cached positions.
fn slow_host() -> StepCosts {
    let mut device = StepCostCurve::NONE;
    device.points[0] = (1, 1000);
    device.points[1] = (64, 2000);
    StepCosts {
        layers: config().num_layers as u32,
        device,
        device_position_ps: 20_000_000,
        host_position_ps: 160_000_000,
        ..StepCosts::NONE
    }
}

pub fn plan(map: &DeviceMap, dtype: Dtype, kept: Option<KvLayout>) -> Plan {
    plan_with_logits(map, dtype, kept, 0)
}

/// Returns a plan whose steps compute up to `logits_rows` rows of logits, or one for each slot.
pub fn plan_with_logits(
    map: &DeviceMap,
    dtype: Dtype,
    kept: Option<KvLayout>,
    logits_rows: u32,
) -> Plan {
    let serves = kept.is_some();
    let shape = RunShape {
        batches: 1,
        batch_size: 6,
        max_prompt: CONTEXT,
        shared_prompt: 0,
        max_context: CONTEXT,
        max_new: CONTEXT,
        logprobs: LOGPROBS,
        micro_sequences: 1,
        prefill_chunk: 16,
        serves,
        page_positions: 0,
        kv_pages: 0,
        checkpoints: 0,
        logits_rows,
        device_slots: 0,
        dtype,
    };
    let shape = match kept {
        None => RunShape { batch_size: 1, prefill_chunk: 0, ..shape },
        Some(KvLayout::Extents) => shape,
        Some(KvLayout::Pages(kv_pages)) => RunShape { page_positions: 16, kv_pages, ..shape },
        Some(KvLayout::LargePages(kv_pages)) => RunShape { page_positions: 32, kv_pages, ..shape },
        Some(KvLayout::Owners(_) | KvLayout::SlowHost(_)) => RunShape { device_slots: 2, ..shape },
    };
    let map = if shape.has_owners() { with_owners(map, &config()) } else { map.clone() };
    let plan = compile(&config(), &shape, &map).expect("compiles");
    validate(&plan).expect("it is proved");
    plan
}

fn launch() -> LaunchOptions {
    LaunchOptions {
        weights: WeightsOrigin::Dummy { seed: 11 },
        cpu_threads: 2,
        gpu_threads: 1,
        link_bytes_per_s: None,
        cpus: Vec::new(),
        spin_us: 0,
        durations: None,
        cuda: None,
        grammars: None,
        staged: Vec::new(),
        prompt_cache: None,
        memory_nodes: SegmentNodes::default(),
        select_text: Vec::new(),
        draft_model: None,
        quiet: false,
    }
}

pub fn start(map: &DeviceMap, dtype: Dtype) -> ServingEngine {
    start_with(map, dtype, KvLayout::Extents)
}

pub fn start_with(map: &DeviceMap, dtype: Dtype, kept: KvLayout) -> ServingEngine {
    start_storing(map, dtype, kept, None, Box::new(|_| {}))
}

/// Starts a server that stores prompt prefixes at `prompts`, if given; its messages are passed to
/// `tell`.
pub fn start_storing(
    map: &DeviceMap,
    dtype: Dtype,
    kept: KvLayout,
    prompt_cache: Option<PrefixStoreConfig>,
    log: Box<dyn Fn(&str) + Send>,
) -> ServingEngine {
    let options = serving_options(map, dtype, kept, prompt_cache, log);
    ServingEngine::start(options).expect("it starts")
}

pub fn serving_options(
    map: &DeviceMap,
    dtype: Dtype,
    kept: KvLayout,
    prompt_cache: Option<PrefixStoreConfig>,
    log: Box<dyn Fn(&str) + Send>,
) -> ServingOptions {
    let options = options_of(plan(map, dtype, Some(kept)), prompt_cache, log);
    let policy = match kept {
        KvLayout::Owners(policy) | KvLayout::SlowHost(policy) => policy,
        KvLayout::Extents | KvLayout::Pages(_) | KvLayout::LargePages(_) => options.policy,
    };
    let costs = matches!(kept, KvLayout::SlowHost(_)).then(slow_host);
    ServingOptions { policy, costs, ..options }
}

/// Returns the options of a server with a plan.
pub fn options_of(
    plan: Plan,
    prompt_cache: Option<PrefixStoreConfig>,
    log: Box<dyn Fn(&str) + Send>,
) -> ServingOptions {
    ServingOptions {
        records: false,
        trace_file: None,
        plan,
        launch: LaunchOptions { grammars: Some(grammars(Vec::new())), prompt_cache, ..launch() },
        compile_grammar: Some(Arc::new(|grammar: &Grammar| {
            grammars(Vec::new()).encode(grammar.clone(), spelled)
        })),
        policy: scheduler::hybrid::SchedulingPolicy::Auto,
        costs: None,
        step_costs: None,
        step_time: StepTime::Target(Duration::from_millis(2)),
        max_drafts: 0,
        drafts_all: false,
        on_load_progress: Box::new(|_, _| true),
        log,
    }
}

/// A prompt and its request options.
#[derive(Debug, Clone)]
pub struct Job {
    pub prompt: Vec<u32>,
    pub max_new: u32,
    pub sampling: Sampling,
    pub logprobs: u16,
    pub prompt_logprobs: u16,
    pub prompt_logprobs_from: u32,
    pub id_hash: u64,
    pub grammar: Option<Grammar>,
    pub reasoning_budget: Option<ReasoningBudget>,
    /// Tokens that the answer is predicted to have.
    pub prediction: Option<Arc<[u32]>>,
}

/// Returns grammars over a vocabulary in which every token below 128 is an ASCII character.
fn grammars(forms: Vec<Grammar>) -> GrammarSet {
    let word = |token: u32| if token < 128 { vec![token as u8] } else { Vec::new() };
    let vocabulary = Vocabulary { words: (0..200).map(word).collect(), ends: vec![EOS] };
    GrammarSet::new(vocabulary, forms, spelled)
}

fn spelled(text: &str) -> Option<Vec<u32>> {
    Some(text.bytes().map(u32::from).collect())
}

pub fn jobs(count: usize) -> Vec<Job> {
    let job = |index: usize| Job {
        prompt: (0..1 + (index * 13) % 70).map(|i| ((index * 29 + i * 7) % 200) as u32).collect(),
        max_new: 1 + (index as u32 * 7) % 40,
        sampling: match index % 3 {
            1 => Sampling {
                temperature: 0.9,
                top_p: 0.95,
                top_k: 50,
                min_p: 0.01,
                penalties: Penalties { repetition: 1.2, presence: 0.3, frequency: 0.2 },
                min_tokens: 3,
                top_n_sigma: 3.0,
            },
            _ => Sampling::GREEDY,
        },
        logprobs: index as u16 % (LOGPROBS + 1),
        prompt_logprobs: 0,
        prompt_logprobs_from: 1,
        id_hash: index as u64,
        grammar: match index % 7 {
            3 => Some(Grammar::Regex("[a-f]+[0-9]{3,9}x".to_owned())),
            5 => Some(Grammar::Choice(["one", "other"].map(str::to_owned).to_vec())),
            6 => Some(Grammar::json_schema(format!(r#"{{"enum": [{index}]}}"#))),
            _ => None,
        },
        reasoning_budget: (index % 4 == 2).then_some(ReasoningBudget {
            max_tokens: 3,
            open: None,
            close: 150,
        }),
        prediction: None,
    };
    (0..count).map(job).collect()
}

/// Tokens, log-probabilities as token IDs and bits, and the reason of the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    tokens: Vec<u32>,
    logprobs: Vec<(u32, u32)>,
    /// Log-probabilities of the prompt's tokens, except the first.
    prompt_logprobs: Vec<(u32, u32)>,
    finish: FinishCause,
}

impl Answer {
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub fn logprobs(&self) -> &[(u32, u32)] {
        &self.logprobs
    }

    pub fn prompt_logprobs(&self) -> &[(u32, u32)] {
        &self.prompt_logprobs
    }
}

fn bits(logprobs: &[Logprob]) -> Vec<(u32, u32)> {
    logprobs.iter().map(|found| (found.token, found.logprob.to_bits())).collect()
}

/// Answers of requests, and the reasons why they ended.
struct Answers(Vec<(Answer, bool)>);

impl BatchSink for Answers {
    fn on_event(&mut self, request: usize, event: EngineEvent) -> ControlFlow<()> {
        let (answer, has_ended) = &mut self.0[request];
        match event {
            EngineEvent::Token { token, logprobs } => {
                answer.tokens.push(token);
                answer.logprobs.extend(bits(&logprobs));
            }
            EngineEvent::Finished(finish) => (answer.finish, *has_ended) = (finish, true),
            EngineEvent::Prompt { .. }
            | EngineEvent::Pooled(_)
            | EngineEvent::Drafts(_)
            | EngineEvent::Failed(_) => {}
        }
        ControlFlow::Continue(())
    }
}

/// Returns the answers of a batch job that runs one sequence at a time.
pub fn expected(map: &DeviceMap, dtype: Dtype, jobs: &[Job]) -> Vec<Answer> {
    let plan = plan(map, dtype, None);
    let forms: Vec<Grammar> = jobs.iter().filter_map(|job| job.grammar.clone()).collect();
    let launch = LaunchOptions { grammars: Some(grammars(forms)), ..launch() };
    let mut engine = RunEngine::start(plan, &launch, None, Box::new(|| false), &mut |_, _| true)
        .expect("it starts");
    let without_prompt = |job: &Job| GenerationRequest {
        prompt_logprobs: 0,
        prompt_logprobs_from: 1,
        ..request(job, AnswerGrammar::None)
    };
    let mut requests: Vec<GenerationRequest> = jobs.iter().map(without_prompt).collect();
    let following = jobs.iter().zip(&mut requests).filter(|(job, _)| job.grammar.is_some());
    following
        .zip(1..)
        .for_each(|((_, request), number)| request.grammar = AnswerGrammar::Number(number));
    let empty = Answer {
        tokens: Vec::new(),
        logprobs: Vec::new(),
        prompt_logprobs: Vec::new(),
        finish: FinishCause::Length,
    };
    let mut answers = Answers(vec![(empty, false); jobs.len()]);
    engine.run(&requests, &mut answers).expect("a job");
    engine.finish().expect("it ends");
    assert!(answers.0.iter().all(|(_, has_ended)| *has_ended));
    answers.0.into_iter().map(|(answer, _)| answer).collect()
}

struct ChannelSink(Sender<EngineEvent>);

impl EventSink for ChannelSink {
    fn on_event(&mut self, event: EngineEvent) -> ControlFlow<()> {
        if self.0.send(event).is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

/// A submission whose events are received.
pub struct EventReceiver {
    id: GenerationId,
    events: Receiver<EngineEvent>,
}

pub fn try_submit(engine: &ServingEngine, job: &Job) -> Result<EventReceiver, SubmitError> {
    let (sender, events) = channel();
    let id = engine.submit(submission(engine, job), Box::new(ChannelSink(sender)))?;
    Ok(EventReceiver { id, events })
}

pub fn submission(engine: &ServingEngine, job: &Job) -> GenerationRequest {
    let prepare = |grammar| Arc::new(engine.prepare(Arc::new(grammar)));
    let grammar = job.grammar.clone().map(prepare);
    request(job, grammar.map_or(AnswerGrammar::None, AnswerGrammar::Prepared))
}

fn request(job: &Job, grammar: AnswerGrammar) -> GenerationRequest {
    GenerationRequest {
        prompt: job.prompt.clone().into(),
        max_new: job.max_new,
        sampling: job.sampling,
        token_rules: job.reasoning_budget.map(|budget| {
            Arc::new(TokenRules { reasoning_budget: Some(budget), ..TokenRules::default() })
        }),
        seed: 5,
        id_hash: job.id_hash,
        ignore_eos: false,
        any_logits: false,
        logprobs: job.logprobs,
        prompt_logprobs: job.prompt_logprobs,
        prompt_logprobs_from: job.prompt_logprobs_from,
        pooling: None,
        grammar,
        prediction: job.prediction.clone(),
        priority: Priority::Interactive,
    }
}

pub fn submit(engine: &ServingEngine, job: &Job) -> EventReceiver {
    try_submit(engine, job).expect("it is taken")
}

impl EventReceiver {
    pub fn id(&self) -> GenerationId {
        self.id
    }

    /// Returns the events that arrive within `limit`, waiting for at least one.
    pub fn events(&self, limit: Duration) -> Vec<EngineEvent> {
        self.events.recv_timeout(limit).into_iter().chain(self.events.try_iter()).collect()
    }

    /// Waits until no more events can arrive: after a last event, or when the sink was dropped.
    pub fn end(self, limit: Duration) {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(EngineEvent::Finished(_) | EngineEvent::Failed(_)) => return,
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => panic!("{:?} was left without a word", self.id),
            }
        }
    }

    /// Waits for the whole answer.
    pub fn answer(self, limit: Duration) -> Answer {
        let until = Instant::now() + limit;
        let (mut tokens, mut logprobs) = (Vec::new(), Vec::new());
        let mut prompt_logprobs = None;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(EngineEvent::Prompt { logprobs, .. }) => {
                    assert!(tokens.is_empty(), "the prompt is told first");
                    let told = prompt_logprobs.replace(bits(&logprobs));
                    assert!(told.is_none(), "the prompt is told once");
                }
                Ok(EngineEvent::Pooled(_) | EngineEvent::Drafts(_)) => {}
                Ok(EngineEvent::Token { token, logprobs: of_token }) => {
                    tokens.push(token);
                    logprobs.extend(bits(&of_token));
                }
                Ok(EngineEvent::Finished(finish)) => {
                    let prompt_logprobs = prompt_logprobs.expect("the prompt is told");
                    return Answer { tokens, logprobs, prompt_logprobs, finish };
                }
                Ok(EngineEvent::Failed(reason)) => panic!("{:?} failed: {reason}", self.id),
                Err(RecvTimeoutError::Timeout) => panic!("{:?} was not answered", self.id),
                Err(RecvTimeoutError::Disconnected) => panic!("{:?} was forgotten", self.id),
            }
        }
    }
}

/// Returns the live child processes of this one.
pub fn workers() -> Vec<Pid> {
    let own = std::process::id();
    let path = format!("/proc/{own}/task");
    let tasks = std::fs::read_dir(path).expect("its threads").flatten();
    let children =
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let all: Vec<Pid> = children
        .flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect();
    all
}
