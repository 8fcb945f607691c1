//! Prints the block and the dynamic shared memory with which each kernel is launched.
//! `scripts/ptx.sh --cubins` computes occupancies with this table.

#[path = "../tests/launches/mod.rs"]
mod launches;

#[expect(clippy::print_stdout, reason = "the table is the output")]
fn main() {
    print!("{}", launches::table());
}
