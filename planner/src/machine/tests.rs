//! The files that come with the project, what is refused, and the tables against the paper's.

use model::config::Dtype;
use model::known::known as model;

use super::{Machine, Stored, Workload, known, names, op_costs};

fn machine(name: &str) -> Machine {
    known(name).expect("a machine").expect("a valid file")
}

fn text() -> &'static str {
    include_str!("../../machines/ryzen7950x-a4000.toml")
}

#[test]
fn the_machines_of_the_project_are_valid() {
    for name in names() {
        assert_eq!(machine(name).name, name);
    }
    assert!(known("SPR-A100").is_some() && known("spr-b200").is_none());
}

#[test]
fn every_figure_has_a_source_above_it() {
    for name in names() {
        let path = format!("{}/machines/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).expect("a file of the project");
        let mut sourced = false;
        for line in text.lines() {
            if line.starts_with('[') || line.trim().is_empty() {
                // A section's figures have their own sources, but for one above the section.
                sourced = sourced && line.starts_with('[');
            } else if line.starts_with('#') {
                sourced = true;
            } else {
                assert!(sourced || line.starts_with("name"), "{name}: no source for {line}");
            }
        }
    }
}

#[test]
fn every_mistake_has_its_sentence() {
    let replaced = |from: &str, to: &str| {
        assert!(text().contains(from), "{from}");
        Machine::from_toml(&text().replace(from, to)).expect_err("refused").to_string()
    };
    let cases = [
        (replaced("h2d_gbps = 24.385", ""), "missing field `h2d_gbps`"),
        (replaced("h2d_gbps = 24.385", "h2d_gbps = -1"), "more than 0"),
        (replaced("h2d_gbps = 24.385", "h2d_gbps = nan"), "link.h2d_gbps is NaN"),
        (replaced("h2d_gbps = 24.385", "h2d_gbps = inf"), "finite"),
        (replaced("h2d_gbps = 24.385", "h2d_gbps = \"fast\""), "invalid type"),
        (replaced("h2d_gbps = 24.385", "h2d_gbps = 24385000000"), "the unit is probably another"),
        (replaced("h2d_gbps = 24.385", "h2d_gbps = 400"), "not Gbit/s"),
        (replaced("vram_gib = 16", "vram_gib = 17179869184"), "GiB"),
        (replaced("vram_gib = 16", "vram_gib = 0"), "more than 0"),
        (replaced("vram_gib = 16", "vram_gib = 16384"), "both are in GiB"),
        (replaced("linear_tflops = 76.7", "linear_gflops = 76700"), "unknown field"),
        (replaced("name = \"ryzen7950x-a4000\"", "name = \"\""), "no name"),
        (replaced("[memory]", "[memory"), "line"),
        (replaced("decompress_overhead_ms = 5.015", "decompress_overhead_ms = -5"), "more than 0"),
        (replaced("read_gbps = 4.964", "read_gbps = 0.0"), "nvme[0].read_gbps"),
    ];
    for (sentence, part) in cases {
        assert!(sentence.contains(part) && !sentence.contains('\n'), "{part}: {sentence}");
    }
    let missing = Machine::from_toml("name = \"x\"").expect_err("refused").to_string();
    assert!(missing.contains("missing field"), "{missing}");
}

fn workload(batches: u32, batch_size: u32, stored: Stored) -> Workload {
    Workload { batches, batch_size, positions: 528, dtype: Dtype::Bf16, stored, chunking: None }
}

/// The description restates figs. 6a, 7a and 8a with few numbers; it stays close to them.
#[test]
fn tables_resemble_those_they_were_read_from() {
    let config = model("opt-30b").expect("known").config;
    let machine = machine("ryzen7950x-a4000");
    let near = |found: f64, printed: f64, what: &str| {
        let error = found / printed - 1.0;
        assert!(error.abs() < 0.16, "{what}: {found} against {printed}");
    };
    let table = op_costs(&machine, &config, &workload(2, 25, Stored::PLAIN)).expect("a table");
    let op = |name: &str| table.ops.iter().find(|op| op.name == name).expect("an operation");
    near(op("q").cpu_ms, 5.030, "q");
    near(op("fc0").cpu_ms, 18.910, "fc0");
    near(op("scores").cpu_ms, 36.450, "scores");
    near(op("q").gpu_ms, 0.323, "q on the GPU");
    near(op("fc1").gpu_ms, 1.174, "fc1 on the GPU");
    near(op("scores").h2d_ms, 7.884, "KV");
    near(op("fc0").h2d_ms, 16.856, "weights");
    near(op("fc0").s2d_ms, 82.798, "NVMe");
    let table = op_costs(&machine, &config, &workload(1, 50, Stored::W4KV4)).expect("a table");
    let op = |name: &str| table.ops.iter().find(|op| op.name == name).expect("an operation");
    near(op("q").decompress_ms, 6.623, "decompression of q");
    near(op("wv").decompress_ms, 10.963, "decompression of V");
    // 4.5 bits an element here, 4.1 in fig. 8a.
    near(op("q").h2d_compressed_ms, 1.083, "compressed q");
    assert!(op("ln0").decompress_ms == 0.0 && !op("ln0").kv && op("wv").kv);
}

#[test]
fn chunks_share_an_operation_evenly() {
    use program::map::{ChunkOrder, Chunking};
    let config = model("llama-3-8b").expect("known").config;
    let machine = machine("ryzen7950x-a4000");
    let whole = op_costs(&machine, &config, &workload(1, 8, Stored::PLAIN)).expect("a table");
    let chunking = Some(Chunking { order: ChunkOrder::Attention, chunks: 4 });
    let chunked = Workload { chunking, ..workload(1, 8, Stored::PLAIN) };
    let chunked = op_costs(&machine, &config, &chunked).expect("a table");
    assert_eq!(chunked.ops.len(), whole.ops.len() + 9);
    let sum =
        |table: &crate::layer::table::Table| table.ops.iter().map(|op| op.cpu_ms).sum::<f64>();
    assert!((sum(&whole) - sum(&chunked)).abs() < 1e-9);
    assert!(whole.fused.is_some() && chunked.fused.is_none());
}

#[test]
fn what_a_description_leaves_out_is_said() {
    let config = model("opt-30b").expect("known").config;
    let spr = machine("spr-a100");
    let error = op_costs(&spr, &config, &workload(1, 1, Stored::W4KV4)).expect_err("no rate");
    assert!(error.to_string().contains("compression cannot be planned"), "{error}");
    let f32 = Workload { dtype: Dtype::F32, ..workload(1, 1, Stored::PLAIN) };
    let error = op_costs(&spr, &config, &f32).expect_err("no rates");
    assert!(error.to_string().contains("--dtype f32"), "{error}");
}
