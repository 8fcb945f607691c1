//! The key-value part of a GGUF file with typed access, for `config` and `gguf_tokenizer`.
//!
//! The many integer and float widths of the format are converted to one each: readers request a
//! number in a certain range, regardless of whether the writer chose u32 or i64.

use std::collections::HashMap;

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum MetadataValue {
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    /// An f32 or f64. f32 values are exact in f64.
    Float(f64),
    Text(String),
    Array(MetadataArray),
}

/// A metadata array, whose elements all have one type.
#[derive(Debug, Clone, PartialEq)]
pub enum MetadataArray {
    Bools(Vec<bool>),
    Unsigned(Vec<u64>),
    Signed(Vec<i64>),
    Floats(Vec<f64>),
    Texts(Vec<String>),
    Arrays(Vec<MetadataArray>),
}

/// Error for a key that is missing or has an unsuitable value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    #[error("the metadata key {key} is missing")]
    Missing { key: String },
    #[error("the metadata key {key} has {found}, but {expected} is required")]
    Kind { key: String, expected: &'static str, found: String },
}

/// All metadata of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    values: HashMap<String, MetadataValue>,
}

impl Metadata {
    /// Inserts a value. Returns false if the key already existed; it has the new value in any case.
    pub fn insert(&mut self, key: String, value: MetadataValue) -> bool {
        self.values.insert(key, value).is_none()
    }

    /// Removes a key, if it exists.
    #[cfg(test)]
    pub(super) fn remove(&mut self, key: &str) {
        self.values.remove(key);
    }

    /// Returns the stored value of a key.
    pub fn value(&self, key: &str) -> Option<&MetadataValue> {
        self.values.get(key)
    }

    /// Returns a string; `None` if the key is absent.
    ///
    /// # Errors
    /// A value that is not a string.
    pub fn text(&self, key: &str) -> Result<Option<&str>, MetadataError> {
        self.convert(key, "a string", |value| match value {
            MetadataValue::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// Returns a boolean; `None` if the key is absent.
    ///
    /// # Errors
    /// A value that is not a boolean.
    pub fn boolean(&self, key: &str) -> Result<Option<bool>, MetadataError> {
        self.convert(key, "a boolean", |value| match value {
            MetadataValue::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// Returns an integer from 0 to `u32::MAX`; `None` if the key is absent.
    ///
    /// # Errors
    /// A value that is not an integer, is negative or too large.
    pub fn integer(&self, key: &str) -> Result<Option<u32>, MetadataError> {
        self.convert(key, "an integer from 0 to 4294967295", |value| match *value {
            MetadataValue::Unsigned(number) => u32::try_from(number).ok(),
            MetadataValue::Signed(number) => u32::try_from(number).ok(),
            _ => None,
        })
    }

    /// Returns an integer like [`Metadata::integer`], for keys with either one value for all layers
    /// or an array with a value per layer. The values of such an array must be equal, since all
    /// layers are computed identically.
    ///
    /// # Errors
    /// See [`Metadata::integer`]; in addition, an array that is empty or contains different
    /// numbers.
    pub fn layer_integer(&self, key: &str) -> Result<Option<u32>, MetadataError> {
        let Some(MetadataValue::Array(array)) = self.value(key) else {
            return self.integer(key);
        };
        self.convert(key, "one integer from 0 to 4294967295 for all layers", |_| match array {
            MetadataArray::Unsigned(numbers) => same(numbers).and_then(|n| u32::try_from(n).ok()),
            MetadataArray::Signed(numbers) => same(numbers).and_then(|n| u32::try_from(n).ok()),
            _ => None,
        })
    }

    /// Returns a number, which may be an integer; `None` if the key is absent.
    ///
    /// # Errors
    /// A value that is not a finite number.
    pub fn number(&self, key: &str) -> Result<Option<f64>, MetadataError> {
        self.convert(key, "a finite number", |value| match *value {
            MetadataValue::Float(number) => Some(number).filter(|number| number.is_finite()),
            MetadataValue::Unsigned(number) => Some(number as f64),
            MetadataValue::Signed(number) => Some(number as f64),
            _ => None,
        })
    }

    /// Returns an array of strings; `None` if the key is absent.
    ///
    /// # Errors
    /// A value that is not an array of strings.
    pub fn texts(&self, key: &str) -> Result<Option<&[String]>, MetadataError> {
        self.convert(key, "an array of strings", |value| match value {
            MetadataValue::Array(MetadataArray::Texts(texts)) => Some(texts.as_slice()),
            _ => None,
        })
    }

    /// Returns an array of floats; `None` if the key is absent.
    ///
    /// # Errors
    /// A value that is not an array of floats.
    pub fn floats(&self, key: &str) -> Result<Option<&[f64]>, MetadataError> {
        self.convert(key, "an array of floats", |value| match value {
            MetadataValue::Array(MetadataArray::Floats(floats)) => Some(floats.as_slice()),
            _ => None,
        })
    }

    /// Returns an array of integers from 0 to `u32::MAX`; `None` if the key is absent.
    ///
    /// # Errors
    /// A value that is not such an array.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<u32>>, MetadataError> {
        self.convert(key, "an array of integers from 0 to 4294967295", |value| match value {
            MetadataValue::Array(MetadataArray::Unsigned(numbers)) => {
                numbers.iter().map(|n| u32::try_from(*n).ok()).collect()
            }
            MetadataValue::Array(MetadataArray::Signed(numbers)) => {
                numbers.iter().map(|n| u32::try_from(*n).ok()).collect()
            }
            _ => None,
        })
    }

    fn convert<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a MetadataValue) -> Option<T>,
    ) -> Result<Option<T>, MetadataError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        convert(value).map(Some).ok_or_else(|| MetadataError::Kind {
            key: key.to_owned(),
            expected,
            found: value.describe(),
        })
    }
}

/// Returns the value, or an error if the key is absent.
pub fn required<T>(key: &str, value: Option<T>) -> Result<T, MetadataError> {
    value.ok_or_else(|| MetadataError::Missing { key: key.to_owned() })
}

impl MetadataValue {
    /// Returns a short description of the value for an error message, regardless of its size.
    fn describe(&self) -> String {
        match self {
            MetadataValue::Bool(flag) => format!("the boolean {flag}"),
            MetadataValue::Unsigned(number) => format!("the integer {number}"),
            MetadataValue::Signed(number) => format!("the integer {number}"),
            MetadataValue::Float(number) => format!("the number {number}"),
            MetadataValue::Text(text) => {
                let head: String = text.chars().take(40).collect();
                format!("the string {head:?}")
            }
            MetadataValue::Array(array) => array.describe(),
        }
    }
}

impl MetadataArray {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self {
            MetadataArray::Bools(items) => items.len(),
            MetadataArray::Unsigned(items) => items.len(),
            MetadataArray::Signed(items) => items.len(),
            MetadataArray::Floats(items) => items.len(),
            MetadataArray::Texts(items) => items.len(),
            MetadataArray::Arrays(items) => items.len(),
        }
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn describe(&self) -> String {
        let kind = match self {
            MetadataArray::Bools(_) => "booleans",
            MetadataArray::Unsigned(_) | MetadataArray::Signed(_) => "integers",
            MetadataArray::Floats(_) => "floats",
            MetadataArray::Texts(_) => "strings",
            MetadataArray::Arrays(_) => "arrays",
        };
        format!("an array of {} {kind}", self.len())
    }
}

/// Returns the common value of all `numbers`.
fn same<T: Copy + PartialEq>(numbers: &[T]) -> Option<T> {
    let first = *numbers.first()?;
    numbers.iter().all(|number| *number == first).then_some(first)
}
