//! Models, machines and search requests.

use model::config::{Dtype, ModelConfig};
use model::known::find_known;
use model::quantized_format::{Grouped, WeightFormat};
use planner::budget::{MemoryLimits, PlacementRequest, Storage};
use planner::machine::{CpuSpec, GpuSpec, LinkSpec, Machine, MemorySpec, RooflineRates};
use planner::policy::name::PolicyName;
use planner::policy::{Formats, Placement, Policy};
use planner::search::{SearchEffort, SearchError, SearchRequest, SearchResult, choose};
use program::formats::{KvFormat, WeightFormats};
use program::map::Chunking;

/// Returns true if all cases run (`make fuzz`), not only the sample of `make test`.
pub fn runs_all_cases() -> bool {
    std::env::var_os("TANDEM_FUZZ_CASES").is_some()
}

/// A model, a machine and a workload to be placed.
#[derive(Debug, Clone)]
pub struct PlacementCase {
    pub machine: Machine,
    pub config: ModelConfig,
    pub weights: WeightFormat,
    pub kv: KvFormat,
    pub batches: (u16, u16),
    pub prompt: u32,
    pub new: u32,
    pub chunking: Option<Chunking>,
}

impl PlacementCase {
    pub fn new(machine: Machine, config: ModelConfig, batches: (u16, u16)) -> PlacementCase {
        let (weights, kv) = (WeightFormat::Plain, KvFormat::Plain);
        PlacementCase { machine, config, weights, kv, batches, prompt: 64, new: 16, chunking: None }
    }

    #[must_use]
    pub fn compressed(self) -> PlacementCase {
        PlacementCase { weights: WeightFormat::Grouped(Grouped::W4), kv: KvFormat::Four, ..self }
    }

    pub fn limits(&self) -> MemoryLimits {
        MemoryLimits {
            dram_bytes: self.machine.dram_bytes(),
            vram_bytes: Some(self.machine.vram_bytes()),
            vram_is_dram: false,
            slow_tier_bytes: self.machine.slow_tier_bytes(),
            device_scratch: None,
        }
    }

    pub fn formats(&self) -> Formats {
        let weights = WeightFormats::with_layers(&self.config, self.weights);
        Formats { weights, kv: self.kv, kv_select: None }
    }

    /// Calls `then` with the request for a placement.
    pub fn with_request<T>(
        &self,
        placement: &Placement,
        then: impl FnOnce(&PlacementRequest<'_>) -> T,
    ) -> T {
        let (formats, limits) = (self.formats(), self.limits());
        let directly = self.machine.reads_directly();
        let storage = self.machine.read_shares().map(Storage::auto);
        let storage = storage.map(|storage| storage.with_direct_reads(directly));
        then(&PlacementRequest {
            config: &self.config,
            placement,
            formats: &formats,
            fuse_attention: true,
            dtype: Dtype::Bf16,
            max_prompt: self.prompt,
            shared_prompt: 0,
            max_context: self.prompt + self.new,
            max_new: self.new,
            logprobs: 0,
            prefill_chunk: None,
            limits: &limits,
            storage: storage.as_ref(),
            routing: None,
        })
    }

    pub fn choose(&self, policy: PolicyName) -> Result<SearchResult, SearchError> {
        self.choose_with(policy, SearchEffort::Full)
    }

    pub fn choose_with(
        &self,
        policy: PolicyName,
        effort: SearchEffort,
    ) -> Result<SearchResult, SearchError> {
        self.with_question(policy, |question| choose(&SearchRequest { effort, ..question }))
    }

    /// Calls `then` with the search request for the best placement of a policy.
    pub fn with_question<T>(
        &self,
        policy: PolicyName,
        then: impl FnOnce(SearchRequest<'_>) -> T,
    ) -> T {
        let mut chunkings = vec![None];
        chunkings.extend(self.chunking.map(Some));
        self.with_request(&Placement::from_policy(Policy::GpuOnly), |request| {
            then(SearchRequest {
                request,
                batches: self.batches.0,
                batch_size: self.batches.1,
                policy,
                chunkings: &chunkings,
                pricing: &self.machine,
                effort: SearchEffort::Full,
                rehearser: None,
            })
        })
    }
}

/// Returns a known model, reduced to `layers` layers.
pub fn layers_of(name: &str, layers: usize) -> ModelConfig {
    let mut config = find_known(name).expect("known").config;
    config.num_layers = layers;
    config
}

/// Returns a machine without special properties.
pub fn plain_machine() -> Machine {
    let rates = |gbps: f64, tflops: f64| RooflineRates {
        linear_gbps: gbps,
        linear_tflops: tflops,
        attention_gbps: gbps,
        attention_tflops: tflops,
        four_bit: None,
    };
    Machine {
        name: "plain".to_owned(),
        cpu: CpuSpec {
            name: "eight cores".to_owned(),
            bf16: rates(40.0, 1.0),
            f32: None,
            op_overhead_us: 0.0,
            stage_overhead_ms: 0.0,
        },
        gpu: GpuSpec {
            name: "a card".to_owned(),
            bf16: rates(400.0, 40.0),
            f32: None,
            op_overhead_us: 0.0,
            decompress_gbps: Some(200.0),
            decompress_overhead_ms: 0.0,
        },
        link: LinkSpec { h2d_gbps: 20.0, d2h_gbps: 20.0 },
        memory: MemorySpec { dram_gib: 64.0, dram_gbps: 80.0, vram_gib: 8.0, os_reserve_gib: None },
        tier: Vec::new(),
        nvme: Vec::new(),
        running: None,
        profile: None,
    }
}
