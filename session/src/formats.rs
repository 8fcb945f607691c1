//! Formats in which weights and KV are stored: the user's choice, applied to the formats in the
//! files.

use model::config::ModelConfig;
use model::quantized_format::{Grouped, KvRecordFormat, WeightFormat};
use planner::policy::Formats;
use program::formats::{KvFormat, WeightFormats};

use super::kv_select;
use super::model::ModelHandle;
use crate::cuda_device;
use crate::session::Session;
use crate::values::{CompressChoice, QuantizedChoice};

/// Compression: the weights that are quantised to 4 bits in addition to those that already are in
/// the files, and the format of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunCompression {
    weights: bool,
    kv: KvFormat,
    /// The compression has the highest predicted throughput of all that fit; if `false`, it is the
    /// first of them.
    is_fastest: bool,
}

impl RunCompression {
    const LOSSLESS: RunCompression = RunCompression::new(false, KvFormat::Plain);

    const fn new(weights: bool, kv: KvFormat) -> RunCompression {
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
        CompressChoice::of_formats(self.weights, self.kv)
    }

    /// Returns the sentence to print and report if this compression was chosen because nothing fits
    /// without.
    pub(crate) fn note(self, session: &Session<'_>) -> Option<String> {
        if session.options.compress != CompressChoice::Auto {
            return None;
        }
        let what = storage_clause(self.choice())?;
        let reason = match self.is_fastest {
            true => "the fastest compression that fits as measured on this machine",
            false => {
                "the first compression that fits; to choose the fastest, measure each (coordinator \
                 profile --compress kv8, w4, w4kv8, kv4, w4kv4)"
            }
        };
        Some(format!(
            "Nothing fits memory uncompressed, so {what} (--compress {}), {reason}. This changes \
             answers slightly; --compress none fails and reports the sizes.",
            self.choice().name()
        ))
    }
}

/// Returns a clause about what a choice stores in fewer bits; `None` for a choice that compresses
/// nothing, or has not chosen yet.
pub(crate) const fn storage_clause(choice: CompressChoice) -> Option<&'static str> {
    Some(match choice {
        CompressChoice::Auto | CompressChoice::None => return None,
        CompressChoice::W4 => "weights are stored in 4 bits",
        CompressChoice::Kv8 => "KV is stored in 8 bits",
        CompressChoice::W4kv8 => "weights are stored in 4 bits and KV in 8",
        CompressChoice::Kv4 => "KV is stored in 4 bits",
        CompressChoice::W4kv4 => "weights and KV are stored in 4 bits",
    })
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

/// Returns the compressions that a run may choose from, those that lose least first.
pub fn candidate_compressions(session: &Session<'_>) -> Vec<RunCompression> {
    match session.options.compress {
        CompressChoice::Auto => {
            let has_cuda = cuda_device::is_cuda(session.options.device);
            all_compressions(can_compress_kv(&session.model.config), has_cuda)
        }
        choice => vec![RunCompression::new(choice.compresses_weights(), choice.kv_format())],
    }
}

/// Returns the compressions of a model. Caches of 8 bits are not among them on a CUDA device, whose
/// kernels do not read them: attention would leave the device.
fn all_compressions(can_compress_kv: bool, has_cuda: bool) -> Vec<RunCompression> {
    let is_possible = |kv: KvFormat| match kv {
        KvFormat::Plain => true,
        KvFormat::Eight => can_compress_kv && !has_cuda,
        KvFormat::Four => can_compress_kv,
    };
    let (plain, eight, four) = (KvFormat::Plain, KvFormat::Eight, KvFormat::Four);
    let weights_and_kv =
        [(false, plain), (false, eight), (true, plain), (true, eight), (false, four), (true, four)];
    let possible = weights_and_kv.into_iter().filter(|(_, kv)| is_possible(*kv));
    possible.map(|(weights, kv)| RunCompression::new(weights, kv)).collect()
}

/// Removes the compressions with KV in 4 bits if there are others.
pub(crate) fn prefer_wider_kv(fitting: &mut Vec<RunCompression>) {
    if fitting.iter().any(|compression| compression.kv != KvFormat::Four) {
        fitting.retain(|compression| compression.kv != KvFormat::Four);
    }
}

/// Returns true if caches of a model can be stored in 8 and in 4 bits.
pub fn can_compress_kv(config: &ModelConfig) -> bool {
    let mut formats = KvRecordFormat::ALL.into_iter();
    formats.all(|format| format.position_bytes(config.head_dim).is_some())
        && config.features.indexer.is_none()
}

/// Returns the formats of a compression. Weights that are already in 4 bits stay as they are, since
/// quantising them again would only lose precision.
pub fn resolve_formats(session: &Session<'_>, compression: RunCompression) -> Formats {
    let mut weights =
        resolve_weight_formats(session.model, session.options.quantized, compression.weights);
    weights.activations = session.options.activations;
    Formats { weights, kv: compression.kv, kv_select: kv_select::selection_rule(session) }
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
    formats.kv = choice.kv_format();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn names(compressions: &[RunCompression]) -> Vec<&'static str> {
        compressions.iter().map(|compression| compression.choice().name()).collect()
    }

    #[test]
    fn caches_of_8_bits_are_tried_before_those_of_4_and_not_with_cuda() {
        let all = all_compressions(true, false);
        assert_eq!(names(&all), ["none", "kv8", "w4", "w4kv8", "kv4", "w4kv4"]);
        assert_eq!(names(&all_compressions(true, true)), ["none", "w4", "kv4", "w4kv4"]);
        assert_eq!(names(&all_compressions(false, false)), ["none", "w4"]);
        assert!(all[0].is_lossless() && all[1..].iter().all(|other| !other.is_lossless()));
    }

    #[test]
    fn caches_of_4_bits_are_considered_only_if_nothing_else_fits() {
        let all = all_compressions(true, false);
        let (mut some, mut last) = (all[3..].to_vec(), all[4..].to_vec());
        prefer_wider_kv(&mut some);
        prefer_wider_kv(&mut last);
        assert_eq!((names(&some), names(&last)), (vec!["w4kv8"], vec!["kv4", "w4kv4"]));
        let mut none = Vec::new();
        prefer_wider_kv(&mut none);
        assert!(none.is_empty());
    }
}
