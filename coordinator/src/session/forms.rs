//! In which form weights and KV are kept: what the user asked for, over what the files hold.

use model::compressed::{Bits, Grouped, WeightFormat};
use planner::policy::Forms;
use program::formats::{KvFormat, WeightFormats};

use crate::cli::high::Run;
use crate::cli::values::QuantizedChoice;
use crate::opened::Opened;

/// The forms of a run. Weights that are in 4 bits already stay as they are under `--compress w4`:
/// quantising them again would only lose.
pub(super) fn forms(run: &Run, opened: &Opened) -> Forms {
    let config = &opened.config;
    let mut weights = match run.quantized {
        QuantizedChoice::Direct => opened.stored.clone(),
        QuantizedChoice::Expand => WeightFormats::plain(config),
    };
    if run.compress.weights() {
        let wanted = WeightFormats::with_layers(config, WeightFormat::Grouped(Grouped::W4));
        for (have, want) in weights.layers.iter_mut().zip(wanted.layers) {
            for (have, want) in have.iter_mut().zip(want) {
                if want != WeightFormat::Plain && !in_four_bits(*have) {
                    *have = want;
                }
            }
        }
    }
    let kv = if run.compress.kv() { KvFormat::Four } else { KvFormat::Plain };
    Forms { weights, kv }
}

fn in_four_bits(format: WeightFormat) -> bool {
    matches!(format, WeightFormat::Grouped(grouped) if grouped.bits == Bits::Four)
}

/// What decides answers beside dtype and files, for their fingerprint: the counts of matrices of
/// each form would not do, their places do.
pub(super) fn described(run: &Run, opened: &Opened) -> String {
    let forms = forms(run, opened);
    if !forms.weights.any_grouped() && forms.kv == KvFormat::Plain {
        return "none".to_owned();
    }
    format!("{forms:?}")
}
