//! Tests of the configurations of families whose layers differ.

mod deepseek_v4;
mod gemma4;
mod granite_hybrid;
mod kimi_k25;
mod kimi_linear;
mod lfm2;
mod mistral;
mod nemotron_h;
mod step3p5;
