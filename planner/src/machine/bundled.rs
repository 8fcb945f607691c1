//! Machines that come with the project.

use super::{Machine, MachineError};

const FILES: [(&str, &str); 23] = [
    ("ryzen7950x-a4000", include_str!("../../machines/ryzen7950x-a4000.toml")),
    ("spr-a100", include_str!("../../machines/spr-a100.toml")),
    ("spr-a100-table5", include_str!("../../machines/spr-a100-table5.toml")),
    ("spr-h100", include_str!("../../machines/spr-h100.toml")),
    ("gnr-a100", include_str!("../../machines/gnr-a100.toml")),
    ("gnr-h100", include_str!("../../machines/gnr-h100.toml")),
    ("grace-hopper", include_str!("../../machines/grace-hopper.toml")),
    ("g4dn-4xlarge", include_str!("../../machines/g4dn-4xlarge.toml")),
    ("g5-2xlarge", include_str!("../../machines/g5-2xlarge.toml")),
    ("g5-4xlarge", include_str!("../../machines/g5-4xlarge.toml")),
    ("g5-8xlarge", include_str!("../../machines/g5-8xlarge.toml")),
    ("g5-16xlarge", include_str!("../../machines/g5-16xlarge.toml")),
    ("xeon6342x2-a10", include_str!("../../machines/xeon6342x2-a10.toml")),
    ("hgx-2xh100", include_str!("../../machines/hgx-2xh100.toml")),
    ("xeon8488c", include_str!("../../machines/xeon8488c.toml")),
    ("epyc7v13-a100x4", include_str!("../../machines/epyc7v13-a100x4.toml")),
    ("ryzen5950x-rtx3090", include_str!("../../machines/ryzen5950x-rtx3090.toml")),
    ("ryzen7950x-rtx4090", include_str!("../../machines/ryzen7950x-rtx4090.toml")),
    ("ryzen9950x-rtx5090", include_str!("../../machines/ryzen9950x-rtx5090.toml")),
    ("nc24ads-a100", include_str!("../../machines/nc24ads-a100.toml")),
    ("xeon16-h100", include_str!("../../machines/xeon16-h100.toml")),
    ("xeon12-h200", include_str!("../../machines/xeon12-h200.toml")),
    ("g6e-4xlarge", include_str!("../../machines/g6e-4xlarge.toml")),
];

/// Returns the machine with this name, if there is one.
///
/// # Errors
/// None for the files that a test has read; they are parsed like any other.
pub fn find_bundled(name: &str) -> Option<Result<Machine, MachineError>> {
    let (_, text) = FILES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))?;
    Some(Machine::from_toml(text))
}

/// Returns all names, for error messages.
pub fn bundled_names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}
