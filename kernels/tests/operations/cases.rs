//! Tests of the benchmark's cases (`cases.txt`): their long sums and their caches, against the
//! scalar reference, on fewer columns, rows and units than are measured.

#[path = "../../examples/roofline/cases.rs"]
#[allow(dead_code, reason = "the benchmark prints names, the tests do not")]
mod roofline;

use crate::common::{Random, assert_close, poison, tolerance, values_tolerance, variants};
use half::bf16;
use kernels::{
    AttentionShape, AttentionUnit, Kernels, Linear, LinearOut, ScratchLimits, Variant, reference,
};
use roofline::{Case, Format, Work};

fn listed() -> Vec<Case> {
    let cases = roofline::parse(roofline::LIST).expect("the list is well formed");
    assert!(cases.len() > 40, "only {} cases: most of the list is missing", cases.len());
    cases
}

#[test]
fn lines_that_are_no_cases_are_refused_with_their_text() {
    for line in [
        "linear bf16 m 8 8",
        "linear q9 m 8 8 1",
        "linear kv4 m 8 8 1",
        "decode bf16 m 8 8 8 1 9..3",
        "conv bf16 m",
    ] {
        let error = roofline::parse_line(line).unwrap_err();
        assert!(error.contains(line), "{error}");
    }
    assert_eq!(roofline::parse_line("# nothing"), Ok(Vec::new()));
    assert_eq!(roofline::parse_line("linear bf16 m 8 8 1,2").map(|cases| cases.len()), Ok(2));
}

#[test]
fn linears_of_the_benchmark_match_the_reference() {
    let mut checked = Vec::new();
    for case in listed() {
        let Work::Linear { n, k, rows } = case.work else { continue };
        // Every tile that a full batch is split into has at most these rows.
        let shape = (rows.min(33), n.min(40), k);
        if case.format != Format::Bf16 || checked.contains(&shape) {
            continue;
        }
        checked.push(shape);
        for variant in variants("linears_of_the_benchmark_match_the_reference") {
            check_linear(variant, shape, &case.name());
        }
    }
    assert!(checked.len() > 10, "only {} shapes were checked", checked.len());
}

fn check_linear(variant: Variant, (rows, n, k): (usize, usize, usize), name: &str) {
    let limits = ScratchLimits { rows, linear_inputs: k, positions: 1, group: 1, head_dim: 1 };
    let kernels = Kernels::new(variant, 2, limits).expect("threads start");
    let mut random = Random::new((rows * 31 + k) as u64);
    let (x, weight) = (random.vector::<bf16>(rows * k), random.vector::<bf16>(n * k));
    let mut out = poison::<bf16>(rows * n);
    let into = LinearOut::Store(&mut out[..]);
    kernels.linear(Linear { rows, n, k, x: &x, weight: &weight, bias: None, out: into });
    let expected = reference::linear(rows, n, k, &x, &weight, None);
    assert_close(&out, &expected, (n, (k as f64).sqrt() / 2.0), tolerance(), name);
}

#[test]
fn decode_attention_of_the_benchmark_matches_the_reference() {
    let mut checked = 0;
    for case in listed() {
        let Work::Decode { heads, kv_heads, head_dim, .. } = case.work else { continue };
        // `attention_quantised.rs` checks quantised caches.
        if case.format == Format::Kv4 {
            continue;
        }
        let shape = AttentionShape {
            heads: heads / kv_heads,
            kv_heads: 1,
            head_dim,
            scale: (head_dim as f32).powf(-0.5),
            window: None,
        };
        // Beyond several blocks, additional positions repeat previous cases.
        let past = case.cached().into_iter().max().unwrap_or_default().min(8193);
        for variant in variants("decode_attention_of_the_benchmark_matches_the_reference") {
            check_decode(variant, &shape, past, &case.name());
        }
        checked += 1;
    }
    assert!(checked > 5, "only {checked} cases were checked");
}

fn check_decode(variant: Variant, shape: &AttentionShape, past: usize, name: &str) {
    let (heads, head_dim) = (shape.heads, shape.head_dim);
    let limits = ScratchLimits {
        rows: 1,
        linear_inputs: 1,
        positions: past + 1,
        group: shape.group(),
        head_dim,
    };
    let kernels = Kernels::new(variant, 2, limits).expect("threads start");
    let mut random = Random::new(past as u64);
    let q = random.vector::<bf16>(heads * head_dim);
    let (k_fresh, v_fresh) = (random.vector::<bf16>(head_dim), random.vector::<bf16>(head_dim));
    let (keys, values) =
        (random.vector::<bf16>(past * head_dim), random.vector::<bf16>(past * head_dim));
    let unit = AttentionUnit {
        row0: 0,
        rows: 1,
        past: past as u32,
        shared_row: None,
        kv_head: 0,
        cache_offset: 0,
        cache_positions: 0,
        first_page: 0,
        scores_offset: 0,
    };
    let mut out = poison::<bf16>(heads * head_dim);
    kernels.attention(shape, &[unit], &q, &k_fresh, &v_fresh, &keys, &values, None, &mut out);
    let k = reference::KvSlices { fresh: &k_fresh, cache: &keys };
    let v = reference::KvSlices { fresh: &v_fresh, cache: &values };
    let of_heads = reference::attention(shape, &unit, &q, k, v, None);
    let expected: Vec<f64> = of_heads.into_iter().flat_map(|(_, values)| values).collect();
    // Weighted means of many values are small, and so is their permitted error.
    let tolerance = values_tolerance::<bf16>(variant).max(1e-3);
    assert_close(&out, &expected, (head_dim, 0.01), tolerance, name);
}
