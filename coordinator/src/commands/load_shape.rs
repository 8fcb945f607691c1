//! Shape of a requested load, with its tables read.

use crate::cli::request::LengthsChoice;
use crate::load::lengths::{LengthsError, read_rows};
use crate::load::workload::Shape;

/// Returns the lengths and arrivals, and the default number of requests: `requests`, or all rows of
/// a trace.
///
/// # Errors
/// A table that cannot be read.
pub(in crate::commands) fn load_shape(
    lengths: &LengthsChoice,
    requests: usize,
) -> Result<(Shape, usize), LengthsError> {
    Ok(match lengths {
        LengthsChoice::Alike { prompt_tokens, answer_tokens } => {
            let (prompt_tokens, answer_tokens) = (*prompt_tokens, *answer_tokens);
            (Shape::Alike { prompt_tokens, answer_tokens }, requests)
        }
        LengthsChoice::Rows(path) => (Shape::Rows(read_rows(path, false)?), requests),
        LengthsChoice::Trace(path) => (Shape::Trace(read_rows(path, true)?), usize::MAX),
    })
}
