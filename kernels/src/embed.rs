//! Token embedding, with learned positions if the model has them.

use model::quantized_format::{Grouped, ROWS};

use crate::Kernels;
use crate::number::Number;
use crate::quant::decode_row;
use crate::scratch::SharedPointer;

/// Rows of one task.
const TASK_ROWS: usize = 8;

impl Kernels {
    /// Computes `out[i] = factor * table[tokens[i]]`, plus `position_table[positions[i] + offset]`
    /// if given as `(positions, position_table, offset)`.
    ///
    /// `table` is `[vocab, hidden]`, `position_table` `[*, hidden]`, `out` `[tokens, hidden]`. The
    /// hidden size is that of `out`.
    ///
    /// # Panics
    /// If a token or position is outside its table.
    pub fn embed<T: Number>(
        &self,
        tokens: &[u32],
        table: &[T],
        positions: Option<(&[u32], &[T], usize)>,
        factor: f32,
        out: &mut [f32],
    ) {
        if tokens.is_empty() {
            return;
        }
        let hidden = out.len() / tokens.len();
        assert_eq!(out.len(), tokens.len() * hidden, "out is [tokens, hidden]");
        // Checked here rather than in a task: a panic in a task aborts the process without a
        // message.
        let inside = |row: usize, table: &[T]| (row + 1) * hidden <= table.len();
        for &token in tokens {
            assert!(inside(token as usize, table), "token {token} is outside the vocabulary");
        }
        if let Some((positions, position_table, offset)) = positions {
            assert_eq!(positions.len(), tokens.len(), "positions has an entry per token");
            for &position in positions {
                let row = position as usize + offset;
                assert!(inside(row, position_table), "position {position} is outside the table");
            }
        }
        let bytes = out.len() * (size_of::<f32>() + size_of::<T>());
        let out = SharedPointer(out.as_mut_ptr());
        self.run_sized(tokens.len().div_ceil(TASK_ROWS), bytes, &|task, _| {
            for row in task * TASK_ROWS..tokens.len().min((task + 1) * TASK_ROWS) {
                // SAFETY: the row is within `out`, and no other task writes it.
                let out = unsafe {
                    std::slice::from_raw_parts_mut(out.pointer().add(row * hidden), hidden)
                };
                let token = &table[tokens[row] as usize * hidden..][..hidden];
                for (out, value) in out.iter_mut().zip(token) {
                    *out = value.to_f32() * factor;
                }
                if let Some((positions, position_table, offset)) = positions {
                    let position = positions[row] as usize + offset;
                    let position = &position_table[position * hidden..][..hidden];
                    for (out, value) in out.iter_mut().zip(position) {
                        *out += value.to_f32();
                    }
                }
            }
        });
    }

    /// Writes row `tokens[i]` of a grouped table `[*, hidden]`, decoded, times `factor`, to
    /// `out[i]`. The hidden size is that of `out`.
    ///
    /// # Panics
    /// If a token is outside the table.
    pub fn embed_grouped(
        &self,
        tokens: &[u32],
        format: Grouped,
        records: &[u8],
        factor: f32,
        out: &mut [f32],
    ) {
        if tokens.is_empty() {
            return;
        }
        let hidden = out.len() / tokens.len();
        assert_eq!(out.len(), tokens.len() * hidden, "out is [tokens, hidden]");
        let rows = records.len() / format.block_bytes(hidden) * ROWS;
        for &token in tokens {
            assert!((token as usize) < rows, "token {token} is outside the vocabulary");
        }
        let bytes = out.len() * 2 * size_of::<f32>();
        let out = SharedPointer(out.as_mut_ptr());
        self.run_sized(tokens.len().div_ceil(TASK_ROWS), bytes, &|task, _| {
            for (row, token) in tokens.iter().enumerate().skip(task * TASK_ROWS).take(TASK_ROWS) {
                // SAFETY: the row is within `out`, and no other task writes it.
                let out = unsafe {
                    std::slice::from_raw_parts_mut(out.pointer().add(row * hidden), hidden)
                };
                decode_row(format, records, hidden, *token as usize, out);
                out.iter_mut().for_each(|value| *value *= factor);
            }
        });
    }
}
