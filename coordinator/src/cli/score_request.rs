//! Conversion of the arguments of `score` to a request.

use batch::input::InputFormat;
use batch::score::question::ScoreDetails;
use batch::sink::IoTarget;

use super::outputs::{parse_io_target, resolve_output};
use super::request::ScoreRequest;
use super::score::ScoreArgs;
use super::session_options::{SessionArgs, quiet_or_normal};
use super::speculation::SpeculationArgs;
use super::usage_error::UsageError;

/// Validates the arguments of `score`.
///
/// # Errors
/// Arguments that contradict each other.
pub(super) fn convert_score(args: ScoreArgs) -> Result<ScoreRequest, UsageError> {
    let input = parse_io_target(&args.input);
    if args.stop_at_eof && input == IoTarget::Standard {
        return Err(UsageError::RepeatedStdin);
    }
    if args.of_model.kv_select.is_some() {
        return Err(UsageError::SelectInScore);
    }
    let (output, mode) = resolve_output(args.output.as_ref(), args.resume, args.force)?;
    let (context, stride) = (args.context, args.stride);
    if InputFormat::from_target(&input) == InputFormat::JsonLines
        && (context.is_some() || stride.is_some())
    {
        return Err(UsageError::WindowsWithJsonLines);
    }
    if let (Some(context), Some(stride)) = (context, stride)
        && stride > context
    {
        return Err(UsageError::StrideExceedsContext { stride, context });
    }
    let session_args = SessionArgs {
        of_model: args.of_model,
        placement: args.placement,
        nvme: args.nvme,
        prompts: args.prompts,
        speculation: SpeculationArgs::default(),
        positions: None,
        seed: args.seed,
        stop_at_eof: args.stop_at_eof,
        verbosity: quiet_or_normal(args.quiet),
    };
    Ok(ScoreRequest {
        options: session_args.into_options()?,
        input,
        output,
        mode,
        context,
        stride,
        details: ScoreDetails { tokens: args.tokens, top: args.top },
        slots: args.slots,
        summary: args.summary,
        report: args.report,
        trace: args.trace,
    })
}
