//! Detection of the format in which a GPTQ checkpoint stores zero points.
//!
//! The first format stores each zero point minus one, the second the zero point itself, and some
//! files in the second format are labelled as the first. Since all zero points of a symmetric 4-bit
//! matrix are 8, its words identify the actual format.

use safetensors::tensor::Dtype as Stored;

use super::files::{Checkpoint, format_error};
use crate::quantization::{Quantization, StoredZeros};
use crate::source::SourceError;

/// Maximum number of tensors that are inspected, and of words in each.
const TENSORS_MAX: usize = 64;
const WORDS_MAX: usize = 1024;

/// Eight zero points of a symmetric matrix in the two formats.
const LESS_ONE: u32 = 0x7777_7777;
const SAME: u32 = 0x8888_8888;

/// Returns the actual quantisation, and a notice if it differs from the declared one.
///
/// # Errors
/// Contradictory tensors, or a file that ends early.
pub(super) fn resolve(
    files: &Checkpoint,
    declared: Quantization,
) -> Result<(Quantization, Option<String>), SourceError> {
    let Quantization::Gptq { group, zeros, symmetric: true } = declared else {
        return Ok((declared, None));
    };
    let found = match observe_zeros(files)? {
        ObservedZeros { less_one: true, same: true, other: false } => {
            let reason = "some of its matrices store zeros as GPTQ's first format does and some \
                          as its second does; quantise the model again";
            return Err(format_error(&files.directory, reason.to_owned()));
        }
        ObservedZeros { less_one: true, same: false, other: false } => StoredZeros::LessOne,
        ObservedZeros { less_one: false, same: true, other: false } => StoredZeros::Same,
        // Not actually symmetric, or without zero points.
        _ => zeros,
    };
    if found == zeros {
        return Ok((declared, None));
    }
    let (format, found_format) = match found {
        StoredZeros::Same => ("gptq", "gptq_v2"),
        StoredZeros::LessOne => ("gptq_v2", "gptq"),
    };
    let notice = format!(
        "config.json calls the checkpoint's format {format}, but its zeros are stored as in \
         {found_format}; they are read so"
    );
    Ok((Quantization::Gptq { group, zeros: found, symmetric: true }, Some(notice)))
}

/// Kinds of words that occur.
#[derive(Debug, Default)]
struct ObservedZeros {
    less_one: bool,
    same: bool,
    other: bool,
}

/// Inspects the zero points of tensors spread over the checkpoint.
fn observe_zeros(files: &Checkpoint) -> Result<ObservedZeros, SourceError> {
    let mut names: Vec<&str> = files.names().filter(|name| name.ends_with(".qzeros")).collect();
    names.sort_unstable();
    let step = names.len().div_ceil(TENSORS_MAX).max(1);
    let mut seen = ObservedZeros::default();
    for name in names.into_iter().step_by(step) {
        let stretch = files.require(name)?;
        if !matches!(stretch.stored, Stored::I32 | Stored::U32) {
            continue;
        }
        let mut bytes = vec![0; 4 * stretch.elements().min(WORDS_MAX)];
        files.read(stretch, 0, &mut bytes)?;
        for bytes in bytes.as_chunks::<4>().0 {
            match u32::from_le_bytes(*bytes) {
                LESS_ONE => seen.less_one = true,
                SAME => seen.same = true,
                _ => seen.other = true,
            }
        }
    }
    Ok(seen)
}
