//! Tests of the load generator against a server that reports the requests it receives.

mod fake;
mod measured;
