//! Conversion of the arguments of `score` to a request.

use batch::input::InputFormat;
use batch::score::question::ScoreDetails;
use batch::sink::IoTarget;

use super::args::RunArgs;
use super::outputs::{parse_io_target, resolve_output};
use super::request::ScoreRequest;
use super::score::ScoreArgs;
use super::usage_error::UsageError;
use session::request::RunRequest;

/// Returns the arguments of the run that computes, and a function that completes the request.
///
/// # Errors
/// Arguments that contradict each other.
pub(super) fn convert_score(
    args: ScoreArgs,
) -> Result<(RunArgs, impl FnOnce(RunRequest) -> ScoreRequest), UsageError> {
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
    let options = ScoreDetails { tokens: args.tokens, top: args.top };
    let (slots, summary) = (args.slots, args.summary);
    let run = RunArgs {
        of_model: args.of_model,
        placement: args.placement,
        nvme: args.nvme,
        prompts: args.prompts,
        is_served: true,
        seed: args.seed,
        quiet: args.quiet,
        stop_at_eof: args.stop_at_eof,
        report: args.report,
        trace: args.trace,
        ..RunArgs::default()
    };
    let into_request = move |run| ScoreRequest {
        run,
        input,
        output,
        mode,
        context,
        stride,
        options,
        slots,
        summary,
    };
    Ok((run, into_request))
}
