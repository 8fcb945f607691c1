//! Speculative decoding on a described machine: how many drafted tokens a step verifies, and the
//! placement that is best for such steps.

use program::plan::Plan;

use crate::machine::{DraftedDecode, Machine};
use crate::search::{CostError, SearchError, SearchRequest, SearchResult, choose, steady_step_ns};

/// Numbers of drafts that are compared, and the largest one that is permitted.
const COMPARED: [u32; 11] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48];
/// Maximum number of searches: the best placement depends on the number of drafts, and that on the
/// placement.
const SEARCHES_MAX: u32 = 3;

/// Drafts as assumed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AssumedDrafts {
    /// Probability that a draft is accepted if those before it are, from 0 to 1.
    pub acceptance: f64,
    /// Maximum number of drafts of a sequence in a step, at least 1.
    pub max_drafts: u32,
    /// Duration of a step of a draft model, which drafts a token of every sequence before the step
    /// that verifies them; 0 if drafts take no time.
    pub draft_step_ns: f64,
    /// Duration of the prompts of all sequences in a draft model; 0 without one.
    pub draft_prefill_ns: f64,
}

impl AssumedDrafts {
    /// Returns the step with a number of drafts, which takes `verify_ns` without drafting.
    fn step(&self, drafts: u32, verify_ns: f64) -> DraftedStep {
        let tokens = (0..=drafts).map(|accepted| self.acceptance.powi(accepted as i32)).sum();
        DraftedStep { drafts, tokens, ns: verify_ns + f64::from(drafts) * self.draft_step_ns }
    }
}

/// Decode step of all sequences, each with the same number of drafts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftedStep {
    /// Number of drafts of a sequence.
    pub drafts: u32,
    /// Expected number of tokens of a sequence.
    pub tokens: f64,
    /// Duration in the middle of the output, including that of drafting.
    pub ns: f64,
}

impl DraftedStep {
    fn ns_per_token(&self) -> f64 {
        self.ns / self.tokens
    }
}

/// Predicted decoding with drafts.
#[derive(Debug)]
pub struct SpeculativePlan {
    /// The placement, with the durations of steps that verify `step.drafts` drafts.
    pub search_result: SearchResult,
    pub step: DraftedStep,
    /// Steps of this placement by their number of drafts, in ascending order, from none.
    pub compared: Vec<DraftedStep>,
    /// See [`AssumedDrafts::draft_prefill_ns`].
    pub draft_prefill_ns: f64,
}

impl SpeculativePlan {
    /// Returns the new tokens of a group of full batches divided by its predicted duration.
    pub fn tokens_per_s(&self) -> f64 {
        tokens_per_s(&self.search_result, &self.step, self.draft_prefill_ns)
    }

    /// Returns the throughput relative to that of a plan without drafts for the same request.
    pub fn gain(&self, without: &SearchResult) -> f64 {
        let step = DraftedStep { drafts: 0, tokens: 1.0, ns: without.steady.step_ns() };
        self.tokens_per_s() / tokens_per_s(without, &step, 0.0)
    }
}

/// Returns the throughput of prefill and of as many steps as the tokens after the first take on
/// average.
fn tokens_per_s(search_result: &SearchResult, step: &DraftedStep, draft_prefill_ns: f64) -> f64 {
    let shape = &search_result.plan.shape;
    let sequences = f64::from(shape.batches) * f64::from(shape.batch_size);
    let decode_ns = f64::from(shape.max_new.saturating_sub(1)) * step.ns_per_token();
    let total_ns = search_result.predicted.prefill_ns + draft_prefill_ns + decode_ns;
    sequences * f64::from(shape.max_new) / (total_ns / 1e9)
}

/// Returns the fastest decoding with at least one draft a step. `plan` is a plan for the same
/// request without drafts; the pricing of the request is replaced by that of the machine.
///
/// # Errors
/// Nothing fits, or a plan that cannot be priced.
pub fn choose_drafts(
    question: &SearchRequest<'_>,
    machine: &Machine,
    plan: &Plan,
    assumed: &AssumedDrafts,
) -> Result<SpeculativePlan, SearchError> {
    let mut drafts = fastest(&compare(machine, plan, assumed)?).drafts;
    let mut best: Option<SpeculativePlan> = None;
    for _ in 0..SEARCHES_MAX {
        let pricing = DraftedDecode { machine, drafts };
        let search_result = choose(&SearchRequest { pricing: &pricing, ..*question })?;
        let compared = compare(machine, &search_result.plan, assumed)?;
        let step = assumed.step(drafts, search_result.steady.step_ns());
        let next = fastest(&compared).drafts;
        let draft_prefill_ns = assumed.draft_prefill_ns;
        let found = SpeculativePlan { search_result, step, compared, draft_prefill_ns };
        if best.as_ref().is_none_or(|best| found.tokens_per_s() > best.tokens_per_s()) {
            best = Some(found);
        }
        if next == drafts {
            break;
        }
        drafts = next;
    }
    Ok(best.expect("at least one search"))
}

/// Returns the steps of a placement by their number of drafts, from none.
fn compare(
    machine: &Machine,
    plan: &Plan,
    assumed: &AssumedDrafts,
) -> Result<Vec<DraftedStep>, CostError> {
    let middle = plan.shape.max_prompt + plan.shape.max_new / 2;
    let fewer = COMPARED.into_iter().filter(|drafts| *drafts < assumed.max_drafts);
    let all = std::iter::once(0).chain(fewer).chain([assumed.max_drafts]);
    all.map(|drafts| {
        let verify_ns = steady_step_ns(plan, &DraftedDecode { machine, drafts }, middle)?;
        Ok(assumed.step(drafts, verify_ns))
    })
    .collect()
}

/// Returns the fastest step with at least one draft.
fn fastest(steps: &[DraftedStep]) -> DraftedStep {
    let drafted = steps.iter().filter(|step| step.drafts > 0);
    let fastest = drafted.min_by(|a, b| a.ns_per_token().total_cmp(&b.ns_per_token()));
    *fastest.expect("at least one draft is permitted")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{MemoryLimits, PlacementRequest};
    use crate::machine::find_bundled;
    use crate::policy::name::PolicyName;
    use crate::policy::{Formats, Placement, Policy};
    use crate::search::SearchEffort;
    use model::config::Dtype;
    use model::known::find_known;

    /// Four layers of OPT-30B on a machine whose card has the memory for few of them.
    struct Case {
        machine: Machine,
        batch_size: u16,
        policy: PolicyName,
    }

    impl Case {
        fn new(batch_size: u16, policy: PolicyName) -> Case {
            let mut machine = find_bundled("ryzen7950x-a4000").expect("there").expect("valid");
            machine.memory.vram_gib = 4.0;
            Case { machine, batch_size, policy }
        }

        fn with_question<T>(&self, then: impl FnOnce(&SearchRequest<'_>) -> T) -> T {
            let mut config = find_known("opt-30b").expect("known").config;
            config.keep_layers(4);
            let limits = MemoryLimits {
                dram_bytes: self.machine.dram_bytes(),
                vram_bytes: Some(self.machine.vram_bytes()),
                vram_is_dram: false,
                slow_tier_bytes: MemoryLimits::NO_SLOW_TIER,
                device_scratch: None,
            };
            let request = PlacementRequest {
                config: &config,
                placement: &Placement::from_policy(Policy::GpuOnly),
                formats: &Formats::plain(&config),
                fuse_attention: true,
                dtype: Dtype::Bf16,
                max_prompt: 128,
                shared_prompt: 0,
                max_context: 192,
                max_new: 64,
                logprobs: 0,
                prefill_chunk: None,
                limits: &limits,
                storage: None,
                routing: None,
            };
            then(&SearchRequest {
                request: &request,
                batches: 1,
                batch_size: self.batch_size,
                policy: self.policy,
                chunkings: &[None],
                pricing: &self.machine,
                effort: SearchEffort::Full,
                rehearser: None,
            })
        }

        /// Returns the plan with drafts, and its gain.
        fn predict(&self, assumed: &AssumedDrafts) -> (SpeculativePlan, f64) {
            self.with_question(|question| {
                let without = choose(question).expect("it fits");
                let found = choose_drafts(question, &self.machine, &without.plan, assumed);
                let found = found.expect("it fits");
                let gain = found.gain(&without);
                (found, gain)
            })
        }
    }

    fn assumed(acceptance: f64) -> AssumedDrafts {
        AssumedDrafts { acceptance, max_drafts: 16, draft_step_ns: 0.0, draft_prefill_ns: 0.0 }
    }

    #[test]
    fn tokens_of_a_step_by_hand() {
        let step = |acceptance, drafts| assumed(acceptance).step(drafts, 7.0);
        assert_eq!(step(0.5, 2), DraftedStep { drafts: 2, tokens: 1.75, ns: 7.0 });
        assert_eq!((step(0.0, 5).tokens, step(1.0, 5).tokens), (1.0, 6.0));
        let slow = AssumedDrafts { draft_step_ns: 2.0, ..assumed(0.5) };
        assert_eq!(slow.step(3, 7.0).ns, 13.0);
    }

    /// Rows cost little where weights are streamed.
    #[test]
    fn streamed_weights_gain_nearly_the_tokens_of_a_step() {
        let case = Case::new(1, PolicyName::GpuOnly);
        let (found, gain) = case.predict(&assumed(0.8));
        assert!(found.step.drafts >= 12, "{:?}", found.step);
        assert!(gain > 0.8 * found.step.tokens, "{gain} {:?}", found.step);
        let (found, gain) = case.predict(&assumed(0.0));
        assert!(gain <= 1.001, "drafts that are never accepted: {gain}");
        assert_eq!(found.step.drafts, 1, "the fewest");
    }

    #[test]
    fn fewer_drafts_where_rows_or_drafts_take_time() {
        let case = Case::new(1, PolicyName::CpuOnly);
        let drafts = |case: &Case, draft_step_ns| {
            let assumed = AssumedDrafts { draft_step_ns, ..assumed(0.8) };
            case.predict(&assumed).0.step.drafts
        };
        let free = drafts(&case, 0.0);
        assert!(drafts(&Case::new(32, PolicyName::CpuOnly), 0.0) < free, "rows take time");
        assert!(drafts(&case, 20e6) < free, "drafts take time");
    }

    /// No number of drafts has a placement that is more than 1% faster than the chosen one: few
    /// searches may end before the best pair of both.
    #[test]
    fn choice_is_that_of_a_search_for_each_number() {
        let case = Case::new(8, PolicyName::Auto);
        let assumed = assumed(0.7);
        let (found, _) = case.predict(&assumed);
        case.with_question(|question| {
            for drafts in [1, 2, 3, 4, 6, 8, 12, 16] {
                let pricing = DraftedDecode { machine: &case.machine, drafts };
                let other = choose(&SearchRequest { pricing: &pricing, ..*question });
                let search_result = other.expect("it fits");
                let step = assumed.step(drafts, search_result.steady.step_ns());
                let (compared, draft_prefill_ns) = (Vec::new(), 0.0);
                let other = SpeculativePlan { search_result, step, compared, draft_prefill_ns };
                let ratio = found.tokens_per_s() / other.tokens_per_s();
                assert!(ratio > 0.99, "{drafts}: {ratio}, {:?} {:?}", found.step, other.step);
            }
        });
    }
}
