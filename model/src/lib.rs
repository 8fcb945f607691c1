//! Models: configurations, the table of operations and, in [`source`], the files that weights are
//! read from. Computations are pure outside `source`.

#[macro_use]
mod registry;

pub mod architecture;
mod codebook;
pub mod compression;
pub mod config;
pub mod config_bounds;
pub mod config_fields;
pub mod config_json;
mod config_rope;
mod config_unknown;
pub mod delta;
mod entries;
mod expert_rows;
pub mod experts;
pub mod family;
mod features;
pub mod generation;
pub mod hidden_states;
pub mod indexer;
pub mod known;
pub mod latent;
pub mod layers;
pub mod locate;
pub mod mamba;
pub mod ops;
pub mod prediction;
pub mod quantization;
pub mod quantized_format;
pub mod rope;
pub mod short_conv;
pub mod source;
pub mod state_slot;
pub mod streams;
pub mod unified_kv;
mod unknown_field;
