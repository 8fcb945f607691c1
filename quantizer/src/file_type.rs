//! Types of whole files: a number format for all matrices, with more bits for those that matter.

use std::fmt::{Display, Formatter};
use std::str::FromStr;

use model::source::StoredType;

/// Type of a file, with llama.cpp's name and number of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileType {
    pub name: &'static str,
    /// Value of `general.file_type`.
    pub code: u32,
    /// Type of matrices for which the mix has no rule.
    pub base: StoredType,
    pub mix: Mix,
}

/// Which matrices get more bits than the base type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// Only the output head and the embedding.
    Uniform,
    Small,
    Medium,
    Large,
}

/// Name of a type that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("type {name:?} is not known (known are {})", FileType::names())]
pub struct UnknownFileType {
    pub name: String,
}

const fn file_type(name: &'static str, code: u32, base: StoredType, mix: Mix) -> FileType {
    FileType { name, code, base, mix }
}

impl FileType {
    /// All types.
    pub const ALL: [FileType; 20] = [
        file_type("f32", 0, StoredType::F32, Mix::Uniform),
        file_type("f16", 1, StoredType::F16, Mix::Uniform),
        file_type("bf16", 32, StoredType::Bf16, Mix::Uniform),
        file_type("q8_0", 7, StoredType::Q8_0, Mix::Uniform),
        file_type("q6_k", 18, StoredType::Q6K, Mix::Uniform),
        file_type("q5_0", 8, StoredType::Q5_0, Mix::Uniform),
        file_type("q5_1", 9, StoredType::Q5_1, Mix::Uniform),
        file_type("q5_k_s", 16, StoredType::Q5K, Mix::Small),
        file_type("q5_k_m", 17, StoredType::Q5K, Mix::Medium),
        file_type("q4_0", 2, StoredType::Q4_0, Mix::Uniform),
        file_type("q4_1", 3, StoredType::Q4_1, Mix::Uniform),
        file_type("q4_k_s", 14, StoredType::Q4K, Mix::Small),
        file_type("q4_k_m", 15, StoredType::Q4K, Mix::Medium),
        file_type("iq4_nl", 25, StoredType::Iq4Nl, Mix::Small),
        file_type("iq4_xs", 30, StoredType::Iq4Xs, Mix::Small),
        file_type("q3_k_s", 11, StoredType::Q3K, Mix::Small),
        file_type("q3_k_m", 12, StoredType::Q3K, Mix::Medium),
        file_type("q3_k_l", 13, StoredType::Q3K, Mix::Large),
        file_type("q2_k", 10, StoredType::Q2K, Mix::Medium),
        file_type("q2_k_s", 21, StoredType::Q2K, Mix::Small),
    ];

    /// Returns the names of all types, separated by commas.
    pub fn names() -> String {
        FileType::ALL.map(|known| known.name).join(", ")
    }
}

impl FromStr for FileType {
    type Err = UnknownFileType;

    fn from_str(name: &str) -> Result<FileType, UnknownFileType> {
        let lower = name.to_ascii_lowercase();
        // The short names of the mixes that are usual.
        let full = match lower.as_str() {
            "q3_k" => "q3_k_m",
            "q4_k" => "q4_k_m",
            "q5_k" => "q5_k_m",
            other => other,
        };
        let known = FileType::ALL.into_iter().find(|known| known.name == full);
        known.ok_or_else(|| UnknownFileType { name: name.chars().take(40).collect() })
    }
}

impl Display for FileType {
    fn fmt(&self, to: &mut Formatter<'_>) -> std::fmt::Result {
        to.write_str(self.name)
    }
}
