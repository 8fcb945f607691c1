//! DeepSeek V4 as it is released: 8-bit floats with exponents of blocks in tensors named `.scale`,
//! and experts of 4-bit floats in pairs of type I8, where `expert_dtype` declares them.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::config_json;
use crate::ops::Op;
use crate::source::TensorPart;
use crate::source::float8::e4m3;

const HIDDEN: usize = 64;
const FFN: usize = 32;
const EXPERTS: usize = 2;
const BLOCK: (usize, usize) = (16, 48);
const SHARED: TensorId = TensorId::Layer { layer: 0, op: Op::Gate, part: TensorPart::Matrix };
const UP: TensorId = TensorId::Layer { layer: 0, op: Op::ExpertUp, part: TensorPart::Matrix };
const SHARED_STEM: &str = "layers.0.ffn.shared_experts.w1";
const EXPERT_STEM: &str = "layers.0.ffn.experts.1.w3";

/// Name, type, shape and bytes of a tensor.
type Tensor = (String, Stored, Vec<usize>, Vec<u8>);

fn fields() -> Value {
    json!({
        "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4",
        "hidden_size": HIDDEN, "moe_intermediate_size": FFN, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "qk_rope_head_dim": 8,
        "q_lora_rank": 8, "o_groups": 2, "o_lora_rank": 8, "vocab_size": 64,
        "max_position_embeddings": 64, "sliding_window": 8, "compress_ratios": [0, 0],
        "n_routed_experts": EXPERTS, "n_shared_experts": 1, "num_experts_per_tok": 1,
        "num_hash_layers": 0, "expert_dtype": "fp4",
        "quantization_config": {
            "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
            "scale_fmt": "ue8m0", "weight_block_size": [BLOCK.0, BLOCK.1],
        },
    })
}

/// Returns bytes without those of E4M3 that are NaN.
fn bytes(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|i| ((i * 37 + i / 11 + seed) % 251) as u8).map(|b| b & !4).collect()
}

/// Returns the tensors of a shared expert's matrix and of one matrix of each expert.
fn tensors() -> Vec<Tensor> {
    let shared = format!("{SHARED_STEM}.weight");
    let exponents = vec![127, 120, 130, 125];
    let mut all = vec![
        (shared, Stored::F8_E4M3, vec![FFN, HIDDEN], bytes(FFN * HIDDEN, 5)),
        (format!("{SHARED_STEM}.scale"), Stored::F8_E8M0, vec![2, 2], exponents),
    ];
    for expert in 0..EXPERTS {
        let stem = format!("layers.0.ffn.experts.{expert}.w3");
        let pairs = bytes(FFN * HIDDEN / 2, 40 * expert);
        let exponents = (0..FFN * HIDDEN / 32).map(|i| (110 + (i * 7 + expert) % 20) as u8);
        let exponents = exponents.collect();
        all.push((format!("{stem}.weight"), Stored::I8, vec![FFN, HIDDEN / 2], pairs));
        all.push((format!("{stem}.scale"), Stored::F8_E8M0, vec![FFN, HIDDEN / 32], exponents));
    }
    all
}

/// Writes a checkpoint.
fn write(fields: &Value, tensors: &[Tensor]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("config.json"), fields.to_string()).expect("written");
    let views = tensors.iter().map(|(name, stored, shape, data)| {
        let view = safetensors::tensor::TensorView::new(*stored, shape.clone(), data);
        (name.as_str(), view.expect("a tensor"))
    });
    let path = folder.path().join("model.safetensors");
    safetensors::serialize_to_file(views, None, &path).expect("written");
    folder
}

fn open(folder: &TempDir) -> SafetensorsSource {
    let config = config_json::load(folder.path(), "v4").expect("understood");
    SafetensorsSource::open(folder.path(), &config).expect("opens")
}

/// Returns the error of reading a tensor of a checkpoint after a change of one of its tensors.
fn refusal(id: TensorId, name: &str, change: impl Fn(&mut Tensor)) -> String {
    let mut all = tensors();
    change(all.iter_mut().find(|(one, ..)| one == name).expect("there"));
    let folder = write(&fields(), &all);
    let mut out = vec![0.0; HIDDEN];
    open(&folder).read_f32(id, FFN - 1, &mut out).expect_err("refused").to_string()
}

fn power(exponent: u8) -> f32 {
    2f32.powi(i32::from(exponent) - 127)
}

#[test]
fn released_matrices_have_the_values_of_their_floats_and_exponents() {
    let folder = write(&fields(), &tensors());
    let source = open(&folder);
    let all = tensors();
    let data = |name: String| &all.iter().find(|(one, ..)| *one == name).expect("there").3;
    let mut found = vec![f32::NAN; FFN * HIDDEN];
    source.read_f32(SHARED, 0, &mut found).expect("readable");
    let floats = data(format!("{SHARED_STEM}.weight"));
    let exponents = data(format!("{SHARED_STEM}.scale"));
    for (at, value) in found.iter().enumerate() {
        let block = at / HIDDEN / BLOCK.0 * 2 + at % HIDDEN / BLOCK.1;
        let expected = e4m3(floats[at]) * power(exponents[block]);
        assert_eq!(value.to_bits(), expected.to_bits(), "element {at}");
    }
    assert_eq!(source.stored_type(SHARED).expect("there"), StoredType::F8E4M3);
    let mut found = vec![f32::NAN; EXPERTS * FFN * HIDDEN];
    source.read_f32(UP, 0, &mut found).expect("readable");
    let sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    for (at, value) in found.iter().enumerate() {
        let (expert, at) = (at / (FFN * HIDDEN), at % (FFN * HIDDEN));
        let stem = format!("layers.0.ffn.experts.{expert}.w3");
        let pair = data(format!("{stem}.weight"))[at / 2];
        let code = if at % 2 == 0 { pair & 15 } else { pair >> 4 };
        let sign = if code < 8 { 1.0 } else { -1.0 };
        let exponent = data(format!("{stem}.scale"))[at / 32];
        let expected = sign * sizes[usize::from(code & 7)] * power(exponent);
        assert_eq!(*value, expected, "expert {expert}, element {at}");
    }
    // Experts are kept in 4 bits.
    let stored = source.stored_type(UP).expect("there");
    assert_eq!(stored, StoredType::Mxfp4);
    let mut blocks = vec![0; EXPERTS * FFN * stored.row_bytes(HIDDEN)];
    source.read_blocks(UP, 0, &mut blocks).expect("there");
    let mut expanded = vec![f32::NAN; found.len()];
    crate::source::gguf::expand(stored, &blocks, &mut expanded);
    assert_eq!(expanded, found);
}

/// Factors of the base models are plain floats with the same names, and their experts have 8 bits.
#[test]
fn factors_of_that_name_may_be_plain_floats() {
    let mut all = tensors();
    let factors = [1.5f32, -2.0, 0.25, 3.0];
    all[1].1 = Stored::F32;
    all[1].3 = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
    let folder = write(&fields(), &all);
    let mut found = vec![f32::NAN; FFN * HIDDEN];
    open(&folder).read_f32(SHARED, 0, &mut found).expect("readable");
    for (at, value) in found.iter().enumerate() {
        let block = at / HIDDEN / BLOCK.0 * 2 + at % HIDDEN / BLOCK.1;
        assert_eq!(*value, e4m3(all[0].3[at]) * factors[block], "element {at}");
    }
}

#[test]
fn tensors_of_other_shapes_and_types_are_refused_by_name() {
    for (id, stem) in [(SHARED, SHARED_STEM), (UP, EXPERT_STEM)] {
        let scale = format!("{stem}.scale");
        let error = refusal(id, &scale, |tensor| tensor.0 = "elsewhere".to_owned());
        assert!(error.contains(&scale) && error.contains("missing"), "{error}");
        let error = refusal(id, &scale, |tensor| tensor.2 = vec![tensor.3.len(), 1]);
        assert!(error.contains(&scale) && error.contains("has shape"), "{error}");
        let error = refusal(id, &scale, |tensor| {
            tensor.1 = Stored::I16;
            tensor.3 = vec![0; 2 * tensor.3.len()];
        });
        assert!(error.contains(&scale) && error.contains("I16"), "{error}");
    }
    // Exponents of 4-bit floats are no plain floats.
    let scale = format!("{EXPERT_STEM}.scale");
    let error = refusal(UP, &scale, |tensor| {
        tensor.1 = Stored::F32;
        tensor.3 = vec![0; 4 * tensor.3.len()];
    });
    assert!(error.contains(&scale) && error.contains("F32"), "{error}");
    // Half as many inputs, and inputs that are not whole groups.
    let weight = format!("{EXPERT_STEM}.weight");
    for inputs in [HIDDEN / 4, HIDDEN / 2 - 1] {
        let error = refusal(UP, &weight, |tensor| {
            tensor.2 = vec![FFN, inputs];
            tensor.3.truncate(FFN * inputs);
        });
        assert!(error.contains(EXPERT_STEM) && error.contains("has shape"), "{error}");
    }
}

#[test]
fn bytes_that_no_field_declares_as_floats_are_refused() {
    let mut other = fields();
    other["expert_dtype"] = json!("fp8");
    let source = open(&write(&other, &tensors()));
    let error = source.stored_type(UP).expect_err("refused").to_string();
    assert!(error.contains("I8") && error.contains("expert_dtype"), "{error}");
    // The field is about experts only.
    let error = refusal(SHARED, &format!("{SHARED_STEM}.weight"), |tensor| tensor.1 = Stored::I8);
    assert!(error.contains(SHARED_STEM) && error.contains("I8"), "{error}");
    other["expert_dtype"] = json!("int3");
    let folder = write(&other, &tensors());
    let error = config_json::load(folder.path(), "v4").expect_err("refused").to_string();
    assert!(error.contains("expert_dtype") && error.contains("int3"), "{error}");
}
