//! Formats in which weights and KV are stored: the user's choice, applied to the formats in the
//! files.

use model::compressed::{Grouped, WeightFormat, kv4_position_bytes};
use model::config::ModelConfig;
use planner::policy::Formats;
use program::formats::{KvFormat, WeightFormats};

use super::model::Opened;
use super::select;
use crate::cli::request::Run;
use crate::cli::values::{CompressChoice, QuantizedChoice};

/// Compression: the parts that are quantised to 4 bits in addition to those that already are in the
/// files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    weights: bool,
    kv: bool,
    /// The compression has the highest predicted throughput of all that fit; if `false`, it is the
    /// first of them.
    is_fastest: bool,
}

impl Case {
    const LOSSLESS: Case = Case::of(false, false);

    const fn of(weights: bool, kv: bool) -> Case {
        Case { weights, kv, is_fastest: false }
    }

    pub(crate) fn is_lossless(self) -> bool {
        self == Case::LOSSLESS
    }

    /// Returns the compression marked as the fastest that fits by prediction.
    pub(crate) const fn as_fastest(self) -> Case {
        Case { is_fastest: true, ..self }
    }

    /// Returns the command line choice that names this compression.
    pub(crate) fn choice(self) -> CompressChoice {
        match (self.weights, self.kv) {
            (false, false) => CompressChoice::None,
            (true, false) => CompressChoice::W4,
            (false, true) => CompressChoice::Kv4,
            (true, true) => CompressChoice::W4kv4,
        }
    }

    /// Returns the sentence to print and report if this compression was chosen because nothing fits
    /// without.
    pub(crate) fn note(self, run: &Run) -> Option<String> {
        if run.compress != CompressChoice::Auto || !(self.weights || self.kv) {
            return None;
        }
        let what = match (self.weights, self.kv) {
            (true, true) => "weights and KV are stored",
            (true, false) => "weights are stored",
            _ => "KV is stored",
        };
        let why = match self.is_fastest {
            true => "the fastest compression that fits as measured on this machine",
            false => {
                "the first compression that fits; to choose the fastest, measure each (coordinator \
                 profile --compress w4, kv4, w4kv4)"
            }
        };
        Some(format!(
            "Nothing fits memory uncompressed, so {what} in 4 bits (--compress {}), {why}. This \
             changes answers slightly; --compress none fails and reports the sizes.",
            self.choice().name()
        ))
    }
}

/// Returns sentences about formats of weights that the user did not choose by name.
pub(crate) fn notes(run: &Run, opened: &Opened, case: Case) -> Vec<String> {
    let all = run.quantized == QuantizedChoice::Expand;
    let expanded = opened.expanded(all).map(|found| found.note(run.dtype, case.weights));
    let rounded = if all || !case.weights { None } else { opened.rounded_again() };
    let of_case = case.note(run).into_iter();
    of_case.chain(expanded).chain(rounded).chain(select::note(run)).collect()
}

/// Returns the compressions that a run may choose from, lossless ones first.
pub(crate) fn cases(run: &Run, opened: &Opened) -> Vec<Case> {
    match run.compress {
        CompressChoice::Auto => {
            let mut cases = vec![Case::LOSSLESS, Case::of(true, false)];
            if kv4_position_bytes(opened.config.head_dim).is_some() {
                cases.extend([Case::of(false, true), Case::of(true, true)]);
            }
            cases
        }
        choice => vec![Case::of(choice.weights(), choice.kv())],
    }
}

/// Returns the formats of a compression. Weights that are already in 4 bits stay as they are, since
/// quantising them again would only lose precision.
pub(crate) fn formats(run: &Run, opened: &Opened, case: Case) -> Formats {
    let weights = weights(opened, run.quantized, case.weights);
    let kv = if case.kv { KvFormat::Four } else { KvFormat::Plain };
    Formats { weights, kv, kv_select: select::rule(run) }
}

/// Returns the formats of weights: as in the files if kernels multiply them directly, otherwise
/// plain or, if `in_four`, in 4 bits.
pub(crate) fn weights(opened: &Opened, quantized: QuantizedChoice, in_four: bool) -> WeightFormats {
    let config = &opened.config;
    let mut weights = match quantized {
        QuantizedChoice::Direct => opened.stored.clone(),
        QuantizedChoice::Expand => WeightFormats::plain(config),
    };
    if in_four {
        let wanted = WeightFormats::with_layers(config, WeightFormat::Grouped(Grouped::W4));
        for (have, want) in weights.layers.iter_mut().zip(wanted.layers) {
            for (have, want) in have.iter_mut().zip(want) {
                if want != WeightFormat::Plain && !in_four_bits(*have) {
                    *have = want;
                }
            }
        }
    }
    weights
}

/// Returns the formats of a choice for weights that are plain in their files.
pub(crate) fn of_choice(config: &ModelConfig, choice: CompressChoice) -> Formats {
    let mut formats = Formats::plain(config);
    if choice.weights() {
        formats.weights = WeightFormats::with_layers(config, WeightFormat::Grouped(Grouped::W4));
    }
    if choice.kv() {
        formats.kv = KvFormat::Four;
    }
    formats
}

fn in_four_bits(format: WeightFormat) -> bool {
    matches!(format, WeightFormat::Grouped(grouped) if grouped.bits.count() <= 4)
}

/// Describes the formats for the fingerprint of answers, which depend on them as on dtype and
/// files. The description contains the format of every matrix: the number of matrices of each
/// format would not suffice.
pub(crate) fn described(formats: &Formats) -> String {
    let is_plain = !formats.weights.any_grouped() && formats.kv == KvFormat::Plain;
    if is_plain && formats.kv_select.is_none() {
        return "none".to_owned();
    }
    format!("{formats:?}")
}
