//! Grids of GGUF's IQ types: the lists of combinations of values that their indices select.

/// The grids, one after the other, made by `scripts/ggml_grids.py`.
const ENTRIES: &[u8] = include_bytes!("grids.bin");

/// A grid.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    /// Index of the first entry in the file.
    first: usize,
    /// Number of entries, a power of two.
    entries: usize,
    /// Number of bits of an element: its place in the list of values.
    bits: usize,
}

impl Grid {
    pub(super) const IQ2_XXS: Grid = Grid { first: 0, entries: 256, bits: 2 };
    pub(super) const IQ2_XS: Grid = Grid::after(Grid::IQ2_XXS, 512, 2);
    pub(super) const IQ2_S: Grid = Grid::after(Grid::IQ2_XS, 1024, 2);
    pub(super) const IQ3_XXS: Grid = Grid::after(Grid::IQ2_S, 256, 3);
    pub(super) const IQ3_S: Grid = Grid::after(Grid::IQ3_XXS, 512, 3);
    pub(super) const IQ1: Grid = Grid::after(Grid::IQ3_S, 2048, 2);

    const fn after(other: Grid, entries: usize, bits: usize) -> Grid {
        Grid { first: other.first + other.entries, entries, bits }
    }

    /// Returns the number of bits of an element.
    pub(super) fn bits(self) -> usize {
        self.bits
    }

    /// Returns the places of the elements of an entry in the list of values, the first element
    /// first. Bits of `index` beyond the grid are ignored.
    pub(super) fn entry(self, index: usize) -> impl Iterator<Item = u8> {
        let at = 2 * (self.first + index % self.entries);
        let entry = u16::from_le_bytes([ENTRIES[at], ENTRIES[at + 1]]);
        let mask = (1 << self.bits) - 1;
        (0..).map(move |element| (entry >> (element * self.bits) & mask) as u8)
    }
}

const _: () = assert!(ENTRIES.len() == 2 * (Grid::IQ1.first + Grid::IQ1.entries));
