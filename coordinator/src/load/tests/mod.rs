//! The loader against a server that tells what it was asked.

mod fake;
mod measured;
