//! Layers that cost the same. What is estimated of a few layers is estimated of each kind of them,
//! and counts with its share of the model.

use model::config::ModelConfig;
use model::layers::{LayerKind, Layers};

use super::{Estimator, Unpriced};
use crate::budget::Request;

/// Whether layers cost the same. How positions are rotated costs nothing else.
fn cost_alike(a: &LayerKind, b: &LayerKind) -> bool {
    (a.window, a.feed_forward) == (b.window, b.feed_forward)
}

/// The model with all layers as those of one kind, for each kind, and the share of its layers that
/// are of that kind.
fn kinds(config: &ModelConfig) -> Vec<(f64, ModelConfig)> {
    let mut counted: Vec<(usize, &LayerKind)> = Vec::new();
    for layer in 0..config.num_layers {
        let kind = config.layers.of(layer);
        match counted.iter_mut().find(|(_, known)| cost_alike(known, kind)) {
            Some((count, _)) => *count += 1,
            None => counted.push((1, kind)),
        }
    }
    let of_kind = |(count, kind): (usize, &LayerKind)| {
        let layers = Layers::alike(kind.clone());
        let share = count as f64 / config.num_layers.max(1) as f64;
        (share, ModelConfig { layers, ..config.clone() })
    };
    counted.into_iter().map(of_kind).collect()
}

impl Estimator<'_> {
    /// What `of` says of each kind of layer, with the kind's share of the model: of the estimator
    /// for the model with all layers of that kind.
    ///
    /// # Errors
    /// What `of` fails with.
    pub(super) fn of_kinds<T>(
        &self,
        of: impl Fn(&Estimator<'_>) -> Result<T, Unpriced>,
    ) -> Result<Vec<(f64, T)>, Unpriced> {
        let one = |(share, config): (f64, ModelConfig)| {
            let request = &Request { config: &config, ..*self.request };
            Ok((share, of(&Estimator { request, ..*self })?))
        };
        kinds(self.request.config).into_iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use model::known::known as model;

    use super::kinds;

    fn shares(name: &str) -> Vec<(f64, Option<usize>)> {
        let of_all = |(share, config): (f64, model::config::ModelConfig)| {
            assert_eq!(config.layers.kinds().len(), 1);
            (share, config.layers.of(0).window)
        };
        kinds(&model(name).expect("known").config).into_iter().map(of_all).collect()
    }

    #[test]
    fn layers_differ_by_their_windows() {
        assert_eq!(shares("opt-30b"), [(1.0, None)]);
        assert_eq!(shares("gemma-3-12b"), [(40.0 / 48.0, Some(1024)), (8.0 / 48.0, None)]);
        assert_eq!(shares("gpt-oss-20b"), [(0.5, Some(128)), (0.5, None)]);
        // Every fourth layer rotates nothing.
        assert_eq!(shares("smollm3-3b"), [(1.0, None)]);
    }
}
