//! Sizes of pages of caches that suit a model.

use model::config::ModelConfig;

/// Maximum number of positions of a page. Where compressed groups need longer ones, caches are
/// contiguous.
const MAX_PAGE_POSITIONS: u32 = 4096;

/// Returns the number of positions of a page of the model's caches: `wanted`, or the next number in
/// which the model's compressed groups of positions fit whole.
pub(crate) fn page_positions_of(config: &ModelConfig, wanted: u32) -> u32 {
    let multiple = u32::try_from(config.page_multiple()).unwrap_or(u32::MAX);
    let whole = wanted.checked_next_multiple_of(multiple);
    whole.filter(|positions| *positions <= MAX_PAGE_POSITIONS).unwrap_or(wanted)
}

#[cfg(test)]
mod tests {
    use model::compression::PositionCompression;
    use model::known::find_known;
    use model::layers::Layers;

    use super::*;

    /// Returns a model whose layers have these rates of compression.
    fn compressing(rates: &[usize]) -> ModelConfig {
        let mut config = find_known("smollm2-135m").expect("known").config;
        let kind = config.layers.kind(0).clone();
        let kinds = rates.iter().map(|rate| {
            let compression = PositionCompression { rate: *rate, overlaps: false };
            model::layers::LayerKind { compression: Some(compression), ..kind.clone() }
        });
        config.layers = Layers::from_kinds(kinds.collect::<Vec<_>>());
        config
    }

    #[test]
    fn pages_have_whole_groups() {
        for (rates, wanted, expected) in [
            (&[4, 128][..], 16, 128),
            (&[4, 128], 256, 256),
            (&[4, 128], 1024, 1024),
            (&[4, 8], 16, 16),
            (&[2, 3], 256, 288),
        ] {
            let config = compressing(rates);
            assert_eq!(page_positions_of(&config, wanted), expected, "{rates:?} {wanted}");
        }
        let plain = find_known("smollm2-135m").expect("known").config;
        assert_eq!(page_positions_of(&plain, 16), 16);
    }

    /// Hostile rates neither overflow nor make pages as long as a context.
    #[test]
    fn groups_that_need_long_pages_leave_them_as_they_are() {
        for rates in [&[usize::MAX, usize::MAX - 1][..], &[4093, 4091], &[1 << 40]] {
            assert_eq!(page_positions_of(&compressing(rates), 256), 256, "{rates:?}");
        }
    }
}
