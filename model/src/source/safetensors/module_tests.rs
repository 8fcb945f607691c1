//! Checkpoints whose `quantization_config` describes modules: which modules it means, and files
//! that contradict it; factors of 8-bit floats.

use super::quantized_tests::*;
use super::*;
use crate::source::StoredType;

type Tensors = Vec<(String, Stored, Vec<usize>, Vec<u8>)>;

/// Writes a `config.json` of compressed-tensors.
fn write_groups(copy: &Copy, groups: &str, ignored: &str) {
    let config = format!(
        r#"{{"quantization_config": {{"quant_method": "compressed-tensors",
            "format": "pack-quantized", "config_groups": {{{groups}}}, "ignore": {ignored}}}}}"#
    );
    std::fs::write(copy.0.path().join("config.json"), config).expect("written");
}

fn group(name: &str, targets: &str, size: usize) -> String {
    format!(
        r#""{name}": {{"targets": {targets}, "weights": {{"num_bits": 4, "type": "int",
            "strategy": "group", "group_size": {size}, "symmetric": true}}}}"#
    )
}

fn find<'a>(tensors: &'a mut Tensors, part: &str) -> &'a mut (String, Stored, Vec<usize>, Vec<u8>) {
    let name = format!("{STEM}{part}");
    tensors.iter_mut().find(|(tensor, ..)| *tensor == name).expect("the tensor")
}

#[test]
fn targets_and_ignored_modules_select_the_group() {
    let expected = bits(&expected("ct_int4_32"));
    for (groups, ignored, is_read) in [
        (vec![group("a", r#"["Linear"]"#, 32)], "[]", true),
        (vec![group("a", &format!("[\"{STEM}\"]"), 32)], "null", true),
        (vec![group("a", r#"["re:.*down_proj$"]"#, 32)], "[]", true),
        // The closest description counts, whatever its place.
        (
            vec![group("a", r#"["Linear"]"#, 64), group("b", r#"["re:.*down_proj"]"#, 32)],
            "[]",
            true,
        ),
        (
            vec![group("a", &format!("[\"{STEM}\"]"), 32), group("b", r#"["re:model"]"#, 64)],
            "[]",
            true,
        ),
        (vec![group("a", r#"["re:.*up_proj"]"#, 32)], "[]", false),
        (vec![group("a", r#"["Linear"]"#, 32)], r#"["re:.*mlp.*"]"#, false),
        (vec![group("a", r#"["Linear"]"#, 32)], r#"["re:.*mlp\\.experts.*"]"#, true),
        (vec![], "[]", false),
    ] {
        let copy = Copy::from_fixture("ct_int4_32");
        write_groups(&copy, &groups.join(","), ignored);
        if is_read {
            let mut out = vec![0.0; OUTPUTS * INPUTS];
            let source = open(copy.0.path()).expect("opens");
            source.read_f32(DOWN, 0, &mut out).expect("targeted");
            assert_eq!(bits(&out), expected, "{groups:?} {ignored}");
        } else {
            let refusal = copy.refusal();
            assert!(refusal.contains(&format!("the matrix of {STEM} is packed")), "{refusal}");
        }
    }
}

/// Old files have another name for the object, and multimodal ones may have it in the text's.
#[test]
fn the_object_is_found_under_its_names() {
    let copy = Copy::from_fixture("ct_int4_32");
    let path = copy.0.path().join("config.json");
    let text = std::fs::read_to_string(&path).expect("readable");
    let config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let object = &config["quantization_config"];
    for config in [
        serde_json::json!({"compression_config": object}),
        serde_json::json!({
            "quantization_config": null,
            "text_config": {"quantization_config": object}
        }),
    ] {
        std::fs::write(&path, config.to_string()).expect("written");
        let source = open(copy.0.path()).expect("opens");
        assert_eq!(source.stored_type(DOWN).expect("there"), StoredType::Q4_1, "{config}");
    }
}

#[test]
fn modelopt_may_describe_matrices_in_a_file_of_its_own() {
    let copy = Copy::from_fixture("modelopt_nvfp4");
    let directory = copy.0.path();
    std::fs::write(directory.join("config.json"), "{}").expect("written");
    let write = |algorithm: &str| {
        let text = format!(
            r#"{{"producer": {{"name": "modelopt"}}, "quantization": {{"quant_algo": {algorithm},
                "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}}}}"#
        );
        std::fs::write(directory.join("hf_quant_config.json"), text).expect("written");
    };
    write(r#""NVFP4""#);
    let mut out = vec![0.0; OUTPUTS * INPUTS];
    open(directory).expect("opens").read_f32(DOWN, 0, &mut out).expect("there");
    assert_eq!(bits(&out), bits(&expected("modelopt_nvfp4")));
    write(r#""W4A8_AWQ""#);
    let refusal = open(directory).expect_err("refused").to_string();
    assert!(refusal.contains("hf_quant_config.json") && refusal.contains("W4A8_AWQ"), "{refusal}");
    // Nothing is quantised but caches.
    write("null");
    let refusal = copy.refusal();
    assert!(refusal.contains("has shape"), "{refusal}");
}

#[test]
fn modelopts_8_bit_floats_have_one_factor() {
    let copy = Copy::from_fixture("ct_fp8_tensor");
    let config = r#"{"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}"#;
    std::fs::write(copy.0.path().join("config.json"), config).expect("written");
    copy.change(|tensors| find(tensors, ".weight_scale").2 = Vec::new());
    let mut out = vec![0.0; OUTPUTS * INPUTS];
    open(copy.0.path()).expect("opens").read_f32(DOWN, 0, &mut out).expect("there");
    assert_eq!(bits(&out), bits(&expected("ct_fp8_tensor")));
}

#[test]
fn shapes_that_contradict_each_other_are_refused() {
    type Change = fn(&mut Tensors);
    let shape = |rows: u64, inputs: u64| [rows.to_le_bytes(), inputs.to_le_bytes()].concat();
    let sizes = [(25, 64), (24, 72), (24, 0), (24, 1 << 40), (u64::MAX, u64::MAX)];
    for (rows, inputs) in sizes {
        let copy = Copy::from_fixture("ct_int4_32");
        copy.change(|tensors| find(tensors, ".weight_shape").3 = shape(rows, inputs));
        let refusal = copy.refusal();
        assert!(refusal.contains("weight_"), "{rows} x {inputs}: {refusal}");
    }
    let changes: [(&str, Change, &str); 9] = [
        ("ct_int4_32", |t| find(t, ".weight_shape").2 = vec![2, 1], "weight_shape"),
        ("ct_int4_32", |t| find(t, ".weight_packed").2 = vec![24 * 8], "weight_packed"),
        ("ct_int4_32", |t| find(t, ".weight_packed").2 = vec![2, 12, 8], "weight_packed"),
        ("ct_int4_zeros", |t| find(t, ".weight_zero_point").2 = vec![2, 3], "weight_zero_point"),
        ("ct_bytes_channel", |t| find(t, ".weight").2 = vec![12, 128], "weight"),
        ("ct_fp8_channel", |t| find(t, ".weight").1 = Stored::I8, "I8"),
        ("ct_mxfp4", |t| find(t, ".weight_packed").2 = vec![48, 16], "weight_scale"),
        ("ct_nvfp4", |t| find(t, ".weight_packed").2 = vec![24 * 32], "weight_scale"),
        (
            "ct_nvfp4",
            |t| {
                let factor = find(t, ".weight_global_scale");
                (factor.2, factor.3) = (vec![2], vec![0; 8]);
            },
            "weight_global_scale",
        ),
    ];
    for (name, change, part) in changes {
        let copy = Copy::from_fixture(name);
        copy.change(change);
        let refusal = copy.refusal();
        assert!(refusal.contains(part), "{name}: {refusal}");
    }
    for (name, part) in
        [("ct_nvfp4", ".weight_global_scale"), ("modelopt_nvfp4", ".weight_scale_2")]
    {
        let copy = Copy::from_fixture(name);
        copy.change(|tensors| tensors.retain(|(tensor, ..)| !tensor.ends_with(part)));
        let refusal = copy.refusal();
        assert!(refusal.contains(part) && refusal.contains("missing"), "{refusal}");
    }
}

/// Published files may lack the shape, have it in 32 bits, or have a list of groups.
#[test]
fn optional_tensors_may_differ() {
    let expected = bits(&expected("ct_int4_32"));
    let in_order: Vec<u8> = (0..INPUTS as u32).flat_map(|i| (i / 32).to_le_bytes()).collect();
    let changes: [&dyn Fn(&mut Tensors); 4] = [
        &|t| t.retain(|(tensor, ..)| !tensor.ends_with("_shape")),
        &|t| {
            let shape = find(t, ".weight_shape");
            (shape.1, shape.3) = (Stored::I32, [24u32, 64].map(u32::to_le_bytes).concat());
        },
        &|t| t.push((format!("{STEM}.weight_g_idx"), Stored::I32, vec![INPUTS], in_order.clone())),
        &|t| {
            let none = vec![0xff; 4 * INPUTS];
            t.push((format!("{STEM}.weight_g_idx"), Stored::I32, vec![INPUTS], none));
        },
    ];
    for change in changes {
        let copy = Copy::from_fixture("ct_int4_32");
        copy.change(change);
        let source = open(copy.0.path()).expect("opens");
        assert_eq!(source.stored_type(DOWN).expect("there"), StoredType::Q4_1);
        let mut out = vec![0.0; OUTPUTS * INPUTS];
        source.read_f32(DOWN, 0, &mut out).expect("there");
        assert_eq!(bits(&out), expected);
    }
    let copy = Copy::from_fixture("ct_int4_32");
    copy.change(|t| {
        let zeros = vec![0; 4 * INPUTS];
        t.push((format!("{STEM}.weight_g_idx"), Stored::I32, vec![INPUTS], zeros));
    });
    let refusal = open(copy.0.path()).expect("opens").stored_type(DOWN).expect_err("refused");
    assert!(refusal.to_string().contains("g_idx"), "{refusal}");
}

/// A scale below those of f16 costs a matrix its blocks only if it matters.
#[test]
fn scales_of_zeros_do_not_count() {
    for (zeros, stored) in [(16, StoredType::Q4_1), (15, StoredType::F32)] {
        let copy = Copy::from_fixture("ct_int4_32");
        copy.change(|tensors| {
            // The second group of row 3: integers of 8, which are zeros, or one of them 0.
            let packed = &mut find(tensors, ".weight_packed").3[4 * (3 * 8 + 4)..][..16];
            packed.fill(0);
            packed[..zeros].fill(0x88);
            let scales = &mut find(tensors, ".weight_scale").3;
            scales[2 * 7..][..2].copy_from_slice(&bf16::from_f32(1e-30).to_le_bytes());
        });
        let source = open(copy.0.path()).expect("opens");
        assert_eq!(source.stored_type(DOWN).expect("there"), stored);
        let mut out = vec![f32::NAN; INPUTS];
        source.read_f32(DOWN, 3, &mut out).expect("there");
        let last = out[INPUTS - 1];
        assert_eq!(last, if zeros == 16 { 0.0 } else { -8.0 * bf16::from_f32(1e-30).to_f32() });
        if stored == StoredType::Q4_1 {
            let mut blocks = vec![0; stored.row_bytes(INPUTS)];
            source.read_blocks(DOWN, 3, &mut blocks).expect("there");
            let mut expanded = vec![f32::NAN; INPUTS];
            crate::source::gguf::expand(stored, &blocks, &mut expanded);
            let same = out.iter().zip(&expanded).all(|(out, block)| out == block);
            assert!(same, "{out:?} {expanded:?}");
        }
    }
}

/// Integers whose rows do not end with a word or a block have no blocks, and are still read.
#[test]
fn rows_may_end_within_a_word() {
    const CUT: usize = 61;
    let copy = Copy::from_fixture("ct_int4_32");
    copy.change(|tensors| {
        find(tensors, ".weight_shape").3 = [24u64, CUT as u64].map(u64::to_le_bytes).concat();
    });
    let mut config = config();
    config.ffn_size = CUT;
    let source = SafetensorsSource::open(copy.0.path(), &config).expect("opens");
    assert_eq!(source.stored_type(DOWN).expect("there"), StoredType::F32);
    let mut out = vec![0.0; OUTPUTS * CUT];
    source.read_f32(DOWN, 0, &mut out).expect("there");
    let expected = expected("ct_int4_32");
    let rows = expected.chunks(INPUTS).flat_map(|row| &row[..CUT]).copied().collect::<Vec<_>>();
    assert_eq!(bits(&out), bits(&rows));
}

/// Exponents of blocks of 8-bit floats are stored as their own type or as bytes, as in DeepSeek
/// V3.1 and V4.
#[test]
fn exponents_of_8_bit_floats_are_read_from_both_types() {
    let copy = Copy::from_fixture("fp8_exponents");
    copy.change(|tensors| {
        let scales = find(tensors, ".weight_scale_inv");
        assert_eq!(scales.1, Stored::F8_E8M0);
        scales.1 = Stored::U8;
    });
    let mut out = vec![0.0; OUTPUTS * INPUTS];
    open(copy.0.path()).expect("opens").read_f32(DOWN, 0, &mut out).expect("there");
    assert_eq!(bits(&out), bits(&expected("fp8_exponents")));
    // The ends of the range: the smallest power of two, the largest, and no number.
    let copy = Copy::from_fixture("fp8_exponents");
    copy.change(|tensors| {
        find(tensors, ".weight").3.fill(0x38);
        find(tensors, ".weight_scale_inv").3[..3].copy_from_slice(&[0, 254, 255]);
    });
    let mut out = vec![0.0; INPUTS];
    open(copy.0.path()).expect("opens").read_f32(DOWN, 0, &mut out).expect("there");
    assert_eq!((out[0], out[16]), (2f32.powi(-127), 2f32.powi(127)));
    assert!(!out[32].is_finite(), "loading refuses it");
}

#[test]
fn ragged_blocks_of_8_bit_floats_have_factors_for_their_rests() {
    let copy = Copy::from_fixture("fp8_blocks");
    let config =
        r#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [7, 60]}}"#;
    std::fs::write(copy.0.path().join("config.json"), config).expect("written");
    copy.change(|tensors| {
        for (name, _, shape, data) in tensors.iter_mut() {
            if name.ends_with("_scale_inv") {
                *shape = vec![4, 2];
                *data = (1..=8).flat_map(|n| (n as f32).to_le_bytes()).collect();
            } else {
                data.fill(0x38);
            }
        }
    });
    let source = open(copy.0.path()).expect("opens");
    let mut out = vec![0.0; OUTPUTS * INPUTS];
    source.read_f32(DOWN, 0, &mut out).expect("readable");
    for (index, value) in out.iter().enumerate() {
        let (row, input) = (index / INPUTS, index % INPUTS);
        assert_eq!(*value, (1 + row / 7 * 2 + input / 60) as f32, "row {row}, input {input}");
    }
}
