//! Location of a tensor's rows in the tensors of a checkpoint: consecutive in a tensor of their
//! own, within a larger one, or in one tensor per expert.

/// Rows of a model's tensor that are stored in a tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSlice {
    /// Possible names of the checkpoint's tensor, the usual one first.
    pub names: Vec<String>,
    /// Shape of the checkpoint's tensor.
    pub shape: Vec<usize>,
    /// Index of the first element of the first row, in elements of the checkpoint's tensor.
    pub first: usize,
    pub rows: usize,
    /// Number of elements in a row.
    pub columns: usize,
    /// Distances between rows and between the elements of a row, in elements.
    pub strides: (usize, usize),
    /// The rows are columns of the checkpoint's tensor, also where the tensor is packed. (Other
    /// packed tensors have their outputs as rows, whatever the strides of plain ones.)
    pub is_transposed: bool,
}

impl TensorSlice {
    /// Creates a piece that is a whole tensor `[rows, columns]`, or a vector.
    ///
    /// # Panics
    /// More than two dimensions.
    pub(super) fn whole(name: String, shape: &[usize]) -> TensorSlice {
        let (rows, columns) = match shape {
            [columns] => (1, *columns),
            [rows, columns] => (*rows, *columns),
            _ => panic!("a whole tensor has one or two dimensions"),
        };
        let shape = shape.to_vec();
        TensorSlice {
            names: vec![name],
            shape,
            first: 0,
            rows,
            columns,
            strides: (columns, 1),
            is_transposed: false,
        }
    }

    /// Returns a range of the rows of a whole tensor, or of the elements of a vector.
    pub(super) fn rows_from(mut self, first: usize, count: usize) -> TensorSlice {
        if self.shape.len() == 1 {
            (self.first, self.columns) = (first, count);
        } else {
            (self.first, self.rows) = (first * self.columns, count);
        }
        self
    }
}

impl TensorSlice {
    /// Returns the rows of each head of `head_dim` rows of a whole matrix that is stored for a rope
    /// that rotates neighbours (2i, 2i + 1), in the order of one that rotates halves.
    pub(super) fn halves_of_neighbours(self, head_dim: usize) -> Vec<TensorSlice> {
        let starts = (0..self.rows).step_by(head_dim).flat_map(|head| [head, head + 1]);
        let half = |first: usize| TensorSlice {
            first: first * self.columns,
            rows: head_dim / 2,
            strides: (2 * self.columns, 1),
            ..self.clone()
        };
        starts.map(half).collect()
    }
}

/// Returns the pieces of the experts' matrices in one tensor `[experts, rows, columns]`: from each
/// matrix `rows` rows starting at `first_row`.
pub(super) fn stacked(
    name: &str,
    experts: usize,
    all_rows: usize,
    columns: usize,
    first_row: usize,
    rows: usize,
) -> Vec<TensorSlice> {
    let piece = |expert: usize| TensorSlice {
        names: vec![name.to_owned()],
        shape: vec![experts, all_rows, columns],
        first: (expert * all_rows + first_row) * columns,
        rows,
        columns,
        strides: (columns, 1),
        is_transposed: false,
    };
    (0..experts).map(piece).collect()
}

/// Alternative layouts of a part of a tensor. Each is a list of pieces that contain its rows in
/// order.
pub type Layouts = Vec<Vec<TensorSlice>>;
