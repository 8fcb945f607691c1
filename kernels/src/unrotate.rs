//! Rotation of attention's output back by the positions of its rows, where the values that it sums
//! are rotated keys. Plain code, identical in every variant.

use crate::Kernels;
use crate::number::Number;
use crate::rope::RopeTables;
use crate::scratch::SharedPointer;

impl Kernels {
    /// Rotates each head back by its row's position and writes the rotated elements last, as
    /// neighbours. `x` has them first, in the order of [`Kernels::rope`].
    ///
    /// `x` and `out` are `[rows, heads, head_dim]`, `positions` `[rows]`.
    ///
    /// # Panics
    /// If shapes do not match, or a table does not exist.
    pub fn unrotate<T: Number>(
        &self,
        [heads, head_dim]: [usize; 2],
        positions: &[u32],
        tables: &RopeTables<'_>,
        x: &[T],
        out: &mut [T],
    ) {
        let (rows, width) = (positions.len(), heads * head_dim);
        assert!(head_dim <= self.limits.head_dim, "head_dim is beyond the scratch limits");
        tables.check(rows, head_dim);
        assert_eq!(x.len(), rows * width, "x is [rows, heads, head_dim]");
        assert_eq!(out.len(), rows * width, "out is [rows, heads, head_dim]");
        let half = tables.rotary_dim / 2;
        let bytes = size_of_val(x) + size_of_val(out);
        let (out, per_thread) = (SharedPointer(out.as_mut_ptr()), &self.per_thread);
        self.run_sized(rows, bytes, &|row, thread| {
            // SAFETY: this thread's scratch holds `head_dim` floats and more; the row is within
            // `out`, and no other task writes it.
            let (table, out) = unsafe {
                let table = std::slice::from_raw_parts_mut(per_thread.for_thread(thread), 2 * half);
                (table, std::slice::from_raw_parts_mut(out.pointer().add(row * width), width))
            };
            let (cosines, sines) = table.split_at_mut(half);
            tables.fill(row, positions[row], cosines, sines);
            let x = x[row * width..][..width].chunks_exact(head_dim);
            for (x, out) in x.zip(out.chunks_exact_mut(head_dim)) {
                unrotate_head(x, cosines, sines, out);
            }
        });
    }
}

fn unrotate_head<T: Number>(x: &[T], cosines: &[f32], sines: &[f32], out: &mut [T]) {
    let half = cosines.len();
    let (rotated, others) = x.split_at(2 * half);
    let (first, pairs) = out.split_at_mut(others.len());
    first.copy_from_slice(others);
    let (low, high) = rotated.split_at(half);
    let angles = cosines.iter().zip(sines);
    for (((pair, low), high), (cosine, sine)) in
        pairs.chunks_exact_mut(2).zip(low).zip(high).zip(angles)
    {
        let (low, high) = (low.to_f32(), high.to_f32());
        pair[0] = T::from_f32(low * cosine + high * sine);
        pair[1] = T::from_f32(high * cosine - low * sine);
    }
}
