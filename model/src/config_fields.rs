//! The fields of a `config.json` by name and type, and the errors of invalid ones.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::config::Activation;
use crate::config_bounds::TooLarge;
use crate::unknown_field::UnknownField;

/// Reason for which Tandem cannot run a model's configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("{path} is not a JSON object: {reason}")]
    Json { path: String, reason: String },
    #[error("config.json has no {field}, which this architecture requires")]
    Missing { field: &'static str },
    #[error("config.json has {field} = {value}, but {expected} is required")]
    Value { field: &'static str, value: String, expected: &'static str },
    #[error("the architecture {found} is not supported{lacking}; supported are {supported}")]
    Architecture { found: String, lacking: String, supported: String },
    #[error(
        "config.json has {} = {}, which is not supported and may change what the model computes; \
         remove the field if it does not",
        .0.name,
        .0.value
    )]
    UnknownField(UnknownField),
    #[error("config.json has {field} = {value} and {other} = {other_value}, which conflict")]
    Contradiction { field: &'static str, value: String, other: &'static str, other_value: String },
    #[error("{what} is not supported{hint}")]
    Unsupported { what: String, hint: &'static str },
    #[error("hidden_size {hidden} is not divisible by num_attention_heads {heads}")]
    HiddenByHeads { hidden: usize, heads: usize },
    #[error("num_attention_heads {heads} is not divisible by num_key_value_heads {kv_heads}")]
    HeadsByKvHeads { heads: usize, kv_heads: usize },
    #[error("num_experts_per_tok {per_token} is more than the number of experts, {count}")]
    ExpertsPerToken { per_token: usize, count: usize },
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error("the head dimension {head_dim} is odd, but rotary positions rotate pairs")]
    OddHeadDim { head_dim: usize },
}

/// Largest accepted value of any dimension, so that products of two fit in a `usize` and an absurd
/// file causes an error rather than an allocation.
const SIZE_MAX: u64 = 1 << 31;

/// A JSON object whose fields are read by name and type, and which records the fields that were
/// read. A `null` counts as absent, as in Python.
#[derive(Debug, Clone)]
pub struct ConfigFields<'a> {
    config: &'a Map<String, Value>,
    read: RefCell<BTreeSet<String>>,
    /// Unknown fields of this object and of nested blocks that were accepted.
    unknown: RefCell<Vec<UnknownField>>,
}

impl<'a> ConfigFields<'a> {
    /// Creates the fields of an object, all of them unread.
    pub fn new(config: &'a Map<String, Value>) -> ConfigFields<'a> {
        ConfigFields { config, read: RefCell::default(), unknown: RefCell::default() }
    }

    /// Returns true if the field is present, even as null.
    pub fn has(&self, field: &str) -> bool {
        self.mark(field);
        self.config.contains_key(field)
    }

    /// Returns the value of a field that is present and not null.
    pub fn present(&self, field: &str) -> Option<&'a Value> {
        self.mark(field);
        self.config.get(field).filter(|value| !value.is_null())
    }

    /// Returns the fields of a nested object.
    pub fn block(&self, field: &str) -> Option<ConfigFields<'a>> {
        Some(ConfigFields::new(self.present(field)?.as_object()?))
    }

    /// Returns the names of the fields that are objects themselves, without marking them as read.
    pub fn objects(&self) -> impl Iterator<Item = &'a String> {
        self.config.iter().filter(|(_, value)| value.is_object()).map(|(name, _)| name)
    }

    /// Returns the fields with a value that have not been read.
    pub fn unread(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        let read = self.read.borrow().clone();
        let fields = self.config.iter().filter(|(_, value)| !value.is_null());
        fields.filter(move |(name, _)| !read.contains(*name))
    }

    /// Marks all fields whose names satisfy `of_others` as read.
    pub(crate) fn pass_over(&self, of_others: impl Fn(&str) -> bool) {
        self.config.keys().filter(|name| of_others(name)).for_each(|name| self.mark(name));
    }

    /// Records unknown fields that were accepted.
    pub(crate) fn add_unknown(&self, fields: Vec<UnknownField>) {
        self.unknown.borrow_mut().extend(fields);
    }

    /// Removes and returns the unknown fields that were accepted.
    pub(crate) fn take_unknown(&self) -> Vec<UnknownField> {
        self.unknown.take()
    }

    fn mark(&self, field: &str) {
        self.read.borrow_mut().insert(field.to_owned());
    }

    /// Returns a list of numbers; `None` if it is absent.
    ///
    /// # Errors
    /// Any other value.
    pub fn numbers(&self, field: &'static str) -> Result<Option<Vec<f64>>, ConfigError> {
        let Some(value) = self.present(field) else { return Ok(None) };
        let numbers = value.as_array().and_then(|list| list.iter().map(Value::as_f64).collect());
        let finite = numbers.filter(|list: &Vec<f64>| list.iter().all(|one| one.is_finite()));
        finite.map(Some).ok_or_else(|| wrong(field, value, "a list of numbers"))
    }

    /// Refuses a field that is present and differs from `needed`.
    ///
    /// # Errors
    /// Another value.
    pub fn only(&self, field: &'static str, needed: &Value) -> Result<(), ConfigError> {
        match self.present(field) {
            Some(value) if !are_equal(value, needed) => {
                Err(ConfigError::Unsupported { what: format!("{field} = {value}"), hint: "" })
            }
            _ => Ok(()),
        }
    }

    /// Returns a string; other types count as absent.
    pub fn text(&self, field: &str) -> Option<&'a str> {
        self.present(field)?.as_str()
    }

    /// Returns a required size of at least 1.
    ///
    /// # Errors
    /// An absent field, or a value that is not an integer in the accepted range.
    pub fn size(&self, field: &'static str) -> Result<usize, ConfigError> {
        self.optional_size(field)?.ok_or(ConfigError::Missing { field })
    }

    /// Returns a size of at least 1; `None` if it is absent.
    ///
    /// # Errors
    /// A value that is not an integer in the accepted range.
    pub fn optional_size(&self, field: &'static str) -> Result<Option<usize>, ConfigError> {
        let Some(value) = self.present(field) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(size) if (1..=SIZE_MAX).contains(&size) => Ok(Some(size as usize)),
            _ => Err(wrong(field, value, "a whole number from 1 to 2^31")),
        }
    }

    /// Returns a positive finite number; `None` if it is absent.
    ///
    /// # Errors
    /// Any other value.
    pub fn positive(&self, field: &'static str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.present(field) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) if number.is_finite() && number > 0.0 => Ok(Some(number)),
            _ => Err(wrong(field, value, "a positive number")),
        }
    }

    /// Returns a boolean, or `default` if it is absent.
    ///
    /// # Errors
    /// Any other value.
    pub fn flag(&self, field: &'static str, default: bool) -> Result<bool, ConfigError> {
        self.present(field).map_or(Ok(default), |value| {
            value.as_bool().ok_or_else(|| wrong(field, value, "true or false"))
        })
    }

    /// Returns token ids, given as a number or a list. Negative ids, by which some files express
    /// "none", are left out.
    ///
    /// # Errors
    /// A value that is not an integer.
    pub fn token_ids(&self, field: &'static str) -> Result<Vec<u32>, ConfigError> {
        let values = match self.present(field) {
            None => return Ok(Vec::new()),
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        let mut ids = Vec::new();
        for value in values {
            let id = value.as_i64().ok_or_else(|| wrong(field, value, "a token id"))?;
            ids.extend(u32::try_from(id).ok());
        }
        Ok(ids)
    }

    /// Returns the activation, which must be supported by the family.
    ///
    /// # Errors
    /// An activation that is not in `known`.
    pub fn activation(
        &self,
        field: &'static str,
        default: Activation,
        known: &[(&str, Activation)],
        hint: &'static str,
    ) -> Result<Activation, ConfigError> {
        let Some(name) = self.text(field) else {
            return Ok(default);
        };
        known
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, activation)| *activation)
            .ok_or_else(|| ConfigError::Unsupported {
                what: format!("the activation {name}"),
                hint,
            })
    }

    /// Returns a size of at least 1 that may be stored under several names, since the name depends
    /// on the age of a file.
    ///
    /// # Errors
    /// None of the names is present, or two of them disagree.
    pub fn size_of_names(&self, names: &[&'static str]) -> Result<usize, ConfigError> {
        self.optional_size_of_names(names)?.ok_or(ConfigError::Missing { field: names[0] })
    }

    /// Returns a size like [`ConfigFields::size_of_names`]; `None` if none of the names is present.
    ///
    /// # Errors
    /// Two of the names disagree.
    pub fn optional_size_of_names(
        &self,
        names: &[&'static str],
    ) -> Result<Option<usize>, ConfigError> {
        let mut found: Option<(&'static str, usize)> = None;
        for name in names {
            match (found, self.optional_size(name)?) {
                (Some((field, value)), Some(other)) if value != other => {
                    let (value, other_value) = (value.to_string(), other.to_string());
                    return Err(ConfigError::Contradiction {
                        field,
                        value,
                        other: name,
                        other_value,
                    });
                }
                (None, Some(size)) => found = Some((name, size)),
                _ => {}
            }
        }
        Ok(found.map(|(_, size)| size))
    }
}

/// Returns true if two values are equal in Python, where 7 equals 7.0.
pub(crate) fn are_equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => a == b,
    }
}

/// Returns the error for a field with an unusable value.
pub(crate) fn wrong(field: &'static str, value: &Value, expected: &'static str) -> ConfigError {
    ConfigError::Value { field, value: value.to_string(), expected }
}
