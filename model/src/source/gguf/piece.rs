//! Ranges of rows of a file's tensors, from which the model's tensors are assembled.

/// Rows of a tensor in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GgufSlice {
    /// Name in the file.
    pub name: String,
    /// Required shape of the file's tensor: `[n]` or `[out, in]`, preceded by the number of experts
    /// if there are any.
    pub shape: Vec<usize>,
    /// First row of the range. `rows` is its number of rows.
    pub first_row: usize,
    pub rows: usize,
    /// Number of elements in a row; a vector is a single row.
    pub elements: usize,
    /// The rows are the columns of `elements` rows of the file's tensor, from `first_row` on, which
    /// have `rows` elements each.
    pub is_transposed: bool,
}

impl GgufSlice {
    /// Returns a whole vector or matrix.
    pub(super) fn whole(name: String, shape: Vec<usize>) -> GgufSlice {
        let elements = *shape.last().expect("every tensor has dimensions");
        let rows = shape.iter().product::<usize>() / elements;
        GgufSlice { name, shape, first_row: 0, rows, elements, is_transposed: false }
    }

    /// Returns a range of the rows.
    pub(super) fn rows_from(&self, first_row: usize, rows: usize) -> GgufSlice {
        GgufSlice { first_row, rows, ..self.clone() }
    }

    /// Returns the columns of a range of the rows.
    pub(super) fn columns_of_rows(&self, first_row: usize, rows: usize) -> GgufSlice {
        let columns = self.elements;
        GgufSlice { first_row, rows: columns, elements: rows, is_transposed: true, ..self.clone() }
    }
}
