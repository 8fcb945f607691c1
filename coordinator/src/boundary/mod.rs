//! What requests and whatever answers them know of each other: sequences and tokens on one side,
//! text and token ids on the other. Nothing here sees a file, a worker or a device.

pub mod codec;
pub mod engine;
pub mod serving;
