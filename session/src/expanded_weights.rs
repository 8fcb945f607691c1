//! Weights that are quantised in a file and take more bytes in memory, since no kernel reads their
//! blocks.

use std::collections::BTreeMap;

use model::config::Dtype;
use model::source::StoredType;

/// Number of elements in the matrices of each quantised type of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuantisedMatrices(BTreeMap<&'static str, TypeTotals>);

/// Matrices of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TypeTotals {
    stored: StoredType,
    /// Number of elements in all matrices; those of layers are counted in `layer_elements` too.
    elements: u64,
    layer_elements: u64,
}

impl TypeTotals {
    fn file_bytes(&self, elements: u64) -> u64 {
        let (block_elements, block_bytes) = self.stored.block();
        elements / block_elements as u64 * block_bytes as u64
    }
}

/// Sizes of the matrices that are expanded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpandedWeights {
    types: Vec<&'static str>,
    file_bytes: u64,
    elements: u64,
}

impl QuantisedMatrices {
    /// Counts a matrix of `elements` elements, which belongs to a layer if `is_in_layer`.
    pub fn add(&mut self, stored: StoredType, elements: u64, is_in_layer: bool) {
        if stored.is_quantised() {
            let none = TypeTotals { stored, elements: 0, layer_elements: 0 };
            let totals = self.0.entry(stored.name()).or_insert(none);
            totals.elements += elements;
            totals.layer_elements += if is_in_layer { elements } else { 0 };
        }
    }

    /// Returns a sentence about the layers' matrices that are quantised to 4 bits although kernels
    /// read their blocks of more bits; `None` if there are none.
    pub fn requantisation_note(&self) -> Option<String> {
        let more = |of_type: &&TypeTotals| {
            let bits = of_type.stored.grouped().map_or(0, |grouped| grouped.bits.count());
            bits > 4 && of_type.layer_elements > 0
        };
        let rounded: Vec<&TypeTotals> = self.0.values().filter(more).collect();
        let names: Vec<&str> = rounded.iter().map(|of_type| of_type.stored.name()).collect();
        let file_bytes: u64 =
            rounded.iter().map(|of_type| of_type.file_bytes(of_type.layer_elements)).sum();
        (!names.is_empty()).then(|| {
            format!(
                "The layers' {} weights ({:.2} GiB in the file) are rounded a second time, into \
                 groups of 4 bits; weights that the file stores in 4 bits are unchanged.",
                names.join(" and "),
                file_bytes as f64 / (1u64 << 30) as f64
            )
        })
    }

    /// Returns the matrices that are expanded: if `all`, every quantised one, otherwise those whose
    /// blocks no kernel reads. `None` if there are none.
    pub fn expanded_weights(&self, all: bool) -> Option<ExpandedWeights> {
        let expanded = self.0.values().filter(|totals| all || totals.stored.grouped().is_none());
        let mut sum = ExpandedWeights { types: Vec::new(), file_bytes: 0, elements: 0 };
        for of_type in expanded {
            sum.types.push(of_type.stored.name());
            sum.file_bytes += of_type.file_bytes(of_type.elements);
            sum.elements += of_type.elements;
        }
        (!sum.types.is_empty()).then_some(sum)
    }
}

impl ExpandedWeights {
    /// Returns a sentence with the sizes in the file and in memory, or, if the layers' matrices are
    /// quantised again afterwards, one that says so.
    pub fn note(&self, dtype: Dtype, quantised_again: bool) -> String {
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let memory_bytes = self.elements * dtype.size_bytes() as u64;
        let (types, name) = (self.types.join(" and "), dtype.name());
        if quantised_again {
            return format!(
                "The file's {types} weights ({:.2} GiB) are expanded and rounded a second time: \
                 those of the layers into groups of 4 bits, the others to {name}.",
                gib(self.file_bytes)
            );
        }
        format!(
            "The file's {types} weights are expanded to {name}: {:.2} GiB become {:.2} GiB in \
             memory ({:.1} times).",
            gib(self.file_bytes),
            gib(memory_bytes),
            memory_bytes as f64 / self.file_bytes.max(1) as f64
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> QuantisedMatrices {
        let mut quantised = QuantisedMatrices::default();
        quantised.add(StoredType::Q4K, 1 << 30, true);
        quantised.add(StoredType::Q4K, 1 << 30, true);
        quantised.add(StoredType::Q6K, 1 << 30, true);
        quantised.add(StoredType::Q6K, 1 << 30, false);
        quantised.add(StoredType::F16, 1 << 30, true);
        quantised
    }

    #[test]
    fn what_is_expanded_is_told_of_with_both_sizes() {
        let note = file().expanded_weights(true).expect("two types").note(Dtype::Bf16, false);
        let expected = "The file's Q4_K and Q6_K weights are expanded to bf16: 2.77 GiB become \
                        8.00 GiB in memory (2.9 times).";
        assert_eq!(note, expected);
        let all = file().expanded_weights(true).expect("two types").note(Dtype::F32, false);
        assert!(all.contains("16.00 GiB"), "{all}");
    }

    #[test]
    fn a_file_of_readable_blocks_needs_no_note() {
        let mut quantised = QuantisedMatrices::default();
        for stored in StoredType::ALL.into_iter().filter(|stored| stored.grouped().is_some()) {
            quantised.add(stored, 256, true);
        }
        quantised.add(StoredType::Bf16, 64, true);
        assert_eq!(quantised.expanded_weights(false), None);
    }

    #[test]
    fn a_second_rounding_is_named() {
        let note = file().expanded_weights(true).expect("Q4_K").note(Dtype::Bf16, true);
        assert!(note.contains("rounded a second time"), "{note}");
        let note = file().requantisation_note().expect("Q6_K in layers");
        assert!(note.starts_with("The layers' Q6_K weights (0.82 GiB in the file)"), "{note}");
        let mut outer = QuantisedMatrices::default();
        outer.add(StoredType::Q6K, 256, false);
        outer.add(StoredType::Q4K, 256, true);
        assert_eq!(outer.requantisation_note(), None);
    }
}
