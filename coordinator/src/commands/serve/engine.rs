//! The engine of a server.

use std::sync::Arc;

use crate::boundary::serving::Serving;
use crate::cli::request::ServeRequest;
use crate::interrupt::Interrupt;
use crate::setup::model::Opened;

/// Starts what computes.
///
/// # Errors
/// What keeps it from starting.
pub(super) fn start_engine(
    _request: &ServeRequest,
    _opened: &Opened,
    _interrupt: &Interrupt,
) -> anyhow::Result<Arc<dyn Serving>> {
    anyhow::bail!("serving is not built yet: this version answers files (--input) only")
}
