//! The field `per_layer_config`, in which newer versions of transformers write the sizes of layers
//! that differ from the model's.

use serde_json::Value;

use crate::config_fields::{ConfigError, ConfigFields};

/// Calls `read` with the index and the fields of each of `layers` layers that has some, and returns
/// false if the file has no such field.
///
/// # Errors
/// An error of `read`, a field that it does not read, or an entry that is not a layer's.
pub(super) fn read_layers(
    fields: &ConfigFields<'_>,
    layers: usize,
    mut read: impl FnMut(usize, &ConfigFields<'_>) -> Result<(), ConfigError>,
) -> Result<bool, ConfigError> {
    let Some(entries) = fields.block("per_layer_config") else { return Ok(false) };
    // Names are indices, with zeros in front so that all have as many digits.
    for name in entries.objects() {
        let index = name.parse().ok().filter(|index: &usize| *index < layers);
        let Some(index) = index else { continue };
        let Some(own) = entries.block(name) else { continue };
        read(index, &own)?;
        if let Some((field, value)) = own.unread().next() {
            return Err(unsupported_entry(&format!("{index}.{field}"), value));
        }
    }
    match entries.unread().next() {
        Some((layer, value)) => Err(unsupported_entry(layer, value)),
        None => Ok(true),
    }
}

fn unsupported_entry(name: &str, value: &Value) -> ConfigError {
    ConfigError::Unsupported { what: format!("per_layer_config with {name} = {value}"), hint: "" }
}
