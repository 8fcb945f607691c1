//! The interface between requests and the engines that answer them: sequences and tokens on one
//! side, text and token ids on the other. Nothing here accesses a file, a worker or a device.

pub mod batch;
pub mod codec;
pub mod event;
pub mod request;
pub mod serving;
pub mod token_rules;
