//! Layers with equal costs. What is estimated from a few layers is estimated for each kind of
//! layer, and weighted by its fraction of the model.

use model::config::ModelConfig;
use model::indexer::PositionSelection;
use model::layers::{CacheSharing, LayerKind, Layers};

use program::formats::WeightFormats;

use super::{CostError, Estimator};
use crate::budget::PlacementRequest;
use crate::policy::Formats;

/// Returns true if layers have equal costs. The rotation of positions and the limits of activations
/// do not affect them.
fn have_equal_costs(a: &LayerKind, b: &LayerKind) -> bool {
    (a.mixing, a.window, a.feed_forward, a.sizes, a.caches, a.selection, a.compression)
        == (b.mixing, b.window, b.feed_forward, b.sizes, b.caches, b.selection, b.compression)
}

/// Returns for each kind of layer the layers of that kind, and the model in which all layers are of
/// that kind.
fn layer_kinds(config: &ModelConfig) -> Vec<(Vec<usize>, ModelConfig)> {
    let mut found: Vec<(Vec<usize>, &LayerKind)> = Vec::new();
    for layer in 0..config.num_layers {
        let kind = config.layers.kind(layer);
        match found.iter_mut().find(|(_, known)| have_equal_costs(known, kind)) {
            Some((of_kind, _)) => of_kind.push(layer),
            None => found.push((vec![layer], kind)),
        }
    }
    let of_kind = |(of_kind, kind): (Vec<usize>, &LayerKind)| {
        // A layer that reads the caches of another one costs what it would with caches of its own,
        // but for the linears of k and v.
        let caches = CacheSharing::Own;
        // One that shares a selection is taken to attend to all positions.
        let selection = match kind.selection {
            PositionSelection::Shared => PositionSelection::All,
            own => own,
        };
        let kind = LayerKind { sizes: None, caches, selection, ..kind.clone() };
        let layers = Layers::uniform(kind);
        let model = config.of_layer(of_kind[0]).clone();
        (of_kind, ModelConfig { layers, ..model })
    };
    found.into_iter().map(of_kind).collect()
}

/// Returns the formats of a model whose layers all equal some layers of another one.
fn formats_of_kind(formats: &Formats, of_kind: &[usize]) -> Formats {
    let all = &formats.weights.layers;
    let layers = (0..all.len()).map(|layer| all[of_kind[layer % of_kind.len()]].clone());
    let weights = WeightFormats { layers: layers.collect(), ..formats.weights.clone() };
    Formats { weights, ..formats.clone() }
}

impl Estimator<'_> {
    /// Evaluates `evaluate` for each kind of layer, on the estimator for the model with all layers
    /// of that kind, and returns the results with the kind's fraction of the model.
    ///
    /// # Errors
    /// Errors of `evaluate`.
    pub(super) fn for_each_kind<T>(
        &self,
        evaluate: impl Fn(&Estimator<'_>) -> Result<T, CostError>,
    ) -> Result<Vec<(f64, T)>, CostError> {
        let one = |(of_kind, config): (Vec<usize>, ModelConfig)| {
            let formats = &formats_of_kind(self.request.formats, &of_kind);
            let request = &PlacementRequest { config: &config, formats, ..*self.request };
            let share = of_kind.len() as f64 / config.num_layers.max(1) as f64;
            Ok((share, evaluate(&Estimator { request, ..*self })?))
        };
        layer_kinds(self.request.config).into_iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use model::known::find_known as model;

    use super::layer_kinds;

    fn shares(name: &str) -> Vec<(f64, Option<usize>)> {
        let of_all = |(of_kind, config): (Vec<usize>, model::config::ModelConfig)| {
            assert_eq!(config.layers.kinds().len(), 1);
            (of_kind.len() as f64 / config.num_layers as f64, config.layers.kind(0).window)
        };
        layer_kinds(&model(name).expect("known").config).into_iter().map(of_all).collect()
    }

    #[test]
    fn layers_differ_by_their_windows() {
        assert_eq!(shares("opt-30b"), [(1.0, None)]);
        assert_eq!(shares("gemma-3-12b"), [(40.0 / 48.0, Some(1024)), (8.0 / 48.0, None)]);
        assert_eq!(shares("gpt-oss-20b"), [(0.5, Some(128)), (0.5, None)]);
        // Every fourth layer has no rotation.
        assert_eq!(shares("smollm3-3b"), [(1.0, None)]);
    }
}
