//! Checkpoints whose modules have formats of their own, as compressed-tensors and ModelOpt describe
//! them.

use serde_json::{Map, Value};

use super::patterns::ModulePatterns;
use super::{QuantGroup, QuantizationFields, UnsupportedQuantization};

/// Format of a module's matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleFormat {
    Integers(IntegerFormat),
    /// 8-bit floats (E4M3).
    Floats(FactorLayout),
    /// 4-bit floats (E2M1) with an exponent for every 32 inputs.
    Mxfp4,
    /// 4-bit floats (E2M1) with an 8-bit float for every 16 inputs, and a factor of the matrix.
    Nvfp4(MatrixFactor),
}

/// Integers of a matrix: 8 bits in a byte, or 4 or 8 bits `packed` in words along the inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntegerFormat {
    pub bits: u32,
    pub packed: bool,
    pub factors: FactorLayout,
    pub symmetric: bool,
}

/// Tensor with the factor of a matrix of NVFP4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixFactor {
    /// compressed-tensors: `weight_global_scale`, by which other factors are divided.
    Divisor,
    /// ModelOpt: `weight_scale_2`, by which other factors are multiplied.
    Multiplier,
}

/// Values of a matrix that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FactorLayout {
    All,
    /// A group of a row.
    Groups(QuantGroup),
    /// A block of rows and inputs.
    Blocks(usize, usize),
}

/// Formats of a checkpoint's modules. Modules with plain matrices are not described here, since
/// their tensors identify them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleFormats {
    groups: Vec<(ModulePatterns, ModuleFormat)>,
    ignored: ModulePatterns,
}

impl ModuleFormats {
    /// Returns the format of a module; `None` if it is ignored, or no group targets it.
    pub fn format(&self, module: &str) -> Option<ModuleFormat> {
        if self.ignored.find(module).is_some() {
            return None;
        }
        let found = self.groups.iter().filter_map(|(targets, format)| {
            targets.find(module).map(|closeness| (closeness, *format))
        });
        found.min_by_key(|(closeness, _)| *closeness).map(|(_, format)| format)
    }
}

impl QuantizationFields<'_> {
    /// Parses the `config_groups` of compressed-tensors. Fields about roundings of activations and
    /// caches are ignored, since none is computed.
    pub(super) fn compressed_tensors(&self) -> Result<ModuleFormats, UnsupportedQuantization> {
        self.only("quantization_status", &["compressed", "frozen"])?;
        for field in ["sparsity_config", "transform_config"] {
            let is_dense = |value: &Map<String, Value>| {
                value.is_empty() || value.get("format").and_then(Value::as_str) == Some("dense")
            };
            let is_none = |value: &Value| value.as_object().is_some_and(is_dense);
            if self.present(field).is_some_and(|value| !is_none(value)) {
                return Err(self.refusal(field));
            }
        }
        let ignored = match self.present("ignore") {
            Some(list) => ModulePatterns::parse(list).ok_or_else(|| self.refusal("ignore"))?,
            None => ModulePatterns::default(),
        };
        let Some(groups) = self.present("config_groups").and_then(Value::as_object) else {
            return Err(self.refusal("config_groups"));
        };
        let group = |group: &Value| {
            let Some(group) = group.as_object() else {
                return Err(self.refusal("config_groups"));
            };
            let group = QuantizationFields(group);
            let targets = match group.present("targets") {
                Some(list) => ModulePatterns::parse(list),
                None => None,
            };
            let targets =
                targets.ok_or_else(|| group.refusal("targets").within("config_groups"))?;
            let format = group.text("format").or_else(|| self.text("format"));
            Ok((targets, group.weights(format)?))
        };
        let groups = groups.values().map(group).collect::<Result<_, _>>()?;
        Ok(ModuleFormats { groups, ignored })
    }

    /// Parses the `weights` of a group whose matrices are stored in the given format.
    fn weights(&self, format: Option<&str>) -> Result<ModuleFormat, UnsupportedQuantization> {
        let within = |error: UnsupportedQuantization| error.within("config_groups.weights");
        let Some(weights) = self.present("weights").and_then(Value::as_object) else {
            return Err(self.refusal("weights").within("config_groups"));
        };
        let weights = QuantizationFields(weights);
        let is_float = weights.text("type") == Some("float");
        match format {
            Some("pack-quantized") => weights.integers(true).map_err(within),
            Some("int-quantized") => weights.integers(false).map_err(within),
            Some("float-quantized") => weights.floats().map_err(within),
            Some("naive-quantized") if is_float => weights.floats().map_err(within),
            Some("naive-quantized") => weights.integers(false).map_err(within),
            Some("mxfp4-pack-quantized") => {
                weights.four_bit_floats(32).map_err(within)?;
                Ok(ModuleFormat::Mxfp4)
            }
            Some("nvfp4-pack-quantized") => {
                weights.four_bit_floats(16).map_err(within)?;
                Ok(ModuleFormat::Nvfp4(MatrixFactor::Divisor))
            }
            other => {
                let value =
                    other.map_or_else(|| "(not there)".to_owned(), |name| format!("{name:?}"));
                Err(UnsupportedQuantization { field: "format".to_owned(), value })
            }
        }
    }

    /// Parses the `quant_algo` of ModelOpt. Modules that are left out have plain matrices.
    pub(super) fn modelopt(&self) -> Result<ModuleFormats, UnsupportedQuantization> {
        let format = match self.text("quant_algo") {
            Some("NVFP4") => {
                if self.present("group_size").is_some_and(|size| size.as_u64() != Some(16)) {
                    return Err(self.refusal("group_size"));
                }
                ModuleFormat::Nvfp4(MatrixFactor::Multiplier)
            }
            Some("FP8") => ModuleFormat::Floats(FactorLayout::All),
            _ => return Err(self.refusal("quant_algo")),
        };
        let ignored = ModulePatterns::default();
        Ok(ModuleFormats { groups: vec![(ModulePatterns::all(), format)], ignored })
    }

    fn integers(&self, packed: bool) -> Result<ModuleFormat, UnsupportedQuantization> {
        self.only("type", &["int"])?;
        let bits = match (self.present("num_bits").and_then(Value::as_u64), packed) {
            (Some(4), true) => 4,
            (Some(8), _) => 8,
            _ => return Err(self.refusal("num_bits")),
        };
        let symmetric = self.symmetric()?;
        let factors = self.factor_layout()?;
        match factors {
            FactorLayout::All if !symmetric => return Err(self.refusal("symmetric")),
            FactorLayout::Blocks(..) => return Err(self.refusal("strategy")),
            _ => {}
        }
        Ok(ModuleFormat::Integers(IntegerFormat { bits, packed, factors, symmetric }))
    }

    fn floats(&self) -> Result<ModuleFormat, UnsupportedQuantization> {
        if self.text("type") != Some("float") {
            return Err(self.refusal("type"));
        }
        if self.present("num_bits").and_then(Value::as_u64) != Some(8) {
            return Err(self.refusal("num_bits"));
        }
        if !self.symmetric()? {
            return Err(self.refusal("symmetric"));
        }
        self.factor_layout().map(ModuleFormat::Floats)
    }

    /// Checks that weights are 4-bit floats in groups of `group` inputs.
    fn four_bit_floats(&self, group: u64) -> Result<(), UnsupportedQuantization> {
        if self.text("type") != Some("float") {
            return Err(self.refusal("type"));
        }
        for (field, expected) in [("num_bits", 4), ("group_size", group)] {
            if self.present(field).and_then(Value::as_u64) != Some(expected) {
                return Err(self.refusal(field));
            }
        }
        if self.symmetric()? { Ok(()) } else { Err(self.refusal("symmetric")) }
    }

    fn symmetric(&self) -> Result<bool, UnsupportedQuantization> {
        match self.present("symmetric") {
            None => Ok(true),
            Some(value) => value.as_bool().ok_or_else(|| self.refusal("symmetric")),
        }
    }

    /// Returns the values that share a scale. Without a `strategy`, the size of groups tells.
    fn factor_layout(&self) -> Result<FactorLayout, UnsupportedQuantization> {
        self.only("actorder", &["weight", "static"])?;
        let size = self.present("group_size").map(Value::as_i64);
        let strategy = self.text("strategy").map(str::to_lowercase);
        match (strategy.as_deref(), size) {
            (Some("tensor"), _) | (None, None) => Ok(FactorLayout::All),
            (Some("channel"), _) | (None, Some(Some(-1))) => {
                Ok(FactorLayout::Groups(QuantGroup::Row))
            }
            (Some("block"), _) => match self.pair("block_structure") {
                Some((rows, inputs)) => Ok(FactorLayout::Blocks(rows, inputs)),
                None => Err(self.refusal("block_structure")),
            },
            (Some("group") | None, Some(Some(size @ 1..))) => {
                Ok(FactorLayout::Groups(QuantGroup::Inputs(size as usize)))
            }
            (Some("group") | None, _) => Err(self.refusal("group_size")),
            _ => Err(self.refusal("strategy")),
        }
    }
}
