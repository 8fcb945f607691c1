//! Where the rows of a tensor lie in the tensors of a checkpoint: one behind the other in one of
//! its own, within a larger one, or in one for each expert.

/// Some rows of a tensor, in a tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Names that the checkpoint's tensor may have, the usual one first.
    pub names: Vec<String>,
    /// Its shape there.
    pub shape: Vec<usize>,
    /// Its element that is the first of the first row.
    pub first: usize,
    pub rows: usize,
    /// Elements of a row.
    pub columns: usize,
    /// Elements from a row to the next, and from an element of a row to the next.
    pub strides: (usize, usize),
}

impl Piece {
    /// A whole tensor `[rows, columns]`, or a vector.
    ///
    /// # Panics
    /// More than two dimensions.
    pub(super) fn of(name: String, shape: &[usize]) -> Piece {
        let (rows, columns) = match shape {
            [columns] => (1, *columns),
            [rows, columns] => (*rows, *columns),
            _ => panic!("a whole tensor has one or two dimensions"),
        };
        let shape = shape.to_vec();
        Piece { names: vec![name], shape, first: 0, rows, columns, strides: (columns, 1) }
    }

    /// Some of the rows of a whole tensor, or of the elements of a vector.
    pub(super) fn rows_from(mut self, first: usize, count: usize) -> Piece {
        if self.shape.len() == 1 {
            (self.first, self.columns) = (first, count);
        } else {
            (self.first, self.rows) = (first * self.columns, count);
        }
        self
    }
}

/// The pieces of experts' matrices that lie in one tensor `[experts, rows, columns]`, of each the
/// rows from `first_row` on.
pub(super) fn stacked(
    name: &str,
    (experts, all_rows, columns): (usize, usize, usize),
    (first_row, rows): (usize, usize),
) -> Vec<Piece> {
    let piece = |expert: usize| Piece {
        names: vec![name.to_owned()],
        shape: vec![experts, all_rows, columns],
        first: (expert * all_rows + first_row) * columns,
        rows,
        columns,
        strides: (columns, 1),
    };
    (0..experts).map(piece).collect()
}

/// A part of a tensor may lie in several ways, each a list of pieces that hold its rows in order.
pub type Layouts = Vec<Vec<Piece>>;
