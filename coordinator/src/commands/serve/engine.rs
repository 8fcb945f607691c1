//! Start of a server's engine.

use std::sync::Arc;
use std::time::Duration;

use crate::boundary::serving::Serving;
use crate::cli::request::ServeRequest;
use crate::commands::iteration_costs::IterationCosts;
use crate::engine::serving::StepTime;
use crate::interrupt::Interrupt;
use crate::setup::model::Opened;
use crate::setup::owners::Owners;
use crate::setup::serving::{LONG_CONTEXT, LONG_PAGE_POSITIONS, PAGE_POSITIONS, Served, start};

/// Number of log-probabilities per token: its own and those of the twenty most likely tokens.
const LOGPROBS: u16 = 21;

/// Starts the engine.
///
/// # Errors
/// A reason that prevents its start.
pub(super) fn start_engine(
    request: &ServeRequest,
    opened: &Opened,
    interrupt: &Interrupt,
) -> anyhow::Result<Arc<dyn Serving>> {
    if let Some(path) = &request.costs {
        IterationCosts::check_path(path)?;
    }
    let is_long = request.context.is_some_and(|context| context > LONG_CONTEXT);
    let within = |ms: u32| StepTime::Within(Duration::from_millis(ms.into()));
    let step = request.step_ms.map_or(StepTime::Fluent, within);
    let served = Served {
        slots: request.slots,
        context: request.context,
        step,
        logprobs: LOGPROBS,
        logits_bytes: 0,
        page_positions: if is_long { LONG_PAGE_POSITIONS } else { PAGE_POSITIONS },
        owners: request.owners.map(|(policy, device_slots)| Owners { policy, device_slots }),
    };
    let engine = start(&request.run, opened, served, interrupt)?;
    if let (Some(path), Some(deciding)) = (&request.costs, engine.deciding()) {
        let name = opened.config.name.clone();
        IterationCosts::new(name, &deciding.limits, &deciding.costs).write(path)?;
    }
    Ok(Arc::new(engine))
}
