//! Comparison of the configuration that a file's reader finds with the one that it was made from.

use model::config::{ModelConfig, Rope, RopeScaling};
use model::layers::{LayerKind, Layers};
use model::source::gguf::export::architecture;

/// Maximum relative difference of numbers: files contain them in f32.
const TOLERANCE: f64 = 1e-6;

/// Returns the part of a configuration that differs, if there is one. Names differ, families may
/// share an architecture, a tokenizer may begin texts with another token than `config.json` names,
/// files may list more end tokens by their spelling, and a scaling of the rope may be stored as its
/// factors.
pub(crate) fn difference(expected: &ModelConfig, found: &ModelConfig) -> Option<String> {
    let (mut expected, mut found) = (expected.clone(), found.clone());
    found.name.clone_from(&expected.name);
    if architecture(&found) == architecture(&expected) {
        found.family = expected.family;
    }
    if expected.eos_token_ids.iter().all(|id| found.eos_token_ids.contains(id)) {
        found.eos_token_ids.clone_from(&expected.eos_token_ids);
    }
    found.bos_token_id = expected.bos_token_id;
    for config in [&mut expected, &mut found] {
        config.scales.attention = Some(config.attention_scale());
        config.layers = with_rope_factors(config);
    }
    let (expected, found) = (format!("{expected:#?}"), format!("{found:#?}"));
    let (mut expected, mut found) = (expected.lines(), found.lines());
    loop {
        match (expected.next(), found.next()) {
            (None, None) => return None,
            (Some(expected), Some(found)) if is_equal(expected, found) => {}
            (expected, found) => {
                let (expected, found) = (expected.unwrap_or_default(), found.unwrap_or_default());
                return Some(format!("{:?} in place of {:?}", found.trim(), expected.trim()));
            }
        }
    }
}

/// Returns the layers with LLaMA-3's scaling as factors.
fn with_rope_factors(config: &ModelConfig) -> Layers {
    let kinds = (0..config.num_layers).map(|layer| {
        let kind = config.layers.kind(layer);
        let rope = kind.rope.clone().map(|rope| match rope.scaling {
            RopeScaling::Llama3 { .. } => {
                let factors = llama3_factors(&rope, config.head_dim);
                let factors = factors.into_iter().map(f64::from).collect();
                Rope { scaling: RopeScaling::Factors { factors }, ..rope }
            }
            _ => rope,
        });
        LayerKind { rope, ..kind.clone() }
    });
    Layers::from_kinds(kinds)
}

/// Returns the divisor of each inverse frequency of a rope with LLaMA-3's scaling, in f32.
pub(crate) fn llama3_factors(rope: &Rope, head_dim: usize) -> Vec<f32> {
    let plain = Rope { scaling: RopeScaling::None, ..rope.clone() };
    let (plain, scaled) = (plain.inverse_frequencies(head_dim), rope.inverse_frequencies(head_dim));
    plain.iter().zip(scaled).map(|(plain, scaled)| plain / scaled).collect()
}

/// Returns true for lines that are the same, or contain nearly the same number.
fn is_equal(expected: &str, found: &str) -> bool {
    let parts = |line: &str| {
        let line = line.trim().trim_end_matches(',').to_owned();
        let (label, number) = line.rsplit_once(' ').unwrap_or(("", &line));
        number.parse::<f64>().ok().map(|number| (label.to_owned(), number))
    };
    match (parts(expected), parts(found)) {
        _ if expected == found => true,
        (Some((label, a)), Some((found, b))) => {
            label == found && (a - b).abs() <= TOLERANCE * a.abs().max(b.abs())
        }
        _ => false,
    }
}
