//! Tests of mixtures of experts: the router against the reference, rows by expert, linears that
//! have the bits of ordinary ones, weighted sums.

#[path = "../../tests/common/mod.rs"]
mod common;
mod device;

use bytemuck::cast_slice;
use common::records::random_records;
use common::{Random, bits};
use cuda_kernels::{
    DeviceExpertLinear, DeviceExpertShape, DeviceLinear, DeviceLinearOut, DeviceWeight,
    KernelLaunch, expert_combine, expert_linear, group_experts, linear, route,
};
use cuda_shim::set_order;
use device::{Half, Output, dtype, of, run};
use kernels::{Element, RoutedExpert, RouterRules, reference};
use model::experts::ExpertScoring;
use model::quantized_format::{Grouped, WeightFormat};

const SCORINGS: [ExpertScoring; 3] = [
    ExpertScoring::SoftmaxTopK { renormalise: false },
    ExpertScoring::SoftmaxTopK { renormalise: true },
    ExpertScoring::TopKSoftmax,
];

fn routed_by(
    shape: DeviceExpertShape,
    scoring: ExpertScoring,
    logits: &[f32],
) -> Vec<RoutedExpert> {
    routed_times(1.0, shape, scoring, logits)
}

fn routed_times(
    factor: f32,
    shape: DeviceExpertShape,
    scoring: ExpertScoring,
    logits: &[f32],
) -> Vec<RoutedExpert> {
    // An entry is two words, as f32 for the guard after the output.
    let mut out = Output::<f32>::new(2 * (shape.rows * shape.top_k) as usize);
    run(&[route(shape, scoring, factor, of(logits), out.pointer())]);
    cast_slice(&out.take()).to_vec()
}

#[test]
fn experts_and_weights_are_those_of_the_reference() {
    for order in [0, 1, 4] {
        set_order(order);
        let mut random = Random::new(31);
        for (experts, top_k) in [(1, 1), (4, 2), (8, 8), (33, 5), (60, 4), (128, 8), (200, 32)] {
            for rows in [1, 7, 9] {
                let shape = DeviceExpertShape { rows, top_k, experts };
                let len = (rows * experts) as usize;
                let logits: Vec<f32> = (0..len)
                    // Coarse, so that many are equal.
                    .map(|_| (random.unit() * 16.0).round() / 4.0)
                    .collect();
                for scoring in SCORINGS {
                    let rules = RouterRules::plain(experts as usize, top_k as usize, scoring);
                    let routed = routed_by(shape, scoring, &logits);
                    for (row, routed) in routed.chunks(top_k as usize).enumerate() {
                        let own = &logits[row * experts as usize..][..experts as usize];
                        let own: Vec<f64> = own.iter().map(|logit| f64::from(*logit)).collect();
                        let expected = reference::route(&own, &rules);
                        for (routed, (expert, weight)) in routed.iter().zip(expected) {
                            let context = format!("{shape:?} {scoring:?} row {row}");
                            assert_eq!(routed.expert, expert, "{context}");
                            let difference = (f64::from(routed.weight) - weight).abs();
                            assert!(difference <= 2e-6 * weight, "{context}: {routed:?} {weight}");
                        }
                    }
                }
            }
        }
    }
    set_order(0);
}

#[test]
fn what_is_no_number_is_taken_last() {
    let (nan, infinite) = (f32::NAN, f32::INFINITY);
    let shape = DeviceExpertShape { rows: 1, top_k: 3, experts: 5 };
    for scoring in SCORINGS {
        for (logits, expected, is_nan) in [
            ([nan, 1.0, nan, -3.0, 0.5], [1, 3, 4], false),
            ([nan, 1.0, nan, nan, 0.5], [0, 1, 4], false),
            ([nan; 5], [0, 1, 2], true),
            ([-infinite; 5], [0, 1, 2], true),
            ([0.0, infinite, 1.0, nan, -infinite], [0, 1, 2], true),
        ] {
            let routed = routed_by(shape, scoring, &logits);
            let experts: Vec<u32> = routed.iter().map(|routed| routed.expert).collect();
            assert_eq!(experts, expected, "{logits:?}");
            let are_nan = routed.iter().all(|routed| routed.weight.is_nan());
            let are_finite = routed.iter().all(|routed| routed.weight.is_finite());
            assert!(if is_nan { are_nan } else { are_finite }, "{logits:?}: {routed:?}");
        }
    }
}

#[test]
fn a_factor_multiplies_every_weight() {
    let shape = DeviceExpertShape { rows: 3, top_k: 4, experts: 9 };
    let logits: Vec<f32> = Random::new(8).vector((shape.rows * shape.experts) as usize);
    for scoring in SCORINGS {
        let times = |routed: RoutedExpert| RoutedExpert { weight: routed.weight * 0.22, ..routed };
        let expected: Vec<RoutedExpert> =
            routed_by(shape, scoring, &logits).into_iter().map(times).collect();
        assert_eq!(routed_times(0.22, shape, scoring, &logits), expected, "{scoring:?}");
    }
}

/// Returns adjacent experts for each row, some with none and some with many rows.
fn routing(random: &mut Random, shape: DeviceExpertShape) -> Vec<RoutedExpert> {
    let DeviceExpertShape { rows, top_k, experts } = shape;
    let mut routed = Vec::new();
    for row in 0..rows {
        let spread = if row % 3 == 0 { 1 } else { experts - top_k + 1 };
        let first = random.below(spread as usize) as u32;
        routed.extend((first..first + top_k).map(|expert| {
            let weight = random.unit();
            RoutedExpert { expert, weight }
        }));
    }
    routed
}

/// Returns the beginning of each expert's places, and all places.
fn grouped_places(shape: DeviceExpertShape, routed: &[RoutedExpert]) -> (Vec<u32>, Vec<u32>) {
    let mut starts = Output::<f32>::new(shape.experts as usize + 1);
    let mut slots = Output::<f32>::new(routed.len());
    run(&[group_experts(shape, of(routed), starts.pointer(), slots.pointer())]);
    (bits(&starts.take()), bits(&slots.take()))
}

#[test]
fn places_are_sorted_by_expert_and_ascend() {
    let mut random = Random::new(3);
    for (rows, top_k, experts) in
        [(0, 2, 3), (1, 1, 1), (1, 2, 9), (40, 3, 5), (300, 4, 8), (257, 1, 70)]
    {
        let shape = DeviceExpertShape { rows, top_k, experts };
        let routed = routing(&mut random, shape);
        let (starts, slots) = grouped_places(shape, &routed);
        let mut expected_starts = vec![0];
        let mut expected = Vec::new();
        for expert in 0..experts {
            let own = (0..).zip(&routed).filter(|(_, routed)| routed.expert == expert);
            expected.extend(own.map(|(slot, _)| slot));
            expected_starts.push(expected.len() as u32);
        }
        assert_eq!(starts, expected_starts, "{shape:?}");
        assert_eq!(slots, expected, "{shape:?}");
    }
}

/// The experts' matrices in a format, and the distance between them.
struct Matrices<T> {
    plain: Vec<T>,
    records: Vec<u8>,
    format: WeightFormat,
    /// Elements or bytes of a matrix.
    stride: usize,
}

impl<T: Element> Matrices<T> {
    fn new(random: &mut Random, format: WeightFormat, experts: usize, n: usize, k: usize) -> Self {
        let (mut plain, mut records, mut stride) = (Vec::new(), Vec::new(), n * k);
        match format {
            WeightFormat::Plain => plain = random.vector(experts * n * k),
            WeightFormat::Grouped(format) => {
                stride = format.size_bytes(n, k);
                for _ in 0..experts {
                    records.extend(random_records(random, format, n, k));
                }
            }
        }
        Matrices { plain, records, format, stride }
    }

    fn of(&self, expert: u32) -> DeviceWeight {
        let at = expert as usize * self.stride;
        match self.format {
            WeightFormat::Plain => DeviceWeight::Plain(of(&self.plain[at..])),
            WeightFormat::Grouped(format) => DeviceWeight::Grouped(format, of(&self.records[at..])),
        }
    }
}

/// Checks that all places in one launch have the bits of ordinary linears one by one.
fn check<T: Element>(
    random: &mut Random,
    shape: DeviceExpertShape,
    (n, k): (u32, u32),
    (format, x_by_place): (WeightFormat, bool),
) -> &'static str {
    let DeviceExpertShape { rows, top_k, experts } = shape;
    let routed = routing(random, shape);
    let places = routed.len();
    let (n_len, k_len) = (n as usize, k as usize);
    let matrices = Matrices::<T>::new(random, format, experts as usize, n_len, k_len);
    let bias: Vec<f32> = random.vector((experts * n) as usize);
    let per_row = if x_by_place { 1 } else { top_k as usize };
    let x: Vec<T> = random.vector(places / per_row * k_len);
    let gate: Vec<T> = random.vector(places * n_len);
    let (starts, slots) = grouped_places(shape, &routed);
    let launch = |out| -> KernelLaunch {
        let (starts, slots, bias, x) = (of(&starts), of(&slots), of(&bias), of(&x));
        let weight = matrices.of(0);
        let operands =
            DeviceExpertLinear { shape, starts, slots, n, k, x, x_by_place, weight, bias, out };
        expert_linear(dtype::<T>(), &operands)
    };
    let mut sums = Output::<f32>::new(places * n_len);
    let mut products = Output::<T>::new(places * n_len);
    let first = launch(DeviceLinearOut::StoreF32(sums.pointer()));
    run(&[first, launch(DeviceLinearOut::SiluMul { gate: of(&gate), out: products.pointer() })]);
    let (sums, products) = (sums.take(), products.take());
    for (slot, routed) in routed.iter().enumerate() {
        let mut sum = Output::<f32>::new(n_len);
        let mut product = Output::<T>::new(n_len);
        let one = |out| {
            let x = of(&x[slot / per_row * k_len..]);
            let bias = of(&bias[(routed.expert * n) as usize..]);
            let weight = matrices.of(routed.expert);
            linear(dtype::<T>(), &DeviceLinear { rows: 1, n, k, x, weight, bias, out })
        };
        let own_gate = of(&gate[slot * n_len..]);
        let to = DeviceLinearOut::SiluMul { gate: own_gate, out: product.pointer() };
        run(&[one(DeviceLinearOut::StoreF32(sum.pointer())), one(to)]);
        let (at, context) = (slot * n_len..(slot + 1) * n_len, first.name);
        assert_eq!(bits(&sums[at.clone()]), bits(&sum.take()), "{context} {rows} rows {slot}");
        assert_eq!(bits(&products[at]), bits(&product.take()), "{context} {rows} rows {slot}");
    }
    first.name
}

fn formats() -> Vec<WeightFormat> {
    let grouped = [
        Grouped::GGUF_Q4,
        Grouped::W4.widened(),
        Grouped::GGUF_Q6_K.widened(),
        Grouped::GGUF_Q4_K,
        Grouped::GGUF_MXFP4,
    ];
    let grouped = grouped.into_iter().map(WeightFormat::Grouped);
    std::iter::once(WeightFormat::Plain).chain(grouped).collect()
}

#[test]
fn places_have_the_bits_of_ordinary_linears() {
    let mut random = Random::new(5);
    let mut names = std::collections::BTreeSet::new();
    for format in formats() {
        for (shape, sizes, x_by_place) in [
            ((1, 2, 6), (20, 40), false),
            ((9, 3, 4), (48, 544), true),
            ((24, 2, 4), (33, 64), false),
            ((60, 1, 2), (130, 72), false),
            ((75, 2, 3), (40, 65), true),
            ((75, 2, 3), (17, 96), false),
        ] {
            let shape = DeviceExpertShape { rows: shape.0, top_k: shape.1, experts: shape.2 };
            names.insert(check::<Half>(&mut random, shape, sizes, (format, x_by_place)));
        }
        let shape = DeviceExpertShape { rows: 20, top_k: 2, experts: 3 };
        names.insert(check::<f32>(&mut random, shape, (33, 70), (format, false)));
    }
    assert_eq!(names.len(), 26, "every kernel was run: {names:?}");
}

#[test]
fn weighted_sums_are_added_in_ascending_order_of_experts() {
    let mut random = Random::new(6);
    for (rows, top_k, n) in [(1, 1, 1), (3, 2, 40), (5, 8, 1030)] {
        let shape = DeviceExpertShape { rows, top_k, experts: 12 };
        let routed = routing(&mut random, shape);
        let n_len = n as usize;
        let parts: Vec<f32> = random.vector(routed.len() * n_len);
        let before: Vec<f32> = random.vector(rows as usize * n_len);
        let mut hidden = Output::holding(&before);
        run(&[expert_combine(rows, top_k, n, of(&routed), of(&parts), hidden.pointer())]);
        let mut expected = before.clone();
        for (at, expected) in expected.iter_mut().enumerate() {
            let (row, column) = (at / n_len, at % n_len);
            let product = |j: usize| {
                let slot = row * top_k as usize + j;
                routed[slot].weight * parts[slot * n_len + column]
            };
            *expected += (1..top_k as usize).fold(product(0), |sum, j| sum + product(j));
        }
        assert_eq!(bits(&hidden.take()), bits(&expected), "{rows} rows, {n}");
    }
}
