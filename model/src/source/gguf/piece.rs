//! Rows of a tensor of a file, of which a tensor of the model consists.

/// Rows of a tensor of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// The name in the file.
    pub name: String,
    /// What the file's tensor must be: `[n]`, `[out, in]`, or with the experts before these.
    pub shape: Vec<usize>,
    /// The first row that is meant, and how many.
    pub first_row: usize,
    pub rows: usize,
    /// Elements of a row; a vector is one.
    pub elements: usize,
}

impl Piece {
    /// All of a vector, or of a matrix.
    pub(super) fn whole(name: String, shape: Vec<usize>) -> Piece {
        let elements = *shape.last().expect("every tensor has dimensions");
        let rows = shape.iter().product::<usize>() / elements;
        Piece { name, shape, first_row: 0, rows, elements }
    }

    /// Some of its rows.
    pub(super) fn rows_from(&self, first_row: usize, rows: usize) -> Piece {
        Piece { first_row, rows, ..self.clone() }
    }
}
