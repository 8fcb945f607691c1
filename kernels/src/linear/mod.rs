//! `out = epilogue(x · weightᵀ + bias)` for row-major weights `[n, k]`, exactly as they lie in the
//! checkpoint, and for grouped low-bit weights: nothing is repacked.
//!
//! **The order of every sum.** A vector lane is an output. Along k it is one chain of multiply-adds per
//! segment (`BLOCK_UNITS` units, or a group of a grouped weight), and the segments are added in order;
//! `quarters`, `dots` and `integers` have orders of their own. Batch size, tiles, tasks and threads do not enter, so a row's
//! bits depend on that row alone.
//!
//! - `form`: how weights become vectors of columns: dwords of `LANES` weight rows are transposed in
//!   registers, or lie so already in the records of a grouped weight.
//! - `pack`: activations as `[unit][row]`, from which single values are broadcast.
//! - `direct`: few rows, weights used straight from registers.
//! - `tiled`: more rows, weights expanded once into L1 for all of them.
//! - `quarters`: instead of these three, plain bf16 weights with AVX-512; `dots`: with AVX512-BF16.
//! - `amx`: the same with AMX, in tiles.
//! - `integers`: instead of these three, grouped weights in bf16 linears with AVX512-VNNI.
//! - `ahead`: memory asked for before it is needed.
//! - `way`: which of these; `rows`, `cuts`, `sizes`: how rows and columns are cut for it.
//! - `task`: a range of columns and rows; `epilogue`: bias, activation, rounding.
//! - `compiled`: every task once for each number format.
//!
//! A variant with another way through the weights takes the place of `task::Sums` in `compiled` and leaves
//! its sums where that does.

mod ahead;
#[cfg(target_arch = "x86_64")]
mod amx;
mod compiled;
mod cuts;
mod direct;
#[cfg(target_arch = "x86_64")]
mod dots;
mod epilogue;
mod form;
#[cfg(target_arch = "x86_64")]
mod integers;
mod pack;
#[cfg(target_arch = "x86_64")]
mod quarters;
mod rows;
mod sizes;
mod task;
mod tiled;
mod way;

use crate::Kernels;
use crate::scratch::Shared;
use crate::simd::MAX_LANES;
pub use compiled::LinearTasks;
use cuts::Cuts;
use epilogue::Epilogue;
pub use epilogue::LinearOut;
use model::compressed::Grouped;
use pack::Pack;
#[cfg(target_arch = "x86_64")]
use rows::Way;
pub(crate) use sizes::packed_len;
use sizes::{PACK_ROWS, packed_row, results_len};
use task::{Finish, Sums};
use way::Weight;

/// Packing more elements than this is worth a run of its own, while idle threads spin and while they
/// sleep.
const PARALLEL_PACK: [usize; 2] = [1 << 15, 1 << 18];

/// One linear operation.
#[derive(Debug)]
pub struct Linear<'a, T> {
    pub rows: usize,
    /// Output width.
    pub n: usize,
    /// Input width.
    pub k: usize,
    /// `[rows, k]`.
    pub x: &'a [T],
    /// `[n, k]`; fastest on a 64-byte boundary.
    pub weight: &'a [T],
    /// `[n]`.
    pub bias: Option<&'a [f32]>,
    pub out: LinearOut<'a, T>,
}

/// A linear operation on a grouped weight: `scale * q + min` per output column and group of inputs.
#[derive(Debug)]
pub struct LinearGrouped<'a, T> {
    pub rows: usize,
    /// Output width.
    pub n: usize,
    /// Input width.
    pub k: usize,
    /// `[rows, k]`.
    pub x: &'a [T],
    pub form: Grouped,
    /// `form.size_bytes(n, k)` bytes of records; fastest on a 64-byte boundary.
    pub records: &'a [u8],
    /// `[n]`.
    pub bias: Option<&'a [f32]>,
    pub out: LinearOut<'a, T>,
}

/// Floats of scratch per thread.
pub(crate) fn thread_len() -> usize {
    #[cfg(target_arch = "x86_64")]
    let unfinished = quarters::chains_len(PACK_ROWS).max(amx::SUMS_LEN);
    #[cfg(not(target_arch = "x86_64"))]
    let unfinished = 0;
    tiled::TILE_LEN + results_len() + unfinished
}

/// What a linear computes, once its operands are checked.
#[derive(Debug)]
struct Call<T> {
    rows: usize,
    n: usize,
    k: usize,
    x: *const T,
    weight: Weight<T>,
    bias: Option<*const f32>,
    epilogue: Epilogue<T>,
}

impl Kernels {
    /// Runs a linear. Each row's result depends on that row alone, bit for bit.
    pub fn linear<T: LinearTasks>(&self, linear: Linear<'_, T>) {
        let Linear { rows, n, k, x, weight, bias, out } = linear;
        assert_eq!(weight.len(), n * k, "weight is [n, k]");
        self.linear_call((rows, n, k), x, Weight::Plain(weight.as_ptr()), bias, out);
    }

    /// Runs a linear on a grouped weight. Each row's result depends on that row alone, bit for bit.
    ///
    /// For every group in order: `part` is the chain of fused multiply-adds of `q` and `x` from 0;
    /// then `total = scale * part + total` and `total = min * sum(x) + total`, both fused. In bf16 with
    /// AVX512-VNNI each group of x counts as multiples of 2^-11 of the power of two above its largest value,
    /// and `part` and `sum(x)` are exact but for one rounding each. Either way 4-bit weights and the same
    /// weights widened to 8 bits give the same bits.
    pub fn linear_grouped<T: LinearTasks>(&self, linear: LinearGrouped<'_, T>) {
        let LinearGrouped { rows, n, k, x, form, records, bias, out } = linear;
        assert!(matches!(form.group, 32 | 64), "groups have 32 or 64 inputs");
        assert_eq!(records.len(), form.size_bytes(n, k), "records hold [n, k]");
        self.linear_call((rows, n, k), x, Weight::Grouped(form, records.as_ptr()), bias, out);
    }

    fn linear_call<T: LinearTasks>(
        &self,
        (rows, n, k): (usize, usize, usize),
        x: &[T],
        weight: Weight<T>,
        bias: Option<&[f32]>,
        out: LinearOut<'_, T>,
    ) {
        assert!(k >= 1, "a linear has inputs");
        assert!(k <= self.limits.linear_inputs, "k {k} is beyond the scratch limits");
        assert_eq!(x.len(), rows * k, "x is [rows, k]");
        assert!(bias.is_none_or(|bias| bias.len() == n), "bias is [n]");
        let epilogue = Epilogue::new(out, rows * n);
        let pass_rows = ((self.packed.len() - MAX_LANES) / packed_row(k)).min(PACK_ROWS);
        assert!(pass_rows >= 1, "scratch holds at least one packed row");
        for first_row in (0..rows).step_by(pass_rows) {
            self.linear_pass(Call {
                rows: pass_rows.min(rows - first_row),
                n,
                k,
                x: x[first_row * k..].as_ptr(),
                weight,
                bias: bias.map(<[f32]>::as_ptr),
                epilogue: epilogue.skip(first_row * n),
            });
        }
    }

    fn linear_pass<T: LinearTasks>(&self, call: Call<T>) {
        let Call { rows, n, k, x, weight, bias, epilogue } = call;
        let (variant, per_thread) = (self.variant, &self.per_thread);
        let tiles = way::tiles(variant, (rows, k), weight);
        let (units, group) = match weight {
            // Whole lines, where x is packed by lines; a row of scratch is padded to more.
            #[cfg(target_arch = "x86_64")]
            Weight::Plain(_) if tiles.way == Way::Quarters => (k.next_multiple_of(32), None),
            #[cfg(target_arch = "x86_64")]
            Weight::Plain(_) if tiles.way == Way::Dots => (dots::units(k), None),
            #[cfg(target_arch = "x86_64")]
            Weight::Plain(_) if tiles.way == Way::Amx => (k.div_ceil(2), None),
            Weight::Plain(_) => (k, None),
            #[cfg(target_arch = "x86_64")]
            Weight::Grouped(form, _) if matches!(tiles.way, Way::Integers | Way::IntegerTiles) => {
                (integers::units_of(form.groups(k) * form.group), Some((form.group, form.bits)))
            }
            Weight::Grouped(form, _) => {
                (form.groups(k) * form.group, Some((form.group, form.bits)))
            }
        };
        let packed = Shared(self.packed.as_mut_ptr());
        let sums = Shared(self.packed.as_mut_ptr().wrapping_add(rows * units));
        let x = SharedConst(x);
        let blocks = units.div_ceil(tiles.block);
        let pack = |tile: usize, blocks: std::ops::Range<usize>| {
            let x = x.pointer();
            let task = Pack { x, k, units, tiles, tile, blocks, packed, sums, group };
            // SAFETY: the variant was checked when the kernels were built; x has these rows, the
            // scratch has room for them, and no two tasks pack the same part.
            unsafe { T::pack(variant, task) };
        };
        let [spinning, sleeping] = PARALLEL_PACK;
        if rows * k >= if self.pool.spins() { spinning } else { sleeping } {
            let some = blocks.div_ceil(8);
            let cuts = blocks.div_ceil(some);
            self.run_linear(tiles.count * cuts, &|task, _| {
                let (tile, cut) = (task / cuts, task % cuts);
                pack(tile, cut * some..blocks.min((cut + 1) * some));
            });
        } else {
            (0..tiles.count).for_each(|tile| pack(tile, 0..blocks));
        }
        let cuts = Cuts::new(n, tiles, self.pool.threads());
        let weight = SharedConst(&raw const weight);
        let bias = bias.map(SharedConst);
        let epilogue = task::Shareable(epilogue);
        self.run_linear(cuts.tasks(), &|task, thread| {
            let (cols, row_tiles) = cuts.of(task);
            let scratch = per_thread.of(thread);
            let area = task::Area { packed, sums, tiles, row_tiles, cols, scratch };
            // SAFETY: the variant was checked when the kernels were built. Rows and columns lie
            // within the shapes asserted above, tasks write disjoint outputs, and `scratch` belongs
            // to this thread.
            unsafe {
                match *weight.pointer() {
                    Weight::Plain(weight) => {
                        let form = form::Plain::new(weight, n, k);
                        T::plain(variant, Sums { form, area: area.clone() });
                    }
                    Weight::Grouped(format, records) => {
                        let form = form::Records::new(records, format, n, k);
                        T::grouped(variant, Sums { form, area: area.clone() });
                    }
                }
                let bias = bias.map(SharedConst::pointer);
                T::finish(variant, Finish { area, n, bias, epilogue: epilogue.get() });
            }
        });
    }
}

/// A pointer to what several threads read.
struct SharedConst<T>(*const T);

impl<T> Clone for SharedConst<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for SharedConst<T> {}

impl<T> SharedConst<T> {
    fn pointer(self) -> *const T {
        self.0
    }
}

// SAFETY: the pointers come from borrows that last for the whole call, and are only read.
unsafe impl<T> Sync for SharedConst<T> {}
