//! Tiny models, and a runner whose lanes are threads of this process.

use std::time::Duration;

use kernels::{PoolOptions, Variant};
use model::config::{Activation, Family, Features, ModelConfig, Rope, RopeScaling, Scales};
use model::experts::{ExpertScoring, Experts};
use model::layers::{FeedForward, LayerKind, Layers};
use model::source::dummy::DummySource;
use profiler::{ComputeThreads, Runner, RunnerError, RunnerSession};
use program::plan::Plan;
use program::topology::LaneId;
use protocol::group::PlacedRequest;
use shm::TraceRecord;
use workers::setup::LaneOptions;
use workers::testing::InProcess;

/// Runs plans in this process; both workers get the CPU's number of threads.
#[derive(Debug, Default)]
pub struct InProcessRunner {
    /// Plans started so far.
    pub started: usize,
    /// The start that fails, if any.
    pub fails_at: Option<usize>,
}

struct InProcessSession(Option<InProcess>);

impl Runner for InProcessRunner {
    fn start(
        &mut self,
        plan: Plan,
        threads: ComputeThreads,
    ) -> Result<Box<dyn RunnerSession>, RunnerError> {
        self.started += 1;
        if self.fails_at == Some(self.started) {
            return Err(RunnerError::Interrupted);
        }
        let source = DummySource::new(plan.config.clone(), 7);
        let options = LaneOptions {
            variant: Variant::best(),
            pool: PoolOptions::unpinned(threads.cpu.into()),
            link_bytes_per_s: None,
            wait_timeout: Duration::from_secs(60),
            grammars: None,
            routes_randomly: true,
            select_text: Vec::new(),
            drafter: None,
        };
        let lanes = InProcess::start(plan, &source, options)
            .map_err(|error| RunnerError::Failed(Box::new(error)))?;
        Ok(Box::new(InProcessSession(Some(lanes))))
    }
}

impl RunnerSession for InProcessSession {
    fn run(&mut self, group: &[PlacedRequest]) -> Result<Vec<(LaneId, TraceRecord)>, RunnerError> {
        let lanes = self.0.as_mut().expect("taken only when dropped");
        lanes.try_group(group).map_err(|error| RunnerError::Failed(Box::new(error)))?;
        Ok(lanes.drain_trace())
    }
}

impl Drop for InProcessSession {
    fn drop(&mut self) {
        if let Some(lanes) = self.0.take() {
            lanes.finish();
        }
    }
}

/// A LLaMA with grouped heads.
pub fn llama() -> ModelConfig {
    ModelConfig {
        name: "tiny-llama".to_owned(),
        family: Family::Llama,
        num_layers: 2,
        hidden_size: 24,
        num_heads: 6,
        num_kv_heads: 2,
        head_dim: 8,
        ffn_size: 40,
        vocab_size: 61,
        max_positions: 64,
        norm_eps: 1e-5,
        activation: Activation::Silu,
        learned_positions: None,
        layers: Layers::uniform(LayerKind::dense(Some(Rope::new(10_000.0, RopeScaling::None)))),
        experts: None,
        qkv_bias: true,
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

/// A LLaMA with a mixture of experts, sinks, and a window in every other layer.
pub fn mixture() -> ModelConfig {
    let rope = Rope::new(10_000.0, RopeScaling::None);
    let kind = |window| LayerKind {
        window,
        feed_forward: FeedForward::Experts,
        ..LayerKind::dense(Some(rope.clone()))
    };
    let scoring = ExpertScoring::SoftmaxTopK { renormalise: true };
    ModelConfig {
        name: "tiny-mixture".to_owned(),
        layers: Layers::from_kinds([kind(Some(4)), kind(None)]),
        experts: Some(Experts::new(8, 2, 16, scoring)),
        qkv_bias: false,
        sinks: true,
        ..llama()
    }
}

/// An OPT with as many KV heads as heads.
pub fn opt() -> ModelConfig {
    ModelConfig {
        name: "tiny-opt".to_owned(),
        family: Family::Opt,
        num_heads: 3,
        num_kv_heads: 3,
        activation: Activation::Relu,
        learned_positions: Some(2),
        layers: Layers::uniform(LayerKind::dense(None)),
        experts: None,
        out_bias: true,
        ffn_bias: true,
        tied_embeddings: true,
        ..llama()
    }
}
