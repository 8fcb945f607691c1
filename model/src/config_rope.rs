//! Rotary positions in `config.json`: `rope_parameters` (new files), else `rope_theta` and
//! `rope_scaling`.

use serde_json::{Map, Value};

use crate::config_fields::{ConfigError, ConfigFields, wrong};
use crate::config_unknown::is_neutral;
use crate::rope::{
    AttentionTemperature, Rope, RopeScaling, YARN_BETA_FAST, YARN_BETA_SLOW,
    longrope_attention_factor, yarn_attention_factor, yarn_scale,
};

/// Values for fields that a file may leave out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RopeDefaults {
    pub(crate) theta: f64,
    /// Number of elements in a head, of which only a part may be rotated.
    pub(crate) head_dim: usize,
    /// Number of positions that the model supports.
    pub(crate) max_positions: usize,
    /// True if the family can rotate a part of each head.
    pub(crate) can_be_partial: bool,
    /// Fraction of each head that is rotated if the file does not specify one.
    pub(crate) rotated: f64,
    /// True if the family multiplies queries by a factor of their position.
    pub(crate) has_temperature: bool,
}

/// Returns the rotary positions that all layers share.
///
/// # Errors
/// A type that is not supported, or missing parameters.
pub(crate) fn rope(fields: &ConfigFields<'_>, defaults: RopeDefaults) -> Result<Rope, ConfigError> {
    let empty = Map::new();
    reject_two_blocks(fields)?;
    let block = fields.block("rope_parameters").or_else(|| fields.block("rope_scaling"));
    let block = block.unwrap_or_else(|| ConfigFields::new(&empty));
    if let Some(kind) = block.objects().next() {
        return Err(ConfigError::Unsupported {
            what: format!("a rotary embedding that differs by layer type ({kind})"),
            hint: "",
        });
    }
    let rope = parse_block(fields, &block, defaults)?;
    reject_unknown(&block)?;
    Ok(rope)
}

/// Returns the rotary positions of a kind of layer, which has its own block in `rope_parameters`;
/// `None` without such a block.
///
/// # Errors
/// See [`rope`].
pub(crate) fn rope_of_type(
    fields: &ConfigFields<'_>,
    layer_type: &str,
    defaults: RopeDefaults,
) -> Result<Option<Rope>, ConfigError> {
    reject_two_blocks(fields)?;
    let parameters = fields.block("rope_parameters");
    let Some(block) = parameters.and_then(|blocks| blocks.block(layer_type)) else {
        return Ok(None);
    };
    let rope = parse_block(fields, &block, defaults)?;
    reject_unknown(&block)?;
    Ok(Some(rope))
}

/// Returns the factor of attention scores that YaRN's `mscale_all_dim` implies for latent attention
/// (`yarn_apply_mscale` in transformers); 1 for another scaling.
///
/// # Errors
/// A value that is not a positive number.
pub(crate) fn yarn_score_factor(
    fields: &ConfigFields<'_>,
    rope: &Rope,
) -> Result<f64, ConfigError> {
    let RopeScaling::Yarn { factor, .. } = rope.scaling else { return Ok(1.0) };
    let block = fields.block("rope_parameters").or_else(|| fields.block("rope_scaling"));
    let all_dim = block.map(|block| block.positive("mscale_all_dim")).transpose()?.flatten();
    Ok(all_dim.map_or(1.0, |all_dim| yarn_scale(factor, all_dim).powi(2)))
}

/// Refuses two blocks that differ. Files contain the rope in one block or the other depending on
/// their age; if both are present, the one that counts cannot be determined.
fn reject_two_blocks(fields: &ConfigFields<'_>) -> Result<(), ConfigError> {
    match (fields.present("rope_parameters"), fields.present("rope_scaling")) {
        (Some(parameters), Some(scaling)) if parameters != scaling => {
            Err(ConfigError::Unsupported {
                what: "rope_scaling with a different rope_parameters".to_owned(),
                hint: "; keep the intended one",
            })
        }
        _ => Ok(()),
    }
}

fn reject_unknown(block: &ConfigFields<'_>) -> Result<(), ConfigError> {
    // The distribution of an image's coordinates over frequencies. In a text all three coordinates
    // equal the position.
    for field in ["mrope_section", "mrope_interleaved"] {
        block.present(field);
    }
    let mut unread = block.unread().filter(|(field, value)| !is_neutral(field, value));
    match unread.next() {
        None => Ok(()),
        Some((field, value)) => Err(ConfigError::Unsupported {
            what: format!("a rotary embedding with {field} = {value}"),
            hint: "",
        }),
    }
}

/// Returns the rotary positions of layers whose base and rotated fraction are those of `defaults`,
/// since the file has a list of them by layer. A scaling, which the file has once, is that of
/// layers with `is_scaled`.
///
/// # Errors
/// See [`rope`].
pub(crate) fn rope_of_lists(
    fields: &ConfigFields<'_>,
    is_scaled: bool,
    defaults: RopeDefaults,
) -> Result<Rope, ConfigError> {
    let empty = Map::new();
    reject_two_blocks(fields)?;
    let block = fields.block("rope_parameters").or_else(|| fields.block("rope_scaling"));
    let block = block.filter(|_| is_scaled).unwrap_or_else(|| ConfigFields::new(&empty));
    rope_of_defaults(fields, &block, defaults)
}

/// Returns the rotary positions of layers whose base and rotated fraction are those of `defaults`
/// and not those of a block, which has only their scaling. YaRN's factor of sines and cosines is 1
/// unless the block has one.
///
/// # Errors
/// See [`rope`].
pub(crate) fn rope_of_scaling(
    fields: &ConfigFields<'_>,
    defaults: RopeDefaults,
) -> Result<Rope, ConfigError> {
    let empty = Map::new();
    reject_two_blocks(fields)?;
    let block = fields.block("rope_parameters").or_else(|| fields.block("rope_scaling"));
    let block = block.unwrap_or_else(|| ConfigFields::new(&empty));
    for field in ["rope_theta", "partial_rotary_factor"] {
        block.present(field);
    }
    let mut rope = rope_of_defaults(fields, &block, defaults)?;
    let given = block.present("attention_factor");
    if let (RopeScaling::Yarn { attention_factor, .. }, None) = (&mut rope.scaling, given) {
        *attention_factor = 1.0;
    }
    Ok(rope)
}

/// Returns the rotary positions of `defaults` with the scaling of a block.
fn rope_of_defaults(
    fields: &ConfigFields<'_>,
    block: &ConfigFields<'_>,
    defaults: RopeDefaults,
) -> Result<Rope, ConfigError> {
    let rotary_dim = rotary_dim(Some(defaults.rotated), defaults.head_dim)?;
    let dim = rotary_dim.unwrap_or(defaults.head_dim);
    let scaling = scaling(fields, block, dim, defaults)?;
    reject_unknown(block)?;
    Ok(Rope { rotary_dim, ..Rope::new(defaults.theta, scaling) })
}

fn parse_block(
    fields: &ConfigFields<'_>,
    block: &ConfigFields<'_>,
    defaults: RopeDefaults,
) -> Result<Rope, ConfigError> {
    let in_block = block.positive("rope_theta")?;
    let outside = fields.positive("rope_theta")?;
    let theta = in_block.or(outside).unwrap_or(defaults.theta);
    let in_block = block.positive("partial_rotary_factor")?;
    let outside = fields.positive("partial_rotary_factor")?;
    let partial = in_block.or(outside);
    if let Some(factor) = partial.filter(|one| *one != 1.0 && !defaults.can_be_partial) {
        return Err(ConfigError::Unsupported {
            what: format!("a rotary embedding of a part of each head ({factor})"),
            hint: " in this family",
        });
    }
    let rotated = partial.or_else(|| Some(defaults.rotated).filter(|part| *part != 1.0));
    if rope_type(block) == Some("proportional") {
        let rotated_pairs = (defaults.head_dim as f64 * rotated.unwrap_or(1.0)) as usize / 2;
        if rotated_pairs > defaults.head_dim / 2 {
            let what = format!("a rotary embedding of {rotated_pairs} pairs of each head");
            return Err(ConfigError::Unsupported { what, hint: "" });
        }
        return Ok(Rope::new(theta, RopeScaling::Proportional { rotated_pairs }));
    }
    let rotary_dim = rotary_dim(rotated, defaults.head_dim)?;
    let dim = rotary_dim.unwrap_or(defaults.head_dim);
    let scaling = scaling(fields, block, dim, defaults)?;
    let temperature = temperature(fields, block, defaults)?;
    Ok(Rope { rotary_dim, temperature, ..Rope::new(theta, scaling) })
}

/// Returns the number of elements of a head that are rotated, given their fraction; `None` if all
/// are.
fn rotary_dim(rotated: Option<f64>, head_dim: usize) -> Result<Option<usize>, ConfigError> {
    let rotary_dim = rotated.map(|factor| (head_dim as f64 * factor) as usize);
    if let Some(odd) = rotary_dim.filter(|dim| *dim == 0 || dim % 2 != 0 || *dim > head_dim) {
        return Err(ConfigError::Unsupported {
            what: format!("a rotary embedding of {odd} elements of each head"),
            hint: "",
        });
    }
    Ok(rotary_dim.filter(|dim| *dim != head_dim))
}

fn rope_type<'a>(block: &ConfigFields<'a>) -> Option<&'a str> {
    [block.text("rope_type"), block.text("type")].into_iter().flatten().next()
}

/// Returns the factor of queries by their position; `None` in families without one, whose files
/// must not specify one, and where its logarithm is multiplied by 0.
fn temperature(
    fields: &ConfigFields<'_>,
    block: &ConfigFields<'_>,
    defaults: RopeDefaults,
) -> Result<Option<AttentionTemperature>, ConfigError> {
    const FIELD: &str = "llama_4_scaling_beta";
    if !defaults.has_temperature {
        return Ok(None);
    }
    // These families' files repeat it in the block, where nothing reads it.
    block.present("max_position_embeddings");
    if block.present(FIELD).is_some_and(|value| value.as_f64() == Some(0.0)) {
        return Ok(None);
    }
    let beta = block.positive(FIELD)?.ok_or(ConfigError::Missing { field: FIELD })?;
    let interval = original_positions(fields, block, defaults)?;
    Ok(Some(AttentionTemperature { beta, interval }))
}

fn scaling(
    fields: &ConfigFields<'_>,
    block: &ConfigFields<'_>,
    rotary_dim: usize,
    defaults: RopeDefaults,
) -> Result<RopeScaling, ConfigError> {
    let needed = |field| block.positive(field)?.ok_or(ConfigError::Missing { field });
    match rope_type(block) {
        None if block.present("factor").is_none() => Ok(RopeScaling::None),
        Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: needed("factor")? }),
        Some("llama3") => llama3(block),
        Some("yarn") => yarn(fields, block, defaults),
        Some("longrope" | "su") => longrope(fields, block, rotary_dim, defaults),
        Some("dynamic") => Ok(RopeScaling::Dynamic {
            factor: needed("factor")?,
            original_max_positions: original_positions(fields, block, defaults)?,
        }),
        other => Err(ConfigError::Unsupported {
            what: format!("the rope type {}", other.unwrap_or("without a name")),
            hint: " (supported: default, linear, llama3, yarn, longrope, dynamic, proportional)",
        }),
    }
}

/// Returns the number of positions before the context was extended: from the block, else from the
/// surrounding object, else all positions.
fn original_positions(
    fields: &ConfigFields<'_>,
    block: &ConfigFields<'_>,
    defaults: RopeDefaults,
) -> Result<u32, ConfigError> {
    const NAME: &str = "original_max_position_embeddings";
    let inside = block.optional_size(NAME)?;
    let outside = fields.optional_size(NAME)?;
    // The cast is lossless, since sizes are at most 2^31.
    Ok(inside.or(outside).unwrap_or(defaults.max_positions) as u32)
}

fn llama3(block: &ConfigFields<'_>) -> Result<RopeScaling, ConfigError> {
    let needed = |field| block.positive(field)?.ok_or(ConfigError::Missing { field });
    let (low_freq_factor, high_freq_factor) =
        (needed("low_freq_factor")?, needed("high_freq_factor")?);
    if low_freq_factor >= high_freq_factor {
        let value = block.present("low_freq_factor").unwrap_or(&Value::Null);
        return Err(wrong("low_freq_factor", value, "less than high_freq_factor"));
    }
    let original = block.size("original_max_position_embeddings")?;
    Ok(RopeScaling::Llama3 {
        factor: needed("factor")?,
        low_freq_factor,
        high_freq_factor,
        // The cast is lossless, since `size` accepts at most 2^31.
        original_max_positions: original as u32,
    })
}

fn yarn(
    fields: &ConfigFields<'_>,
    block: &ConfigFields<'_>,
    defaults: RopeDefaults,
) -> Result<RopeScaling, ConfigError> {
    let factor = block.positive("factor")?.ok_or(ConfigError::Missing { field: "factor" })?;
    let (mscale, all) = (block.positive("mscale")?, block.positive("mscale_all_dim")?);
    let given = block.positive("attention_factor")?;
    Ok(RopeScaling::Yarn {
        factor,
        original_max_positions: original_positions(fields, block, defaults)?,
        beta_fast: block.positive("beta_fast")?.unwrap_or(YARN_BETA_FAST),
        beta_slow: block.positive("beta_slow")?.unwrap_or(YARN_BETA_SLOW),
        attention_factor: given.unwrap_or_else(|| yarn_attention_factor(factor, mscale, all)),
        truncate: block.flag("truncate", true)?,
    })
}

fn longrope(
    fields: &ConfigFields<'_>,
    block: &ConfigFields<'_>,
    rotary_dim: usize,
    defaults: RopeDefaults,
) -> Result<RopeScaling, ConfigError> {
    let factors = |field| {
        let factors = block.numbers(field)?.ok_or(ConfigError::Missing { field })?;
        let usable = factors.len() == rotary_dim / 2 && factors.iter().all(|one| *one > 0.0);
        match usable {
            true => Ok(factors),
            false => Err(ConfigError::Unsupported {
                what: format!(
                    "a rotary embedding whose {field} are not {} positive numbers",
                    rotary_dim / 2
                ),
                hint: "",
            }),
        }
    };
    let (short_factors, long_factors) = (factors("short_factor")?, factors("long_factor")?);
    const NAME: &str = "original_max_position_embeddings";
    if fields.present(NAME).is_none() && block.present(NAME).is_none() {
        return Err(ConfigError::Missing { field: NAME });
    }
    let original = original_positions(fields, block, defaults)?;
    let stretched = defaults.max_positions as f64 / f64::from(original);
    let factor = block.positive("factor")?.unwrap_or(stretched);
    let given = block.positive("attention_factor")?;
    Ok(RopeScaling::Longrope {
        short_factors,
        long_factors,
        original_max_positions: original,
        attention_factor: given.unwrap_or_else(|| longrope_attention_factor(factor, original)),
    })
}
