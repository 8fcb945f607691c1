//! In which form weights and KV are kept: what the user asked for, over what the files hold.

use model::compressed::{Grouped, WeightFormat, kv4_position_bytes};
use model::config::ModelConfig;
use planner::policy::Formats;
use program::formats::{KvFormat, WeightFormats};

use super::model::Opened;
use super::select;
use crate::cli::request::Run;
use crate::cli::values::{CompressChoice, QuantizedChoice};

/// What is kept in 4 bits beyond what the files hold so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    weights: bool,
    kv: bool,
    /// Of all that fit it is predicted to be the fastest; else it is the first of them.
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

    /// The same, which is predicted to be the fastest that fits.
    pub(crate) const fn as_fastest(self) -> Case {
        Case { is_fastest: true, ..self }
    }

    /// The choice that names it.
    pub(crate) fn choice(self) -> CompressChoice {
        match (self.weights, self.kv) {
            (false, false) => CompressChoice::None,
            (true, false) => CompressChoice::W4,
            (false, true) => CompressChoice::Kv4,
            (true, true) => CompressChoice::W4kv4,
        }
    }

    /// What to say, and to report, when the form was chosen because nothing fits without.
    pub(crate) fn note(self, run: &Run) -> Option<String> {
        if run.compress != CompressChoice::Auto || !(self.weights || self.kv) {
            return None;
        }
        let what = match (self.weights, self.kv) {
            (true, true) => "weights and KV are kept",
            (true, false) => "weights are kept",
            _ => "KV is kept",
        };
        let why = match self.is_fastest {
            true => "the fastest form that fits as this machine was measured",
            false => {
                "the first form that fits: to have the fastest chosen, measure each (coordinator \
                 profile --compress w4, kv4, w4kv4)"
            }
        };
        Some(format!(
            "Nothing fits memory uncompressed, so {what} in 4 bits (--compress {}), {why}. That \
             changes answers slightly; --compress none refuses with the numbers.",
            self.choice().name()
        ))
    }
}

/// What to say of weights' formats that nobody asked for by name.
pub(crate) fn notes(run: &Run, opened: &Opened, case: Case) -> Vec<String> {
    let all = run.quantized == QuantizedChoice::Expand;
    let expanded = opened.expanded(all).map(|found| found.note(run.dtype, case.weights));
    let rounded = if all || !case.weights { None } else { opened.rounded_again() };
    let of_case = case.note(run).into_iter();
    of_case.chain(expanded).chain(rounded).chain(select::note(run)).collect()
}

/// The cases that a run may choose from, lossless ones first.
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

/// The formats of a case. Weights that are in 4 bits already stay as they are: quantising them
/// again would only lose.
pub(crate) fn formats(run: &Run, opened: &Opened, case: Case) -> Formats {
    let weights = weights(opened, run.quantized, case.weights);
    let kv = if case.kv { KvFormat::Four } else { KvFormat::Plain };
    Formats { weights, kv, kv_select: select::rule(run) }
}

/// The formats of weights: as the files hold them where they are multiplied so, else plain or,
/// `in_four`, in 4 bits.
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

/// What is asked for alone, of weights that are plain in their files.
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

/// What decides answers beside dtype and files, for their fingerprint: the counts of matrices of
/// each form would not do, their places do.
pub(crate) fn described(formats: &Formats) -> String {
    let is_plain = !formats.weights.any_grouped() && formats.kv == KvFormat::Plain;
    if is_plain && formats.kv_select.is_none() {
        return "none".to_owned();
    }
    format!("{formats:?}")
}
