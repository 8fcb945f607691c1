//! Start of a server's engine.

use std::sync::Arc;
use std::time::Duration;

use engine::serving::StepTime;
use engine_api::serving::Engine;

use crate::cli::request::ServeRequest;
use lab::iteration_costs::IterationCosts;
use report::placement::placement_entries;
use session::hybrid_placement::HybridConfig;
use session::interrupt::Interrupt;
use session::serving::{LONG_CONTEXT, LONG_PAGE_POSITIONS, PAGE_POSITIONS, ServingConfig, start};
use session::session::Session;

/// Number of log-probabilities per token: its own and those of the twenty most likely tokens.
const MAX_LOGPROBS: u16 = 21;

/// Bytes of a step's logits if tokens are drafted, in addition to those of each slot's newest
/// token.
const DRAFT_LOGITS_BYTES: usize = 32 << 20;

/// An engine that has started.
pub(super) struct StartedEngine {
    pub(super) engine: Arc<dyn Engine>,
    /// The plan's placement, as names and descriptions.
    pub(super) placement: Vec<(&'static str, String)>,
}

/// Starts the engine.
///
/// # Errors
/// A reason that prevents its start.
pub(super) fn start_engine(
    request: &ServeRequest,
    session: &Session<'_>,
    interrupt: &Interrupt,
) -> anyhow::Result<StartedEngine> {
    if let Some(path) = &request.costs {
        IterationCosts::check_path(path)?;
    }
    let is_long = request.context.is_some_and(|context| context > LONG_CONTEXT);
    let within = |ms: u32| StepTime::Target(Duration::from_millis(ms.into()));
    let step = request.step_ms.map_or(StepTime::Auto, within);
    let serving_config = ServingConfig {
        slots: request.slots,
        context: request.context,
        step,
        logprobs: MAX_LOGPROBS,
        logits_bytes: if request.options.drafts_all { DRAFT_LOGITS_BYTES } else { 0 },
        min_logits_rows: 1 + request.options.max_drafts,
        page_positions: if is_long { LONG_PAGE_POSITIONS } else { PAGE_POSITIONS },
        records: false,
        hybrid: request.hybrid.map(|(policy, device_slots)| HybridConfig { policy, device_slots }),
    };
    let engine = start(session, serving_config, None, interrupt)?;
    if let (Some(path), Some(hybrid)) = (&request.costs, engine.hybrid_policy()) {
        let name = session.model.config.name.clone();
        IterationCosts::new(name, &hybrid.limits, &hybrid.costs).write(path)?;
    }
    let placement = placement_entries(engine.plan());
    Ok(StartedEngine { engine: Arc::new(engine), placement })
}
