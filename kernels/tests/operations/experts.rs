//! Tests of the linears of a mixture of experts: the bits of ordinary linears of each row and its
//! expert's matrix, sums over experts in their order, row independence.

use crate::common::records::random_records;
use crate::common::{Random, assert_close, bits, kernels, poison, tolerance, variants};
use half::bf16;
use kernels::{
    Element, ExpertLimits, ExpertPlaces, ExpertWeight, Kernels, Linear, LinearOut, LinearQuant,
    RoutedExpert, RoutedLinear, Routing, Variant, reference,
};
use model::quantized_format::{Grouped, WeightFormat};

/// Few rows at a time, so that some calls take several passes.
const LIMITS: ExpertLimits =
    ExpertLimits { rows: 40, top_k: 8, experts: 12, inputs: 330, hidden: 330 };

fn expert_kernels(variant: Variant, threads: usize) -> Kernels {
    kernels(variant, threads).with_experts(LIMITS)
}

fn formats() -> Vec<WeightFormat> {
    let grouped = crate::common::records::formats().into_iter().map(WeightFormat::Grouped);
    std::iter::once(WeightFormat::Plain).chain(grouped).collect()
}

/// Matrices of some experts in a format.
struct Matrices<T> {
    n: usize,
    k: usize,
    format: WeightFormat,
    plain: Vec<T>,
    records: Vec<u8>,
    bias: Option<Vec<f32>>,
}

impl<T: Element> Matrices<T> {
    fn random(
        random: &mut Random,
        (experts, n, k): (usize, usize, usize),
        format: WeightFormat,
    ) -> Matrices<T> {
        let (mut plain, mut records) = (Vec::new(), Vec::new());
        match format {
            WeightFormat::Plain => plain = random.vector(experts * n * k),
            WeightFormat::Grouped(format) => {
                for _ in 0..experts {
                    records.extend(random_records(random, format, n, k));
                }
            }
        }
        let bias = (n % 2 == 0).then(|| random.vector(experts * n));
        Matrices { n, k, format, plain, records, bias }
    }

    fn experts<'a>(&'a self, routing: Routing<'a>) -> RoutedLinear<'a, T> {
        let weight = match self.format {
            WeightFormat::Plain => ExpertWeight::Plain(&self.plain),
            WeightFormat::Grouped(format) => ExpertWeight::Grouped(format, &self.records),
        };
        let bias = self.bias.as_deref();
        RoutedLinear { routing, n: self.n, k: self.k, weight, bias, places: None, included: None }
    }

    /// Computes the ordinary linear of one expert.
    fn linear(&self, kernels: &Kernels, expert: usize, x: &[T], out: LinearOut<'_, T>) {
        let Matrices { n, k, .. } = *self;
        let rows = x.len() / k;
        let bias = self.bias.as_ref().map(|bias| &bias[expert * n..][..n]);
        match self.format {
            WeightFormat::Plain => {
                let weight = &self.plain[expert * n * k..][..n * k];
                kernels.linear(Linear { rows, n, k, x, weight, bias, out });
            }
            WeightFormat::Grouped(format) => {
                let len = format.size_bytes(n, k);
                let records = &self.records[expert * len..][..len];
                kernels.linear_grouped(LinearQuant { rows, n, k, x, format, records, bias, out });
            }
        }
    }
}

/// Distribution of rows over experts.
#[derive(Debug, Clone, Copy)]
enum Load {
    /// Any experts.
    Uniform,
    /// The first ones: all rows to each of them, none to the others.
    First,
    /// The first one and one more: some experts have one row.
    Rare,
}

fn routing(
    random: &mut Random,
    load: Load,
    rows: usize,
    (experts, top_k): (usize, usize),
) -> Vec<RoutedExpert> {
    let mut routed = Vec::new();
    for row in 0..rows {
        let mut chosen: Vec<u32> = match load {
            Load::Uniform => {
                let mut all: Vec<u32> = (0..experts as u32).collect();
                for i in 0..top_k {
                    let other = i + random.below(experts - i);
                    all.swap(i, other);
                }
                all[..top_k].to_vec()
            }
            Load::First => (0..top_k as u32).collect(),
            Load::Rare => {
                let rare = top_k - 1 + row % (experts - top_k + 1);
                (0..top_k as u32 - 1).chain([rare as u32]).collect()
            }
        };
        chosen.sort_unstable();
        routed.extend(
            chosen.into_iter().map(|expert| RoutedExpert { expert, weight: random.unit() }),
        );
    }
    routed
}

/// Computes every place by an ordinary linear of its row alone, and the gates it may be multiplied
/// by.
fn expected_places<T: Element>(
    kernels: &Kernels,
    matrices: &Matrices<T>,
    routing: &Routing<'_>,
    x: impl Fn(usize) -> Vec<T>,
) -> Vec<f32> {
    let mut out = Vec::new();
    for (slot, routed) in routing.routed.iter().enumerate() {
        let mut sums = poison::<f32>(matrices.n);
        let out_form = LinearOut::StoreF32(&mut sums);
        matrices.linear(kernels, routed.expert as usize, &x(slot), out_form);
        out.extend(sums);
    }
    out
}

fn check_linear<T: Element>(
    kernels: &Kernels,
    matrices: &Matrices<T>,
    routing: Routing<'_>,
    (random, context): (&mut Random, &str),
) {
    let Matrices { n, k, .. } = *matrices;
    let Routing { top_k, routed, .. } = routing;
    let rows = routed.len() / top_k;
    let x: Vec<T> = random.vector(rows * k);
    let experts = matrices.experts(routing);
    let expected =
        expected_places(kernels, matrices, &routing, |slot| x[slot / top_k * k..][..k].to_vec());
    let mut out = poison::<f32>(rows * top_k * n);
    kernels.expert_linear(&experts, &x, LinearOut::StoreF32(&mut out));
    assert_eq!(bits(&out), bits(&expected), "{context}");
    assert_eq!(
        crate::portions::linear(kernels, &experts, &x),
        bits(&expected),
        "{context}, in portions"
    );
    let mut stored = poison::<T>(rows * top_k * n);
    kernels.expert_linear(&experts, &x, LinearOut::Store(&mut stored));
    let rounded: Vec<T> = expected.iter().map(|value| T::from_f32(*value)).collect();
    assert_eq!(bits(&stored), bits(&rounded), "{context}");
    let gate: Vec<T> = random.vector(rows * top_k * n);
    let mut product = poison::<T>(rows * top_k * n);
    kernels.expert_linear(&experts, &x, LinearOut::SiluMul { gate: &gate, out: &mut product });
    for (slot, routed) in routed.iter().enumerate() {
        let (gate, at) = (&gate[slot * n..][..n], slot * n..slot * n + n);
        let mut alone = poison::<T>(n);
        let x = &x[slot / top_k * k..][..k];
        let out_form = LinearOut::SiluMul { gate, out: &mut alone };
        matrices.linear(kernels, routed.expert as usize, x, out_form);
        assert_eq!(bits(&product[at]), bits(&alone), "{context} slot {slot}");
    }
}

fn check_down<T: Element>(
    kernels: &Kernels,
    matrices: &Matrices<T>,
    routing: Routing<'_>,
    (random, context): (&mut Random, &str),
) {
    let Matrices { n, k, .. } = *matrices;
    let Routing { top_k, routed, .. } = routing;
    let rows = routed.len() / top_k;
    let x: Vec<T> = random.vector(rows * top_k * k);
    let places = expected_places(kernels, matrices, &routing, |slot| x[slot * k..][..k].to_vec());
    let before: Vec<f32> = random.vector(rows * n);
    let mut hidden = before.clone();
    kernels.expert_down(&matrices.experts(routing), &x, &mut hidden);
    let mut expected = before.clone();
    for row in 0..rows {
        for col in 0..n {
            let product = |j: usize| {
                let slot = row * top_k + j;
                routed[slot].weight * places[slot * n + col]
            };
            let sum = (1..top_k).fold(product(0), |sum, j| sum + product(j));
            expected[row * n + col] += sum;
        }
    }
    assert_eq!(bits(&hidden), bits(&expected), "{context}");
    let in_portions =
        crate::portions::down(kernels, &matrices.experts(routing), &x, before.clone());
    assert_eq!(in_portions, bits(&expected), "{context}, in portions");
    if matches!(matrices.format, WeightFormat::Plain) {
        let mut exact = Vec::new();
        for row in 0..rows {
            let x = &x[row * top_k * k..][..top_k * k];
            let routed = &routed[row * top_k..][..top_k];
            let bias = matrices.bias.as_deref();
            let sum = reference::expert_down(routed, n, k, x, &matrices.plain, bias);
            let before = &before[row * n..][..n];
            exact.extend(sum.iter().zip(before).map(|(sum, before)| sum + f64::from(*before)));
        }
        let typical = ((k * top_k) as f64).sqrt();
        assert_close(&hidden, &exact, (n, typical), 4.0 * tolerance(), context);
    }
}

/// Shapes of experts: outputs and inputs.
const SHAPES: [(usize, usize); 4] = [(32, 64), (48, 330), (330, 96), (19, 33)];

fn check<T: Element>(name: &str) {
    for variant in variants(name) {
        for (index, format) in formats().into_iter().enumerate() {
            let batches: &[usize] = if index < 4 { &[1, 2, 7, 33, 90] } else { &[1, 20] };
            for (round, (n, k)) in SHAPES.into_iter().enumerate() {
                let experts = [12, 5, 8, 3][round];
                let mut random = Random::new((n * 1000 + k) as u64);
                let matrices = Matrices::<T>::random(&mut random, (experts, n, k), format);
                for (turn, load) in [Load::Uniform, Load::First, Load::Rare].into_iter().enumerate()
                {
                    // Each load has every other batch, and each batch has loads in other rounds.
                    for &rows in batches.iter().skip((turn + round) % 2).step_by(2) {
                        let kernels = expert_kernels(variant, 1 + (round + turn + rows) % 3);
                        let top_k = if rows % 2 == 0 { 1 } else { experts.min(2 + round * 2) };
                        let routed = routing(&mut random, load, rows, (experts, top_k));
                        let routing = Routing { experts, top_k, routed: &routed };
                        let context =
                            format!("{variant:?} {format:?} {n}x{k} {load:?} {rows} rows");
                        let with = (&mut random, context.as_str());
                        check_linear(&kernels, &matrices, routing, with);
                        let with = (&mut random, context.as_str());
                        check_down(&kernels, &matrices, routing, with);
                    }
                }
            }
        }
    }
}

#[test]
fn bf16_places_have_the_bits_of_ordinary_linears() {
    check::<bf16>("bf16_places_have_the_bits_of_ordinary_linears");
}

#[test]
fn f32_places_have_the_bits_of_ordinary_linears() {
    check::<f32>("f32_places_have_the_bits_of_ordinary_linears");
}

/// Variants that this machine lacks, if their instructions can be emulated. One thread.
#[test]
fn emulated_variants_give_places_the_bits_of_ordinary_linears() {
    let formats = [WeightFormat::Plain, WeightFormat::Grouped(Grouped::GGUF_Q4)];
    for variant in Variant::ALL.into_iter().filter(|variant| !variant.is_available()) {
        let Some(kernels) = crate::emulate::kernels(variant, 1) else {
            println!("SKIP {variant:?}: neither here nor emulated");
            continue;
        };
        let kernels = kernels.with_experts(LIMITS);
        for format in formats {
            let mut random = Random::new(14);
            let matrices = Matrices::<bf16>::random(&mut random, (4, 32, 96), format);
            // Experts with all of 20 rows, with few and with none.
            let routed = routing(&mut random, Load::Rare, 20, (4, 2));
            let routing = Routing { experts: 4, top_k: 2, routed: &routed };
            let context = format!("{variant:?} {format:?}");
            check_linear(&kernels, &matrices, routing, (&mut random, &context));
            check_down(&kernels, &matrices, routing, (&mut random, &context));
        }
    }
}

/// Computes gate, up and down of all rows.
fn mixture(
    kernels: &Kernels,
    matrices: [&Matrices<bf16>; 3],
    routing: Routing<'_>,
    x: &[bf16],
) -> Vec<f32> {
    let [gate, up, down] = matrices;
    let len = routing.routed.len() * gate.n;
    let (mut gates, mut products) = (poison::<bf16>(len), poison::<bf16>(len));
    kernels.expert_linear(&gate.experts(routing), x, LinearOut::Store(&mut gates));
    let out = LinearOut::SiluMul { gate: &gates, out: &mut products };
    kernels.expert_linear(&up.experts(routing), x, out);
    let mut hidden: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
    kernels.expert_down(&down.experts(routing), &products, &mut hidden);
    hidden
}

#[test]
fn a_row_does_not_depend_on_its_batch_its_place_or_on_threads() {
    let (experts, top_k, width, k) = (12, 4, 48, 160);
    for variant in variants("a_row_does_not_depend_on_its_batch_its_place_or_on_threads") {
        for format in formats() {
            let mut random = Random::new(6);
            let gate = Matrices::random(&mut random, (experts, width, k), format);
            let up = Matrices::random(&mut random, (experts, width, k), format);
            let down = Matrices::random(&mut random, (experts, k, width), format);
            let matrices = [&gate, &up, &down];
            let rows = 70;
            let routed = routing(&mut random, Load::Uniform, rows, (experts, top_k));
            let x: Vec<bf16> = random.vector(rows * k);
            let of = |threads: usize, order: &[usize]| {
                let routed: Vec<RoutedExpert> =
                    order.iter().flat_map(|row| &routed[row * top_k..][..top_k]).copied().collect();
                let x: Vec<bf16> =
                    order.iter().flat_map(|row| &x[row * k..][..k]).copied().collect();
                let routing = Routing { experts, top_k, routed: &routed };
                bits(&mixture(&expert_kernels(variant, threads), matrices, routing, &x))
            };
            let alone: Vec<Vec<u32>> = (0..rows).map(|row| of(1, &[row])).collect();
            for (round, count) in [2, 5, 12, 41, rows].into_iter().enumerate() {
                let mut order: Vec<usize> = (0..rows).collect();
                for i in 0..rows {
                    order.swap(i, i + random.below(rows - i));
                }
                order.truncate(count);
                let all = of(1 + round % 3, &order);
                for (row, bits) in order.iter().zip(all.chunks(k)) {
                    assert_eq!(bits, alone[*row], "{variant:?} {format:?} {count} rows");
                }
            }
        }
    }
}

/// Experts and their biases anywhere in one memory, each after its own gap; those that no row is
/// routed to are left out.
struct Scattered<T> {
    bytes: Vec<T>,
    matrices: Vec<usize>,
    biases: Option<Vec<usize>>,
}

impl<T: Element> Scattered<T> {
    fn new(matrices: &Matrices<T>, routed: &[RoutedExpert], random: &mut Random) -> Scattered<T> {
        let Matrices { n, k, format, .. } = *matrices;
        let (all, matrix_bytes): (&[u8], usize) = match format {
            WeightFormat::Plain => (bytemuck::cast_slice(&matrices.plain), n * k * size_of::<T>()),
            WeightFormat::Grouped(format) => (&matrices.records, format.size_bytes(n, k)),
        };
        let mut experts: Vec<usize> = routed.iter().map(|one| one.expert as usize).collect();
        experts.sort_unstable();
        experts.dedup();
        experts.reverse();
        let count = all.len() / matrix_bytes;
        let (mut bytes, mut places) = (Vec::new(), vec![usize::MAX; count]);
        let mut biases = matrices.bias.as_ref().map(|_| vec![usize::MAX; count]);
        let mut push = |piece: &[u8]| {
            bytes.resize((bytes.len() + random.below(200)).next_multiple_of(64), 0xee);
            bytes.extend_from_slice(piece);
            bytes.len() - piece.len()
        };
        for expert in experts {
            places[expert] = push(&all[expert * matrix_bytes..][..matrix_bytes]);
            if let (Some(biases), Some(bias)) = (&mut biases, &matrices.bias) {
                biases[expert] = push(bytemuck::cast_slice(&bias[expert * n..][..n]));
            }
        }
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        let bytes = bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect();
        Scattered { bytes, matrices: places, biases }
    }

    fn experts<'a>(&'a self, of: &'a Matrices<T>, routing: Routing<'a>) -> RoutedLinear<'a, T> {
        let weight = crate::portions::shared(of.format, &self.bytes);
        let places = ExpertPlaces { matrices: &self.matrices, biases: self.biases.as_deref() };
        RoutedLinear { weight, bias: None, places: Some(places), ..of.experts(routing) }
    }
}

#[test]
fn experts_have_the_same_bits_in_any_place() {
    for variant in variants("experts_have_the_same_bits_in_any_place") {
        for format in formats() {
            let kernels = expert_kernels(variant, 2);
            let mut random = Random::new(21);
            let (experts, top_k, n, k) = (9, 3, 48, 96);
            let up = Matrices::<bf16>::random(&mut random, (experts, n, k), format);
            let down = Matrices::<bf16>::random(&mut random, (experts, k, n), format);
            for rows in [1, 3, 40] {
                let routed = routing(&mut random, Load::Rare, rows, (experts, top_k));
                let routing = Routing { experts, top_k, routed: &routed };
                let x: Vec<bf16> = random.vector(rows * k);
                let before: Vec<f32> = random.vector(rows * k);
                let compute = |up: RoutedLinear<'_, bf16>, down: RoutedLinear<'_, bf16>| {
                    let mut middle = poison::<bf16>(rows * top_k * n);
                    kernels.expert_linear(&up, &x, LinearOut::Store(&mut middle));
                    let mut hidden = before.clone();
                    kernels.expert_down(&down, &middle, &mut hidden);
                    bits(&hidden)
                };
                let expected = compute(up.experts(routing), down.experts(routing));
                let moved = [&up, &down].map(|one| Scattered::new(one, &routed, &mut random));
                let found =
                    compute(moved[0].experts(&up, routing), moved[1].experts(&down, routing));
                assert_eq!(found, expected, "{variant:?} {format:?} {rows} rows");
            }
        }
    }
}

#[test]
#[should_panic(expected = "is outside of")]
fn experts_outside_of_the_weights_are_refused() {
    let kernels = expert_kernels(Variant::best(), 1);
    let mut random = Random::new(1);
    let matrices = Matrices::<bf16>::random(&mut random, (3, 32, 64), WeightFormat::Plain);
    let routed = [0, 2].map(|expert| RoutedExpert { expert, weight: 0.5 });
    let routing = Routing { experts: 3, top_k: 2, routed: &routed };
    let places = [0, usize::MAX, 2 * 32 * 64 * 2 + 2];
    let experts = RoutedLinear {
        bias: None,
        places: Some(ExpertPlaces { matrices: &places, biases: None }),
        weight: crate::portions::shared(WeightFormat::Plain, &matrices.plain),
        ..matrices.experts(routing)
    };
    let (x, mut out) = (random.vector(64), poison::<bf16>(64));
    kernels.expert_linear(&experts, &x, LinearOut::Store(&mut out));
}

/// An expert has more rows than are packed at a time.
#[test]
fn an_expert_takes_all_rows_of_a_large_batch() {
    let limits = ExpertLimits { rows: 700, ..LIMITS };
    for variant in variants("an_expert_takes_all_rows_of_a_large_batch") {
        for format in [WeightFormat::Plain, WeightFormat::Grouped(Grouped::W4)] {
            let kernels = kernels(variant, 2).with_experts(limits);
            let mut random = Random::new(9);
            let matrices = Matrices::<bf16>::random(&mut random, (3, 64, 96), format);
            let routed = routing(&mut random, Load::First, 600, (3, 2));
            let routing = Routing { experts: 3, top_k: 2, routed: &routed };
            let context = format!("{variant:?} {format:?}");
            check_linear(&kernels, &matrices, routing, (&mut random, &context));
            check_down(&kernels, &matrices, routing, (&mut random, &context));
        }
    }
}

#[test]
fn no_rows_are_no_work() {
    let kernels = expert_kernels(Variant::best(), 2);
    let mut random = Random::new(1);
    let matrices = Matrices::<bf16>::random(&mut random, (3, 32, 64), WeightFormat::Plain);
    let routing = Routing { experts: 3, top_k: 2, routed: &[] };
    kernels.expert_linear(&matrices.experts(routing), &[], LinearOut::Store(&mut []));
    kernels.expert_down(&matrices.experts(routing), &[], &mut []);
}

/// Makes a call with one row, whose places name `experts` of three.
fn call_with(experts: [u32; 2]) {
    let kernels = expert_kernels(Variant::best(), 1);
    let mut random = Random::new(1);
    let matrices = Matrices::<bf16>::random(&mut random, (3, 32, 64), WeightFormat::Plain);
    let routed = experts.map(|expert| RoutedExpert { expert, weight: 0.5 });
    let routing = Routing { experts: 3, top_k: 2, routed: &routed };
    let (x, mut out) = (random.vector(64), poison::<bf16>(64));
    kernels.expert_linear(&matrices.experts(routing), &x, LinearOut::Store(&mut out));
}

#[test]
fn experts_that_ascend_and_exist_are_taken() {
    call_with([0, 2]);
}

#[test]
#[should_panic(expected = "exist and ascend")]
fn experts_that_do_not_ascend_are_refused() {
    call_with([2, 1]);
}

#[test]
#[should_panic(expected = "exist and ascend")]
fn experts_that_do_not_exist_are_refused() {
    call_with([1, 3]);
}
