//! A launch of every kernel at sizes that models have, for tables of what a kernel uses.

use std::collections::BTreeMap;

use cuda_kernels::{
    DeviceAttentionShape, DeviceAttentionUnits, DeviceExpertLinear, DeviceExpertShape,
    DeviceLinear, DeviceLinearOut, DeviceNorm, DeviceRopeTables, DeviceWeight, KernelLaunch,
    KvOperand, add_rms_norm, append, append_kv4, argmax, attention_decode, attention_prefill,
    decompress, embed, embed_grouped, epilogue, expert_combine, expert_linear, group_experts,
    head_norm, linear, norm, quantise_kv, rope, route, scores, softmax, weighted_values, widen,
};
use model::config::Dtype;
use model::experts::ExpertScoring;
use model::quantized_format::Grouped;

/// Any address.
const AT: u64 = 1 << 20;
const DTYPES: [Dtype; 2] = [Dtype::Bf16, Dtype::F32];
/// Rows of a step, around the numbers at which other kernels are chosen.
const ROWS: [u32; 7] = [1, 8, 16, 32, 64, 100, 4096];
/// Width of a model and of its feed-forward layers, those of OPT-30B.
const HIDDEN: u32 = 7168;
const FFN: u32 = 28_672;

fn weights() -> [DeviceWeight; 13] {
    let grouped = |format| DeviceWeight::Grouped(format, AT);
    [
        DeviceWeight::Plain(AT),
        grouped(Grouped::W4),
        grouped(Grouped::GGUF_Q8),
        grouped(Grouped::GGUF_Q4_K.widened()),
        grouped(Grouped::GGUF_Q6_K.widened()),
        grouped(Grouped::GGUF_Q4_K),
        grouped(Grouped::GGUF_Q5_K),
        grouped(Grouped::GGUF_Q6_K),
        grouped(Grouped::GGUF_Q5_0),
        grouped(Grouped::GGUF_Q5_1),
        grouped(Grouped::GGUF_IQ4_NL),
        grouped(Grouped::GGUF_IQ4_XS),
        grouped(Grouped::GGUF_MXFP4),
    ]
}

fn linears(found: &mut Vec<KernelLaunch>) {
    for dtype in DTYPES {
        for (rows, weight) in ROWS.into_iter().flat_map(|rows| weights().map(|of| (rows, of))) {
            for (n, k) in [(HIDDEN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN)] {
                let out = DeviceLinearOut::Store(AT);
                found
                    .push(linear(dtype, &DeviceLinear { rows, n, k, x: AT, weight, bias: 0, out }));
                let shape = DeviceExpertShape { rows, top_k: 1, experts: 1 };
                found.push(expert_linear(
                    dtype,
                    &DeviceExpertLinear {
                        shape,
                        starts: AT,
                        slots: AT,
                        n,
                        k,
                        x: AT,
                        x_by_place: false,
                        weight,
                        bias: 0,
                        out,
                    },
                ));
            }
        }
        found.push(epilogue(dtype, 64, HIDDEN, AT, 0, DeviceLinearOut::Store(AT)));
        found.push(decompress(dtype, Grouped::W4, HIDDEN, HIDDEN, AT, AT));
        found.push(decompress(dtype, Grouped::GGUF_Q4_K, HIDDEN, HIDDEN, AT, AT));
    }
    found.push(widen(Grouped::W4, HIDDEN, HIDDEN, AT, AT));
    found.push(widen(Grouped::GGUF_Q4_K, HIDDEN, HIDDEN, AT, AT));
    let shape = DeviceExpertShape { rows: 64, top_k: 8, experts: 128 };
    found.push(route(shape, ExpertScoring::TopKSoftmax, 1.0, AT, AT));
    found.push(group_experts(shape, AT, AT, AT));
    found.push(expert_combine(64, 8, HIDDEN, AT, AT, AT));
}

fn attention(found: &mut Vec<KernelLaunch>) {
    let units = |rows_max| DeviceAttentionUnits {
        pointer: AT,
        count: 64,
        rows_max,
        appended_max: rows_max,
        positions_max: 8192,
    };
    for (dtype, head_dim) in DTYPES.into_iter().flat_map(|dtype| [64, 96, 128].map(|d| (dtype, d)))
    {
        for kv_heads in [32, 8, 4] {
            let shape =
                DeviceAttentionShape { heads: 32, kv_heads, head_dim, scale: 0.1, window: None };
            let plain = KvOperand::Plain { fresh: AT, cache: AT };
            for kv in [plain, KvOperand::Kv4 { fresh: AT, cache: AT }] {
                let (one, many) = (units(1), units(512));
                found.extend(attention_decode(dtype, &shape, &one, AT, kv, kv, 0, AT, AT));
                found.push(attention_prefill(dtype, &shape, &many, AT, kv, kv, 0, AT));
                found.push(scores(dtype, &shape, &one, AT, kv, AT));
                found.push(softmax(&shape, &one, AT, 0, AT));
                found.push(weighted_values(dtype, &shape, &one, AT, kv, AT));
            }
            found.push(append(dtype, &shape, &units(1), AT, AT));
            found.push(append_kv4(dtype, &shape, &units(1), AT, AT));
            found.push(quantise_kv(dtype, 64, head_dim, AT, AT));
        }
    }
}

fn rows(found: &mut Vec<KernelLaunch>) {
    for dtype in DTYPES {
        found.push(embed(dtype, 64, HIDDEN, AT, AT, None, AT));
        let operands = DeviceNorm {
            rows: 64,
            hidden: HIDDEN,
            x: AT,
            gain: AT,
            bias: 0,
            eps: 1e-5,
            row_index: 0,
        };
        found.push(norm(dtype, &operands, AT));
        found.push(head_norm(dtype, 64, 56, 128, AT, 1e-5, AT));
        found.push(head_norm(dtype, 64, 1, HIDDEN, AT, 1e-5, AT));
        found.push(add_rms_norm(dtype, 64, HIDDEN, AT, AT, 1e-5, AT));
        let tables = DeviceRopeTables {
            inverse_frequencies: AT,
            rotary_dim: 128,
            attention_factor: 1.0,
            table_of_row: 0,
        };
        found.push(rope(dtype, 64, 56, 128, AT, &tables, AT));
    }
    found.push(embed_grouped(64, HIDDEN, Grouped::W4, AT, AT, AT));
    found.push(argmax(64, 50_272, AT, AT));
}

/// Returns the most threads of a block and the most dynamic shared memory, in bytes, of each
/// kernel at these sizes.
pub fn launch_sizes() -> BTreeMap<&'static str, [u32; 2]> {
    let mut launches = Vec::new();
    linears(&mut launches);
    attention(&mut launches);
    rows(&mut launches);
    let mut sizes = BTreeMap::new();
    for launch in launches {
        let [threads, shared_bytes] = sizes.entry(launch.name).or_insert([0; 2]);
        *threads = launch.block.iter().product::<u32>().max(*threads);
        *shared_bytes = launch.shared_bytes.max(*shared_bytes);
    }
    sizes
}

/// Returns the table of [`launch_sizes`] as it is in `kernels/cuda/cubin/launch_sizes.tsv`.
pub fn table() -> String {
    let mut text = String::from("kernel\tthreads\tshared_bytes\n");
    for (kernel, [threads, shared_bytes]) in launch_sizes() {
        text += &format!("{kernel}\t{threads}\t{shared_bytes}\n");
    }
    text
}
