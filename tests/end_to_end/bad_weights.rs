//! Weights from which no answer can come are refused by name before anything is computed.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::command::{Place, coordinator, finish, fixture, text};

/// Writes an infinity or a NaN of the tensor's type over its last value.
fn spoil(file: &Path, tensor: &str, nan: bool) {
    let mut bytes = std::fs::read(file).expect("a fixture");
    let header_len = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + header_len]).expect("a header");
    let end = 8 + header_len + header[tensor]["data_offsets"][1].as_u64().expect("an end") as usize;
    match (header[tensor]["dtype"].as_str(), nan) {
        (Some("F32"), true) => bytes[end - 4..end].copy_from_slice(&f32::NAN.to_le_bytes()),
        (Some("F32"), false) => bytes[end - 4..end].copy_from_slice(&f32::INFINITY.to_le_bytes()),
        (Some("BF16"), true) => bytes[end - 2..end].copy_from_slice(&[0xc0, 0x7f]),
        (Some("BF16"), false) => bytes[end - 2..end].copy_from_slice(&[0x80, 0xff]),
        (Some("F16"), true) => bytes[end - 2..end].copy_from_slice(&[0x00, 0x7e]),
        (Some("F16"), false) => bytes[end - 2..end].copy_from_slice(&[0x00, 0xfc]),
        (other, _) => panic!("a fixture of type {other:?}"),
    }
    std::fs::write(file, bytes).expect("writable");
}

#[test]
fn a_weight_that_is_not_finite_is_refused_with_its_tensor() {
    let tensors = [("model.layers.1.mlp.up_proj.weight", "Up"), ("model.norm.weight", "FinalNorm")];
    for ((tensor, word), nan) in tensors.into_iter().flat_map(|t| [(t, true), (t, false)]) {
        for options in [&["--dtype", "f32"][..], &["--dtype", "bf16"], &["--compress", "w4"]] {
            let place = Place::new();
            let model = place.path("model");
            std::fs::create_dir(&model).expect("writable");
            for entry in std::fs::read_dir(fixture("llama")).expect("a fixture").flatten() {
                std::fs::copy(entry.path(), model.join(entry.file_name())).expect("writable");
            }
            spoil(&model.join("model.safetensors"), tensor, nan);
            place.requests("in.jsonl", &[vec![5, 6]], 2);
            let mut command = coordinator();
            command.arg("--model").arg(&model).arg("--input").arg(place.path("in.jsonl"));
            command.arg("--output").arg(place.path("out.jsonl")).args(options);
            let done = finish(command.stderr(Stdio::piped()).spawn().expect("starts"));
            let said = text(&done.stderr);
            assert_eq!(done.status.code(), Some(1), "{tensor} {options:?}: {said}");
            assert!(said.contains("infinite or no number") && said.contains(word), "{said}");
            assert!(!place.path("out.jsonl").exists(), "{options:?}");
        }
    }
}
