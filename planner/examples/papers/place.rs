//! The placement of a run: the one found by the search of its policy or, if the paper keeps nothing
//! in device memory or specifies the vectors itself, the best of the remaining ones.

use model::config::{Dtype, ModelConfig};
use model::quantized_format::{Grouped, WeightFormat};
use planner::budget::{MemoryLimits, PlacementRequest};
use planner::layer::steady::{LayerMap, SlotLimits, steady_map};
use planner::lia::OffloadVector;
use planner::machine::Machine;
use planner::policy::name::{PolicyName, UnknownPolicy};
use planner::policy::{
    Flexgen, Formats, Placement, Policy, Residency, ResidentAttention, SlowTierLayers,
};
use planner::search::{Estimator, SearchEffort, SearchRequest, choose_placement, operation_table};
use planner::split::Split;
use program::formats::{KvFormat, WeightFormats};
use program::map::{ChunkOrder, Chunking, layer_list};
use program::topology::MemoryId;

use crate::cells::{Compression, Scenario};

pub const DTYPE: Dtype = Dtype::Bf16;
/// Host memory of a machine on which everything fits.
const UNBOUNDED_BYTES: u64 = 1 << 50;
/// Maximum number of splits that are compiled, the best ones by the table of operations.
const COMPILED_SPLITS: usize = 12;
/// Number of prompt tokens of a batch beyond which prefill repeats itself: a search with more
/// tokens finds the same placement.
pub const TOKENS_MAX: u32 = 1 << 15;
/// Upper bound of the search for the largest batch.
const BATCH_MAX: u16 = 4096;

/// Everything that a scenario specifies, including the policy's name.
pub struct Setting<'a> {
    pub machine: Machine,
    pub config: ModelConfig,
    pub policy: PolicyName,
    pub scenario: &'a Scenario,
    formats: Formats,
    limits: MemoryLimits,
    batches: u16,
    pub batch_size: u16,
}

impl<'a> Setting<'a> {
    /// Resolves the names in a scenario.
    ///
    /// # Errors
    /// Fails if the planner does not know the model or machine, or does not support the scenario.
    pub fn of(scenario: &'a Scenario) -> Result<Setting<'a>, String> {
        let config = model::known::find_known(&scenario.model)
            .ok_or_else(|| format!("the planner does not know {}", scenario.model))?
            .config;
        let mut machine = planner::machine::find_bundled(&scenario.machine)
            .ok_or_else(|| format!("there is no description of {}", scenario.machine))?
            .map_err(sentence)?;
        if !scenario.far {
            machine.tier.clear();
        }
        if scenario.nvme {
            return Err(
                "the planner reads no weights from NVMe that memory has room for".to_owned()
            );
        }
        let policy = scenario.policy.parse().map_err(|error: UnknownPolicy| error.to_string())?;
        let limits = MemoryLimits {
            dram_bytes: if scenario.unbounded { UNBOUNDED_BYTES } else { machine.dram_bytes() },
            vram_bytes: Some(machine.vram_bytes()),
            vram_is_dram: false,
            slow_tier_bytes: machine.slow_tier_bytes(),
            device_scratch: None,
        };
        let count = |number: u32| u16::try_from(number).map_err(sentence);
        let (batches, batch_size) = (count(scenario.batches)?, count(scenario.batch_size)?);
        let formats = formats(&config, scenario.compression);
        Ok(Setting { machine, config, policy, scenario, formats, limits, batches, batch_size })
    }

    /// Returns the maximum number of sequences of a batch that fit in memory, regardless of the
    /// operations on the GPU.
    ///
    /// # Errors
    /// Fails if a map cannot be compiled.
    pub fn largest_batch(&self) -> Result<u16, String> {
        let policy = match self.policy {
            PolicyName::Flexgen => Policy::Flexgen(Flexgen::default()),
            _ => split(0, layer_list(&self.config, 0, None).len(), None),
        };
        let placement = Placement::from_policy(policy);
        let largest = self.request(&placement).largest_batch(self.batches, BATCH_MAX);
        Ok(largest.map_err(sentence)?.unwrap_or(0))
    }

    /// Calls `then` with an estimator for batches of `batch_size` with prompts of `prompt` tokens,
    /// and capacity for whole prompts.
    ///
    /// # Errors
    /// Returns a message if there is no answer.
    pub fn with_estimator<T>(
        &self,
        batch_size: u16,
        prompt: u32,
        then: impl FnOnce(&Estimator<'_>) -> Result<T, String>,
    ) -> Result<T, String> {
        let everything = Placement::from_policy(Policy::GpuOnly);
        let whole = self.request(&everything);
        let cut = PlacementRequest { max_prompt: self.searched_prompt(), ..whole };
        let tiers = cut.default_tiers(self.batches, self.batch_size).map_err(sentence)?;
        let request = &PlacementRequest { max_prompt: prompt, ..whole };
        let (batches, pricing) = (self.batches, &self.machine);
        let has_small_streams = false;
        then(&Estimator { request, batches, batch_size, pricing, tiers, has_small_streams })
    }

    fn request<'b>(&'b self, placement: &'b Placement) -> PlacementRequest<'b> {
        let Scenario { prompt, new_tokens, .. } = *self.scenario;
        PlacementRequest {
            config: &self.config,
            placement,
            formats: &self.formats,
            fuse_attention: true,
            dtype: DTYPE,
            max_prompt: prompt,
            shared_prompt: 0,
            max_context: prompt + new_tokens,
            max_new: new_tokens,
            logprobs: 0,
            prefill_chunk: None,
            limits: &self.limits,
            storage: None,
            routing: None,
        }
    }

    /// Returns the placement.
    ///
    /// # Errors
    /// Returns a message if there is none.
    pub fn placement(&self) -> Result<Placement, String> {
        let placement = self.near()?;
        let resident = placement.residency.layers.len();
        let layers = if self.scenario.far { self.config.num_layers - resident } else { 0 };
        let mut slow_tier = SlowTierLayers::NONE;
        slow_tier.layers[0] = layers;
        Ok(Placement { slow_tier, ..placement })
    }

    /// Returns the placement with everything on the host in its nearest memory.
    fn near(&self) -> Result<Placement, String> {
        if let Some([prefill, decode]) = &self.scenario.vectors {
            let policy =
                Policy::Lia { prefill: vector(prefill), decode: vector(decode), spread: false };
            return self.most_resident(policy);
        }
        let flexgen = |cpu_attention| {
            Placement::from_policy(Policy::Flexgen(Flexgen { spread: false, cpu_attention }))
        };
        match (self.policy, self.scenario.resident) {
            (PolicyName::TwoSplit | PolicyName::OneSplit, false) => self.streamed_split(),
            (PolicyName::Flexgen, false) => self.fastest(vec![flexgen(false), flexgen(true)]),
            (PolicyName::Lia, false) => Ok(Placement::from_policy(self.chosen()?.policy)),
            // FlexGen computes prompts on the GPU.
            (PolicyName::Flexgen, true) => {
                self.fitted(Placement { prefill_on_cpu: false, ..self.chosen()? })
            }
            (_, true) if self.searched_prompt() < self.scenario.prompt => {
                self.fitted(self.chosen()?)
            }
            _ => self.chosen(),
        }
    }

    /// Returns the placement found by the search of the policy.
    fn chosen(&self) -> Result<Placement, String> {
        let placement = Placement::from_policy(Policy::GpuOnly);
        let question = SearchRequest {
            request: &PlacementRequest {
                max_prompt: self.searched_prompt(),
                ..self.request(&placement)
            },
            batches: self.batches,
            batch_size: self.batch_size,
            policy: self.policy,
            chunkings: &self.chunkings(),
            pricing: &self.machine,
            effort: SearchEffort::Quick,
            rehearser: None,
        };
        choose_placement(&question).map_err(sentence)
    }

    /// Returns the number of prompt tokens in searches.
    fn searched_prompt(&self) -> u32 {
        let sequences = self.scenario.batches * self.scenario.batch_size;
        self.scenario.prompt.min((TOKENS_MAX / sequences).max(1))
    }

    fn chunkings(&self) -> Vec<Option<Chunking>> {
        let chunks = self.scenario.scores;
        let cut = (chunks > 1).then_some(Some(Chunking { order: ChunkOrder::Scores, chunks }));
        std::iter::once(None).chain(cut).collect()
    }

    /// Returns the placement with as many of its resident layers as fit.
    fn fitted(&self, mut placement: Placement) -> Result<Placement, String> {
        let fits = |placement: &Placement| {
            self.request(placement).fits(self.batches, self.batch_size).map_err(sentence)
        };
        while !fits(&placement)? {
            if placement.residency.layers.pop().is_none() {
                self.request(&placement).plan(self.batches, self.batch_size).map_err(sentence)?;
            }
        }
        Ok(placement)
    }

    /// Returns a placement of the policy with as many resident layers as fit, and their attention
    /// where it is fastest.
    fn most_resident(&self, policy: Policy) -> Result<Placement, String> {
        let all = ResidentAttention::ALL.map(|attention| {
            let residency = Residency {
                layers: (0..self.config.num_layers).collect(),
                attention,
                ..Residency::NONE
            };
            self.fitted(Placement { residency, ..Placement::from_policy(policy) })
        });
        self.fastest(all.into_iter().collect::<Result<_, _>>()?)
    }

    /// Returns the best interval of a layer if nothing stays in device memory.
    fn streamed_split(&self) -> Result<Placement, String> {
        let mut ranked = Vec::new();
        for chunking in self.chunkings() {
            let table = self.estimates(|one| operation_table(one, chunking).map_err(sentence))?;
            let count = table.ops.len();
            for (start, end) in self.policy.intervals(&table).unwrap_or_default() {
                let on_gpu = (0..count).map(|index| (start..end).contains(&index)).collect();
                let layer = LayerMap::of(on_gpu, table.compression.search_cases()[0]);
                let latency = steady_map(&table, &layer, &SlotLimits::default()).latency;
                ranked.push((latency, split(start, end, chunking)));
            }
        }
        ranked.sort_by_key(|(latency, _)| *latency);
        let best = ranked.into_iter().take(COMPILED_SPLITS);
        self.fastest(best.map(|(_, policy)| Placement::from_policy(policy)).collect())
    }

    fn estimates<T>(
        &self,
        then: impl FnOnce(&Estimator<'_>) -> Result<T, String>,
    ) -> Result<T, String> {
        self.with_estimator(self.batch_size, self.scenario.prompt, then)
    }

    /// Returns the placement with the shortest decode step.
    fn fastest(&self, placements: Vec<Placement>) -> Result<Placement, String> {
        self.estimates(|estimator| {
            let mut best: Option<(f64, Placement)> = None;
            for placement in placements {
                let step_ns = estimator.step_ns(&placement).map_err(sentence)?;
                if best.as_ref().is_none_or(|(least_ns, _)| step_ns < *least_ns) {
                    best = Some((step_ns, placement));
                }
            }
            best.map(|(_, placement)| placement).ok_or_else(|| "there is no placement".to_owned())
        })
    }
}

const fn split(start: usize, end: usize, chunking: Option<Chunking>) -> Policy {
    Policy::TwoSplit { split: Split { start, end }, chunking }
}

fn formats(config: &ModelConfig, compression: Compression) -> Formats {
    let mut formats = Formats::plain(config);
    if matches!(compression, Compression::W4 | Compression::W4kv4) {
        formats.weights = WeightFormats::with_layers(config, WeightFormat::Grouped(Grouped::W4));
    }
    if matches!(compression, Compression::Kv4 | Compression::W4kv4) {
        formats.kv = KvFormat::Four;
    }
    formats
}

/// Parses an offload vector from its digits.
pub fn vector(digits: &str) -> OffloadVector {
    let bytes = digits.as_bytes();
    OffloadVector(std::array::from_fn(|index| bytes.get(index) == Some(&b'1')))
}

/// Formats an offload vector as digits.
pub fn digits(OffloadVector(cpu): OffloadVector) -> String {
    cpu.map(|cpu| if cpu { '1' } else { '0' }).iter().collect()
}

fn sentence(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Returns a description of the placement.
pub fn describe(placement: &Placement, config: &ModelConfig) -> String {
    let mut text = match placement.policy {
        Policy::Lia { prefill, decode, .. } => {
            format!("{} then {}", digits(prefill), digits(decode))
        }
        Policy::TwoSplit { split, chunking } => interval(split, chunking, config),
        Policy::Flexgen(Flexgen { cpu_attention: true, .. }) => "attention on the CPU".to_owned(),
        Policy::Flexgen(_) => "attention on the GPU".to_owned(),
        Policy::CpuOnly | Policy::Ellm => "all on the CPU".to_owned(),
        _ => "all on the GPU".to_owned(),
    };
    if placement.prefill_on_cpu {
        text += ", prompts on the CPU";
    }
    if placement.kv == Some(MemoryId::VRAM) {
        text += ", KV in device memory";
    }
    let resident = placement.residency.layers.len();
    if resident > 0 {
        text += &format!(", {resident} of {} layers resident", config.num_layers);
    }
    text
}

fn interval(split: Split, chunking: Option<Chunking>, config: &ModelConfig) -> String {
    let list = layer_list(config, 0, chunking);
    let Split { start, end } = split;
    if start == end {
        return "all on the CPU".to_owned();
    }
    if (start, end) == (0, list.len()) {
        return "all on the GPU".to_owned();
    }
    let name = |index: usize| list[index].name(config).to_lowercase();
    format!("GPU {} to {}", name(start), name(end - 1))
}
