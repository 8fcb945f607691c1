//! Conversion of the arguments of `score` to a request.

use super::low::LowRun;
use super::outputs::{mode_of, place_of};
use super::request::{Run, ScoreRequest};
use super::score::LowScore;
use super::usage_error::UsageError;
use crate::job::input::Format;
use crate::job::sink::Place;
use crate::score::item::Shown;

/// Returns the arguments of the run that computes, and a function that completes the request.
///
/// # Errors
/// Arguments that contradict each other.
pub(super) fn scoring(
    low: LowScore,
) -> Result<(LowRun, impl FnOnce(Run) -> ScoreRequest), UsageError> {
    let input = place_of(&low.input);
    if low.stop_at_eof && input == Place::Standard {
        return Err(UsageError::StdinTwice);
    }
    if low.of_model.kv_select.is_some() {
        return Err(UsageError::SelectInScore);
    }
    let (output, mode) = mode_of(low.output.as_ref(), low.resume, low.force)?;
    let (context, stride) = (low.context, low.stride);
    if Format::of(&input) == Format::JsonLines && (context.is_some() || stride.is_some()) {
        return Err(UsageError::WindowsOfLines);
    }
    if let (Some(context), Some(stride)) = (context, stride)
        && stride > context
    {
        return Err(UsageError::LongStride { stride, context });
    }
    let shown = Shown { tokens: low.tokens, top: low.top };
    let (slots, summary) = (low.slots, low.summary);
    let run = LowRun {
        of_model: low.of_model,
        placement: low.placement,
        nvme: low.nvme,
        prompts: low.prompts,
        is_served: true,
        seed: low.seed,
        quiet: low.quiet,
        stop_at_eof: low.stop_at_eof,
        ..LowRun::default()
    };
    let meant = move |run| ScoreRequest {
        run,
        input,
        output,
        mode,
        context,
        stride,
        shown,
        slots,
        summary,
    };
    Ok((run, meant))
}
