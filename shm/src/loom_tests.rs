//! Model checks of everything that waits or publishes: run with `RUSTFLAGS="--cfg loom" cargo test -p shm --release --lib`.
