use half::f16;

use super::*;
use crate::ops::Op;
use crate::source::TensorPart;

const GATE: TensorId = TensorId::Layer { layer: 1, op: Op::Gate, part: TensorPart::Matrix };

/// Returns a model whose gate matrix of layer 1 is stored as `code`.
fn with_gate(code: u32, data: Vec<u8>) -> GgufSource {
    let mut writer = small_model("llama");
    writer.tensor("blk.1.ffn_gate.weight", &[FFN, HIDDEN], code, data);
    open(&writer).expect("a good file")
}

#[test]
fn plain_types_are_read_exactly() {
    let wanted = values("blk.1.ffn_gate.weight", FFN * HIDDEN);
    let half = wanted.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
    let brain = wanted.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
    let brain_values: Vec<f32> = wanted.iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
    assert_eq!(read_f32(&open(&small_model("llama")).expect("a good file"), GATE), wanted);
    assert_eq!(read_f32(&with_gate(1, half), GATE), wanted);
    let source = with_gate(30, brain);
    assert_eq!(read_f32(&source, GATE), brain_values);
    assert_eq!(source.stored_type(GATE).expect("there"), StoredType::Bf16);
}

#[test]
fn q8_0_blocks_are_scale_times_integer() {
    // Row r is a block with scale r / 4 + 0.5 and integers -16..16 times 8 minus 1.
    let mut data = Vec::new();
    let mut wanted = Vec::new();
    for row in 0..FFN {
        let scale = row as f32 / 4.0 + 0.5;
        data.extend(f16::from_f32(scale).to_le_bytes());
        for i in 0..32i32 {
            let q = (i - 16) * 8 - i32::from(i > 0);
            let q = i8::try_from(q.max(-128)).expect("an i8");
            data.extend(q.to_le_bytes());
            wanted.push(scale * f32::from(q));
        }
    }
    // A value computed by hand: row 2 has scale 1.0 and a first integer of -128.
    assert_eq!(wanted[2 * 32], -128.0);
    assert_eq!(read_f32(&with_gate(8, data), GATE), wanted);
}

#[test]
fn q4_1_blocks_keep_low_halves_first() {
    // Byte i of row r has low half i and high half 15 - i; the scale is 0.5 and the minimum r - 3.
    let mut data = Vec::new();
    let mut wanted = Vec::new();
    for row in 0..FFN {
        let minimum = row as f32 - 3.0;
        data.extend(f16::from_f32(0.5).to_le_bytes());
        data.extend(f16::from_f32(minimum).to_le_bytes());
        data.extend((0..16u8).map(|i| i | (15 - i) << 4));
        wanted.extend((0..16).map(|i| 0.5 * i as f32 + minimum));
        wanted.extend((0..16).map(|i| 0.5 * (15 - i) as f32 + minimum));
    }
    assert_eq!(&wanted[..2], &[-3.0, -2.5]);
    assert_eq!(&wanted[16..18], &[4.5, 4.0]);
    assert_eq!(read_f32(&with_gate(3, data), GATE), wanted);
}

#[test]
fn bf16_is_the_nearest_even_of_the_f32_value() {
    let mut stored = vec![0.0f32; FFN * HIDDEN];
    // A bf16 step at 1.0 is 2^-7: half a step is rounded to the even neighbour, more is rounded up.
    stored[0] = 1.0 + 2f32.powi(-8);
    stored[1] = 1.0 + 3.0 * 2f32.powi(-8);
    stored[2] = 1.0 + 2f32.powi(-8) + 2f32.powi(-20);
    let data = stored.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut out = vec![bf16::NAN; FFN * HIDDEN];
    with_gate(0, data).read_bf16(GATE, 0, &mut out).expect("readable");
    let step = 2f32.powi(-7);
    let found: Vec<f32> = out[..4].iter().map(|v| v.to_f32()).collect();
    assert_eq!(found, [1.0, 1.0 + 2.0 * step, 1.0 + step, 0.0]);
}

/// Converts the model's order of rows to the file's, as conversion does: for each head, views the
/// rows as `[2, half]` and swaps the two axes.
fn permute<T: Clone>(rows: &[T], head: usize) -> Vec<T> {
    let half = head / 2;
    let one = |group: &[T]| -> Vec<T> {
        (0..half).flat_map(|j| [group[j].clone(), group[half + j].clone()]).collect()
    };
    rows.chunks_exact(head).flat_map(one).collect()
}

#[test]
fn permuted_rows_of_llama_come_back_in_order_in_any_range() {
    let mut writer = small_model("llama");
    let mut expected = Vec::new();
    for (stem, op, heads) in [("attn_q", Op::Q, HEADS), ("attn_k", Op::K, KV_HEADS)] {
        let name = format!("blk.1.{stem}.weight");
        let rows = heads * HEAD_DIM;
        let plain = values(&name, rows * HIDDEN);
        let by_row: Vec<&[f32]> = plain.chunks_exact(HIDDEN).collect();
        writer.tensor_f32(&name, &[rows, HIDDEN], &permute(&by_row, HEAD_DIM).concat());
        expected.push((op, plain));
    }
    let source = open(&writer).expect("a good file");
    for (op, plain) in expected {
        let id = TensorId::Layer { layer: 1, op, part: TensorPart::Matrix };
        let rows = plain.len() / HIDDEN;
        assert_eq!(read_f32(&source, id), plain);
        for first in 0..rows {
            for last in first..=rows {
                let wanted = &plain[first * HIDDEN..last * HIDDEN];
                let mut out = vec![f32::NAN; wanted.len()];
                source.read_f32(id, first, &mut out).expect("readable");
                assert_eq!(out, wanted, "{op:?}, rows {first}..{last}");
            }
        }
        let mut out = vec![bf16::NAN; plain.len()];
        source.read_bf16(id, 0, &mut out).expect("readable");
        assert!(out.iter().zip(&plain).all(|(out, plain)| *out == bf16::from_f32(*plain)));
    }
}

#[test]
fn permuted_biases_of_llama_come_back_in_order() {
    let mut writer = small_model("llama");
    let wanted: Vec<f32> = (0..(HEADS * HEAD_DIM) as u16).map(f32::from).collect();
    for layer in 0..LAYERS {
        let mut bias = |stem: &str, values: &[f32]| {
            writer.tensor_f32(&format!("blk.{layer}.{stem}.bias"), &[values.len()], values);
        };
        let kv = &wanted[..KV_HEADS * HEAD_DIM];
        bias("attn_q", &permute(&wanted, HEAD_DIM));
        bias("attn_k", &permute(kv, HEAD_DIM));
        bias("attn_v", kv);
    }
    let source = open(&writer).expect("a good file");
    for (op, count) in [(Op::Q, HEADS), (Op::K, KV_HEADS), (Op::V, KV_HEADS)] {
        let id = TensorId::Layer { layer: 0, op, part: TensorPart::Bias };
        assert_eq!(source.shape(id).expect("there"), (1, count * HEAD_DIM));
        assert_eq!(read_f32(&source, id), wanted[..count * HEAD_DIM]);
    }
}

#[test]
fn qwen2_rows_and_biases_are_as_stored() {
    let source = open(&small_model("qwen2")).expect("a good file");
    for (stem, op, heads) in [("attn_q", Op::Q, HEADS), ("attn_k", Op::K, KV_HEADS)] {
        let id = |part| TensorId::Layer { layer: 0, op, part };
        let rows = heads * HEAD_DIM;
        let weight = values(&format!("blk.0.{stem}.weight"), rows * HIDDEN);
        assert_eq!(read_f32(&source, id(TensorPart::Matrix)), weight);
        assert_eq!(
            read_f32(&source, id(TensorPart::Bias)),
            values(&format!("blk.0.{stem}.bias"), rows)
        );
    }
}

#[test]
fn reads_longer_than_a_piece_are_whole() {
    // 24 rows of 32768 f32 are 128 KiB each, so two rows fit in a piece.
    let mut writer = small_model("llama");
    let (rows, ffn) = (HIDDEN, 32_768);
    writer.integer("llama.feed_forward_length", ffn as u64);
    let down = values("down", rows * ffn);
    for layer in 0..LAYERS {
        for name in ["ffn_gate", "ffn_up"] {
            let data = vec![0; ffn * HIDDEN * 2];
            writer.tensor(&format!("blk.{layer}.{name}.weight"), &[ffn, HIDDEN], 1, data);
        }
        writer.tensor_f32(&format!("blk.{layer}.ffn_down.weight"), &[rows, ffn], &down);
    }
    let source = open(&writer).expect("a good file");
    let id = TensorId::Layer { layer: 1, op: Op::Down, part: TensorPart::Matrix };
    assert!(read_f32(&source, id) == down);
    let mut out = vec![f32::NAN; 3 * ffn];
    source.read_f32(id, 5, &mut out).expect("readable");
    assert!(out == down[5 * ffn..8 * ffn]);
}

#[test]
fn missing_misshapen_and_unsupported_tensors_are_named() {
    let mut writer = small_model("llama");
    writer.tensors.retain(|(name, ..)| name != "blk.1.ffn_up.weight");
    assert!(refusal(&writer).contains("tensor blk.1.ffn_up.weight is missing"));

    let mut writer = small_model("llama");
    writer.tensor_f32("blk.0.attn_v.weight", &[8, HIDDEN], &[0.0; 8 * HIDDEN]);
    let message = refusal(&writer);
    assert!(message.contains("blk.0.attn_v.weight has shape [8, 32]"), "{message}");
    assert!(message.contains("needs [16, 32]"), "{message}");

    for (code, name) in [(9, "Q8_1"), (15, "Q8_K"), (77, "type number 77")] {
        let mut writer = small_model("llama");
        writer.tensor("blk.1.ffn_gate.weight", &[FFN, HIDDEN], code, vec![0; 64]);
        let message = refusal(&writer);
        assert!(message.contains("blk.1.ffn_gate.weight is stored as"), "{message}");
        assert!(message.contains(name) && message.contains("Q4_1, Q5_0"), "{message}");
    }

    let mut writer = small_model("llama");
    writer.tensor_f32("blk.0.attn_q_norm.weight", &[HEAD_DIM], &[1.0; HEAD_DIM]);
    let message = refusal(&writer);
    assert!(message.contains("\"blk.0.attn_q_norm.weight\" belongs to a variant"), "{message}");
}

#[test]
fn what_the_architecture_lacks_is_missing() {
    let source = open(&small_model("llama")).expect("a good file");
    for id in [
        TensorId::Positions,
        TensorId::FinalNorm { part: TensorPart::Bias },
        TensorId::Layer { layer: LAYERS, op: Op::Q, part: TensorPart::Matrix },
        TensorId::Layer { layer: 0, op: Op::Q, part: TensorPart::Bias },
        TensorId::Layer { layer: 0, op: Op::Fc0, part: TensorPart::Matrix },
        TensorId::Layer { layer: 0, op: Op::Softmax, part: TensorPart::Matrix },
    ] {
        let error = source.shape(id).expect_err("not there");
        assert!(matches!(error, SourceError::Missing { .. }), "{error}");
    }
}

#[test]
fn a_file_cut_after_opening_is_an_error() {
    let file = TestFile::new(&small_model("llama").bytes());
    let source = GgufSource::open(&file.path).expect("a good file");
    let handle = std::fs::OpenOptions::new().write(true).open(&file.path).expect("writable");
    handle.set_len(64).expect("shortened");
    let mut out = vec![0.0; FFN * HIDDEN];
    let error = source.read_f32(GATE, 0, &mut out).expect_err("no data left");
    assert!(matches!(error, SourceError::Io { .. }), "{error}");
}
