//! Tests of the configurations of families whose layers differ.

mod granite_hybrid;
mod lfm2;
mod mistral;
mod nemotron_h;
