//! Tests that every family's greedy f32 tokens equal those of transformers, wherever its layers run
//! and however its prompts are divided: on the CPU, on the device alone, at three splits, in
//! chunks, and beyond windows and original lengths, which the checkpoints have shorter than their
//! prompts.

use std::path::Path;

use crate::command::{Place, fixture, golden, ids};

/// Placements and chunk sizes to test.
const WAYS: [&[&str]; 6] = [
    &["--batches", "1x8"],
    &["--batches", "2x3", "--prefill-chunk", "16"],
    &["--batches", "2x3", "--device", "emulated", "--policy", "gpu-only"],
    &["--batches", "2x2", "--device", "emulated", "--split", "scores:SECOND"],
    &["--batches", "2x3", "--device", "emulated", "--split", "q:out", "--prefill-chunk", "24"],
    &[
        "--batches",
        "1x6",
        "--device",
        "emulated",
        "--split",
        "scores:SECOND",
        "--split-chunks",
        "attention=2",
    ],
];

/// Placements to test for the file that llama.cpp's converter makes from the checkpoint.
const WAYS_OF_GGUF: [&[&str]; 2] = [
    &["--batches", "2x3", "--prefill-chunk", "16"],
    &["--batches", "2x2", "--device", "emulated", "--split", "scores:SECOND"],
];

/// Compares the answers of a fixture with transformers; `second` is an operation of the second half
/// of a layer.
fn equals_transformers(name: &str, second: &str) {
    answers_are_golden(name, &fixture(name), ["SECOND", second], &WAYS);
}

/// Compares the answers of a fixture's GGUF file with transformers.
fn gguf_equals_transformers(name: &str, second: &str) {
    let model = fixture(name).join("model.gguf");
    answers_are_golden(name, &model, ["SECOND", second], &WAYS_OF_GGUF);
}

/// Compares the answers of a model with those of a fixture, in each way, in whose words
/// `variable` is replaced with `value`.
fn answers_are_golden(name: &str, model: &Path, [variable, value]: [&str; 2], ways: &[&[&str]]) {
    let golden = golden(name);
    let lists = |key: &str| -> Vec<Vec<u32>> {
        golden[key].as_array().expect("lists").iter().map(ids).collect()
    };
    let (prompts, expected) = (lists("prompts"), lists("tokens"));
    assert!(prompts.len() >= 8 && expected.iter().all(|tokens| tokens.len() == 32), "{name}");
    let place = Place::new();
    let input = place.requests("in.jsonl", &prompts, 32);
    for way in ways {
        let way: Vec<String> = way.iter().map(|word| word.replace(variable, value)).collect();
        let mut arguments = vec!["--dtype", "f32"];
        arguments.extend(way.iter().map(String::as_str));
        let found = place.answers(model, &input, &arguments);
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let tokens = prompts[i].len();
            assert_eq!(found, expected, "{name}, prompt {i} of {tokens} tokens, {way:?}");
        }
        assert_eq!(found.len(), expected.len());
    }
}

/// Placements of models with indexers, whose attention is not split into parts: everything on the
/// CPU, on the device, the selection with attention and apart from it, and attention in separate
/// operations.
const INDEXED_WAYS: [&[&str]; 7] = [
    &["--batches", "1x8"],
    &["--batches", "2x3", "--prefill-chunk", "16"],
    &["--batches", "2x3", "--device", "emulated", "--policy", "gpu-only"],
    &["--batches", "2x2", "--device", "emulated", "--split", "select:SECOND"],
    &["--batches", "2x3", "--device", "emulated", "--split", "scores:SECOND"],
    &["--batches", "2x3", "--device", "emulated", "--split", "q:out", "--prefill-chunk", "24"],
    &["--batches", "2x3", "--device", "emulated", "--split", "softmax:SECOND", "--no-fuse"],
];

/// Compares the answers of a fixture with an indexer with transformers.
fn indexed_equals_transformers(name: &str, second: &str) {
    answers_are_golden(name, &fixture(name), ["SECOND", second], &INDEXED_WAYS);
}

/// Compares the answers of a fixture whose prompts are not stored, on the scheduler of the server,
/// with transformers.
fn drafted_equals_transformers(name: &str, unused: &str) {
    answers_are_golden(name, &fixture(name), ["NONE", unused], &SERVED_WAYS[1..]);
}

/// Chunks of prompts: of single rows, of an odd number of them, and of more than any prompt has.
const CHUNK_WAYS: [&[&str]; 4] = [
    &["--batches", "2x4", "--prefill-chunk", "1"],
    &["--batches", "1x5", "--prefill-chunk", "7"],
    &["--batches", "1x8", "--prefill-chunk", "256"],
    &["--batches", "2x2", "--device", "emulated", "--split", "k:SECOND", "--prefill-chunk", "7"],
];

/// Compares the answers of a fixture with transformers if prompts are computed in chunks.
fn chunks_equal_transformers(name: &str, second: &str) {
    answers_are_golden(name, &fixture(name), ["SECOND", second], &CHUNK_WAYS);
}

/// Ways to run on the scheduler of the server: with pages of prompts that are stored, and with
/// drafted tokens.
const SERVED_WAYS: [&[&str]; 2] = [
    &["--batches", "1x4", "--prompt-cache", "STORE"],
    &["--batches", "1x4", "--speculate", "ngram"],
];

/// Compares the answers of a fixture on the scheduler of the server with transformers.
fn served_equals_transformers(name: &str, variable: &str) {
    let place = Place::new();
    let store = place.path("store");
    let store = store.to_str().expect("a path");
    answers_are_golden(name, &fixture(name), [variable, store], &SERVED_WAYS);
}

macro_rules! families {
    ($check:ident: $($name:ident: $argument:literal,)*) => {
        $(
            #[test]
            fn $name() {
                super::$check(stringify!($name), $argument);
            }
        )*
    };
}

mod safetensors {
    families! {
        equals_transformers:
        deepseek_v2: "router",
        deepseek_v3: "up",
        deepseek_v3_full_query: "expert_up",
        deepseek_v4_windows: "expert_up",
        dots1: "down",
        ernie4_5_moe: "router",
        gemma3: "gate",
        gemma3_vision: "up",
        gemma4: "up",
        gemma4_moe: "expert_up",
        gemma4_shared: "down",
        glm4_moe: "up",
        glm4_moe_lite: "expert_gate",
        gpt_oss: "expert_gate",
        gpt_oss_mxfp4: "expert_gate",
        granite: "up",
        granite_hybrid: "expert_up",
        granite_hybrid_dense: "gate",
        granite_moe: "expert_up",
        hy_v3: "expert_gate",
        kimi_k25: "expert_gate",
        kimi_k2_int4: "expert_up",
        kimi_linear: "expert_gate",
        lfm2: "up",
        lfm2_moe: "expert_up",
        llama31: "up",
        llama_dynamic: "up",
        llama_linear: "up",
        minimax_m2: "expert_up",
        ministral3: "gate",
        mistral4: "expert_up",
        mistral_small: "gate",
        mistral_window: "up",
        mixtral: "router",
        nemotron_h: "fc0",
        nemotron_h_latent: "expert_latent_down",
        nemotron_h_moe: "expert_up",
        olmo2: "up",
        olmo3: "gate",
        olmoe: "expert_down",
        phi3: "up",
        phi3_longrope: "gate",
        qwen2_moe: "shared_gate",
        qwen2_window: "up",
        qwen2_yarn: "up",
        qwen3: "up",
        qwen35: "gate",
        qwen35_moe: "up",
        qwen3_moe: "expert_gate",
        qwen3_next: "expert_gate",
        qwen3_tied: "gate",
        seed_oss: "down",
        smollm3: "up",
        step3p5: "expert_up",
        step3p7: "down",
    }
}

mod gguf {
    families! {
        gguf_equals_transformers:
        deepseek_v2: "router",
        deepseek_v3: "up",
        dots1: "down",
        ernie4_5_moe: "router",
        gemma3: "gate",
        gemma3_vision: "up",
        gemma4: "up",
        gemma4_moe: "expert_up",
        gemma4_shared: "down",
        glm4_moe: "up",
        glm4_moe_lite: "expert_up",
        gpt_oss: "expert_gate",
        gpt_oss_mxfp4: "expert_gate",
        granite: "up",
        granite_hybrid: "expert_up",
        granite_hybrid_dense: "gate",
        granite_moe: "expert_up",
        kimi_linear: "up",
        lfm2: "up",
        lfm2_moe: "expert_up",
        llama31: "up",
        llama_linear: "up",
        minimax_m2: "expert_up",
        ministral3: "gate",
        mistral4: "expert_gate",
        mistral_small: "gate",
        mixtral: "router",
        nemotron_h: "fc0",
        nemotron_h_latent: "expert_latent_up",
        nemotron_h_moe: "expert_up",
        olmo2: "up",
        olmo3: "gate",
        olmoe: "expert_down",
        phi3: "up",
        phi3_longrope: "gate",
        qwen2_moe: "shared_gate",
        qwen2_yarn: "up",
        qwen3: "up",
        qwen35: "gate",
        qwen35_moe: "up",
        qwen3_moe: "expert_gate",
        qwen3_next: "expert_gate",
        qwen3_tied: "gate",
        seed_oss: "down",
        smollm3: "up",
        step3p5: "gate",
    }
}

mod indexed {
    families! {
        indexed_equals_transformers:
        deepseek_v32: "up",
        deepseek_v4: "expert_up",
        deepseek_v4_released: "expert_gate",
        glm_moe_dsa: "expert_gate",
        glm_moe_dsa_shared: "router",
    }
}

mod indexed_gguf {
    families! {
        gguf_equals_transformers:
        glm_moe_dsa: "expert_up",
    }
}

mod drafted {
    families! {
        drafted_equals_transformers:
        deepseek_v4: "",
        deepseek_v4_windows: "",
        gemma4: "",
        glm_moe_dsa_shared: "",
    }
}

mod chunks {
    families! {
        chunks_equal_transformers:
        deepseek_v32: "up",
        deepseek_v4: "down",
        deepseek_v4_windows: "up",
        gemma4: "up",
        gemma4_moe: "router",
        gemma4_shared: "gate",
        glm_moe_dsa: "down",
        glm_moe_dsa_shared: "up",
        kimi_linear: "router",
        nemotron_h_latent: "expert_down",
        step3p5: "up",
    }
}

mod served {
    families! {
        served_equals_transformers:
        granite_hybrid: "STORE",
        kimi_linear: "STORE",
        lfm2: "STORE",
        lfm2_moe: "STORE",
        nemotron_h: "STORE",
        nemotron_h_latent: "STORE",
        nemotron_h_moe: "STORE",
        qwen35: "STORE",
        qwen35_moe: "STORE",
        qwen3_next: "STORE",
        step3p7: "STORE",
        step3p5: "STORE",
        olmo3: "STORE",
        gpt_oss: "STORE",
        gemma3: "STORE",
        deepseek_v2: "STORE",
        deepseek_v3: "STORE",
        deepseek_v32: "STORE",
        deepseek_v4: "STORE",
        deepseek_v4_released: "STORE",
        deepseek_v3_full_query: "STORE",
        dots1: "STORE",
        ernie4_5_moe: "STORE",
        glm4_moe: "STORE",
        glm4_moe_lite: "STORE",
        glm_moe_dsa: "STORE",
        hy_v3: "STORE",
        minimax_m2: "STORE",
        ministral3: "STORE",
        mistral4: "STORE",
        mixtral: "STORE",
        olmo2: "STORE",
        phi3_longrope: "STORE",
        qwen2_moe: "STORE",
        qwen3: "STORE",
        seed_oss: "STORE",
    }
}

/// Files from before 2025 have the matrices of keys and values of latent attention in one tensor,
/// and do not name their router.
#[test]
fn an_old_file_has_the_answers_of_the_checkpoint() {
    let model = fixture("deepseek_v2").join("old.gguf");
    answers_are_golden("deepseek_v2", &model, ["SECOND", "router"], &WAYS_OF_GGUF);
}

/// Experts in MXFP4, also as DeepSeek V4 has them, and those packed by compressed-tensors, are
/// multiplied directly from their blocks, with the same tokens as from expanded blocks.
#[test]
fn experts_run_from_the_blocks_of_a_file() {
    let ways: Vec<Vec<&str>> =
        WAYS_OF_GGUF.iter().map(|way| [*way, &["--quantized", "direct"]].concat()).collect();
    let ways: Vec<&[&str]> = ways.iter().map(Vec::as_slice).collect();
    let checkpoint = fixture("gpt_oss_mxfp4");
    for model in [checkpoint.join("model.gguf"), checkpoint] {
        answers_are_golden("gpt_oss_mxfp4", &model, ["SECOND", "expert_gate"], &ways);
    }
    for name in ["kimi_k25", "kimi_k2_int4", "kimi_k2_nvfp4", "deepseek_v4_released"] {
        answers_are_golden(name, &fixture(name), ["SECOND", "expert_gate"], &ways);
    }
}
