//! Prefill through cuBLASLt, with plain matrices and with grouped ones that are expanded first:
//! tokens equal those of Tandem's kernels.

use model::config::{Dtype, ModelConfig};
use model::quantized_format::{Grouped, WeightFormat};
use planner::policy::Formats;
use program::compile::compile;
use program::formats::{KvFormat, WeightFormats};
use program::ir::ProgramId;
use program::plan::{Plan, RunShape};
use program::topology::{LaneId, MemoryId};
use workers::device::{probed_rows, scratch};
use workers::testing::Outcome;

use crate::case::{group, llama, map_of, opt, runs_all_cases, shape};
use crate::harness::{Setting, Workers, folder};

const FORMS: [Option<Grouped>; 6] = [
    None,
    Some(Grouped::W4),
    Some(Grouped::GGUF_Q4),
    Some(Grouped::GGUF_Q8),
    Some(Grouped::GGUF_Q6_K),
    // Expanded to 8 bits with ranges in f32 on a separate lane.
    Some(Grouped::GGUF_Q2_K),
];

fn plan(config: &ModelConfig, form: Option<Grouped>, shape: &RunShape) -> Plan {
    let mut map = map_of(config, Some("gpu-only"), None, MemoryId::VRAM);
    if let Some(form) = form {
        let weights = WeightFormats::with_layers(config, WeightFormat::Grouped(form));
        Formats { weights, kv: KvFormat::Plain, kv_select: None }.apply(&mut map);
    }
    compile(config, shape, &map).expect("compiles")
}

fn in_chunks(prefill_chunk: u32) -> RunShape {
    RunShape { prefill_chunk, ..shape(Dtype::Bf16) }
}

/// Returns the device scratch that cuBLASLt adds, in bytes.
fn library_bytes(plan: &Plan) -> u64 {
    let of = |blas| plan.footprint(Some(scratch(blas))).device_scratch_bytes;
    of(true) - of(false)
}

fn outcomes(plan: &Plan, setting: &Setting<'_>) -> Vec<Outcome> {
    let workers = Workers::start(plan, setting).expect("the workers start");
    let outcomes = workers.run_group(&group()).expect("the group runs");
    workers.finish().expect("they end well");
    outcomes
}

/// Returns the number of the library's products in the logs with this prefix.
fn products(name: &str) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir(folder()).expect("a folder") {
        let entry = entry.expect("a file");
        if entry.file_name().to_string_lossy().starts_with(&format!("{name}.")) {
            let calls = std::fs::read_to_string(entry.path()).expect("a log");
            count += calls.lines().filter(|call| *call == "cublasLtMatmul").count();
            std::fs::remove_file(entry.path()).expect("a log can be removed");
        }
    }
    count
}

#[test]
fn prefill_over_any_form_has_the_tokens_of_our_own_kernels() {
    // Number of linears of a layer, and of their shapes.
    for (config, linears, shapes) in [(llama(), 7, 4), (opt(), 6, 3)] {
        for (index, form) in FORMS.into_iter().enumerate() {
            // Each form whole or in chunks with one model, and the other way with the other.
            let one = if (index + linears) % 2 == 0 { &[0][..] } else { &[3] };
            for &prefill_chunk in if runs_all_cases() { &[0, 3] } else { one } {
                let context = format!("{:?} {form:?} in {prefill_chunk}", config.family);
                let plan = plan(&config, form, &in_chunks(prefill_chunk));
                let own = outcomes(&plan, &Setting::default());
                let log = folder().join("products").to_str().expect("a plain path").to_owned();
                let variables = vec![("STANDIN_CUDA_LOG", log)];
                let setting = Setting { variables, blas: true, ..Setting::default() };
                assert_eq!(outcomes(&plan, &setting), own, "{context}");
                // Each shape is tried before. Streams without rows multiply nothing.
                let tries = shapes * probed_rows(plan.shape.stream_rows() as u32).count();
                let streams = usize::from(plan.program(ProgramId::PREFILL).shape.streams);
                let of_all = |streams: usize| 2 * streams * 2 * linears + tries;
                let (least, most) = (of_all(1), of_all(streams));
                let count = products("products");
                assert!((least..=most).contains(&count), "{context}: {count} products");
                assert!(prefill_chunk > 0 || least == most, "{context}");
            }
        }
    }
}

#[test]
fn a_grouped_matrix_made_plain_has_its_scratch() {
    let config = llama();
    let bytes = |form: Option<Grouped>| library_bytes(&plan(&config, form, &in_chunks(0)));
    for form in FORMS.into_iter().flatten() {
        // The largest matrix, in bf16.
        assert_eq!(bytes(Some(form)) - bytes(None), 48 * 32 * 2, "{form}");
    }
}

#[test]
fn steps_of_a_run_that_serves_multiply_grouped_matrices_as_they_are() {
    let config = llama();
    let serving = RunShape { batches: 1, serves: true, ..in_chunks(8) };
    let [plain, w4] = [None, Some(Grouped::W4)].map(|form| plan(&config, form, &serving));
    assert!(library_bytes(&plain) > 0, "plain matrices go through the library there");
    assert_eq!(library_bytes(&w4), 0);
    assert!(w4.program(ProgramId::STEP).lane(LaneId::GPU_DECOMPRESS).is_none());
}
