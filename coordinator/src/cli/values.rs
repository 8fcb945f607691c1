//! Values of arguments. Each is parsed once into a type that only represents valid values; errors
//! are messages for the user.

use clap::ValueEnum;
use clap::builder::PossibleValue;
use engine_api::request::Pooling;
use lab::load::api::Api;
use model::config::Dtype;
use model::quantized_format::ActivationFormat;
use planner::policy::name::{PolicyName, UnknownPolicy};
use program::expert_reads::ExpertReads;
use session::values::{
    Batches, BatchesChoice, CompressChoice, DeviceChoice, NvmeDirect, NvmeOps, QuantizedChoice,
};

/// Parses a value like `4x15`.
///
/// # Errors
/// Anything else, including zeros.
pub fn parse_batches(text: &str) -> Result<Batches, String> {
    let example = "write --batches 4x15 for 4 batches of 15 prompts each";
    let Some((count, size)) = text.split_once(['x', 'X']) else {
        return Err(format!("there is no \"x\" between two numbers; {example}"));
    };
    let number = |part: &str, what: &str| match part.parse::<u16>() {
        Ok(0) => Err(format!("the number of {what} is 0; {example}")),
        Ok(number) => Ok(number),
        Err(_) if part.is_empty() => Err(format!("the number of {what} is missing; {example}")),
        Err(_) => Err(format!(
            "the number of {what}, \"{part}\", is not a whole number from 1 to {}; {example}",
            u16::MAX
        )),
    };
    Ok(Batches { count: number(count, "batches")?, size: number(size, "prompts in a batch")? })
}

/// Parses `last` or `mean`.
///
/// # Errors
/// Anything else.
pub fn parse_pooling(text: &str) -> Result<Pooling, String> {
    match text {
        "last" => Ok(Pooling::LastToken),
        "mean" => Ok(Pooling::Mean),
        _ => Err("must be last or mean".to_owned()),
    }
}

/// Parses `auto` or a value like `4x15`.
///
/// # Errors
/// Anything else.
pub fn parse_batches_choice(text: &str) -> Result<BatchesChoice, String> {
    match text {
        "auto" => Ok(BatchesChoice::Auto),
        text => parse_batches(text).map(BatchesChoice::Fixed),
    }
}

/// Parses `none`, `auto`, `cuda:0`, `emulated`, `emulated:vram=8GiB,link=16GB/s` or
/// `emulated:timed`.
///
/// # Errors
/// Anything else.
pub fn parse_device(text: &str) -> Result<DeviceChoice, String> {
    match text {
        "auto" => return Ok(DeviceChoice::Auto),
        "none" | "cpu" => return Ok(DeviceChoice::None),
        "emulated" => {
            return Ok(DeviceChoice::Emulated { vram_bytes: None, link_bytes_per_s: None });
        }
        "emulated:timed" => return Ok(DeviceChoice::Timed),
        "cuda" => return Ok(DeviceChoice::Cuda(0)),
        _ => {}
    }
    if let Some(number) = text.strip_prefix("cuda:") {
        return number
            .parse()
            .map(DeviceChoice::Cuda)
            .map_err(|_| format!("\"{number}\" is not a device index; write --device cuda:0"));
    }
    let Some(settings) = text.strip_prefix("emulated:") else {
        return Err(
            "unknown device; write none, auto, cuda:0 or emulated:vram=8GiB,link=16GB/s".to_owned()
        );
    };
    let (mut vram_bytes, mut link_bytes_per_s) = (None, None);
    for setting in settings.split(',') {
        match setting.split_once('=') {
            Some(("vram", size)) => vram_bytes = Some(parse_size(size)?),
            Some(("link", speed)) => {
                let size = speed.strip_suffix("/s").unwrap_or(speed);
                link_bytes_per_s = Some(parse_size(size)?);
            }
            _ => {
                return Err(format!(
                    "\"{setting}\" is not a setting of the emulated device; write \
                     emulated:vram=8GiB,link=16GB/s"
                ));
            }
        }
    }
    Ok(DeviceChoice::Emulated { vram_bytes, link_bytes_per_s })
}

/// Units of sizes: powers of 1024 with an `i`, and of 1000 without, as for disks and links. A
/// single letter is a power of 1024, as in the options of other programs.
const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("kb", 1000),
    ("kib", 1 << 10),
    ("mb", 1_000_000),
    ("mib", 1 << 20),
    ("gb", 1_000_000_000),
    ("gib", 1 << 30),
    ("tb", 1_000_000_000_000),
    ("tib", 1 << 40),
];

/// Parses a size like `8GiB`, `1.5GB`, `512MiB` or `16G`, or a number of bytes. Never returns 0.
///
/// # Errors
/// Anything else.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.trim().to_ascii_lowercase();
    let factor = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let bytes = match (number.parse::<f64>(), factor) {
        (Ok(number), Some(factor)) => number * factor as f64,
        _ => 0.0,
    };
    // 2^63 bytes and more are a mistake.
    if !(1.0..9.2e18).contains(&bytes) {
        return Err(format!("\"{text}\" is not a size above 0; write for example 8GiB or 512MiB"));
    }
    Ok(bytes as u64)
}

/// Maximum memory of a server for all request bodies together.
const MAX_BODY_BYTES: u64 = 256 << 20;

/// Parses the maximum size of a request's body.
///
/// # Errors
/// Anything but a size of at most 256 MiB, with a message for the user.
pub fn parse_body_size(text: &str) -> Result<u64, String> {
    let size_bytes = parse_size(text)?;
    if size_bytes > MAX_BODY_BYTES {
        return Err("the maximum is 256MiB, the limit for all request bodies together".to_owned());
    }
    Ok(size_bytes)
}

/// Parses a temperature.
///
/// # Errors
/// Anything but a number from 0 to 2.
pub fn parse_temperature(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number| (0.0..=2.0).contains(number));
    number.ok_or_else(|| "it is not a number from 0 to 2; write for example 0.7".to_owned())
}

/// Parses a cumulative probability.
///
/// # Errors
/// Anything but a number above 0 and at most 1.
pub fn parse_top_p(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number| *number > 0.0 && *number <= 1.0);
    let expected = "it is not a number above 0 and at most 1; write for example 0.95";
    number.ok_or_else(|| expected.to_owned())
}

/// Parses the name of a serving policy.
///
/// # Errors
/// An unknown name.
pub fn parse_serving_policy(text: &str) -> Result<scheduler::hybrid::SchedulingPolicy, String> {
    let mut all = scheduler::hybrid::SchedulingPolicy::ALL.into_iter();
    all.find(|policy| policy.name() == text).ok_or_else(|| {
        let names =
            scheduler::hybrid::SchedulingPolicy::ALL.map(scheduler::hybrid::SchedulingPolicy::name);
        format!("it is not one of {}", names.join(", "))
    })
}

/// Parses the name of a placement policy.
///
/// # Errors
/// An unknown name.
pub fn parse_policy(text: &str) -> Result<PolicyName, String> {
    text.parse().map_err(|error: UnknownPolicy| error.to_string())
}

/// Number format of weights, activations and KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum DtypeChoice {
    /// bf16 storage, f32 accumulation
    #[default]
    Bf16,
    /// f32 everywhere, for verification
    F32,
}

impl DtypeChoice {
    /// Returns the number format.
    pub const fn dtype(self) -> Dtype {
        match self {
            DtypeChoice::Bf16 => Dtype::Bf16,
            DtypeChoice::F32 => Dtype::F32,
        }
    }
}

/// Format of staged weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum StagedFormat {
    /// No compression: the number format of the run, or the blocks of a GGUF file
    None,
    /// Weights of the layers' linears in 4 bits, in groups of 64 with a scale and a minimum each
    W4,
}

/// Choice of the command line by name, of a type in a crate that knows no argument parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NamedChoice<T>(pub T);

impl ValueEnum for NamedChoice<CompressChoice> {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            NamedChoice(CompressChoice::Auto),
            NamedChoice(CompressChoice::None),
            NamedChoice(CompressChoice::W4),
            NamedChoice(CompressChoice::Kv8),
            NamedChoice(CompressChoice::W4kv8),
            NamedChoice(CompressChoice::Kv4),
            NamedChoice(CompressChoice::W4kv4),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self.0 {
            CompressChoice::Auto => {
                "No compression if that fits in memory, otherwise what is needed to fit; the \
                 choice is printed"
            }
            CompressChoice::None => "No compression",
            CompressChoice::W4 => {
                "Weights of the layers' linears in 4 bits, in groups of 64 with a scale and a \
                 minimum each"
            }
            CompressChoice::Kv8 => "KV cache in 8 bits, in groups of up to 32 along a head",
            CompressChoice::W4kv8 => "Weights in 4 bits and KV cache in 8",
            CompressChoice::Kv4 => "KV cache in 4 bits, in groups of up to 64 along a head",
            CompressChoice::W4kv4 => "Weights and KV cache in 4 bits",
        };
        Some(PossibleValue::new(self.0.name()).help(help))
    }
}

impl ValueEnum for NamedChoice<QuantizedChoice> {
    fn value_variants<'a>() -> &'a [Self] {
        &[NamedChoice(QuantizedChoice::Direct), NamedChoice(QuantizedChoice::Expand)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self.0 {
            QuantizedChoice::Direct => (
                "direct",
                "Multiply types that kernels read (Q4_0 to Q8_0, Q4_K to Q6_K, IQ4, MXFP4) as \
                 stored, and expand others",
            ),
            QuantizedChoice::Expand => ("expand", "Expand all types to --dtype"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

impl ValueEnum for NamedChoice<ActivationFormat> {
    fn value_variants<'a>() -> &'a [Self] {
        &[NamedChoice(ActivationFormat::Int8), NamedChoice(ActivationFormat::Int12)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self.0 {
            ActivationFormat::Int8 => "8 bits in groups of at most 32: fast on every processor",
            ActivationFormat::Int12 => {
                "12 bits with AVX512-VNNI, unrounded without it: slower for prompts, less rounding"
            }
        };
        Some(PossibleValue::new(self.0.name()).help(help))
    }
}

impl ValueEnum for NamedChoice<NvmeDirect> {
    fn value_variants<'a>() -> &'a [Self] {
        &[NamedChoice(NvmeDirect::Auto), NamedChoice(NvmeDirect::On), NamedChoice(NvmeDirect::Off)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self.0 {
            NvmeDirect::Auto => (
                "auto",
                "Direct if a CUDA device and cuFile support it; never with an emulated device",
            ),
            NvmeDirect::On => ("on", "Direct; fail if that is not possible"),
            NvmeDirect::Off => ("off", "Through host memory"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

impl ValueEnum for NamedChoice<ExpertReads> {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            NamedChoice(ExpertReads::Auto),
            NamedChoice(ExpertReads::Routed),
            NamedChoice(ExpertReads::All),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self.0 {
            ExpertReads::Auto => ("auto", "Those that tokens are routed to, unless almost all are"),
            ExpertReads::Routed => ("routed", "Those that tokens are routed to"),
            ExpertReads::All => ("all", "All of a layer, while earlier layers are computed"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

impl ValueEnum for NamedChoice<Api> {
    fn value_variants<'a>() -> &'a [Self] {
        &[NamedChoice(Api::Openai), NamedChoice(Api::Llama)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self.0 {
            Api::Openai => ("openai", "`/v1/completions`: Tandem, vLLM and others"),
            Api::Llama => ("llama", "`/completion` of llama.cpp's server"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

/// Parses `auto`, `all`, or names of operations.
///
/// # Errors
/// An empty name, with a message for the user.
pub fn parse_nvme_ops(text: &str) -> Result<NvmeOps, String> {
    match text {
        "auto" => Ok(NvmeOps::Auto),
        "all" => Ok(NvmeOps::All),
        names => {
            let names: Vec<String> = names.split(',').map(|name| name.trim().to_owned()).collect();
            if names.iter().any(String::is_empty) {
                return Err("write auto, all, or names of operations, such as q,k,fc0".to_owned());
            }
            Ok(NvmeOps::Named(names))
        }
    }
}

/// Parses `org/name`.
///
/// # Errors
/// Anything else, with a message that describes a valid name.
pub fn parse_repository(text: &str) -> Result<String, String> {
    let is_word = |word: &str| {
        let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !word.is_empty() && word.chars().all(known) && !word.starts_with('.')
    };
    match text.split_once('/') {
        Some((org, name)) if is_word(org) && is_word(name) => Ok(text.to_owned()),
        _ => Err("a repository is org/name, such as HuggingFaceTB/SmolLM2-135M-Instruct".into()),
    }
}
