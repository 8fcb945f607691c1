//! The engine of a server.

use std::sync::Arc;
use std::time::Duration;

use crate::boundary::serving::Serving;
use crate::cli::request::ServeRequest;
use crate::interrupt::Interrupt;
use crate::setup::model::Opened;
use crate::setup::serving::{Served, start};

/// Log-probabilities of a token: its own, and of the twenty most likely ones.
const LOGPROBS: u16 = 21;

/// Positions of a page of the caches.
const PAGE_POSITIONS: u32 = 256;

/// How long a step should take, unless it is said: what a reader takes for fluent.
const STEP_MS: u32 = 100;

/// Starts what computes.
///
/// # Errors
/// What keeps it from starting.
pub(super) fn start_engine(
    request: &ServeRequest,
    opened: &Opened,
    interrupt: &Interrupt,
) -> anyhow::Result<Arc<dyn Serving>> {
    let step = Duration::from_millis(request.step_ms.unwrap_or(STEP_MS).into());
    let served = Served {
        slots: request.slots,
        context: request.context,
        step,
        logprobs: LOGPROBS,
        logits_bytes: 0,
        page_positions: PAGE_POSITIONS,
    };
    Ok(Arc::new(start(&request.run, opened, served, interrupt)?))
}
