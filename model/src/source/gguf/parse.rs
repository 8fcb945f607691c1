//! Reader of a GGUF file's header, metadata and tensor directory (versions 2 and 3, little endian).
//!
//! The file is not trusted. Every length is compared with the remaining size of the file and with a
//! limit before anything is allocated for it, so the memory used is bounded by the limits below,
//! and a file that is truncated anywhere causes an error. Tensor data is not read, but each tensor
//! of a supported type is checked to be inside the file.

use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;

use super::dequantise::TensorType;
use super::metadata::{Metadata, MetadataArray, MetadataError, MetadataValue};

/// Maximum number of keys and of tensors. A model has a few dozen keys, and ten tensors per layer.
const MAX_ENTRIES: u64 = 1 << 16;
/// Maximum number of elements of all arrays together. The largest vocabularies have some 300 000
/// tokens and merges.
const MAX_ARRAY_ELEMENTS: u64 = 1 << 24;
/// Maximum length of a string. Chat templates have some 10 KiB.
const MAX_TEXT_BYTES: u64 = 1 << 24;
/// Maximum length of a key, as defined by the format.
const MAX_KEY_BYTES: u64 = (1 << 16) - 1;
/// Maximum size of header, metadata and tensor directory together.
const MAX_METADATA_BYTES: u64 = 1 << 28;
/// Maximum depth of nested arrays, which the format allows but files do not use.
const MAX_DEPTH: u32 = 3;
/// Maximum number of dimensions of a tensor, as in GGML.
const MAX_DIMENSIONS: u32 = 4;
const DEFAULT_ALIGNMENT: u32 = 32;
const MAX_ALIGNMENT: u32 = 1 << 20;

/// Contents of the head of a file.
#[derive(Debug)]
pub(super) struct GgufHeader {
    pub metadata: Metadata,
    /// Keys in the file's order, each with the position of the key, type and value in the file.
    pub entries: Vec<(String, Range<u64>)>,
    pub tensors: HashMap<String, TensorInfo>,
}

/// Location of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TensorInfo {
    /// Shape `[out, in]` or `[n]`, the reverse of the order in the file. The product of the
    /// dimensions fits in a `usize`.
    pub shape: Vec<usize>,
    pub tensor_type: TensorType,
    /// Offset from the start of the file, in bytes.
    pub offset: u64,
    /// Index of the file that contains the tensor, for a model with several files.
    pub part: usize,
}

/// Reason for which a file cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ParseError {
    #[error(transparent)]
    Io(std::io::Error),
    #[error("not a GGUF file (it does not start with the letters GGUF)")]
    Magic,
    #[error("a big-endian GGUF file; only little-endian files are supported")]
    BigEndian,
    #[error("GGUF version {0} is not supported, only 2 and 3 are; convert the model again")]
    Version(u32),
    #[error("the file ends inside {what}; it is probably an incomplete download")]
    Truncated { what: &'static str },
    #[error("{what} has {found} {unit}, more than the limit of {limit}; the file is corrupt")]
    Limit { what: &'static str, unit: &'static str, found: u64, limit: u64 },
    #[error("{what} is not valid UTF-8; the file is corrupt")]
    Utf8 { what: &'static str },
    #[error("{0} is not a metadata value type; the file is corrupt")]
    ValueType(u32),
    #[error("the boolean {0} is neither 0 nor 1; the file is corrupt")]
    Boolean(u8),
    #[error("{what} {name:?} occurs twice; the file is corrupt")]
    Duplicate { what: &'static str, name: String },
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error("general.alignment is {0}, which is not a power of two up to {MAX_ALIGNMENT}")]
    Alignment(u32),
    #[error("tensor {name:?} {reason}; the file is corrupt")]
    Tensor { name: String, reason: String },
}

/// Parses the head of a file of `file_bytes` bytes.
pub(super) fn parse(input: impl Read, file_bytes: u64) -> Result<GgufHeader, ParseError> {
    let mut reader = GgufReader { input, position: 0, file_bytes, array_elements: 0 };
    if &reader.bytes::<4>("the header")? != b"GGUF" {
        return Err(ParseError::Magic);
    }
    let version = reader.u32("the header")?;
    if !(2..=3).contains(&version) {
        let swapped = version.swap_bytes();
        let big_endian = (1..=16).contains(&swapped);
        return Err(if big_endian { ParseError::BigEndian } else { ParseError::Version(version) });
    }
    let tensor_count = reader.count("the tensor directory", "tensors")?;
    let value_count = reader.count("the metadata", "keys")?;

    let mut metadata = Metadata::default();
    let mut entries = Vec::new();
    for _ in 0..value_count {
        let start = reader.position;
        let key = reader.text("a metadata key", MAX_KEY_BYTES)?;
        let value_type = reader.u32("a metadata value type")?;
        let value = reader.value(value_type)?;
        if !metadata.insert(key.clone(), value) {
            return Err(ParseError::Duplicate { what: "metadata key", name: key });
        }
        entries.push((key, start..reader.position));
    }
    let alignment = metadata.integer("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
        return Err(ParseError::Alignment(alignment));
    }

    let mut tensors = HashMap::new();
    for _ in 0..tensor_count {
        let (name, info) = reader.tensor_info(u64::from(alignment))?;
        if tensors.insert(name.clone(), info).is_some() {
            return Err(ParseError::Duplicate { what: "tensor", name });
        }
    }
    let data_start = reader.position.next_multiple_of(u64::from(alignment));
    for (name, info) in &mut tensors {
        info.place(data_start, file_bytes)
            .map_err(|reason| ParseError::Tensor { name: name.clone(), reason })?;
    }
    Ok(GgufHeader { metadata, entries, tensors })
}

impl TensorInfo {
    /// Converts the offset to one from the start of the file, and checks that the data is inside
    /// the file. The size of data of an unsupported type is not known; such a tensor is refused
    /// when it is used.
    fn place(&mut self, data_start: u64, file_bytes: u64) -> Result<(), String> {
        let past_end = || "is past the end of the file".to_owned();
        self.offset = self.offset.checked_add(data_start).ok_or_else(past_end)?;
        let Some((block_elements, block_bytes)) = self.tensor_type.block() else {
            return Ok(());
        };
        // The last dimension is the row. The shape is never empty.
        let row_elements = self.shape.last().copied().unwrap_or(0);
        if row_elements % block_elements != 0 {
            return Err(format!(
                "has rows of {row_elements} elements, which blocks of {block_elements} do not \
                 divide"
            ));
        }
        let blocks = self.shape.iter().product::<usize>() / block_elements;
        let end = (blocks as u64)
            .checked_mul(block_bytes as u64)
            .and_then(|size_bytes| size_bytes.checked_add(self.offset));
        match end {
            Some(end) if end <= file_bytes => Ok(()),
            _ => Err(past_end()),
        }
    }
}

/// A cursor with the remaining size of the file.
struct GgufReader<R> {
    input: R,
    position: u64,
    file_bytes: u64,
    /// Number of array elements read so far, limited by [`MAX_ARRAY_ELEMENTS`].
    array_elements: u64,
}

impl<R: Read> GgufReader<R> {
    /// Reserves the next `count` bytes; returns an error if the file does not have that many.
    fn claim(&mut self, count: u64, what: &'static str) -> Result<(), ParseError> {
        if count > self.file_bytes - self.position {
            return Err(ParseError::Truncated { what });
        }
        self.position += count;
        if self.position > MAX_METADATA_BYTES {
            return Err(ParseError::Limit {
                what: "the metadata",
                unit: "bytes",
                found: self.position,
                limit: MAX_METADATA_BYTES,
            });
        }
        Ok(())
    }

    fn fill(&mut self, out: &mut [u8], what: &'static str) -> Result<(), ParseError> {
        self.input.read_exact(out).map_err(|error| match error.kind() {
            // The file was truncated after its size was determined.
            std::io::ErrorKind::UnexpectedEof => ParseError::Truncated { what },
            _ => ParseError::Io(error),
        })
    }

    fn bytes<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], ParseError> {
        self.claim(N as u64, what)?;
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, ParseError> {
        Ok(u32::from_le_bytes(self.bytes(what)?))
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, ParseError> {
        Ok(u64::from_le_bytes(self.bytes(what)?))
    }

    fn count(&mut self, what: &'static str, unit: &'static str) -> Result<u64, ParseError> {
        let found = self.u64("the header")?;
        limit(what, unit, found, MAX_ENTRIES)
    }

    fn text(&mut self, what: &'static str, max_bytes: u64) -> Result<String, ParseError> {
        let length = self.u64(what)?;
        let length = limit(what, "bytes", length, max_bytes)?;
        self.claim(length, what)?;
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes, what)?;
        String::from_utf8(bytes).map_err(|_| ParseError::Utf8 { what })
    }

    fn boolean(&mut self) -> Result<bool, ParseError> {
        match self.bytes::<1>("a metadata value")?[0] {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(ParseError::Boolean(other)),
        }
    }

    fn unsigned(&mut self, value_type: u32) -> Result<u64, ParseError> {
        let what = "a metadata value";
        Ok(match value_type {
            0 => u64::from(self.bytes::<1>(what)?[0]),
            2 => u64::from(u16::from_le_bytes(self.bytes(what)?)),
            4 => u64::from(self.u32(what)?),
            _ => self.u64(what)?,
        })
    }

    fn signed(&mut self, value_type: u32) -> Result<i64, ParseError> {
        let what = "a metadata value";
        Ok(match value_type {
            1 => i64::from(i8::from_le_bytes(self.bytes(what)?)),
            3 => i64::from(i16::from_le_bytes(self.bytes(what)?)),
            5 => i64::from(i32::from_le_bytes(self.bytes(what)?)),
            _ => i64::from_le_bytes(self.bytes(what)?),
        })
    }

    fn float(&mut self, value_type: u32) -> Result<f64, ParseError> {
        let what = "a metadata value";
        Ok(match value_type {
            6 => f64::from(f32::from_le_bytes(self.bytes(what)?)),
            _ => f64::from_le_bytes(self.bytes(what)?),
        })
    }

    fn value(&mut self, value_type: u32) -> Result<MetadataValue, ParseError> {
        Ok(match value_type {
            0 | 2 | 4 | 10 => MetadataValue::Unsigned(self.unsigned(value_type)?),
            1 | 3 | 5 | 11 => MetadataValue::Signed(self.signed(value_type)?),
            6 | 12 => MetadataValue::Float(self.float(value_type)?),
            7 => MetadataValue::Bool(self.boolean()?),
            8 => MetadataValue::Text(self.text("a metadata string", MAX_TEXT_BYTES)?),
            9 => MetadataValue::Array(self.array(1)?),
            other => return Err(ParseError::ValueType(other)),
        })
    }

    fn array(&mut self, depth: u32) -> Result<MetadataArray, ParseError> {
        let what = "a metadata array";
        limit(what, "levels", u64::from(depth), u64::from(MAX_DEPTH))?;
        let element_type = self.u32(what)?;
        let count = self.u64(what)?;
        // Counted over the whole file, since the number of arrays is not limited.
        let all = self.array_elements.saturating_add(count);
        self.array_elements = limit("all metadata arrays", "elements", all, MAX_ARRAY_ELEMENTS)?;
        // An element takes at least one byte, so a longer array cannot be in the file. This is
        // checked before the count determines the size of the vectors below.
        if count > self.file_bytes - self.position {
            return Err(ParseError::Truncated { what });
        }
        Ok(match element_type {
            0 | 2 | 4 | 10 => {
                MetadataArray::Unsigned(repeat(count, || self.unsigned(element_type))?)
            }
            1 | 3 | 5 | 11 => MetadataArray::Signed(repeat(count, || self.signed(element_type))?),
            6 | 12 => MetadataArray::Floats(repeat(count, || self.float(element_type))?),
            7 => MetadataArray::Bools(repeat(count, || self.boolean())?),
            8 => MetadataArray::Texts(repeat(count, || {
                self.text("a metadata string", MAX_TEXT_BYTES)
            })?),
            9 => MetadataArray::Arrays(repeat(count, || self.array(depth + 1))?),
            other => return Err(ParseError::ValueType(other)),
        })
    }

    /// Reads an entry of the tensor directory, whose offset is still relative to the start of the
    /// data.
    fn tensor_info(&mut self, alignment: u64) -> Result<(String, TensorInfo), ParseError> {
        let what = "the tensor directory";
        let name = self.text("a tensor name", MAX_KEY_BYTES)?;
        let dimensions = self.u32(what)?;
        let corrupt = |reason: String| ParseError::Tensor { name: name.clone(), reason };
        if dimensions == 0 || dimensions > MAX_DIMENSIONS {
            return Err(corrupt(format!("has {dimensions} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            let size = self.u64(what)?;
            shape.push(usize::try_from(size).map_err(|_| corrupt(format!("has size {size}")))?);
        }
        shape.reverse();
        if shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size)).is_none() {
            return Err(corrupt(format!("has shape {shape:?}")));
        }
        let tensor_type = TensorType::from_code(self.u32(what)?);
        let offset = self.u64(what)?;
        if offset % alignment != 0 {
            return Err(corrupt(format!("starts at {offset}, off the alignment of {alignment}")));
        }
        Ok((name, TensorInfo { shape, tensor_type, offset, part: 0 }))
    }
}

fn limit(
    what: &'static str,
    unit: &'static str,
    found: u64,
    limit: u64,
) -> Result<u64, ParseError> {
    if found > limit {
        return Err(ParseError::Limit { what, unit, found, limit });
    }
    Ok(found)
}

fn repeat<T>(
    count: u64,
    mut read: impl FnMut() -> Result<T, ParseError>,
) -> Result<Vec<T>, ParseError> {
    (0..count).map(|_| read()).collect()
}
