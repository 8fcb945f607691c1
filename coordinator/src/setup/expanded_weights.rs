//! Weights that a file holds in few bits and that take more in memory, since no kernel reads their
//! blocks.

use std::collections::BTreeMap;

use model::config::Dtype;
use model::source::StoredType;

/// Elements of the matrices of each quantised type that a file holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quantised(BTreeMap<&'static str, (StoredType, u64)>);

/// What becomes of the matrices that are expanded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expanded {
    types: Vec<&'static str>,
    file_bytes: u64,
    elements: u64,
}

impl Quantised {
    /// Counts a matrix of `elements`.
    pub fn add(&mut self, stored: StoredType, elements: u64) {
        if stored.is_quantised() {
            self.0.entry(stored.name()).or_insert((stored, 0)).1 += elements;
        }
    }

    /// The matrices that are expanded: all, or those that no kernel reads as they are.
    pub fn expanded(&self, all: bool) -> Option<Expanded> {
        let expanded = self.0.values().filter(|(stored, _)| all || stored.grouped().is_none());
        let mut sum = Expanded { types: Vec::new(), file_bytes: 0, elements: 0 };
        for (stored, elements) in expanded {
            let (block_elements, block_bytes) = stored.block();
            sum.types.push(stored.name());
            sum.file_bytes += elements / block_elements as u64 * block_bytes as u64;
            sum.elements += elements;
        }
        (!sum.types.is_empty()).then_some(sum)
    }
}

impl Expanded {
    /// A sentence with both sizes, and a second one where the layers' matrices are then quantised
    /// again.
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

    fn file() -> Quantised {
        let mut quantised = Quantised::default();
        quantised.add(StoredType::Q4K, 1 << 30);
        quantised.add(StoredType::Q4K, 1 << 30);
        quantised.add(StoredType::Q4_0, 1 << 30);
        quantised.add(StoredType::F16, 1 << 30);
        quantised
    }

    #[test]
    fn only_what_no_kernel_reads_is_told_of() {
        let note = file().expanded(false).expect("Q4_K").note(Dtype::Bf16, false);
        let expected = "The file's Q4_K weights are expanded to bf16: 1.12 GiB become 4.00 GiB in \
                        memory (3.6 times).";
        assert_eq!(note, expected);
        let all = file().expanded(true).expect("two types").note(Dtype::F32, false);
        assert!(all.contains("Q4_0 and Q4_K") && all.contains("12.00 GiB"), "{all}");
    }

    #[test]
    fn a_file_of_readable_blocks_needs_no_note() {
        let mut quantised = Quantised::default();
        quantised.add(StoredType::Q8_0, 64);
        quantised.add(StoredType::Bf16, 64);
        assert_eq!(quantised.expanded(false), None);
    }

    #[test]
    fn a_second_rounding_is_named() {
        let note = file().expanded(false).expect("Q4_K").note(Dtype::Bf16, true);
        assert!(note.contains("rounded a second time"), "{note}");
    }
}
