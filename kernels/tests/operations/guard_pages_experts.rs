//! Tests that expert linears and the router read and write nothing beyond an operand; see
//! `guard_pages`.

use crate::common::records::{formats, random_records};
use crate::common::{Random, bits, poison};
use crate::guarded::{Guarded, SIDES, set_case};
use half::bf16;
use kernels::{
    Element, ExpertLimits, ExpertWeight, Kernels, LinearOut, RoutedExpert, RoutedLinear,
    RouterRules, Routing, Variant,
};
use model::experts::ExpertScoring;
use model::quantized_format::Grouped;

const EXPERTS: usize = 5;

/// Returns kernels of every variant that runs here, or can be emulated, on one thread.
fn all_kernels(test: &str) -> Vec<Kernels> {
    let limits = ExpertLimits { rows: 12, top_k: 3, experts: EXPERTS, inputs: 330, hidden: 330 };
    let mut all = Vec::new();
    for variant in Variant::ALL {
        match crate::emulate::kernels(variant, 1) {
            Some(kernels) => all.push(kernels.with_experts(limits)),
            None => println!("SKIP {test} ({}): neither here nor emulated", variant.name()),
        }
    }
    all
}

/// Returns outputs, inputs, rows and experts of a row.
fn cases(kernels: &Kernels) -> Vec<(usize, usize, usize, usize)> {
    let all = [(1, 1, 1, 1), (16, 33, 3, 2), (17, 64, 7, 3), (48, 65, 12, 2), (63, 130, 20, 3)];
    let many = [(130, 31, 17, 1), (33, 330, 9, 3), (250, 96, 30, 2)];
    let is_native = kernels.variant().is_available();
    all.into_iter().chain(many.into_iter().filter(|_| is_native)).collect()
}

fn routing(random: &mut Random, rows: usize, top_k: usize) -> Vec<RoutedExpert> {
    let mut routed = Vec::new();
    for _ in 0..rows {
        let skipped = EXPERTS - top_k;
        let start = random.below(skipped + 1) as u32;
        let weight = random.unit();
        routed.extend((start..).take(top_k).map(|expert| RoutedExpert { expert, weight }));
    }
    routed
}

/// Returns the records of all experts.
fn records(random: &mut Random, format: Grouped, n: usize, k: usize) -> Vec<u8> {
    (0..EXPERTS).flat_map(|_| random_records(random, format, n, k)).collect()
}

/// Operands of a linear and of `expert_down`.
struct Operands<T> {
    n: usize,
    k: usize,
    top_k: usize,
    routed: Vec<RoutedExpert>,
    x: Vec<T>,
    slots: Vec<T>,
    plain: Vec<T>,
    grouped: Option<(Grouped, Vec<u8>)>,
    bias: Vec<f32>,
    hidden: Vec<f32>,
}

impl<T: Element> Operands<T> {
    fn experts<'a>(
        &self,
        routed: &'a [RoutedExpert],
        (plain, records): (&'a [T], &'a [u8]),
        bias: &'a [f32],
    ) -> RoutedLinear<'a, T> {
        let Operands { n, k, top_k, ref grouped, .. } = *self;
        let weight = match grouped {
            None => ExpertWeight::Plain(plain),
            Some((format, _)) => ExpertWeight::Grouped(*format, records),
        };
        RoutedLinear {
            routing: Routing { experts: EXPERTS, top_k, routed },
            n,
            k,
            weight,
            bias: Some(bias),
            places: None,
            included: None,
        }
    }
}

fn check<T: Element>(kernels: &Kernels) {
    let formats: Vec<_> = std::iter::once(None).chain(formats().into_iter().map(Some)).collect();
    for (index, (n, k, rows, top_k)) in cases(kernels).into_iter().enumerate() {
        for &format in &formats {
            let mut random = Random::new(index as u64);
            let operands = Operands::<T> {
                n,
                k,
                top_k,
                routed: routing(&mut random, rows, top_k),
                x: random.vector(rows * k),
                slots: random.vector(rows * top_k * k),
                plain: random.vector(if format.is_none() { EXPERTS * n * k } else { 0 }),
                grouped: format.map(|format| (format, records(&mut random, format, n, k))),
                bias: random.vector(EXPERTS * n),
                hidden: random.vector(rows * n),
            };
            set_case(format!("experts {:?} {n}x{k} {rows} rows {format:?}", kernels.variant()));
            compare(kernels, &operands, rows);
        }
    }
}

/// Compares the same calls on ordinary memory and with all operands at guard pages.
fn compare<T: Element>(kernels: &Kernels, operands: &Operands<T>, rows: usize) {
    let len = rows * operands.top_k * operands.n;
    let no_records = Vec::new();
    let records = operands.grouped.as_ref().map_or(&no_records, |(_, records)| records);
    let (mut out, mut hidden) = (poison::<T>(len), operands.hidden.clone());
    let weights = (&operands.plain[..], &records[..]);
    let experts = operands.experts(&operands.routed, weights, &operands.bias);
    kernels.expert_linear(&experts, &operands.x, LinearOut::Store(&mut out));
    kernels.expert_down(&experts, &operands.slots, &mut hidden);
    for side in SIDES {
        let routed = Guarded::new("routed", side, &operands.routed);
        let x = Guarded::new("x", side, &operands.x);
        let slots = Guarded::new("x of places", side, &operands.slots);
        let plain = Guarded::new("weight", side, &operands.plain);
        let records = Guarded::new("records", side, records);
        let bias = Guarded::new("bias", side, &operands.bias);
        let mut guarded_out = Guarded::new("out", side, &poison::<T>(len));
        let mut guarded_hidden = Guarded::new("hidden", side, &operands.hidden);
        let weights = (plain.slice(), records.slice());
        let experts = operands.experts(routed.slice(), weights, bias.slice());
        let out_form = LinearOut::Store(guarded_out.slice_mut());
        kernels.expert_linear(&experts, x.slice(), out_form);
        kernels.expert_down(&experts, slots.slice(), guarded_hidden.slice_mut());
        assert_eq!(bits(guarded_out.slice()), bits(&out), "{side:?}");
        assert_eq!(bits(guarded_hidden.slice()), bits(&hidden), "{side:?}");
    }
}

#[test]
fn expert_linears_stay_within_their_operands() {
    for kernels in all_kernels("expert_linears_stay_within_their_operands") {
        check::<bf16>(&kernels);
        if kernels.variant().is_available() {
            check::<f32>(&kernels);
        }
    }
}

#[test]
fn the_router_stays_within_its_operands() {
    let kernels = crate::common::kernels(Variant::best(), 1);
    let mut random = Random::new(2);
    for (rows, experts, top_k) in [(1, 1, 1), (3, 17, 4), (11, 128, 8)] {
        set_case(format!("router {rows}x{experts}"));
        let logits: Vec<f32> = random.vector(rows * experts);
        let mut expected = vec![RoutedExpert::default(); rows * top_k];
        let scoring = ExpertScoring::SoftmaxTopK { renormalise: true };
        let rules = RouterRules::plain(experts, top_k, scoring);
        kernels.route(&rules, &logits, &mut expected);
        for side in SIDES {
            let logits = Guarded::new("logits", side, &logits);
            let mut routed =
                Guarded::new("routed", side, &vec![RoutedExpert::default(); rows * top_k]);
            kernels.route(&rules, logits.slice(), routed.slice_mut());
            assert_eq!(routed.slice(), expected);
        }
    }
}
