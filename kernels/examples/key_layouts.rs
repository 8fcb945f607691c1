//! Compares two layouts of K in its cache: `(sequence, kv head, position, d)`, which the kernels
//! use, and the transposed `(sequence, kv head, d, position)` of the paper that this project
//! follows. Measures scores of one decode step and the append of its row, both layouts alternately
//! over caches larger than the processor's.
//!
//!     cargo run --release -p kernels --example key_layouts -- [rounds]
//!
//! With positions first, a row is appended as one run of bytes, and scores transpose K in
//! registers. Transposed, scores need no shuffles, but every element of a new row goes to a
//! separate cache line.

fn main() {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        return avx512::run();
    }
    println!("SKIP key_layouts: the transposed scores are written for AVX-512");
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::{
        __m256i, __m512, _MM_HINT_T0, _mm_prefetch, _mm256_loadu_si256, _mm512_castsi512_ps,
        _mm512_cvtepu16_epi32, _mm512_fmadd_ps, _mm512_mul_ps, _mm512_set1_ps, _mm512_setzero_ps,
        _mm512_slli_epi32, _mm512_storeu_ps,
    };
    use std::time::Instant;

    use half::bf16;
    use kernels::{
        AttentionShape, AttentionUnit, Kernels, ScratchLimits, ThreadPool, Variant, scores_len,
    };

    const THREADS: usize = 2;
    const HEAD_DIM: usize = 128;
    /// Spare positions of a sequence's extent after those that are cached.
    const ROOM: usize = 64;
    /// Sequences, cached positions, heads, KV heads.
    const CASES: [(usize, usize, usize, usize); 3] =
        [(25, 512, 56, 56), (50, 512, 56, 56), (4, 8192, 32, 8)];
    /// Vectors of a tile of transposed scores: the number of sums that registers hold.
    const VECTORS: usize = 16;

    pub(super) fn run() {
        let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(9);
        for case in CASES {
            measure(case, rounds);
        }
    }

    /// Operands of both layouts.
    struct Step {
        shape: AttentionShape,
        units: Vec<AttentionUnit>,
        past: usize,
        q: Vec<bf16>,
        fresh: Vec<bf16>,
    }

    fn measure((sequences, past, heads, kv_heads): (usize, usize, usize, usize), rounds: usize) {
        let shape =
            AttentionShape { heads, kv_heads, head_dim: HEAD_DIM, scale: 0.1, window: None };
        let extent = (past + ROOM) * HEAD_DIM;
        let scores = scores_len(&shape, 1, past);
        let units: Vec<AttentionUnit> = (0..sequences * kv_heads)
            .map(|index| AttentionUnit {
                row0: (index / kv_heads) as u32,
                rows: 1,
                past: past as u32,
                shared_row: None,
                kv_head: (index % kv_heads) as u32,
                cache_offset: index * extent,
                cache_positions: 0,
                first_page: 0,
                scores_offset: index * scores,
            })
            .collect();
        let value = |i: usize| bf16::from_f32((i % 31) as f32 / 31.0 - 0.5);
        let step = Step {
            shape,
            past,
            q: (0..sequences * heads * HEAD_DIM).map(value).collect(),
            fresh: (0..sequences * kv_heads * HEAD_DIM).map(value).collect(),
            units,
        };
        let limits = ScratchLimits {
            rows: sequences,
            linear_inputs: 1,
            positions: past + 1,
            group: shape.group(),
            head_dim: HEAD_DIM,
        };
        let kernels = Kernels::new(Variant::Avx512, THREADS, limits).expect("threads start");
        let pool = ThreadPool::new(THREADS).expect("threads start");
        let mut rows: Vec<bf16> = (0..step.units.len() * extent).map(value).collect();
        let mut columns = transposed(&rows, extent);
        let mut out =
            [vec![0.0f32; step.units.len() * scores], vec![0.0; step.units.len() * scores]];
        let (mut times, mut ratios) = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let scored = seconds(|| {
                kernels.scores(
                    &step.shape,
                    &step.units,
                    &step.q,
                    &step.fresh,
                    &rows[..],
                    &mut out[0],
                );
            });
            let appended = seconds(|| {
                kernels.append(&step.shape, &step.units, &step.fresh, &mut rows);
            });
            let scored_columns = seconds(|| score_columns(&pool, &step, &columns, &mut out[1]));
            let appended_columns = seconds(|| append_columns(&step, &mut columns));
            if round == 0 {
                compare(&step, &out);
            } else {
                times.push([scored, appended, scored_columns, appended_columns]);
                ratios.push((scored_columns + appended_columns) / (scored + appended));
            }
        }
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| 1e3 * median(times.iter().map(|t| t[i]).collect()));
        println!(
            "{sequences:3} after {past}, {heads}/{kv_heads} heads: positions first {a:.2} + append {b:.3} ms, \
             transposed {c:.2} + append {d:.3} ms, transposed takes {:.2} of the time",
            median(ratios)
        );
    }

    fn transposed(rows: &[bf16], extent: usize) -> Vec<bf16> {
        let positions = extent / HEAD_DIM;
        let mut columns = vec![bf16::ZERO; rows.len()];
        for (rows, columns) in rows.chunks_exact(extent).zip(columns.chunks_exact_mut(extent)) {
            for (position, row) in rows.chunks_exact(HEAD_DIM).enumerate() {
                for (d, value) in row.iter().enumerate() {
                    columns[d * positions + position] = *value;
                }
            }
        }
        columns
    }

    /// Checks that the cached scores of both layouts are equal except for the order of sums.
    fn compare(step: &Step, [rows, columns]: &[Vec<f32>; 2]) {
        for (index, (a, b)) in rows.iter().zip(columns).enumerate() {
            let cached = index % (step.past + 1) < step.past;
            assert!(
                !cached || (a - b).abs() < 1e-3 * (1.0 + a.abs()),
                "score {index}: {a} and {b}"
            );
        }
    }

    fn append_columns(step: &Step, columns: &mut [bf16]) {
        let positions = step.past + ROOM;
        for (unit, row) in step.units.iter().zip(step.fresh.chunks_exact(HEAD_DIM)) {
            let extent = &mut columns[unit.cache_offset..][..positions * HEAD_DIM];
            for (d, value) in row.iter().enumerate() {
                extent[d * positions + step.past] = *value;
            }
        }
    }

    fn score_columns(pool: &ThreadPool, step: &Step, columns: &[bf16], out: &mut [f32]) {
        let (group, positions) = (step.shape.group(), step.past + ROOM);
        let per_unit = scores_len(&step.shape, 1, step.past);
        let to = out.as_mut_ptr() as usize;
        pool.run(step.units.len(), &|index, _| {
            let unit = &step.units[index];
            let keys = columns[unit.cache_offset..][..positions * HEAD_DIM].as_ptr();
            let first = (unit.row0 as usize * step.shape.kv_heads + unit.kv_head as usize) * group;
            let mut queries = [[0.0f32; HEAD_DIM]; 4];
            for (head, query) in queries.iter_mut().enumerate().take(group) {
                let q = &step.q[(first + head) * HEAD_DIM..][..HEAD_DIM];
                query.iter_mut().zip(q).for_each(|(to, from)| *to = from.to_f32());
            }
            let to = (to as *mut f32).wrapping_add(index * per_unit);
            let place = (keys, positions, step.past);
            // SAFETY: AVX-512 is available; the extent holds every element of `past` positions, a
            // multiple of a tile's; tasks write disjoint scores.
            unsafe {
                match group {
                    1 => tiles::<1, VECTORS>(place, &queries, step.shape.scale, to),
                    _ => tiles::<4, { VECTORS / 4 }>(place, &queries, step.shape.scale, to),
                }
            }
        });
    }

    /// # Safety
    /// `keys` has `HEAD_DIM` rows `stride` apart of at least `past` positions, a multiple of `16 *
    /// V`; `out` has space for `Q` rows of `past + 1` scores.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn tiles<const Q: usize, const V: usize>(
        (keys, stride, past): (*const bf16, usize, usize),
        queries: &[[f32; HEAD_DIM]; 4],
        scale: f32,
        out: *mut f32,
    ) {
        for first in (0..past).step_by(16 * V) {
            let mut sums: [[__m512; V]; Q] = [[_mm512_setzero_ps(); V]; Q];
            for d in 0..HEAD_DIM {
                let row = keys.wrapping_add(d * stride + first);
                let mut k = [_mm512_setzero_ps(); V];
                for (v, k) in k.iter_mut().enumerate() {
                    let at = row.wrapping_add(16 * v).cast::<__m256i>();
                    // SAFETY: the caller's promise; prefetching reads no value.
                    unsafe {
                        if v % 2 == 0 {
                            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_byte_add(32 * V).cast());
                        }
                        let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at));
                        *k = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide));
                    }
                }
                for (sums, query) in sums.iter_mut().zip(queries) {
                    let q = _mm512_set1_ps(query[d]);
                    for (sum, k) in sums.iter_mut().zip(k) {
                        *sum = _mm512_fmadd_ps(k, q, *sum);
                    }
                }
            }
            for (query, sums) in sums.iter().enumerate() {
                for (v, sum) in sums.iter().enumerate() {
                    let to = out.wrapping_add(query * (past + 1) + first + 16 * v);
                    // SAFETY: the caller's promise.
                    unsafe { _mm512_storeu_ps(to, _mm512_mul_ps(*sum, _mm512_set1_ps(scale))) };
                }
            }
        }
    }

    fn seconds(work: impl FnOnce()) -> f64 {
        let begin = Instant::now();
        work();
        begin.elapsed().as_secs_f64()
    }

    fn median(mut values: Vec<f64>) -> f64 {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }
}
