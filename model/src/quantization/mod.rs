//! The `quantization_config` of a `config.json`, which defines the low-bit format of a checkpoint's
//! matrices. Unsupported formats are refused by field and value.

mod modules;
mod patterns;

use std::sync::Arc;

use serde_json::{Map, Value};

pub use modules::{FactorLayout, IntegerFormat, MatrixFactor, ModuleFormat, ModuleFormats};

/// Format of a checkpoint's quantised matrices. Plain matrices in such a checkpoint are not
/// described here, since their tensors identify them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Quantization {
    #[default]
    None,
    /// 8-bit floats with a factor per block of rows and inputs, or one per matrix if `None`.
    /// Experts may be 4-bit floats with an exponent for every 32 inputs (DeepSeek V4).
    Fp8 { block: Option<(usize, usize)>, has_fp4_experts: bool },
    /// 4-bit floats with an exponent for every 32 inputs.
    Mxfp4,
    /// 4-bit integers, packed along the inputs. If they are `symmetric`, every zero point is 8.
    Gptq { group: QuantGroup, zeros: StoredZeros, symmetric: bool },
    /// 4-bit integers, packed along the outputs.
    Awq { group: QuantGroup },
    /// Formats by module: compressed-tensors and ModelOpt.
    ByModule(Arc<ModuleFormats>),
}

/// Number of inputs that share a scale and a zero point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantGroup {
    Inputs(usize),
    /// All inputs of a row.
    Row,
}

/// Representation of zero points in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredZeros {
    /// The zero point minus one.
    LessOne,
    Same,
}

/// Error for a field whose value is not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a checkpoint with quantization_config.{field} = {value}")]
pub struct UnsupportedQuantization {
    pub field: String,
    pub value: String,
}

impl UnsupportedQuantization {
    /// Returns the error for a field of an object within the configuration.
    fn within(self, outer: &str) -> UnsupportedQuantization {
        UnsupportedQuantization { field: format!("{outer}.{}", self.field), ..self }
    }
}

/// The fields of the object, read by name.
struct QuantizationFields<'a>(&'a Map<String, Value>);

impl Quantization {
    /// Returns the object of a `config.json` that describes the quantisation, if there is one: that
    /// of the whole model, under either of its names, or that of a multimodal model's text.
    pub fn object<'a>(field: impl Fn(&str) -> Option<&'a Value>) -> Option<&'a Value> {
        let named = |name: &str| field(name).filter(|value| !value.is_null());
        named("quantization_config")
            .or_else(|| named("compression_config"))
            .or_else(|| named("text_config")?.get("quantization_config"))
    }

    /// Parses ModelOpt's `hf_quant_config.json`, which describes checkpoints whose `config.json`
    /// does not.
    ///
    /// # Errors
    /// An unsupported method.
    pub fn parse_modelopt(file: &Value) -> Result<Quantization, UnsupportedQuantization> {
        let empty = Map::new();
        let fields = file.get("quantization").and_then(Value::as_object).unwrap_or(&empty);
        let fields = QuantizationFields(fields);
        if fields.present("quant_algo").is_none() {
            return Ok(Quantization::None);
        }
        fields.modelopt().map(|formats| Quantization::ByModule(Arc::new(formats)))
    }

    /// Parses the quantisation that the fields of a `config.json` declare. The type of experts may
    /// be a field outside the object.
    ///
    /// # Errors
    /// See [`Quantization::parse`].
    pub fn parse_fields<'a>(
        field: impl Fn(&str) -> Option<&'a Value>,
    ) -> Result<Quantization, UnsupportedQuantization> {
        let declared = Quantization::parse(Quantization::object(&field))?;
        Ok(match declared {
            Quantization::Fp8 { block, .. } if is_fp4(field("expert_dtype")) => {
                Quantization::Fp8 { block, has_fp4_experts: true }
            }
            other => other,
        })
    }

    /// Parses a `quantization_config`; [`Quantization::None`] if there is none.
    ///
    /// # Errors
    /// An unsupported method or variant, as the field that specifies it.
    pub fn parse(config: Option<&Value>) -> Result<Quantization, UnsupportedQuantization> {
        let Some(value) = config.filter(|value| !value.is_null()) else {
            return Ok(Quantization::None);
        };
        let empty = Map::new();
        let fields = QuantizationFields(value.as_object().unwrap_or(&empty));
        let by_module = |formats| Quantization::ByModule(Arc::new(formats));
        match fields.text("quant_method") {
            Some("fp8") => fields.fp8(),
            Some("mxfp4") => Ok(Quantization::Mxfp4),
            Some("gptq") => fields.gptq(),
            Some("awq") => fields.awq(),
            Some("compressed-tensors") => fields.compressed_tensors().map(by_module),
            Some("modelopt") => fields.modelopt().map(by_module),
            _ => Err(fields.refusal("quant_method")),
        }
    }
}

/// Returns true if an `expert_dtype` declares 4-bit floats.
fn is_fp4(dtype: Option<&Value>) -> bool {
    dtype.and_then(Value::as_str) == Some("fp4")
}

impl QuantizationFields<'_> {
    fn present(&self, field: &str) -> Option<&Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    fn text(&self, field: &str) -> Option<&str> {
        self.present(field)?.as_str()
    }

    fn refusal(&self, field: &str) -> UnsupportedQuantization {
        let value = self.0.get(field).map_or_else(|| "(not there)".to_owned(), Value::to_string);
        let value = value.chars().take(60).collect();
        UnsupportedQuantization { field: field.to_owned(), value }
    }

    /// Refuses a field that is present and differs from all of `values`.
    fn only(&self, field: &'static str, values: &[&str]) -> Result<(), UnsupportedQuantization> {
        match self.present(field) {
            None => Ok(()),
            Some(Value::String(text)) if values.contains(&text.to_lowercase().as_str()) => Ok(()),
            Some(_) => Err(self.refusal(field)),
        }
    }

    fn never(&self, field: &'static str) -> Result<(), UnsupportedQuantization> {
        match self.present(field) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(_) => Err(self.refusal(field)),
        }
    }

    fn fp8(&self) -> Result<Quantization, UnsupportedQuantization> {
        self.only("fmt", &["e4m3"])?;
        self.only("expert_dtype", &["fp4", "fp8"])?;
        self.only("activation_scheme", &["dynamic", "static"])?;
        let has_fp4_experts = is_fp4(self.present("expert_dtype"));
        let field = "weight_block_size";
        if self.present(field).is_none() {
            return Ok(Quantization::Fp8 { block: None, has_fp4_experts });
        }
        match self.pair(field) {
            Some(block) => Ok(Quantization::Fp8 { block: Some(block), has_fp4_experts }),
            None => Err(self.refusal(field)),
        }
    }

    /// Returns a list of two positive sizes; `None` if the field is anything else.
    fn pair(&self, field: &str) -> Option<(usize, usize)> {
        let sizes = self.present(field)?.as_array().filter(|sizes| sizes.len() == 2)?;
        let size = |value: &Value| usize::try_from(value.as_u64()?).ok().filter(|size| *size > 0);
        Some((size(&sizes[0])?, size(&sizes[1])?))
    }

    fn gptq(&self) -> Result<Quantization, UnsupportedQuantization> {
        self.four_bits("bits")?;
        self.never("desc_act")?;
        self.never("is_marlin_format")?;
        self.only("pack_dtype", &["int32"])?;
        // Both fields have the same meaning, in files of different ages. Other tools also use
        // "format".
        self.only("checkpoint_format", &["gptq", "gptq_v2"])?;
        self.only("format", &["gptq", "gptq_v2"])?;
        if self.present("dynamic").is_some_and(|rules| rules.as_object() != Some(&Map::new())) {
            return Err(self.refusal("dynamic"));
        }
        let format = self.text("checkpoint_format").or_else(|| self.text("format"));
        let is_second = format.is_some_and(|format| format.eq_ignore_ascii_case("gptq_v2"));
        let zeros = if is_second { StoredZeros::Same } else { StoredZeros::LessOne };
        // Default of files that leave the field out.
        let symmetric = self.present("sym").and_then(Value::as_bool).unwrap_or(true);
        Ok(Quantization::Gptq { group: self.group("group_size")?, zeros, symmetric })
    }

    fn awq(&self) -> Result<Quantization, UnsupportedQuantization> {
        let name = |long: &'static str, short| if self.0.contains_key(long) { long } else { short };
        self.four_bits(name("bits", "w_bit"))?;
        self.only("version", &["gemm"])?;
        self.only("format", &["gemm"])?;
        if self.present("zero_point").is_some_and(|value| *value != Value::Bool(true)) {
            return Err(self.refusal("zero_point"));
        }
        Ok(Quantization::Awq { group: self.group(name("group_size", "q_group_size"))? })
    }

    fn four_bits(&self, field: &'static str) -> Result<(), UnsupportedQuantization> {
        match self.present(field).and_then(Value::as_u64) {
            Some(4) => Ok(()),
            _ => Err(self.refusal(field)),
        }
    }

    fn group(&self, field: &'static str) -> Result<QuantGroup, UnsupportedQuantization> {
        let size = self.present(field).map_or(Some(128), Value::as_i64);
        match size {
            Some(-1) => Ok(QuantGroup::Row),
            Some(size @ 1..) => Ok(QuantGroup::Inputs(size as usize)),
            _ => Err(self.refusal(field)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Quantization, String> {
        let config = serde_json::from_str(text).expect("JSON");
        Quantization::parse(Some(&config)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_known_methods() {
        assert_eq!(Quantization::parse(None), Ok(Quantization::None));
        assert_eq!(of("null"), Ok(Quantization::None));
        let block = r#"{"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 64],
            "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}"#;
        let fp8 = |block, has_fp4_experts| Ok(Quantization::Fp8 { block, has_fp4_experts });
        assert_eq!(of(block), fp8(Some((128, 64)), false));
        let fp4 = r#"{"quant_method": "fp8", "expert_dtype": "fp4"}"#;
        assert_eq!(of(fp4), fp8(None, true));
        let whole = r#"{"quant_method": "fp8", "weight_block_size": null, "dequantize": false,
            "activation_scheme": "static"}"#;
        assert_eq!(of(whole), fp8(None, false));
        let mxfp4 =
            r#"{"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens"]}"#;
        assert_eq!(of(mxfp4), Ok(Quantization::Mxfp4));
        let gptq = |more: &str| of(&format!(r#"{{"quant_method": "gptq", "bits": 4, {more}}}"#));
        let (group, zeros) = (QuantGroup::Inputs(64), StoredZeros::LessOne);
        assert_eq!(
            gptq(r#""group_size": 64, "desc_act": false, "sym": false, "damp_percent": 0.1"#),
            Ok(Quantization::Gptq { group, zeros, symmetric: false })
        );
        let (group, zeros) = (QuantGroup::Row, StoredZeros::Same);
        assert_eq!(
            gptq(r#""group_size": -1, "checkpoint_format": "gptq_v2""#),
            Ok(Quantization::Gptq { group, zeros, symmetric: true })
        );
        for awq in [
            r#"{"quant_method": "awq", "bits": 4, "group_size": 32, "version": "GEMM",
                "zero_point": true}"#,
            r#"{"quant_method": "awq", "w_bit": 4, "q_group_size": 32, "version": "gemm"}"#,
        ] {
            assert_eq!(of(awq), Ok(Quantization::Awq { group: QuantGroup::Inputs(32) }));
        }
    }

    /// DeepSeek V4 declares the type of its experts outside the object, in files of any method.
    #[test]
    fn the_type_of_experts_is_a_field_of_its_own() {
        let of = |text: &str| {
            let config: Value = serde_json::from_str(text).expect("JSON");
            Quantization::parse_fields(|name| config.get(name))
        };
        let fp8 = |dtype: &str| {
            of(&format!(
                r#"{{"quantization_config": {{"quant_method": "fp8"}}, "expert_dtype": {dtype}}}"#
            ))
        };
        for (dtype, has_fp4_experts) in
            [(r#""fp4""#, true), (r#""fp8""#, false), ("null", false), ("4", false)]
        {
            let expected = Ok(Quantization::Fp8 { block: None, has_fp4_experts });
            assert_eq!(fp8(dtype), expected, "{dtype}");
        }
        assert_eq!(of(r#"{"expert_dtype": "fp4"}"#), Ok(Quantization::None));
    }

    #[test]
    fn all_else_is_refused_by_field_and_value() {
        for (config, message) in [
            (r#"{"quant_method": "bitsandbytes"}"#, r#"quant_method = "bitsandbytes""#),
            (r#"{"load_in_4bit": true}"#, "quant_method = (not there)"),
            ("17", "quant_method = (not there)"),
            (r#"{"quant_method": "gptq", "bits": 3}"#, "quantization_config.bits = 3"),
            (r#"{"quant_method": "gptq", "bits": 8}"#, "bits = 8"),
            (r#"{"quant_method": "gptq", "bits": 4, "desc_act": true}"#, "desc_act = true"),
            (r#"{"quant_method": "gptq", "bits": 4, "group_size": 0}"#, "group_size = 0"),
            (
                r#"{"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}"#,
                r#"checkpoint_format = "marlin""#,
            ),
            (r#"{"quant_method": "gptq", "bits": 4, "dynamic": {"-:x": {}}}"#, "dynamic = {"),
            (r#"{"quant_method": "awq", "bits": 2}"#, "bits = 2"),
            (r#"{"quant_method": "awq", "w_bit": 8}"#, "w_bit = 8"),
            (r#"{"quant_method": "awq", "bits": 4, "version": "gemv"}"#, r#"version = "gemv""#),
            (r#"{"quant_method": "awq", "bits": 4, "zero_point": false}"#, "zero_point = false"),
            (r#"{"quant_method": "fp8", "fmt": "e5m2"}"#, r#"fmt = "e5m2""#),
            (r#"{"quant_method": "fp8", "expert_dtype": "fp6"}"#, r#"expert_dtype = "fp6""#),
            (r#"{"quant_method": "fp8", "weight_block_size": [128]}"#, "weight_block_size = [128]"),
            (
                r#"{"quant_method": "fp8", "weight_block_size": [0, 1]}"#,
                "weight_block_size = [0,1]",
            ),
        ] {
            let error = of(config).expect_err(config);
            assert!(error.contains(message), "{error}");
        }
    }

    fn compressed(weights: &str) -> Result<ModuleFormat, String> {
        let config = format!(
            r#"{{"quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": {{"group_0": {{"targets": ["Linear"], "weights": {weights}}}}}}}"#
        );
        let Quantization::ByModule(formats) = of(&config)? else { panic!("by module") };
        Ok(formats.format("model.layers.0.mlp.down_proj").expect("targeted"))
    }

    #[test]
    fn integers_of_compressed_tensors() {
        let group = |size| FactorLayout::Groups(QuantGroup::Inputs(size));
        let integers = |bits, factors, symmetric| {
            ModuleFormat::Integers(IntegerFormat { bits, packed: true, factors, symmetric })
        };
        for (weights, format) in [
            // Fields of Kimi K2 Thinking.
            (
                r#"{"actorder": null, "block_structure": null, "dynamic": false, "group_size": 32,
                    "num_bits": 4, "observer": "minmax", "observer_kwargs": {}, "strategy": "group",
                    "symmetric": true, "type": "int"}"#,
                integers(4, group(32), true),
            ),
            (
                r#"{"num_bits": 4, "group_size": 128, "symmetric": false, "actorder": "static"}"#,
                integers(4, group(128), false),
            ),
            (
                r#"{"num_bits": 8, "strategy": "channel", "group_size": null}"#,
                integers(8, FactorLayout::Groups(QuantGroup::Row), true),
            ),
            (r#"{"num_bits": 8, "strategy": "tensor"}"#, integers(8, FactorLayout::All, true)),
        ] {
            assert_eq!(compressed(weights), Ok(format), "{weights}");
        }
    }

    #[test]
    fn schemes_that_are_not_supported_are_named() {
        for (weights, message) in [
            ("null", "config_groups.weights = null"),
            (r#"{"num_bits": 3, "group_size": 32}"#, "config_groups.weights.num_bits = 3"),
            (r#"{"num_bits": 4, "group_size": 0}"#, "weights.group_size = 0"),
            (r#"{"num_bits": 4, "group_size": -7}"#, "weights.group_size = -7"),
            (r#"{"num_bits": 4, "strategy": "group"}"#, "weights.group_size = (not there)"),
            (r#"{"num_bits": 4, "strategy": "attn_head"}"#, r#"weights.strategy = "attn_head""#),
            (r#"{"num_bits": 4, "type": "float", "group_size": 32}"#, r#"weights.type = "float""#),
            (
                r#"{"num_bits": 4, "group_size": 32, "actorder": "group"}"#,
                r#"weights.actorder = "group""#,
            ),
            (r#"{"num_bits": 4, "symmetric": false}"#, "weights.symmetric = false"),
        ] {
            let error = compressed(weights).expect_err(weights);
            assert!(error.contains(message), "{error}");
        }
        let whole = |more: &str| {
            of(&format!(
                r#"{{"quant_method": "compressed-tensors", "config_groups": {{"a": {{"targets":
                    ["Linear"], "weights": {{"num_bits": 4, "group_size": 32}}}}}}, {more}}}"#
            ))
        };
        for (more, message) in [
            (r#""format": "marlin-24""#, r#"quantization_config.format = "marlin-24""#),
            (r#""format": "mixed-precision""#, r#"format = "mixed-precision""#),
            (r#""status": 1"#, "format = (not there)"),
            (
                r#""format": "pack-quantized", "sparsity_config": {"format": "sparse-24-bitmask"}"#,
                "sparsity_config = {",
            ),
            (
                r#""format": "pack-quantized", "transform_config": {"config_groups": {}}"#,
                "transform_config = {",
            ),
            (r#""format": "pack-quantized", "ignore": ["re:("]"#, "ignore = ["),
        ] {
            let error = whole(more).expect_err(more);
            assert!(error.contains(message), "{error}");
        }
        for (config, message) in [
            (r#"{"quant_method": "compressed-tensors"}"#, "config_groups = (not there)"),
            (r#"{"quant_method": "modelopt"}"#, "quant_algo = (not there)"),
            (r#"{"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}"#, r#""W4A8_AWQ""#),
        ] {
            let error = of(config).expect_err(config);
            assert!(error.contains(message), "{error}");
        }
    }
}
