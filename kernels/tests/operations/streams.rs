//! Tests of residuals of several streams and of the rotation back of attention's output: against
//! formulas in f64, within guarded memory, and independent of other rows and of threads.

use crate::common::{LIMITS, Random, bits, kernels, poison, variants};
use crate::guarded::{Guarded, SIDES, set_case};
use half::bf16;
use kernels::{Element, Kernels, RopeTables, StreamRules};
use model::streams::ResidualStreams;

const NORM_EPS: f32 = 1e-3;

struct Case {
    streams: ResidualStreams,
    hidden: usize,
    rows: usize,
    x: Vec<f32>,
    /// Results of the linear.
    products: Vec<f32>,
    scales: Vec<f32>,
    base: Vec<f32>,
}

impl Case {
    fn new(count: usize, hidden: usize, rows: usize) -> Case {
        let mut random = Random::new((count * hidden) as u64);
        let streams = ResidualStreams { count, iterations: 5, eps: 1e-3 };
        let size = streams.map_size();
        Case {
            streams,
            hidden,
            rows,
            x: random.vector(rows * count * hidden),
            products: random.vector(rows * size),
            scales: vec![0.7, 1.3, 2.1],
            base: random.vector(size),
        }
    }

    fn rules(&self) -> StreamRules<'_> {
        let Case { streams, scales, base, .. } = self;
        StreamRules { streams: *streams, scales, base, norm_eps: NORM_EPS }
    }

    fn map(&self, kernels: &Kernels) -> Vec<f32> {
        let mut map = self.products.clone();
        kernels.stream_map(self.rows, &self.rules(), &self.x, &mut map);
        map
    }

    /// Returns the mappings of a row by their definition.
    fn expected_map(&self, row: usize) -> Vec<f64> {
        let (count, eps) = (self.streams.count, f64::from(self.streams.eps));
        let (size, width) = (self.streams.map_size(), self.streams.count * self.hidden);
        let x = &self.x[row * width..][..width];
        let squares: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        let factor = 1.0 / (squares / width as f64 + f64::from(NORM_EPS)).sqrt();
        let logit = |at: usize| {
            let scale = self.scales[(at / count).min(2)];
            let product = f64::from(self.products[row * size + at]);
            product * factor * f64::from(scale) + f64::from(self.base[at])
        };
        let sigmoid = |value: f64| 1.0 / (1.0 + (-value).exp());
        let pre = (0..count).map(|at| sigmoid(logit(at)) + eps);
        let post = (count..2 * count).map(|at| 2.0 * sigmoid(logit(at)));
        let mut comb: Vec<f64> = (2 * count..size).map(|at| logit(at).exp()).collect();
        for row in comb.chunks_exact_mut(count) {
            let sum: f64 = row.iter().sum();
            row.iter_mut().for_each(|value| *value = *value / sum + eps);
        }
        let divide = |comb: &mut [f64], places: &dyn Fn(usize, usize) -> usize| {
            for line in 0..count {
                let sum = (0..count).map(|i| comb[places(line, i)]).sum::<f64>() + eps;
                (0..count).for_each(|i| comb[places(line, i)] /= sum);
            }
        };
        let (rows, columns) =
            (|row: usize, i: usize| row * count + i, |column: usize, i: usize| i * count + column);
        divide(&mut comb, &columns);
        for _ in 1..self.streams.iterations {
            divide(&mut comb, &rows);
            divide(&mut comb, &columns);
        }
        pre.chain(post).chain(comb).collect()
    }
}

fn assert_near(found: f32, expected: f64, tolerance: f64) {
    let error = (f64::from(found) - expected).abs();
    assert!(error <= tolerance * expected.abs().max(1.0), "{found} is not {expected}");
}

const CASES: [(usize, usize, usize); 5] =
    [(1, 8, 2), (2, 37, 3), (3, 5, 4), (4, 64, 9), (8, 33, 2)];

#[test]
fn mappings_are_those_of_their_definition() {
    for variant in variants("mappings_are_those_of_their_definition") {
        for (count, hidden, rows) in CASES {
            let case = Case::new(count, hidden, rows);
            let map = case.map(&kernels(variant, 2));
            let size = case.streams.map_size();
            for (row, found) in map.chunks_exact(size).enumerate() {
                let expected = case.expected_map(row);
                found.iter().zip(expected).for_each(|(one, value)| assert_near(*one, value, 2e-5));
            }
        }
    }
}

/// The last mapping has pre alone.
#[test]
fn the_last_mapping_is_pre() {
    for variant in variants("the_last_mapping_is_pre") {
        let (kernels, case) = (kernels(variant, 1), Case::new(4, 20, 3));
        let (whole, size) = (case.map(&kernels), case.streams.map_size());
        let of_rows = case.products.chunks_exact(size);
        let mut map: Vec<f32> = of_rows.flat_map(|row| row[..4].to_vec()).collect();
        let rules =
            StreamRules { scales: &case.scales[..1], base: &case.base[..4], ..case.rules() };
        kernels.stream_map(case.rows, &rules, &case.x, &mut map);
        for (own, whole) in map.chunks_exact(4).zip(whole.chunks_exact(size)) {
            assert_eq!(bits(own), bits(&whole[..4]));
        }
    }
}

fn sums_and_additions<T: Element>(kernels: &Kernels, case: &Case) {
    let Case { streams, hidden, rows, x, .. } = case;
    let (count, size) = (streams.count, streams.map_size());
    let map = case.map(kernels);
    let mut random = Random::new(11);
    let (y, more): (Vec<T>, Vec<f32>) =
        (random.vector(rows * hidden), random.vector(rows * hidden));
    let mut sums = poison::<f32>(rows * hidden);
    kernels.sum_streams(*rows, count, x, &map, &mut sums);
    let [mut added, mut alone] = [x.clone(), x.clone()];
    kernels.add_to_streams(*rows, count, &y, Some(&more), &map, &mut added);
    kernels.add_to_streams(*rows, count, &y, None, &map, &mut alone);
    for row in 0..*rows {
        let map = &map[row * size..][..size];
        let stream = |at: usize, i: usize| f64::from(x[(row * count + at) * hidden + i]);
        let factor = |at: usize| f64::from(map[at]);
        for i in 0..*hidden {
            let place = row * hidden + i;
            let sum = (0..count).map(|at| factor(at) * stream(at, i)).sum();
            assert_near(sums[place], sum, 2e-6);
            for to in 0..count {
                let comb = |from: usize| factor(2 * count + from * count + to);
                let mixed: f64 = (0..count).map(|from| comb(from) * stream(from, i)).sum();
                let (own, post) = (f64::from(y[place].to_f32()), factor(count + to));
                let at = (row * count + to) * hidden + i;
                assert_near(alone[at], post * own + mixed, 4e-6);
                assert_near(added[at], post * (own + f64::from(more[place])) + mixed, 4e-6);
            }
        }
    }
}

#[test]
fn streams_are_summed_and_mixed() {
    for variant in variants("streams_are_summed_and_mixed") {
        for (count, hidden, rows) in CASES {
            let (kernels, case) = (kernels(variant, 2), Case::new(count, hidden, rows));
            sums_and_additions::<f32>(&kernels, &case);
            sums_and_additions::<bf16>(&kernels, &case);
        }
    }
}

/// The last rows by themselves have the bits of all rows, on any number of threads.
#[test]
fn rows_of_streams_do_not_depend_on_others() {
    for variant in variants("rows_of_streams_do_not_depend_on_others") {
        let all = Case::new(4, 300, 50);
        let (size, width) = (all.streams.map_size(), 4 * 300);
        let few = Case {
            rows: 3,
            x: all.x[47 * width..].to_vec(),
            products: all.products[47 * size..].to_vec(),
            ..Case::new(4, 300, 50)
        };
        let run = |case: &Case, threads: usize| {
            let kernels = kernels(variant, threads);
            let (map, mut out) = (case.map(&kernels), case.x.clone());
            let mut sums = poison::<f32>(case.rows * case.hidden);
            kernels.sum_streams(case.rows, 4, &case.x, &map, &mut sums);
            kernels.add_to_streams(case.rows, 4, &sums, None, &map, &mut out);
            (bits(&map), bits(&out))
        };
        let (map, out) = run(&all, 3);
        assert_eq!(run(&all, 1), (map.clone(), out.clone()), "{variant:?}");
        let last = (map[47 * size..].to_vec(), out[47 * width..].to_vec());
        assert_eq!(run(&few, 1), last, "{variant:?}");
    }
}

fn within_guards<T: Element>(kernels: &Kernels) {
    for (count, hidden, rows) in [(3, 1, 2), (4, 17, 2), (2, 33, 3)] {
        set_case(format!("streams {:?} {count}x{hidden}", kernels.variant()));
        let case = Case::new(count, hidden, rows);
        let map = case.map(kernels);
        let y: Vec<T> = Random::new(5).vector(rows * hidden);
        let mut sums = poison::<f32>(rows * hidden);
        kernels.sum_streams(rows, count, &case.x, &map, &mut sums);
        let mut mixed = case.x.clone();
        kernels.add_to_streams(rows, count, &y, Some(&sums), &map, &mut mixed);
        for side in SIDES {
            let (x, y) = (Guarded::new("x", side, &case.x), Guarded::new("y", side, &y));
            let mut mappings = Guarded::new("map", side, &case.products);
            kernels.stream_map(rows, &case.rules(), x.slice(), mappings.slice_mut());
            assert_eq!(bits(mappings.slice()), bits(&map), "{side:?}");
            let mut sum = Guarded::new("sums", side, &poison::<f32>(rows * hidden));
            kernels.sum_streams(rows, count, x.slice(), mappings.slice(), sum.slice_mut());
            assert_eq!(bits(sum.slice()), bits(&sums), "{side:?}");
            let mut out = Guarded::new("out", side, &case.x);
            let more = Some(sum.slice());
            kernels.add_to_streams(rows, count, y.slice(), more, mappings.slice(), out.slice_mut());
            assert_eq!(bits(out.slice()), bits(&mixed), "{side:?}");
        }
    }
}

#[test]
fn streams_stay_within_guards() {
    for variant in variants("streams_stay_within_guards") {
        within_guards::<f32>(&kernels(variant, 1));
        within_guards::<bf16>(&kernels(variant, 1));
    }
}

/// `unrotate` undoes a rope and writes the rotated elements last, as neighbours.
#[test]
fn a_rotation_back_undoes_a_rope() {
    for variant in variants("a_rotation_back_undoes_a_rope") {
        for (heads, head_dim, rotary_dim) in [(1, 6, 2), (3, 24, 8), (2, LIMITS.head_dim, 64)] {
            let (kernels, rows, half) = (kernels(variant, 2), 7, rotary_dim / 2);
            let frequencies: Vec<f32> = (0..half).map(|i| 0.9f32.powi(i as i32)).collect();
            let tables = RopeTables { rotary_dim, ..RopeTables::whole(&frequencies) };
            let positions: Vec<u32> = (0..rows).map(|row| 3 * row as u32).collect();
            let x: Vec<f32> = Random::new(2).vector(rows * heads * head_dim);
            let mut rotated = x.clone();
            kernels.rope(rows, heads, head_dim, &positions, &tables, &mut rotated);
            assert_ne!(bits(&rotated[heads * head_dim..]), bits(&x[heads * head_dim..]));
            let mut back = poison::<f32>(x.len());
            kernels.unrotate([heads, head_dim], &positions, &tables, &rotated, &mut back);
            let heads = x.chunks_exact(head_dim).zip(back.chunks_exact(head_dim));
            for (x, back) in heads {
                let (others, pairs) = back.split_at(head_dim - rotary_dim);
                assert_eq!(bits(others), bits(&x[rotary_dim..]));
                for (i, pair) in pairs.chunks_exact(2).enumerate() {
                    assert_near(pair[0], f64::from(x[i]), 1e-5);
                    assert_near(pair[1], f64::from(x[half + i]), 1e-5);
                }
            }
        }
    }
}
