//! Contents and identity of a model's staging.

use model::config::{Dtype, ModelConfig};
use model::quantized_format::WeightFormat;
use program::formats::WeightFormats;
use program::weights::Weights;
use sha2::{Digest, Sha256};
use weight_store::{BlobSize, Identity};
use workers::load::{BlobFormat, StagedBlob};

use crate::model::ModelHandle;

/// Version of the format; incremented when the bytes of a staged weight change.
const FORMAT: u32 = 1;
/// Version of the format of a model with experts, whose linears are in records since version 2.
const EXPERTS_FORMAT: u32 = 2;
/// Maximum number of characters of a model's or format's name in the name of a folder.
const NAME_MAX: usize = 80;

/// A model's weights in particular formats.
#[derive(Debug, Clone, Copy)]
pub struct StagedWeights<'a> {
    pub model: &'a ModelHandle,
    pub dtype: Dtype,
    pub formats: &'a WeightFormats,
}

impl<'a> StagedWeights<'a> {
    fn config(&self) -> &'a ModelConfig {
        &self.model.config
    }

    /// Returns everything that determines the bytes of the weights.
    pub(crate) fn encoded(&self) -> BlobFormat<'a> {
        BlobFormat { config: self.config(), dtype: self.dtype, formats: self.formats }
    }

    /// Returns blobs with all weights that can be read from drives: the matrices of layers, and the
    /// final norm and the head unless the head is the embedding, which stays in memory.
    pub fn contents(&self) -> Vec<StagedBlob> {
        let config = self.config();
        let mut all = Vec::new();
        for layer in 0..config.num_layers as u16 {
            let ops = config.layer_ops(layer.into()).iter().filter(|op| op.has_matrix(config));
            all.extend(ops.map(|op| Weights::Layer { layer, op: *op }));
        }
        if !config.tied_embeddings {
            all.extend([Weights::FinalNorm, Weights::Head]);
        }
        self.encoded().staged_blobs(all)
    }

    /// Returns the names and sizes of the blobs, in the order of [`StagedWeights::contents`].
    pub fn blobs(&self) -> Vec<BlobSize> {
        let encoded = self.encoded();
        let blob = |blob: StagedBlob| BlobSize {
            name: encoded.staged_name(blob),
            size_bytes: encoded.staged_bytes(blob) as u64,
        };
        self.contents().into_iter().map(blob).collect()
    }

    /// Returns the identity of the staging.
    ///
    /// # Errors
    /// Weights that cannot be read.
    pub fn identity(&self) -> anyhow::Result<Identity> {
        let has_experts = self.config().experts.is_some();
        self.identity_in(if has_experts { EXPERTS_FORMAT } else { FORMAT })
    }

    /// Returns the identity that a staging of the same weights has in an earlier format; `None` if
    /// there is no such format.
    ///
    /// # Errors
    /// Weights that cannot be read.
    pub fn outdated_identity(&self) -> anyhow::Result<Option<Identity>> {
        self.config().experts.map(|_| self.identity_in(FORMAT)).transpose()
    }

    fn identity_in(&self, format: u32) -> anyhow::Result<Identity> {
        let weights = self.model.weights_identity()?;
        let form = format_name(self.dtype, self.formats);
        let model = self.config().name.clone();
        let mut config = self.config().clone();
        config.name.clear();
        let identity_text = format!("{format}\n{config:?}\n{weights}\n{form}\n{:?}", self.formats);
        let hash: String = Sha256::digest(identity_text)
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Ok(Identity {
            name: format!("{}-{}-{hash}", folder_name(&model), folder_name(&form)),
            model,
            weights,
            form,
            description: vec![("layers".to_owned(), self.config().num_layers.to_string())],
        })
    }
}

/// Returns the number format, followed by the formats to which matrices of layers are quantised.
fn format_name(dtype: Dtype, formats: &WeightFormats) -> String {
    let mut bits: Vec<&str> = Vec::new();
    for format in formats.layers.iter().flatten() {
        let WeightFormat::Grouped(grouped) = format else { continue };
        let name = bits_name(grouped.bits.count());
        if !bits.contains(&name) {
            bits.push(name);
        }
    }
    bits.sort_unstable();
    bits.insert(0, dtype.name());
    bits.join("-")
}

/// Returns the name of a number of bits. Each has its own, so that stagings of different widths are
/// not taken for each other.
fn bits_name(count: usize) -> &'static str {
    match count {
        2 => "w2",
        3 => "w3",
        4 => "w4",
        5 => "w5",
        6 => "w6",
        _ => "w8",
    }
}

/// Returns a name that is valid for a folder.
fn folder_name(name: &str) -> String {
    let plain = name.chars().map(|c| match c.to_ascii_lowercase() {
        c if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') => c,
        _ => '-',
    });
    let plain: String = plain.collect();
    let plain = plain.trim_start_matches('.');
    let plain: String = plain.chars().take(NAME_MAX).collect();
    if plain.is_empty() { "model".to_owned() } else { plain }
}

#[cfg(test)]
mod tests {
    use model::quantized_format::Grouped;

    use super::*;

    #[test]
    fn every_number_of_bits_has_its_own_name() {
        for format in Grouped::STORED {
            let count = format.bits.count();
            assert_eq!(bits_name(count), format!("w{count}"), "{format:?}");
        }
    }

    #[test]
    fn folders_have_plain_names() {
        assert_eq!(folder_name("facebook/OPT-30B"), "facebook-opt-30b");
        assert_eq!(folder_name("..x y"), "x-y");
        assert_eq!(folder_name("ä"), "-");
        assert_eq!(folder_name("..."), "model");
        assert_eq!(folder_name(&"a".repeat(300)).len(), NAME_MAX);
    }
}
