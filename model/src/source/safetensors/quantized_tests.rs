//! Checkpoints with a `quantization_config`: `scripts/fixtures_quantized.py` made them, and what
//! other programs make of them.

use std::path::PathBuf;

use super::*;
use crate::known::known;
use crate::ops::Op;
use crate::source::Part;

const DOWN: TensorId = TensorId::Layer { layer: 0, op: Op::Down, part: Part::Matrix };
const STEM: &str = "model.layers.0.mlp.down_proj";
const OUTPUTS: usize = 24;
const INPUTS: usize = 64;

const NAMES: [&str; 8] = [
    "fp8_blocks",
    "fp8_exponents",
    "fp8_whole",
    "mxfp4",
    "gptq_symmetric",
    "gptq",
    "gptq_v2",
    "awq",
];

fn config() -> ModelConfig {
    let mut config = known("smollm2-135m").expect("known").config;
    (config.hidden_size, config.ffn_size, config.num_layers) = (OUTPUTS, INPUTS, 1);
    config
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/quantized").join(name)
}

fn open(directory: &Path) -> Result<SafetensorsSource, SourceError> {
    SafetensorsSource::open(directory, &config())
}

fn expected(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(folder(name).join("expected.safetensors")).expect("the fixture");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("a good file");
    let data = tensors.tensor("expected").expect("the tensor").data();
    data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// A copy of a fixture that a test may change.
struct Copy(tempfile::TempDir);

impl Copy {
    fn of(name: &str) -> Copy {
        let copy = tempfile::tempdir().expect("a temporary folder");
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(folder(name).join(file), copy.path().join(file)).expect("copied");
        }
        Copy(copy)
    }

    /// Writes the tensors anew, as `change` leaves their names, types, shapes and bytes.
    fn change(&self, change: impl Fn(&mut Vec<(String, Stored, Vec<usize>, Vec<u8>)>)) {
        let path = self.0.path().join("model.safetensors");
        let bytes = std::fs::read(&path).expect("readable");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("a good file");
        let mut all: Vec<_> = tensors
            .tensors()
            .into_iter()
            .map(|(name, view)| (name, view.dtype(), view.shape().to_vec(), view.data().to_vec()))
            .collect();
        change(&mut all);
        let views = all.iter().map(|(name, stored, shape, data)| {
            let view = safetensors::tensor::TensorView::new(*stored, shape.clone(), data);
            (name.as_str(), view.expect("a tensor"))
        });
        safetensors::serialize_to_file(views, None, &path).expect("written");
    }

    fn refusal(&self) -> String {
        let source = open(self.0.path()).expect("the header is good");
        let mut out = vec![0.0; INPUTS];
        source.read_f32(DOWN, 0, &mut out).expect_err("refused").to_string()
    }
}

#[test]
fn every_form_is_expanded_as_elsewhere_in_any_rows() {
    for name in NAMES {
        let source = open(&folder(name)).expect(name);
        let expected = expected(name);
        assert_eq!(source.shape(DOWN).expect(name), (OUTPUTS, INPUTS));
        for (first, count) in [(0, OUTPUTS), (0, 1), (5, 7), (9, 15), (23, 1), (8, 8), (3, 0)] {
            let mut out = vec![f32::NAN; count * INPUTS];
            source.read_f32(DOWN, first, &mut out).expect(name);
            let expected = &expected[first * INPUTS..][..out.len()];
            assert_eq!(bits(&out), bits(expected), "{name}, rows {first} + {count}");
            let mut out = vec![bf16::NAN; count * INPUTS];
            source.read_bf16(DOWN, first, &mut out).expect(name);
            let rounded: Vec<bf16> = expected.iter().map(|v| bf16::from_f32(*v)).collect();
            assert_eq!(out, rounded, "{name}, rows {first} + {count}");
        }
        assert!(source.read_f32(DOWN, 20, &mut [0.0; 5 * INPUTS]).is_err());
    }
}

/// The zeros of a symmetric matrix are 8, however they are stored and whatever that is called.
#[test]
fn zeros_of_symmetric_matrices_are_read_as_they_are_stored() {
    let words = |word: u32| {
        move |tensors: &mut Vec<(String, Stored, Vec<usize>, Vec<u8>)>| {
            let of_zeros = tensors.iter_mut().filter(|(name, ..)| name.ends_with("qzeros"));
            for (_, _, _, data) in of_zeros {
                data.as_chunks_mut::<4>().0.iter_mut().for_each(|b| *b = word.to_le_bytes());
            }
        }
    };
    let expected = bits(&expected("gptq_symmetric"));
    for (format, word, is_told) in [
        ("gptq", 0x7777_7777, false),
        ("gptq", 0x8888_8888, true),
        ("gptq_v2", 0x8888_8888, false),
        ("gptq_v2", 0x7777_7777, true),
    ] {
        let copy = Copy::of("gptq_symmetric");
        let config = copy.0.path().join("config.json");
        let text = std::fs::read_to_string(&config).expect("readable");
        let text = text.replace(r#""sym""#, &format!(r#""checkpoint_format": "{format}", "sym""#));
        std::fs::write(&config, text).expect("written");
        copy.change(words(word));
        let source = open(copy.0.path()).expect(format);
        assert_eq!(source.notice().is_some(), is_told, "{format} {word:x}");
        let mut out = vec![0.0; OUTPUTS * INPUTS];
        source.read_f32(DOWN, 0, &mut out).expect(format);
        assert_eq!(bits(&out), expected, "{format} {word:x}");
    }
    let copy = Copy::of("gptq_symmetric");
    copy.change(|tensors| {
        words(0x7777_7777)(tensors);
        let (_, stored, shape, data) =
            tensors.iter().find(|(name, ..)| name.ends_with("qzeros")).expect("zeros").clone();
        let eights = data.iter().map(|_| 0x88).collect();
        tensors.push(("model.layers.1.x.qzeros".to_owned(), stored, shape, eights));
    });
    let refusal = open(copy.0.path()).expect_err("refused").to_string();
    assert!(refusal.contains("some as its second does"), "{refusal}");
    // Called symmetric without being so.
    let copy = Copy::of("gptq_symmetric");
    copy.change(words(0x8878_8888));
    assert_eq!(open(copy.0.path()).expect("opens").notice(), None);
}

#[test]
fn a_form_has_the_type_that_holds_it_without_loss() {
    for (name, stored) in [
        ("fp8_blocks", StoredType::F8E4M3),
        ("mxfp4", StoredType::Mxfp4),
        ("gptq_symmetric", StoredType::Q4_1),
        ("gptq", StoredType::Q5_0),
        ("gptq_v2", StoredType::Q5_0),
        ("awq", StoredType::Q5_0),
    ] {
        let source = open(&folder(name)).expect(name);
        assert_eq!(source.stored_type(DOWN).expect(name), stored, "{name}");
        // A second look, which is remembered, says the same.
        assert_eq!(source.stored_type(DOWN).expect(name), stored, "{name}");
    }
}

/// Blocks of GGUF's types mean the same values, whether or not they are run from today.
#[test]
fn blocks_mean_what_is_expanded() {
    for name in ["mxfp4", "gptq_symmetric", "gptq", "gptq_v2", "awq"] {
        let source = open(&folder(name)).expect(name);
        let parts = source.checked(DOWN).expect(name);
        let stored = source.stored_type(DOWN).expect(name);
        let row_bytes = stored.row_bytes(INPUTS);
        let expected = expected(name);
        for (first, count) in [(0, OUTPUTS), (5, 7), (23, 1)] {
            let mut blocks = vec![0xaa; count * row_bytes];
            match &parts[0].form {
                Form::Packed(Packed::Mxfp4(matrix)) => {
                    matrix.read_blocks(&source.files, first, &mut blocks).expect(name);
                }
                Form::Packed(Packed::Integers(matrix)) => {
                    matrix.read_blocks(&source.files, stored, first, &mut blocks).expect(name);
                }
                _ => panic!("{name} has no blocks"),
            }
            let mut out = vec![f32::NAN; count * INPUTS];
            crate::source::gguf::expand(stored, &blocks, &mut out);
            // Adding 0 takes the sign off a zero and changes nothing else.
            let positive = |values: &[f32]| -> Vec<u32> {
                values.iter().map(|value| (value + 0.0).to_bits()).collect()
            };
            let expected = &expected[first * INPUTS..][..out.len()];
            assert_eq!(positive(&out), positive(expected), "{name}, rows {first} + {count}");
            let mut again = vec![0; blocks.len()];
            match source.read_blocks(DOWN, first, &mut again) {
                Ok(()) => assert_eq!(again, blocks, "{name}"),
                Err(error) => {
                    assert_eq!(stored.grouped(), None, "{name}: {error}");
                    assert!(error.to_string().contains(stored.name()), "{error}");
                }
            }
        }
    }
    let source = open(&folder("fp8_blocks")).expect("opens");
    assert!(source.read_blocks(DOWN, 0, &mut [0; INPUTS]).is_err(), "floats have no blocks");
}

#[test]
fn scales_that_f16_does_not_hold_leave_no_blocks() {
    for (stored, bytes) in [
        (Stored::BF16, bf16::from_f32(1e-30).to_le_bytes().to_vec()),
        (Stored::F32, 0.1f32.to_le_bytes().to_vec()),
    ] {
        let copy = Copy::of("gptq_symmetric");
        copy.change(|tensors| {
            for (name, its_type, shape, data) in tensors.iter_mut() {
                if name.ends_with(".scales") {
                    *its_type = stored;
                    *data = bytes.repeat(shape.iter().product());
                }
            }
        });
        let source = open(copy.0.path()).expect("opens");
        assert_eq!(source.stored_type(DOWN).expect("there"), StoredType::F32);
        let mut out = vec![0.0; INPUTS];
        source.read_f32(DOWN, 0, &mut out).expect("expanded all the same");
        assert!(out.iter().any(|value| *value != 0.0));
    }
}

#[test]
fn ragged_blocks_of_8_bit_floats_have_factors_for_their_rests() {
    let copy = Copy::of("fp8_blocks");
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

#[test]
fn inputs_ordered_by_activation_are_refused() {
    let copy = Copy::of("gptq");
    copy.change(|tensors| {
        let order = tensors.iter_mut().find(|(name, ..)| name.ends_with("g_idx"));
        order.expect("the tensor").3[..4].copy_from_slice(&1u32.to_le_bytes());
    });
    let error = copy.refusal();
    assert!(error.contains("g_idx") && error.contains("desc_act"), "{error}");
    let source = open(copy.0.path()).expect("opens");
    assert!(source.stored_type(DOWN).is_err());
    copy.change(|tensors| tensors.retain(|(name, ..)| !name.ends_with("g_idx")));
    let source = open(copy.0.path()).expect("opens");
    assert_eq!(source.stored_type(DOWN).expect("without it in order"), StoredType::Q5_0);
}

#[test]
fn tensors_that_are_missing_or_misshapen_are_named() {
    for (name, part) in [
        ("fp8_blocks", ".weight_scale_inv"),
        ("mxfp4", "_scales"),
        ("gptq", ".scales"),
        ("gptq", ".qzeros"),
        ("awq", ".qzeros"),
    ] {
        let full = format!("{STEM}{part}");
        let copy = Copy::of(name);
        copy.change(|tensors| tensors.retain(|(name, ..)| *name != full));
        let error = copy.refusal();
        assert!(error.contains(&full) && error.contains("missing"), "{error}");

        let copy = Copy::of(name);
        copy.change(|tensors| {
            let tensor = tensors.iter_mut().find(|(name, ..)| *name == full).expect("there");
            let count = tensor.2.iter().product();
            tensor.2 = vec![count, 1];
        });
        let error = copy.refusal();
        assert!(error.contains(&full) && error.contains("has shape"), "{error}");

        let copy = Copy::of(name);
        copy.change(|tensors| {
            let tensor = tensors.iter_mut().find(|(name, ..)| *name == full).expect("there");
            tensor.1 = Stored::I64;
            tensor.3 = vec![0; tensor.2.iter().product::<usize>() * 8];
        });
        let error = copy.refusal();
        assert!(error.contains(&full) && error.contains("I64"), "{error}");
    }
}

#[test]
fn the_configuration_says_how_to_read_and_what_is_not_read() {
    // Without it, packed tensors are no matrix and 8-bit floats are no values.
    for (name, part) in [("gptq", "is missing"), ("mxfp4", "is missing"), ("fp8_whole", "F8_E4M3")]
    {
        let copy = Copy::of(name);
        std::fs::write(copy.0.path().join("config.json"), "{}").expect("written");
        let error = copy.refusal();
        assert!(error.contains(part), "{name}: {error}");
    }
    let copy = Copy::of("gptq");
    let other = r#"{"quantization_config": {"quant_method": "bitsandbytes"}}"#;
    std::fs::write(copy.0.path().join("config.json"), other).expect("written");
    let error = open(copy.0.path()).expect_err("refused").to_string();
    assert!(error.contains("bitsandbytes") && error.contains("config.json"), "{error}");
}

#[test]
fn changed_headers_never_panic() {
    for name in NAMES {
        let copy = Copy::of(name);
        let path = copy.0.path().join("model.safetensors");
        let whole = std::fs::read(&path).expect("readable");
        let head = 8 + u64::from_le_bytes(whole[..8].try_into().expect("eight bytes")) as usize;
        for position in (0..head).step_by(3) {
            let mut changed = whole.clone();
            changed[position] ^= [0x01, 0x06][position % 2];
            std::fs::write(&path, &changed).expect("written");
            if let Ok(source) = open(copy.0.path()) {
                let _ = source.stored_type(DOWN);
                let _ = source.read_f32(DOWN, 3, &mut [0.0; 2 * INPUTS]);
            }
        }
    }
}
