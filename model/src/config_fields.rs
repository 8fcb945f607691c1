//! The fields of a `config.json` by name and type, and what can be wrong with them.

use serde_json::{Map, Value};

use crate::architecture::{ARCHITECTURES, architecture_of_type};
use crate::config::{Activation, Rope, RopeScaling};
use crate::config_bounds::TooLarge;

/// Why a model's configuration is not one that Tandem runs.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("{path} is not a JSON object: {reason}")]
    Json { path: String, reason: String },
    #[error("config.json has no {field}, which this architecture needs")]
    Missing { field: &'static str },
    #[error("config.json says {field} = {value}, where {expected} is needed")]
    Value { field: &'static str, value: String, expected: &'static str },
    #[error("the architecture {found} is not supported (supported: {})", ARCHITECTURES.join(", "))]
    Architecture { found: String },
    #[error("{what} is not supported{hint}")]
    Unsupported { what: String, hint: &'static str },
    #[error("hidden_size {hidden} is not divisible by num_attention_heads {heads}")]
    HiddenByHeads { hidden: usize, heads: usize },
    #[error("num_attention_heads {heads} is not divisible by num_key_value_heads {kv_heads}")]
    HeadsByKvHeads { heads: usize, kv_heads: usize },
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error("the head dimension {head_dim} is odd, but rotary positions rotate pairs")]
    OddHeadDim { head_dim: usize },
}

/// Largest size accepted for any dimension, so that products of two fit a `usize` and an absurd
/// file is an error rather than an allocation.
const SIZE_MAX: u64 = 1 << 31;

/// A JSON object read by name and type. A `null` counts as absent, as it does in Python.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a> {
    pub(crate) config: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// Whether the field is written at all, be it as null.
    pub fn has(&self, field: &str) -> bool {
        self.config.contains_key(field)
    }

    /// The value of a field that is there and not null.
    pub fn present(&self, field: &str) -> Option<&'a Value> {
        self.config.get(field).filter(|value| !value.is_null())
    }

    /// A text; other types count as absent.
    pub fn text(&self, field: &str) -> Option<&'a str> {
        self.present(field)?.as_str()
    }

    /// A size of at least 1, which must be there.
    ///
    /// # Errors
    /// Absent, or no whole number in the accepted range.
    pub fn size(&self, field: &'static str) -> Result<usize, ConfigError> {
        self.optional_size(field)?.ok_or(ConfigError::Missing { field })
    }

    /// A size of at least 1, if it is there.
    ///
    /// # Errors
    /// No whole number in the accepted range.
    pub fn optional_size(&self, field: &'static str) -> Result<Option<usize>, ConfigError> {
        let Some(value) = self.present(field) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(size) if (1..=SIZE_MAX).contains(&size) => Ok(Some(size as usize)),
            _ => Err(wrong(field, value, "a whole number from 1 to 2^31")),
        }
    }

    /// A positive finite number, if it is there.
    ///
    /// # Errors
    /// Anything else.
    pub fn positive(&self, field: &'static str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.present(field) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) if number.is_finite() && number > 0.0 => Ok(Some(number)),
            _ => Err(wrong(field, value, "a positive number")),
        }
    }

    /// A truth value, or `default` when it is absent.
    ///
    /// # Errors
    /// Anything else.
    pub fn flag(&self, field: &'static str, default: bool) -> Result<bool, ConfigError> {
        self.present(field).map_or(Ok(default), |value| {
            value.as_bool().ok_or_else(|| wrong(field, value, "true or false"))
        })
    }

    /// Token ids, written as a number or a list; negative ones, by which some files say "none", are
    /// left out.
    ///
    /// # Errors
    /// Anything that is no whole number.
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

    /// The activation, among those a family has.
    ///
    /// # Errors
    /// One that is not among `known`.
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

    /// The rotary embedding: `rope_parameters` (new files), else `rope_theta` and `rope_scaling`.
    ///
    /// # Errors
    /// A kind that is not supported, or one without its parameters.
    pub fn rope(&self) -> Result<Rope, ConfigError> {
        let block = ["rope_parameters", "rope_scaling"]
            .into_iter()
            .find_map(|field| self.present(field)?.as_object());
        let empty = Map::new();
        let block = Fields { config: block.unwrap_or(&empty) };
        for fields in [*self, block] {
            let partial = fields.positive("partial_rotary_factor")?;
            if let Some(factor) = partial.filter(|factor| *factor != 1.0) {
                return Err(ConfigError::Unsupported {
                    what: format!("a rotary embedding of a part of each head ({factor})"),
                    hint: "",
                });
            }
        }
        let theta = match block.positive("rope_theta")? {
            Some(theta) => theta,
            None => self.positive("rope_theta")?.unwrap_or(10_000.0),
        };
        Ok(Rope::new(theta, block.rope_scaling()?))
    }

    fn rope_scaling(&self) -> Result<RopeScaling, ConfigError> {
        // Blocks by layer type (`{"full_attention": {...}}`) have neither key, only objects.
        if let Some((kind, _)) = self.config.iter().find(|(_, value)| value.is_object()) {
            return Err(ConfigError::Unsupported {
                what: format!("a rotary embedding that differs by layer type ({kind})"),
                hint: "",
            });
        }
        let needed = |field| self.positive(field)?.ok_or(ConfigError::Missing { field });
        match self.text("rope_type").or_else(|| self.text("type")) {
            None if self.present("factor").is_none() => Ok(RopeScaling::None),
            Some("default") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear { factor: needed("factor")? }),
            Some("llama3") => self.rope_llama3(),
            other => Err(ConfigError::Unsupported {
                what: format!("the rope type {}", other.unwrap_or("without a name")),
                hint: " (supported: default, linear, llama3)",
            }),
        }
    }

    fn rope_llama3(&self) -> Result<RopeScaling, ConfigError> {
        let needed = |field| self.positive(field)?.ok_or(ConfigError::Missing { field });
        let (low_freq_factor, high_freq_factor) =
            (needed("low_freq_factor")?, needed("high_freq_factor")?);
        if low_freq_factor >= high_freq_factor {
            let value = self.present("low_freq_factor").unwrap_or(&Value::Null);
            return Err(wrong("low_freq_factor", value, "less than high_freq_factor"));
        }
        let original = self.size("original_max_position_embeddings")?;
        Ok(RopeScaling::Llama3 {
            factor: needed("factor")?,
            low_freq_factor,
            high_freq_factor,
            // `size` accepts nothing above 2^31.
            original_max_positions: original as u32,
        })
    }

    /// The name that `architectures` or `model_type` says.
    pub fn architecture(&self) -> Result<&'a str, ConfigError> {
        let listed = self.present("architectures").and_then(|list| list.get(0)?.as_str());
        if let Some(name) = listed {
            return Ok(name);
        }
        let model_type = self.text("model_type").unwrap_or("(none named)");
        architecture_of_type(model_type)
            .ok_or_else(|| ConfigError::Architecture { found: model_type.to_owned() })
    }
}

/// The error for a field with an unusable value.
pub(crate) fn wrong(field: &'static str, value: &Value, expected: &'static str) -> ConfigError {
    ConfigError::Value { field, value: value.to_string(), expected }
}
