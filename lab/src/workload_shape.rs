//! Shape of a requested load, with its tables read.

use crate::load::lengths::{LengthsError, read_trace};
use crate::load::workload::WorkloadShape;
use crate::request::LengthsChoice;

/// Returns the lengths and arrivals, and the default number of requests: `requests`, or all rows of
/// a trace.
///
/// # Errors
/// A table that cannot be read.
pub(crate) fn read_workload_shape(
    lengths: &LengthsChoice,
    requests: usize,
) -> Result<(WorkloadShape, usize), LengthsError> {
    Ok(match lengths {
        LengthsChoice::Fixed { prompt_tokens, answer_tokens } => {
            let (prompt_tokens, answer_tokens) = (*prompt_tokens, *answer_tokens);
            (WorkloadShape::Fixed { prompt_tokens, answer_tokens }, requests)
        }
        LengthsChoice::Rows(path) => (WorkloadShape::Rows(read_trace(path, false)?), requests),
        LengthsChoice::Trace(path) => (WorkloadShape::Trace(read_trace(path, true)?), usize::MAX),
    })
}
