//! Writer of small GGUF files for tests: little endian, alignment 32.

use super::metadata::{MetadataArray, MetadataValue};

/// Contents of a file to be written.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    pub(crate) version: u32,
    pub(crate) values: Vec<(String, MetadataValue)>,
    /// Name, shape in the file's order (innermost first), type number and data of each tensor.
    pub(crate) tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

impl Writer {
    pub(crate) fn new() -> Self {
        Self { version: 3, values: Vec::new(), tensors: Vec::new() }
    }

    /// Sets a key, replacing its previous value.
    pub(crate) fn set(&mut self, key: &str, value: MetadataValue) {
        self.remove(key);
        self.values.push((key.to_owned(), value));
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.values.retain(|(known, _)| known != key);
    }

    pub(crate) fn text(&mut self, key: &str, text: &str) {
        self.set(key, MetadataValue::Text(text.to_owned()));
    }

    pub(crate) fn integer(&mut self, key: &str, number: u64) {
        self.set(key, MetadataValue::Unsigned(number));
    }

    pub(crate) fn texts(&mut self, key: &str, texts: &[&str]) {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        self.set(key, MetadataValue::Array(MetadataArray::Texts(texts)));
    }

    /// Adds a tensor of shape `[out, in]` or `[n]`, replacing an existing one of that name.
    pub(crate) fn tensor(&mut self, name: &str, shape: &[usize], code: u32, data: Vec<u8>) {
        self.tensors.retain(|(known, ..)| known != name);
        let dimensions = shape.iter().rev().map(|size| *size as u64).collect();
        self.tensors.push((name.to_owned(), dimensions, code, data));
    }

    pub(crate) fn tensor_f32(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, shape, 0, data);
    }

    /// Returns header, metadata and tensor directory, up to the start of the data.
    pub(crate) fn head(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.values.len() as u64).to_le_bytes());
        for (key, value) in &self.values {
            put_text(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0u64;
        for (name, dimensions, code, data) in &self.tensors {
            put_text(&mut out, name);
            out.extend((dimensions.len() as u32).to_le_bytes());
            for size in dimensions {
                out.extend(size.to_le_bytes());
            }
            out.extend(code.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += data.len().next_multiple_of(32) as u64;
        }
        out
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.head();
        for (.., data) in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(data);
        }
        out
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Writes a value in the widest type of its kind. Narrow types are tested with bytes written by
/// hand.
fn put_value(out: &mut Vec<u8>, value: &MetadataValue) {
    let code: u32 = match value {
        MetadataValue::Unsigned(_) => 10,
        MetadataValue::Signed(_) => 11,
        MetadataValue::Float(_) => 12,
        MetadataValue::Bool(_) => 7,
        MetadataValue::Text(_) => 8,
        MetadataValue::Array(_) => 9,
    };
    out.extend(code.to_le_bytes());
    match value {
        MetadataValue::Unsigned(number) => out.extend(number.to_le_bytes()),
        MetadataValue::Signed(number) => out.extend(number.to_le_bytes()),
        MetadataValue::Float(number) => out.extend(number.to_le_bytes()),
        MetadataValue::Bool(flag) => out.push(u8::from(*flag)),
        MetadataValue::Text(text) => put_text(out, text),
        MetadataValue::Array(array) => put_array(out, array),
    }
}

fn put_array(out: &mut Vec<u8>, array: &MetadataArray) {
    let code: u32 = match array {
        MetadataArray::Unsigned(_) => 10,
        MetadataArray::Signed(_) => 11,
        MetadataArray::Floats(_) => 12,
        MetadataArray::Bools(_) => 7,
        MetadataArray::Texts(_) => 8,
        MetadataArray::Arrays(_) => 9,
    };
    out.extend(code.to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        MetadataArray::Unsigned(items) => {
            items.iter().for_each(|item| out.extend(item.to_le_bytes()))
        }
        MetadataArray::Signed(items) => {
            items.iter().for_each(|item| out.extend(item.to_le_bytes()))
        }
        MetadataArray::Floats(items) => {
            items.iter().for_each(|item| out.extend(item.to_le_bytes()))
        }
        MetadataArray::Bools(items) => items.iter().for_each(|item| out.push(u8::from(*item))),
        MetadataArray::Texts(items) => items.iter().for_each(|item| put_text(out, item)),
        MetadataArray::Arrays(items) => items.iter().for_each(|item| put_array(out, item)),
    }
}
