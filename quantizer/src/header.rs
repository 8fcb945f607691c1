//! Head of a GGUF file: metadata and tensor directory, in version 3 of the format.

use model::source::StoredType;
use model::source::gguf::metadata::{MetadataArray, MetadataValue};
use model::source::gguf::type_code;

const VERSION: u32 = 3;
/// Alignment of tensors unless the metadata specifies another.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// A metadata value in one of the types that other readers expect.
#[derive(Debug, Clone, PartialEq)]
pub enum HeaderValue {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(String),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Bools(Vec<bool>),
    Texts(Vec<String>),
}

/// A tensor of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderTensor {
    pub name: String,
    /// Shape `[n]` or `[out, in]`, preceded by the number of experts if there are any.
    pub shape: Vec<usize>,
    pub stored: StoredType,
}

/// Contents of the head.
#[derive(Debug, Clone, Default)]
pub struct FileHeader {
    /// Keys in order, each with the bytes of key, type and value.
    entries: Vec<(String, Vec<u8>)>,
    tensors: Vec<HeaderTensor>,
}

impl HeaderTensor {
    /// Returns the number of elements in a row.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Returns the number of rows of all experts together.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// Returns the number of bytes of the tensor's data.
    pub fn size_bytes(&self) -> u64 {
        (self.rows() * self.stored.row_bytes(self.columns())) as u64
    }
}

impl FileHeader {
    /// Returns a head with the given keys, as bytes of key, type and value.
    pub fn from_entries(entries: Vec<(String, Vec<u8>)>) -> FileHeader {
        FileHeader { entries, tensors: Vec::new() }
    }

    /// Sets a key, in the place of an earlier value if there is one.
    pub fn set(&mut self, key: &str, value: &HeaderValue) {
        let mut bytes = Vec::new();
        put_text(&mut bytes, key);
        value.put(&mut bytes);
        match self.entries.iter_mut().find(|(known, _)| known == key) {
            Some(entry) => entry.1 = bytes,
            None => self.entries.push((key.to_owned(), bytes)),
        }
    }

    /// Removes the keys for which `is_removed` returns true.
    pub fn remove(&mut self, is_removed: impl Fn(&str) -> bool) {
        self.entries.retain(|(key, _)| !is_removed(key));
    }

    pub fn add_tensor(&mut self, tensor: HeaderTensor) {
        self.tensors.push(tensor);
    }

    pub fn tensors(&self) -> &[HeaderTensor] {
        &self.tensors
    }

    /// Returns the bytes of the head up to the start of the data, and the position in the file of
    /// each tensor's data, followed by the size of the file.
    ///
    /// # Panics
    /// If a tensor has a type that GGUF files do not have.
    pub fn bytes(&self, alignment: u32) -> (Vec<u8>, Vec<u64>) {
        let alignment = u64::from(alignment);
        let mut out = b"GGUF".to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.entries.len() as u64).to_le_bytes());
        self.entries.iter().for_each(|(_, bytes)| out.extend(bytes));
        let mut offsets = vec![0];
        for tensor in &self.tensors {
            put_text(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            let dimensions = tensor.shape.iter().rev();
            dimensions.for_each(|size| out.extend((*size as u64).to_le_bytes()));
            let code = type_code(tensor.stored).expect("a type of GGUF files");
            out.extend(code.to_le_bytes());
            let offset = offsets[offsets.len() - 1];
            out.extend(u64::to_le_bytes(offset));
            offsets.push((offset + tensor.size_bytes()).next_multiple_of(alignment));
        }
        out.resize(out.len().next_multiple_of(alignment as usize), 0);
        let start = out.len() as u64;
        (out, offsets.into_iter().map(|offset| start + offset).collect())
    }
}

impl HeaderValue {
    /// Returns the value as a reader sees it.
    pub fn to_metadata(&self) -> MetadataValue {
        match self {
            HeaderValue::U32(number) => MetadataValue::Unsigned(u64::from(*number)),
            HeaderValue::F32(number) => MetadataValue::Float(f64::from(*number)),
            HeaderValue::Bool(flag) => MetadataValue::Bool(*flag),
            HeaderValue::Text(text) => MetadataValue::Text(text.clone()),
            HeaderValue::I32s(numbers) => {
                let numbers = numbers.iter().map(|number| i64::from(*number));
                MetadataValue::Array(MetadataArray::Signed(numbers.collect()))
            }
            HeaderValue::F32s(numbers) => {
                let numbers = numbers.iter().map(|number| f64::from(*number));
                MetadataValue::Array(MetadataArray::Floats(numbers.collect()))
            }
            HeaderValue::Bools(flags) => MetadataValue::Array(MetadataArray::Bools(flags.clone())),
            HeaderValue::Texts(texts) => MetadataValue::Array(MetadataArray::Texts(texts.clone())),
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        let (code, element): (u32, Option<(u32, usize)>) = match self {
            HeaderValue::U32(_) => (4, None),
            HeaderValue::F32(_) => (6, None),
            HeaderValue::Bool(_) => (7, None),
            HeaderValue::Text(_) => (8, None),
            HeaderValue::I32s(items) => (9, Some((5, items.len()))),
            HeaderValue::F32s(items) => (9, Some((6, items.len()))),
            HeaderValue::Bools(items) => (9, Some((7, items.len()))),
            HeaderValue::Texts(items) => (9, Some((8, items.len()))),
        };
        out.extend(code.to_le_bytes());
        if let Some((code, count)) = element {
            out.extend(code.to_le_bytes());
            out.extend((count as u64).to_le_bytes());
        }
        match self {
            HeaderValue::U32(number) => out.extend(number.to_le_bytes()),
            HeaderValue::F32(number) => out.extend(number.to_le_bytes()),
            HeaderValue::Bool(flag) => out.push(u8::from(*flag)),
            HeaderValue::Text(text) => put_text(out, text),
            HeaderValue::I32s(items) => {
                items.iter().for_each(|item| out.extend(item.to_le_bytes()));
            }
            HeaderValue::F32s(items) => {
                items.iter().for_each(|item| out.extend(item.to_le_bytes()));
            }
            HeaderValue::Bools(items) => out.extend(items.iter().map(|item| u8::from(*item))),
            HeaderValue::Texts(items) => items.iter().for_each(|item| put_text(out, item)),
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}
