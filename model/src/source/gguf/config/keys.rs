//! Metadata under an architecture's prefix, and its errors.

use super::super::metadata::{Metadata, MetadataError, MetadataValue, required};
use crate::config_bounds::TooLarge;

/// Maximum of any size. No model approaches it, and products of two smaller sizes do not overflow.
pub(super) const MAX_SIZE: u32 = 1 << 24;

/// Reason for which the metadata does not describe a model that can run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(in crate::source::gguf) enum ConfigError {
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error(
        "architecture {name:?} is not supported in GGUF files{lacking} (supported are {supported})"
    )]
    Architecture { name: String, lacking: String, supported: String },
    #[error("the metadata key {key} is {found}, but {expected} is required")]
    Value { key: String, found: String, expected: &'static str },
    #[error(
        "rope scaling {0} is not supported (supported are none, linear, yarn, longrope and \
         factors of all frequencies)"
    )]
    RopeScaling(String),
    #[error("the tensor {tensor} does not hold {count} positive factors, one for each frequency")]
    RopeFactors { tensor: &'static str, count: usize },
}

/// Metadata under an architecture's prefix.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) architecture: &'a str,
}

impl Keys<'_> {
    pub(super) fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    /// Returns a size from 1 to [`MAX_SIZE`]; `None` if absent.
    pub(super) fn size(&self, suffix: &str) -> Result<Option<usize>, ConfigError> {
        let key = self.key(suffix);
        match self.metadata.layer_integer(&key)? {
            None => Ok(None),
            Some(size @ 1..=MAX_SIZE) => Ok(Some(size as usize)),
            Some(other) => Err(wrong(key, other, "a size from 1 to 16777216")),
        }
    }

    pub(super) fn required_size(&self, suffix: &str) -> Result<usize, ConfigError> {
        Ok(required(&self.key(suffix), self.size(suffix)?)?)
    }

    /// Returns a size that files give for all layers, or for each.
    pub(super) fn size_of_layer(&self, suffix: &str, layer: usize) -> Result<usize, ConfigError> {
        let key = self.key(suffix);
        if !matches!(self.metadata.value(&key), Some(MetadataValue::Array(_))) {
            return self.required_size(suffix);
        }
        let sizes = self.metadata.integers(&key)?.unwrap_or_default();
        match sizes.get(layer) {
            Some(size @ 1..=MAX_SIZE) => Ok(*size as usize),
            Some(other) => Err(wrong(key, other, "a size from 1 to 16777216 for each layer")),
            None => Err(wrong(key, sizes.len(), "a size for each layer")),
        }
    }

    /// Returns a size like [`Keys::size`], but also `None` for zero, by which some writers express
    /// "none".
    pub(super) fn size_or_none(&self, suffix: &str) -> Result<Option<usize>, ConfigError> {
        match self.metadata.layer_integer(&self.key(suffix))? {
            Some(0) => Ok(None),
            _ => self.size(suffix),
        }
    }

    /// Returns a positive number; `None` if absent.
    pub(super) fn positive(&self, suffix: &str) -> Result<Option<f64>, ConfigError> {
        let key = self.key(suffix);
        match self.metadata.number(&key)? {
            Some(number) if number <= 0.0 => Err(wrong(key, number, "a positive number")),
            other => Ok(other),
        }
    }

    /// Returns a number like [`Keys::positive`], but also `None` for zero, by which some writers
    /// express "none".
    pub(super) fn positive_or_none(&self, suffix: &str) -> Result<Option<f64>, ConfigError> {
        match self.metadata.number(&self.key(suffix))? {
            Some(0.0) => Ok(None),
            _ => self.positive(suffix),
        }
    }

    /// Refuses a size that is present and differs from `needed`.
    pub(super) fn same_size(
        &self,
        suffix: &str,
        needed: usize,
        expected: &'static str,
    ) -> Result<(), ConfigError> {
        match self.size(suffix)? {
            Some(found) if found != needed => Err(wrong(self.key(suffix), found, expected)),
            _ => Ok(()),
        }
    }
}

pub(super) fn wrong(key: String, found: impl ToString, expected: &'static str) -> ConfigError {
    ConfigError::Value { key, found: found.to_string(), expected }
}
