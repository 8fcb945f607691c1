//! `out = epilogue(x · weightᵀ + bias)` for row-major weights `[n, k]`, exactly as they lie in the
//! checkpoint, and for grouped low-bit weights: nothing is repacked.
//!
//! **The order of every sum.** A vector lane is an output. Along k it is one chain of multiply-adds per
//! segment (`BLOCK_UNITS` units, or a group of a grouped weight), and the segments are added in order;
//! `quarters` and `integers` have orders of their own. Batch size, tiles, tasks and threads do not enter, so a row's
//! bits depend on that row alone.
//!
//! - `form`: how weights become vectors of columns: dwords of `LANES` weight rows are transposed in
//!   registers, or lie so already in the records of a grouped weight.
//! - `pack`: activations as `[unit][row]`, from which single values are broadcast.
//! - `direct`: few rows, weights used straight from registers.
//! - `tiled`: more rows, weights expanded once into L1 for all of them.
//! - `quarters`: instead of these three, plain bf16 weights with AVX-512.
//! - `amx`: the same with AMX, in tiles.
//! - `integers`: instead of these three, grouped weights in bf16 linears with AVX512-VNNI.
//! - `ahead`: memory asked for before it is needed.
//! - `task`: a range of columns and rows; `epilogue`: bias, activation, rounding.
//!
//! A variant with other instructions for the sums plugs in as another [`form::Dot`], with forms that
//! make its units, and `PairsTask` as its way in (`compiled`); one with another way through the
//! weights takes the place of `task::Sums` in `Compiled` and leaves its sums where that does.

mod ahead;
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
mod direct;
mod epilogue;
pub(crate) mod form;
#[cfg(target_arch = "x86_64")]
pub(crate) mod integers;
mod pack;
#[cfg(target_arch = "x86_64")]
pub(crate) mod quarters;
mod task;
mod tiled;

use crate::element::Element;
use crate::scratch::Shared;
use crate::simd::MAX_LANES;
use crate::variant::Variant;
use crate::{Kernels, round_up};
use epilogue::Epilogue;
pub(crate) use epilogue::{load_up_to, store_up_to};
use model::compressed::Grouped;
pub use pack::Pack;
pub use task::{Finish, Sums};

/// Rows packed at a time; beyond it the weight is read again.
const PACK_ROWS: usize = 256;
/// Output columns of one task at most, whatever its way, and the distance between its rows of sums.
const TASK_COLS: usize = 192;
/// Output columns of one task that works with vectors, at most.
const VECTOR_COLS: usize = 96;
/// Panels that are worked on together: the width of the register tile.
const PANELS: usize = 3;
/// Columns of the narrowest task; a multiple of every variant's register tile.
const MIN_COLS: usize = PANELS * MAX_LANES;
/// Units along k of one chain, and of one expanded block, which stays in L1. A multiple of every
/// chunk and group.
const BLOCK_UNITS: usize = 128;
/// Packing more elements than this is worth a run of its own, while idle threads spin and while they
/// sleep.
const PARALLEL_PACK: [usize; 2] = [1 << 15, 1 << 18];

/// Where the result of a linear goes. All slices are `[rows, n]` and written in full.
#[derive(Debug)]
pub enum LinearOut<'a, T> {
    Store(&'a mut [T]),
    /// `max(result, 0)`.
    Relu(&'a mut [T]),
    /// The erf form.
    Gelu(&'a mut [T]),
    /// `silu(gate) * result`.
    SiluMul {
        gate: &'a [T],
        out: &'a mut [T],
    },
    /// `out += result`: the residual stream, in place.
    AddTo(&'a mut [f32]),
    StoreF32(&'a mut [f32]),
}

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

/// The way through the weights of a linear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// `direct` and `tiled`.
    Vectors,
    #[cfg(target_arch = "x86_64")]
    Quarters,
    #[cfg(target_arch = "x86_64")]
    Amx,
    #[cfg(target_arch = "x86_64")]
    Integers,
    /// The same in tiles of AMX.
    #[cfg(target_arch = "x86_64")]
    IntegerTiles,
}

impl Way {
    fn of<T: Element>(variant: Variant, rows: usize, weight: Weight<T>) -> Self {
        #[cfg(target_arch = "x86_64")]
        match weight {
            Weight::Plain(_) if quarters::fits::<T>(variant) => return Way::Quarters,
            Weight::Plain(_) if variant == Variant::Amx && !T::IS_F32 => return Way::Amx,
            Weight::Grouped(..) if integers::fits::<T>(variant) => {
                let tiles = integers::fits_tiles(variant, rows);
                return if tiles { Way::IntegerTiles } else { Way::Integers };
            }
            _ => {}
        }
        let _ = (variant, rows, weight);
        Way::Vectors
    }
}

/// Rows of a pass in tiles: of nearly equal height, or, for AMX, whole ones and what is left.
#[derive(Debug, Clone, Copy)]
pub struct RowTiles {
    rows: usize,
    count: usize,
    way: Way,
}

impl RowTiles {
    /// The tiles of a linear.
    fn of<T: Element>(variant: Variant, rows: usize, weight: Weight<T>) -> Self {
        let way = Way::of(variant, rows, weight);
        let highest = match way {
            Way::Vectors => variant.tile_rows(),
            #[cfg(target_arch = "x86_64")]
            Way::Quarters => quarters::tile_rows(rows),
            #[cfg(target_arch = "x86_64")]
            Way::Amx | Way::IntegerTiles => amx::TILE_ROWS,
            #[cfg(target_arch = "x86_64")]
            Way::Integers => integers::TILE_ROWS,
        };
        RowTiles { rows, count: rows.div_ceil(highest), way }
    }

    #[cfg(target_arch = "x86_64")]
    fn is_in_quarters(self) -> bool {
        self.way == Way::Quarters
    }

    #[cfg(target_arch = "x86_64")]
    fn is_in_integers(self) -> bool {
        matches!(self.way, Way::Integers | Way::IntegerTiles)
    }

    #[cfg(target_arch = "x86_64")]
    fn is_in_integer_tiles(self) -> bool {
        self.way == Way::IntegerTiles
    }

    /// Columns of a task at most.
    fn task_cols(self) -> usize {
        match self.way {
            Way::Vectors => VECTOR_COLS,
            #[cfg(target_arch = "x86_64")]
            Way::Integers => VECTOR_COLS,
            #[cfg(target_arch = "x86_64")]
            Way::Quarters => quarters::task_cols(self.rows),
            #[cfg(target_arch = "x86_64")]
            Way::Amx | Way::IntegerTiles => amx::task_cols(self.rows),
        }
    }

    /// Units of a block of packed x.
    fn block(self) -> usize {
        #[cfg(target_arch = "x86_64")]
        if self.is_in_quarters() {
            return quarters::block(self.rows);
        }
        BLOCK_UNITS
    }

    /// Rows of all tiles.
    #[inline(always)]
    fn rows(self) -> usize {
        self.rows
    }

    /// Rows of a tile.
    #[inline(always)]
    fn height(self, tile: usize) -> usize {
        self.start(tile + 1) - self.start(tile)
    }

    /// First row of a tile, or of the one after it.
    #[inline(always)]
    fn start(self, tile: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        if matches!(self.way, Way::Amx | Way::IntegerTiles) {
            // Packed rows of a whole tile lie on lines of their own.
            return self.rows.min(tile * amx::TILE_ROWS);
        }
        tile * self.rows / self.count
    }
}

/// Floats of shared scratch for packed rows and their sums over groups.
pub(crate) fn packed_len(rows: usize, k: usize) -> usize {
    rows.clamp(1, PACK_ROWS) * packed_row(k) + MAX_LANES
}

/// Floats of a packed row: padded to whole groups, and a sum for every group of the smallest size.
fn packed_row(k: usize) -> usize {
    round_up(k, 64) + round_up(k, 64) / 32
}

/// Floats of scratch per thread.
pub(crate) fn thread_len() -> usize {
    #[cfg(target_arch = "x86_64")]
    let unfinished = quarters::chains_len(PACK_ROWS).max(amx::SUMS_LEN);
    #[cfg(not(target_arch = "x86_64"))]
    let unfinished = 0;
    tiled::TILE_LEN + results_len() + unfinished
}

/// Floats of a task's sums.
const fn results_len() -> usize {
    PACK_ROWS * TASK_COLS
}

/// The weight of a pass.
#[derive(Debug, Clone, Copy)]
enum Weight<T> {
    Plain(*const T),
    Grouped(Grouped, *const u8),
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
    pub fn linear<T: Element>(&self, linear: Linear<'_, T>) {
        let Linear { rows, n, k, x, weight, bias, out } = linear;
        assert_eq!(weight.len(), n * k, "weight is [n, k]");
        self.linear_call((rows, n, k), x, Weight::Plain(weight.as_ptr()), bias, out);
    }

    /// Runs a linear on a grouped weight. Each row's result depends on that row alone, bit for bit.
    ///
    /// For every group in order: `part` is the chain of fused multiply-adds of `q` and `x` from 0;
    /// then `total = scale * part + total` and `total = min * sum(x) + total`, both fused. In bf16 with
    /// AVX512-VNNI each group of x counts as multiples of 2^-14 of the power of two above its largest value,
    /// and `part` and `sum(x)` are exact but for one rounding each. Either way 4-bit weights and the same
    /// weights widened to 8 bits give the same bits.
    pub fn linear_grouped<T: Element>(&self, linear: LinearGrouped<'_, T>) {
        let LinearGrouped { rows, n, k, x, form, records, bias, out } = linear;
        assert!(matches!(form.group, 32 | 64), "groups have 32 or 64 inputs");
        assert_eq!(records.len(), form.size_bytes(n, k), "records hold [n, k]");
        self.linear_call((rows, n, k), x, Weight::Grouped(form, records.as_ptr()), bias, out);
    }

    fn linear_call<T: Element>(
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

    fn linear_pass<T: Element>(&self, call: Call<T>) {
        let Call { rows, n, k, x, weight, bias, epilogue } = call;
        let (variant, per_thread) = (self.variant, &self.per_thread);
        let tiles = RowTiles::of(variant, rows, weight);
        let inputs = if variant.multiplies_pairs() && !T::IS_F32 { 2 } else { 1 };
        let (units, group) = match weight {
            // Whole lines, where x is packed by lines; a row of scratch is padded to more.
            #[cfg(target_arch = "x86_64")]
            Weight::Plain(_) if tiles.is_in_quarters() => (round_up(k, 32), None),
            Weight::Plain(_) => (k.div_ceil(inputs), None),
            #[cfg(target_arch = "x86_64")]
            Weight::Grouped(form, _) if tiles.is_in_integers() => {
                (integers::units_of(form.groups(k) * form.group), Some((form.group, form.bits)))
            }
            Weight::Grouped(form, _) => {
                (form.groups(k) * form.group, Some((form.group, form.bits)))
            }
        };
        let packed = Shared(self.packed.as_mut_ptr());
        let sums = Shared(self.packed.as_mut_ptr().wrapping_add(rows * units));
        let x = SharedConst(x);
        let blocks = units.div_ceil(tiles.block());
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
                        T::linear_plain(variant, Sums { form, area: area.clone() });
                    }
                    Weight::Grouped(format, records) => {
                        let form = form::Records::new(records, format, n, k);
                        T::linear_grouped(variant, Sums { form, area: area.clone() });
                    }
                }
                let bias = bias.map(SharedConst::pointer);
                T::linear_finish(variant, Finish { area, n, bias, epilogue: epilogue.get() });
            }
        });
    }
}

/// How the outputs are cut into tasks.
#[derive(Debug, Clone, Copy)]
struct Cuts {
    n: usize,
    tiles: RowTiles,
    /// Columns of a task.
    cols: usize,
    /// Cuts of the rows.
    row_cuts: usize,
}

impl Cuts {
    fn new(n: usize, tiles: RowTiles, threads: usize) -> Self {
        let wanted = if threads == 1 { 1 } else { 8 * threads };
        let cols = (n / wanted / MIN_COLS * MIN_COLS).clamp(MIN_COLS, tiles.task_cols());
        // Rows are cut only when there are too few columns: each cut expands the weight again.
        let row_cuts = (wanted / 2 / n.div_ceil(cols)).clamp(1, (tiles.count / 2).max(1));
        Cuts { n, tiles, cols, row_cuts }
    }

    fn tasks(self) -> usize {
        self.n.div_ceil(self.cols) * self.row_cuts
    }

    /// Columns and tiles of rows of a task. Cuts of the same columns follow each other: the weight
    /// comes from memory once.
    fn of(self, task: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let (cut, columns) = (task % self.row_cuts, task / self.row_cuts);
        let tile = |cut: usize| cut * self.tiles.count / self.row_cuts;
        let first = columns * self.cols;
        (first..self.n.min(first + self.cols), tile(cut)..tile(cut + 1))
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
