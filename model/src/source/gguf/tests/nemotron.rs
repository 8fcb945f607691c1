//! Tests of the lists of blocks in files of Nemotron-H.

use super::super::metadata::{MetadataArray, MetadataValue};
use super::*;
use crate::layers::{FeedForward, TokenMixer};

const KV: &str = "nemotron_h.attention.head_count_kv";
const FF: &str = "nemotron_h.feed_forward_length";

fn list(numbers: &[u64]) -> MetadataValue {
    MetadataValue::Array(MetadataArray::Unsigned(numbers.to_vec()))
}

/// Returns the metadata of four blocks, Mamba2, a network, attention and a network, without their
/// tensors.
fn blocks(change: &dyn Fn(&mut Writer)) -> Writer {
    changed("nemotron_h", &|writer| {
        writer.tensors.retain(|(name, ..)| !name.starts_with("blk."));
        writer.integer("nemotron_h.block_count", 4);
        writer.set(KV, list(&[0, 0, KV_HEADS as u64, 0]));
        writer.set(FF, list(&[0, FFN as u64, 0, FFN as u64]));
        for (key, size) in [
            ("ssm.conv_kernel", 4),
            ("ssm.state_size", 8),
            ("ssm.group_count", 2),
            ("ssm.inner_size", 32),
            ("ssm.time_step_rank", 4),
        ] {
            writer.integer(&format!("nemotron_h.{key}"), size);
        }
        change(writer);
    })
}

#[test]
fn blocks_are_halves_of_layers() {
    let message = refusal(&blocks(&|_| {}));
    assert!(message.contains("blk.0.attn_norm.weight"), "the metadata is good: {message}");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/nemotron_h_moe");
    let source = GgufSource::open(&folder.join("model.gguf")).expect("a good file");
    let config = source.config();
    let kinds = (0..config.num_layers).map(|layer| config.layers.kind(layer));
    let kinds: Vec<_> = kinds.map(|kind| (kind.mixing, kind.feed_forward)).collect();
    let experts = FeedForward::UngatedSharedExpert;
    let expected = [
        (TokenMixer::Mamba, experts),
        (TokenMixer::Mamba, FeedForward::None),
        (TokenMixer::Attention, experts),
        (TokenMixer::Mamba, experts),
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn experts_have_the_rows_of_their_latent() {
    let of = |latent: u64, changes: &[(&str, u64)]| {
        blocks(&|writer| {
            for (key, size) in [
                ("expert_count", 4),
                ("expert_used_count", 2),
                ("expert_feed_forward_length", FFN as u64),
                ("expert_shared_feed_forward_length", FFN as u64),
                ("moe_latent_size", latent),
            ] {
                writer.integer(&format!("nemotron_h.{key}"), size);
            }
            for (key, size) in changes {
                writer.integer(&format!("nemotron_h.{key}"), *size);
            }
        })
    };
    let message = refusal(&of(8, &[]));
    assert!(message.contains("blk.0.attn_norm.weight"), "the metadata is good: {message}");
    let message = refusal(&of(1 << 19, &[]));
    assert!(message.contains("values of an expert's input"), "{message}");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/nemotron_h_latent");
    let source = GgufSource::open(&folder.join("model.gguf")).expect("a good file");
    assert_eq!(source.config().experts.expect("experts").latent_size, Some(20));
}

#[test]
fn lists_that_no_model_has_are_refused() {
    let ff = FFN as u64;
    let cases: [(&str, MetadataValue, &str); 9] = [
        (KV, list(&[0, 0, 2]), "a number for each block"),
        (FF, list(&[0, ff]), "a number for each block"),
        (FF, list(&[]), "a number for each block"),
        (FF, list(&[0, ff, ff, 0]), "0 for a block that attends"),
        (FF, list(&[ff, 0, 0, ff]), "a network or experts that follow"),
        (FF, list(&[0, ff, 0, ff + 1]), "the same width for all networks"),
        (FF, list(&[0, 1 << 31, 0, 1 << 31]), "a size from 1 to 16777216"),
        (FF, list(&[0, 1 << 40, 0, 1 << 40]), "integers from 0 to 4294967295"),
        (KV, list(&[0, 0, 3, 0]), "a divisor of attention.head_count"),
    ];
    for (key, value, expected) in cases {
        let message = refusal(&blocks(&|writer| writer.set(key, value.clone())));
        assert!(message.contains(expected), "{key} {value:?}: {message}");
    }
    let experts = blocks(&|writer| {
        writer.integer("nemotron_h.expert_count", 4);
        writer.integer("nemotron_h.expert_used_count", 2);
        writer.integer("nemotron_h.expert_feed_forward_length", ff);
    });
    let message = refusal(&experts);
    assert!(message.contains("expert_shared_feed_forward_length"), "{message}");
}
