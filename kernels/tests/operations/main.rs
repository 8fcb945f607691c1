//! Tests of the operations: every variant against the reference, each in its module.

#[path = "../common/mod.rs"]
mod common;

mod attention;
mod attention_chunks;
mod attention_compressed;
mod attention_indexed;
mod attention_pages;
mod attention_quantised;
mod attention_selected;
mod attention_sinks;
mod attention_window;
mod capped_outputs;
mod cases;
mod delta;
mod drafted_states;
mod emulate;
mod emulated_instructions;
mod emulated_variants;
mod experts;
mod forcing;
mod grouped;
mod grouped_gguf;
mod guard_pages;
mod guard_pages_attention;
mod guard_pages_delta;
mod guard_pages_experts;
mod guard_pages_small;
mod guarded;
mod head_linear;
mod limited_outputs;
mod linear;
mod linear_grouped;
mod mamba;
mod mamba_case;
mod portions;
mod relu_squared;
mod rope;
mod router;
mod sequences;
mod short_conv;
mod small_operations;
mod states;
mod streams;
