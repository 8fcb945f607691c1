//! Tests that the placement of operations does not change a bit of an answer. The exhaustive
//! version of this test (every interval, both kinds of chunks, every batch shape) runs in one
//! process in `workers`; this one uses real processes.

use crate::command::{Place, fixture};

fn prompts() -> Vec<Vec<u32>> {
    let lengths = [1, 17, 3, 29, 8, 2, 40];
    lengths
        .iter()
        .enumerate()
        .map(|(i, length)| (0..*length).map(|j| 3 + (31 * i as u32 + 7 * j) % 250).collect())
        .collect()
}

fn agree(model: &str, runs: &[&[&str]]) {
    let place = Place::new();
    let input = place.requests("in.jsonl", &prompts(), 12);
    let expected = place.answers(&fixture(model), &input, &["--batches", "1x7"]);
    for run in runs {
        let found = place.answers(&fixture(model), &input, run);
        assert_eq!(found, expected, "{model} {run:?}");
    }
}

#[test]
fn batch_shapes_and_threads() {
    agree(
        "llama",
        &[
            &["--batches", "1x1"],
            &["--batches", "2x2", "--cpu-threads", "1"],
            &["--batches", "3x3", "--cpu-threads", "3"],
            &["--batches", "7x1", "--no-fuse"],
        ],
    );
}

#[test]
fn splits_of_llama() {
    agree(
        "llama",
        &[
            &["--batches", "2x3", "--device", "emulated", "--policy", "gpu-only"],
            &["--batches", "2x2", "--device", "emulated", "--split", "scores:norm1"],
            &["--batches", "1x3", "--device", "emulated", "--split", "k:wv"],
            &["--batches", "2x2", "--device", "emulated", "--split", "q:q"],
            &["--batches", "3x2", "--device", "emulated", "--split", ":"],
            &[
                "--batches",
                "2x3",
                "--device",
                "emulated",
                "--split",
                "scores.1:gate",
                "--split-chunks",
                "scores=2",
            ],
            &[
                "--batches",
                "2x2",
                "--device",
                "emulated",
                "--split",
                "q:scores.1",
                "--split-chunks",
                "attention=2",
            ],
        ],
    );
}

#[test]
fn splits_of_opt_on_a_small_device() {
    agree(
        "opt",
        &[
            &["--batches", "2x3", "--device", "emulated:vram=2MiB", "--split", "v:fc1"],
            &["--batches", "1x4", "--device", "emulated:link=1GB/s", "--split", "fc0:"],
            &["--batches", "2x4", "--device", "emulated", "--split", "softmax:out", "--no-fuse"],
        ],
    );
}

#[test]
fn a_batch_that_few_prompts_shrink_still_has_a_unit_for_every_chunk() {
    let place = Place::new();
    let input = place.requests("in.jsonl", &prompts()[..1], 12);
    let model = fixture("llama");
    let expected = place.answers(&model, &input, &["--batches", "1x1"]);
    // With two KV heads, one sequence would have only two units for the eight chunks.
    let batches = ["--batches", "2x9", "--device", "emulated"];
    let split = ["--split", "scores.3:norm1", "--split-chunks", "scores=8"];
    assert_eq!(place.answers(&model, &input, &[batches, split].concat()), expected);
}
