//! Prints how fast fused attention reads caches in pages relative to contiguous ones. Both are
//! measured alternately in the same process, because a shared machine's memory speed changes from
//! second to second, and in the same memory, because it changes with the location too. The result
//! is the median of the ratios of the processor's time of adjacent measurements, and its quartiles.
//! With several threads the time that they wait for each other counts.
//!
//!     cargo run --release -p kernels --example attention_pages_speed -- [threads]
//!     [bf16|f32|kv4] [rounds] [positions of a page] [case]

use bytemuck::{Pod, Zeroable};
use half::bf16;
use kernels::{
    AttentionShape, AttentionUnit, AttentionUnits, Element, Kernels, KvCacheSlice, PageLists,
    ScratchLimits,
};
use kernels::{Variant, random_unit};
use model::quantized_format::{KvRecordFormat, kv4_position_bytes};
use rustix::time::{ClockId, clock_gettime};

/// Sequences, fresh rows and cached positions of each, query heads, KV heads, elements of a head.
const CASES: [[usize; 6]; 7] = [
    [25, 1, 512, 56, 56, 128],
    [16, 1, 1000, 32, 8, 128],
    [4, 1, 8192, 32, 8, 128],
    [1, 1, 65536, 32, 8, 128],
    [60, 1, 128, 9, 3, 64],
    [60, 1, 512, 9, 3, 64],
    [1, 256, 4000, 32, 8, 128],
];

/// Memory with the alignment of caches in pages: if a run of positions ends within a page of the
/// processor, the processor needlessly prefetches the rest of that page.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(4096))]
struct Block([u8; 4096]);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(2);
    let dtype = arguments.next().unwrap_or_else(|| "bf16".to_owned());
    let mut number = || arguments.next().and_then(|text| text.parse().ok());
    let rounds = number().unwrap_or(21);
    let page_positions = number().unwrap_or(256);
    let only = number();
    let variant = Variant::from_env().expect("a variant of this machine");
    println!("{} on {threads} threads, {dtype}, pages of {page_positions}", variant.name());
    let run = Run { variant, threads, rounds, page_positions };
    for (index, case) in CASES.into_iter().enumerate() {
        if only.is_none_or(|only| only == index) {
            match dtype.as_str() {
                "f32" => run.measure::<f32>(case, false),
                "kv4" => run.measure::<bf16>(case, true),
                _ => run.measure::<bf16>(case, false),
            }
        }
    }
}

/// Location of the units' caches.
struct Kept {
    units: Vec<AttentionUnit>,
    page_positions: u32,
    pages: Vec<u32>,
    /// Positions of heads in a cache.
    places: usize,
}

impl Kept {
    /// Allocates contiguous caches, or pages of the given number of positions in a random order.
    fn new(
        [sequences, rows, past, _, kv_heads, head_dim]: [usize; 6],
        page_positions: usize,
    ) -> Kept {
        let of_sequence = past.checked_div(page_positions).map_or(0, |whole| whole + 1);
        let mut pages: Vec<u32> = (0..(sequences * of_sequence) as u32).collect();
        for last in (1..pages.len()).rev() {
            let other = (random_unit(7, 7, last as u32) * last as f32) as usize;
            pages.swap(last, other);
        }
        let unit = |index: usize| AttentionUnit {
            row0: (index / kv_heads * rows) as u32,
            rows: rows as u32,
            past: past as u32,
            shared_row: None,
            kv_head: (index % kv_heads) as u32,
            cache_offset: if page_positions == 0 { index * past * head_dim } else { 0 },
            cache_positions: 0,
            first_page: (index / kv_heads * of_sequence) as u32,
            scores_offset: 0,
        };
        let units: Vec<AttentionUnit> = (0..sequences * kv_heads).map(unit).collect();
        let of_unit = if page_positions == 0 { past } else { of_sequence * page_positions };
        let places = units.len() * of_unit;
        Kept { units, page_positions: page_positions as u32, pages, places }
    }

    fn units(&self) -> AttentionUnits<'_> {
        let pages = PageLists { page_positions: self.page_positions, pages: &self.pages };
        AttentionUnits { units: &self.units, pages }
    }
}

#[derive(Clone, Copy)]
struct Run {
    variant: Variant,
    threads: usize,
    rounds: usize,
    page_positions: usize,
}

impl Run {
    fn measure<T: Element>(self, case: [usize; 6], four: bool) {
        let [sequences, rows, past, heads, kv_heads, head_dim] = case;
        let (group, all_rows) = (heads / kv_heads, sequences * rows);
        let limits = ScratchLimits {
            rows: all_rows,
            linear_inputs: 1,
            positions: rows + past,
            group,
            head_dim,
        };
        let kernels = Kernels::new(self.variant, self.threads, limits).expect("threads start");
        let shape = AttentionShape { heads, kv_heads, head_dim, scale: 0.1, window: None };
        let q = vec![T::from_f32(0.1); all_rows * heads * head_dim];
        let fresh = vec![T::from_f32(0.1); all_rows * kv_heads * head_dim];
        let record_bytes = kv4_position_bytes(head_dim).expect("an even head");
        let position_bytes = if four { record_bytes } else { head_dim * size_of::<T>() };
        let kept = [0, self.page_positions].map(|positions| Kept::new(case, positions));
        let blocks = (kept[1].places * position_bytes).div_ceil(4096);
        let memory = || vec![Block([0x2d; 4096]); blocks];
        let (keys, values) = (memory(), memory());
        let mut out = q.clone();
        let mut time = |kept: &Kept| {
            let view = |memory| match four {
                true => KvCacheSlice::Records(KvRecordFormat::Four, bytemuck::cast_slice(memory)),
                false => KvCacheSlice::Plain(bytemuck::pod_align_to(memory).1),
            };
            let (keys, values) = (view(&keys[..]), view(&values[..]));
            let begin = cpu_seconds();
            let units = kept.units();
            kernels.attention(&shape, units, &q, &fresh, &fresh, keys, values, None, &mut out);
            cpu_seconds() - begin
        };
        let (mut contiguous_s, mut ratios) = (Vec::new(), Vec::new());
        for round in 0..=self.rounds {
            // Each comes first equally often.
            let first = round % 2;
            let mut seconds = [0.0; 2];
            seconds[first] = time(&kept[first]);
            seconds[1 - first] = time(&kept[1 - first]);
            // The first round warms up pages and threads.
            if round > 0 {
                contiguous_s.push(seconds[0]);
                ratios.push(seconds[1] / seconds[0]);
            }
        }
        let [_, middle_s, _] = quartiles(contiguous_s);
        let [low, middle, high] = quartiles(ratios);
        let bytes = (2 * sequences * kv_heads * past * position_bytes) as f64;
        println!(
            "{sequences:3} x {rows} after {past}, {heads}/{kv_heads} heads of {head_dim}: \
             contiguous {:.3} ms, {:.1} GB/s; in pages {middle:.4} of it ({low:.3} to {high:.3})",
            middle_s * 1e3,
            bytes / middle_s / 1e9,
        );
    }
}

/// Returns the processor time of all threads: other processes on this machine do not count.
fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[values.len() * quarter / 4])
}
