//! How a GPTQ checkpoint stores its zeros, by its zeros.
//!
//! The first format stores one less than a zero, the second the zero itself, and files of the
//! second kind exist that are called the first. A symmetric matrix of 4 bits has zeros of 8 alone,
//! so that its words tell which of the two it is.

use safetensors::tensor::Dtype as Stored;

use super::files::{Checkpoint, format_error};
use crate::quantization::{Quantization, StoredZeros};
use crate::source::SourceError;

/// Tensors that are looked at, and words of each.
const TENSORS_MAX: usize = 64;
const WORDS_MAX: usize = 1024;

/// Eight zeros of a symmetric matrix as the two formats store them.
const LESS_ONE: u32 = 0x7777_7777;
const SAME: u32 = 0x8888_8888;

/// The way in which matrices are kept, and a sentence where it is not the one that is said.
///
/// # Errors
/// Tensors that contradict each other, or a file that ends early.
pub(super) fn resolve(
    files: &Checkpoint,
    said: Quantization,
) -> Result<(Quantization, Option<String>), SourceError> {
    let Quantization::Gptq { group, zeros, symmetric: true } = said else {
        return Ok((said, None));
    };
    let found = match seen(files)? {
        Seen { less_one: true, same: true, other: false } => {
            let reason = "some of its matrices store zeros as GPTQ's first format does and some \
                          as its second does; quantise the model again";
            return Err(format_error(&files.directory, reason.to_owned()));
        }
        Seen { less_one: true, same: false, other: false } => StoredZeros::LessOne,
        Seen { less_one: false, same: true, other: false } => StoredZeros::Same,
        // Not symmetric, whatever is said, or without zeros.
        _ => zeros,
    };
    if found == zeros {
        return Ok((said, None));
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

/// Which words were met.
#[derive(Debug, Default)]
struct Seen {
    less_one: bool,
    same: bool,
    other: bool,
}

/// Looks at zeros of tensors all over the checkpoint.
fn seen(files: &Checkpoint) -> Result<Seen, SourceError> {
    let mut names: Vec<&str> = files.names().filter(|name| name.ends_with(".qzeros")).collect();
    names.sort_unstable();
    let step = names.len().div_ceil(TENSORS_MAX).max(1);
    let mut seen = Seen::default();
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
