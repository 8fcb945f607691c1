//! Formats in which weights and KV are stored: the user's choice, applied to the formats in the
//! files.

use model::config::ModelConfig;
use model::quantized_format::{Grouped, WeightFormat, kv4_position_bytes};
use planner::policy::Formats;
use program::formats::{KvFormat, WeightFormats};

use super::kv_select;
use super::model::ModelHandle;
use crate::session::Session;
use crate::values::{CompressChoice, QuantizedChoice};

/// Compression: the parts that are quantised to 4 bits in addition to those that already are in the
/// files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunCompression {
    weights: bool,
    kv: bool,
    /// The compression has the highest predicted throughput of all that fit; if `false`, it is the
    /// first of them.
    is_fastest: bool,
}

impl RunCompression {
    const LOSSLESS: RunCompression = RunCompression::new(false, false);

    const fn new(weights: bool, kv: bool) -> RunCompression {
        RunCompression { weights, kv, is_fastest: false }
    }

    pub(crate) fn is_lossless(self) -> bool {
        self == RunCompression::LOSSLESS
    }

    /// Returns the compression marked as the fastest that fits by prediction.
    pub(crate) const fn as_fastest(self) -> RunCompression {
        RunCompression { is_fastest: true, ..self }
    }

    /// Returns the command line choice that names this compression.
    pub fn choice(self) -> CompressChoice {
        match (self.weights, self.kv) {
            (false, false) => CompressChoice::None,
            (true, false) => CompressChoice::W4,
            (false, true) => CompressChoice::Kv4,
            (true, true) => CompressChoice::W4kv4,
        }
    }

    /// Returns the sentence to print and report if this compression was chosen because nothing fits
    /// without.
    pub(crate) fn note(self, session: &Session<'_>) -> Option<String> {
        if session.options.compress != CompressChoice::Auto || !(self.weights || self.kv) {
            return None;
        }
        let what = match (self.weights, self.kv) {
            (true, true) => "weights and KV are stored",
            (true, false) => "weights are stored",
            _ => "KV is stored",
        };
        let reason = match self.is_fastest {
            true => "the fastest compression that fits as measured on this machine",
            false => {
                "the first compression that fits; to choose the fastest, measure each (coordinator \
                 profile --compress w4, kv4, w4kv4)"
            }
        };
        Some(format!(
            "Nothing fits memory uncompressed, so {what} in 4 bits (--compress {}), {reason}. This \
             changes answers slightly; --compress none fails and reports the sizes.",
            self.choice().name()
        ))
    }
}

/// Returns sentences about formats of weights that the user did not choose by name.
pub fn notes(session: &Session<'_>, compression: RunCompression) -> Vec<String> {
    let all = session.options.quantized == QuantizedChoice::Expand;
    let expanded = session
        .model
        .expanded_weights(all)
        .map(|found| found.note(session.options.dtype, compression.weights));
    let rounded =
        if all || !compression.weights { None } else { session.model.requantisation_note() };
    let of_case = compression.note(session).into_iter();
    of_case.chain(expanded).chain(rounded).chain(kv_select::note(session)).collect()
}

/// Returns the compressions that a run may choose from, lossless ones first.
pub fn candidate_compressions(session: &Session<'_>) -> Vec<RunCompression> {
    match session.options.compress {
        CompressChoice::Auto => {
            let mut cases = vec![RunCompression::LOSSLESS, RunCompression::new(true, false)];
            if can_compress_kv(&session.model.config) {
                cases.extend([RunCompression::new(false, true), RunCompression::new(true, true)]);
            }
            cases
        }
        choice => vec![RunCompression::new(choice.compresses_weights(), choice.compresses_kv())],
    }
}

/// Returns true if caches of a model can be stored in 4 bits.
pub fn can_compress_kv(config: &ModelConfig) -> bool {
    kv4_position_bytes(config.head_dim).is_some() && config.features.indexer.is_none()
}

/// Returns the formats of a compression. Weights that are already in 4 bits stay as they are, since
/// quantising them again would only lose precision.
pub fn resolve_formats(session: &Session<'_>, compression: RunCompression) -> Formats {
    let mut weights =
        resolve_weight_formats(session.model, session.options.quantized, compression.weights);
    weights.activations = session.options.activations;
    let kv = if compression.kv { KvFormat::Four } else { KvFormat::Plain };
    Formats { weights, kv, kv_select: kv_select::selection_rule(session) }
}

/// Returns the formats of weights: as in the files if kernels multiply them directly, otherwise
/// plain or, if `quantises_to_4_bits`, in 4 bits.
pub fn resolve_weight_formats(
    model: &ModelHandle,
    quantized: QuantizedChoice,
    quantises_to_4_bits: bool,
) -> WeightFormats {
    let config = &model.config;
    let mut weights = match quantized {
        QuantizedChoice::Direct => model.stored_formats.clone(),
        QuantizedChoice::Expand => WeightFormats::plain(config),
    };
    if quantises_to_4_bits {
        let wanted = WeightFormats::with_layers(config, WeightFormat::Grouped(Grouped::W4));
        for (have, want) in weights.layers.iter_mut().zip(wanted.layers) {
            for (have, want) in have.iter_mut().zip(want) {
                if want != WeightFormat::Plain && !is_four_bit(*have) {
                    *have = want;
                }
            }
        }
    }
    weights
}

/// Returns the formats of a choice for weights that are plain in their files.
pub fn formats_for_choice(config: &ModelConfig, choice: CompressChoice) -> Formats {
    let mut formats = Formats::plain(config);
    if choice.compresses_weights() {
        formats.weights = WeightFormats::with_layers(config, WeightFormat::Grouped(Grouped::W4));
    }
    if choice.compresses_kv() {
        formats.kv = KvFormat::Four;
    }
    formats
}

fn is_four_bit(format: WeightFormat) -> bool {
    matches!(format, WeightFormat::Grouped(grouped) if grouped.bits.count() <= 4)
}

/// Describes the formats for the fingerprint of answers, which depend on them as on dtype and
/// files. The description contains the format of every matrix: the number of matrices of each
/// format would not suffice.
pub fn describe_formats(formats: &Formats) -> String {
    let is_plain = !formats.weights.any_grouped() && formats.kv == KvFormat::Plain;
    if is_plain && formats.kv_select.is_none() {
        return "none".to_owned();
    }
    format!("{formats:?}")
}
