//! The formats of a checkpoint's packed matrices by module, determined when it is opened: patterns
//! are matched once per module, not once per read.

use std::collections::HashMap;

use safetensors::tensor::Dtype as Stored;

use super::files::{Checkpoint, format_error};
use crate::quantization::{ModuleFormat, Quantization};
use crate::source::SourceError;

/// The declared quantisation, and the formats of modules if they are declared by module.
#[derive(Debug)]
pub(super) struct DeclaredFormats {
    pub(super) quantization: Quantization,
    /// `None` for a packed module that the configuration leaves out.
    modules: HashMap<String, Option<ModuleFormat>>,
}

impl DeclaredFormats {
    pub(super) fn new(files: &Checkpoint, quantization: Quantization) -> DeclaredFormats {
        let mut modules = HashMap::new();
        if let Quantization::ByModule(formats) = &quantization {
            let is_packed = |name: &str| files.get(name).is_some_and(|t| has_one_byte(t.stored));
            let stems = files.names().filter_map(|name| {
                let plain = name.strip_suffix(".weight").filter(|_| is_packed(name));
                name.strip_suffix(".weight_packed").or(plain)
            });
            modules.extend(stems.map(|stem| (stem.to_owned(), formats.format(stem))));
        }
        DeclaredFormats { quantization, modules }
    }

    /// Returns the format of the packed matrix of module `stem`; `None` if it has none.
    ///
    /// # Errors
    /// A packed matrix that the configuration leaves out.
    pub(super) fn format(
        &self,
        files: &Checkpoint,
        stem: &str,
    ) -> Result<Option<ModuleFormat>, SourceError> {
        match self.modules.get(stem) {
            None => Ok(None),
            Some(Some(format)) => Ok(Some(*format)),
            Some(None) => {
                let reason = format!(
                    "the matrix of {stem} is packed, but quantization_config ignores this module \
                     or has no group in config_groups whose targets include it"
                );
                Err(format_error(&files.directory, reason))
            }
        }
    }
}

/// Returns true for the types of tensors named as plain matrices whose values are not the matrix.
pub(super) fn has_one_byte(stored: Stored) -> bool {
    matches!(stored, Stored::F8_E4M3 | Stored::I8 | Stored::U8)
}
