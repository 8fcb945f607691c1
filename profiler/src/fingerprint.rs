//! Conditions under which a profile is valid: the machine, and what was profiled on it.
//!
//! Both halves are named values, so that a difference can be described in words. The second half
//! names the file in the cache; the first half is compared when the file is read, so that a changed
//! machine finds its earlier profile and reports what has changed.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::machine::MachineIdentity;
use crate::request::ProfilingRequest;

/// Fields in which profiles with and without a device may differ.
const DEVICE_FIELDS: [&str; 5] =
    ["device", "device threads", "CPU threads", "sweep", "attention parts"];

/// Prefix of the fields that describe an operation's matrix.
const SHAPE: &str = "shape of ";
/// Fields of a model; the shapes of one layer count.
const MODEL_FIELDS: [&str; 5] = ["heads", "vocabulary", "family", "biases", "dtype"];
/// Sizes of a profiled workload that another one may have less of.
const SIZE_FIELDS: [&str; 3] = ["batch", "prompt", "context"];

/// Fingerprint of a profile; see the module documentation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    pub machine: BTreeMap<String, String>,
    pub profiled: BTreeMap<String, String>,
}

impl Fingerprint {
    /// Returns the fingerprint of a request on a machine.
    pub fn new(request: &ProfilingRequest, machine: &MachineIdentity) -> Fingerprint {
        Fingerprint { machine: machine.fields.clone(), profiled: profiled_fields(request) }
    }

    /// Returns each field that differs, with both values: `PCIe link x16 -> x8`.
    pub fn differences(&self, now: &Fingerprint) -> Vec<String> {
        let halves = [(&self.machine, &now.machine), (&self.profiled, &now.profiled)];
        let mut found = Vec::new();
        for (before, now) in halves {
            let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
            let value = |half: &BTreeMap<String, String>, name: &String| {
                half.get(name).map_or_else(|| "absent".to_owned(), Clone::clone)
            };
            found.extend(names.into_iter().filter_map(|name| {
                let (before, now) = (value(before, name), value(now, name));
                (before != now).then(|| format!("{name} {before} -> {now}"))
            }));
        }
        found
    }

    /// Returns true if the same was profiled, except for the device and its share of the threads.
    pub fn is_sibling(&self, other: &Fingerprint) -> bool {
        let is_shared = |name: &&String| !DEVICE_FIELDS.contains(&name.as_str());
        let shared = |half: &BTreeMap<String, String>| -> BTreeMap<String, String> {
            half.iter()
                .filter(|(name, _)| is_shared(name))
                .map(|(n, v)| (n.clone(), v.clone()))
                .collect()
        };
        self.profiled != other.profiled && shared(&self.profiled) == shared(&other.profiled)
    }

    /// Returns true if the same model was profiled, with batches and prompts that are at least as
    /// large.
    pub fn covers(&self, request: &ProfilingRequest) -> bool {
        let other = profiled_fields(request);
        let of_model = |name: &str| name.starts_with(SHAPE) || MODEL_FIELDS.contains(&name);
        let model = |half: &BTreeMap<String, String>| -> Vec<(String, String)> {
            let fields = half.iter().filter(|(name, _)| of_model(name));
            fields.map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        let size = |half: &BTreeMap<String, String>, name: &str| half.get(name)?.parse().ok();
        let is_no_larger = |name: &&str| {
            let profiled_size: Option<u64> = size(&self.profiled, name);
            profiled_size.zip(size(&other, name)).is_some_and(|(most, requested)| requested <= most)
        };
        model(&self.profiled) == model(&other) && SIZE_FIELDS.iter().all(is_no_larger)
    }

    /// Returns the name of what was profiled, for files: 16 hexadecimal digits.
    pub fn key(&self) -> String {
        let mut hash = Sha256::new();
        for (name, value) in &self.profiled {
            hash.update(format!("{name}={value}\n"));
        }
        hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn profiled_fields(request: &ProfilingRequest) -> BTreeMap<String, String> {
    let config = &request.config;
    let mut fields = BTreeMap::new();
    let mut set = |name: &str, value: String| drop(fields.insert(name.to_owned(), value));
    for op in config.every_layer_op() {
        if let Some((n, k)) = op.weights(config).and_then(|shape| shape.matrix) {
            set(&format!("{SHAPE}{}", op.name(config.family)), format!("{n}x{k}"));
        }
    }
    set(
        "heads",
        format!("{} of {}, {} of KV", config.num_heads, config.head_dim, config.num_kv_heads),
    );
    if let Some(delta) = config.delta {
        set("states", format!("{delta:?}"));
    }
    if let Some(mamba) = config.mamba {
        set("mamba", format!("{mamba:?}"));
    }
    if let Some(conv) = config.short_conv() {
        set("convolutions", format!("{conv:?}"));
    }
    set("vocabulary", config.vocab_size.to_string());
    set("family", format!("{:?}", config.family).to_lowercase());
    set("biases", format!("{} {} {}", config.qkv_bias, config.out_bias, config.ffn_bias));
    set("dtype", request.dtype.name().to_owned());
    let kinds = request.layer_kinds().into_iter().map(|(_, formats)| format!("{formats:?}"));
    set("weight formats", kinds.collect::<Vec<_>>().join("; "));
    let outer = request.weight_formats.first();
    if let Some(formats) = outer.filter(|formats| formats.any_grouped()) {
        set("activations", formats.activations.name().to_owned());
    }
    set(
        "outer formats",
        outer.map_or(String::new(), |f| format!("{:?} {:?}", f.embedding, f.head)),
    );
    set("KV formats", format!("{:?}", request.kv_formats));
    set("attention parts", format!("{:?}", request.chunks));
    set("batch", request.batch_size.to_string());
    set("micro-batch", request.micro_sequences.to_string());
    set("prompt", request.max_prompt.to_string());
    set("context", request.max_context.to_string());
    set("CPU threads", request.threads.cpu.to_string());
    set("device threads", request.threads.gpu.to_string());
    set("sweep", request.sweep_threads_max.to_string());
    set("device", request.device.clone().unwrap_or_else(|| "none".to_owned()));
    fields
}

#[cfg(test)]
mod tests {
    use model::config::Dtype;
    use model::known::find_known;
    use program::plan::RunShape;

    use super::*;
    use crate::machine::GpuInfo;
    use crate::request::ComputeThreads;

    fn request() -> ProfilingRequest {
        let config = find_known("opt-30b").expect("known").config;
        let shape = RunShape {
            batches: 1,
            batch_size: 4,
            max_prompt: 512,
            shared_prompt: 0,
            max_context: 544,
            max_new: 32,
            logprobs: 0,
            micro_sequences: 2,
            prefill_chunk: 0,
            serves: false,
            page_positions: 0,
            kv_pages: 0,
            checkpoints: 0,
            logits_rows: 0,
            device_slots: 0,
            dtype: Dtype::Bf16,
        };
        ProfilingRequest::for_shape(&config, &shape, ComputeThreads { cpu: 1, gpu: 1 })
    }

    fn gpu(pcie_link: &str) -> GpuInfo {
        let text = str::to_owned;
        GpuInfo {
            name: text("Card"),
            uuid: text("GPU-1"),
            driver: text("1.0"),
            pcie_link: text(pcie_link),
        }
    }

    #[test]
    fn a_difference_names_the_field_and_both_values() {
        let of = |link| Fingerprint::new(&request(), &MachineIdentity::this(Some(&gpu(link))));
        let (before, now) = (of("4.0 x16"), of("4.0 x8"));
        assert_eq!(before.differences(&now), ["PCIe link 4.0 x16 -> 4.0 x8"]);
        assert_eq!(before.differences(&before), [""; 0]);
        assert_eq!(before.key(), now.key(), "a changed machine finds its earlier profile");
    }

    #[test]
    fn every_field_is_told_when_it_alone_changes() {
        let before = Fingerprint::new(&request(), &MachineIdentity::this(None));
        for half in 0..2 {
            let names: Vec<String> =
                [&before.machine, &before.profiled][half].keys().cloned().collect();
            assert!(names.len() > 10, "{names:?}");
            for name in names {
                let mut now = before.clone();
                let fields = [&mut now.machine, &mut now.profiled].into_iter().nth(half);
                let fields = fields.expect("two halves");
                let old = fields.insert(name.clone(), "changed".to_owned());
                let old = old.expect("a name of the fields");
                assert_eq!(before.differences(&now), [format!("{name} {old} -> changed")]);
                assert_eq!(before.key() == now.key(), half == 0);
                now.machine.remove(&name);
                now.profiled.remove(&name);
                assert_eq!(before.differences(&now), [format!("{name} {old} -> absent")]);
            }
        }
    }

    #[test]
    fn siblings_differ_in_the_device_alone() {
        let of = |change: &dyn Fn(&mut ProfilingRequest)| {
            let mut request = request();
            change(&mut request);
            Fingerprint::new(&request, &MachineIdentity::this(None))
        };
        let with_device = of(&|request| request.chunks = vec![8]);
        let alone = of(&|request| {
            (request.device, request.threads) = (None, ComputeThreads { cpu: 2, gpu: 0 });
        });
        assert!(with_device.is_sibling(&alone) && alone.is_sibling(&with_device));
        assert!(!alone.is_sibling(&alone), "nobody is its own sibling");
        assert!(!with_device.is_sibling(&of(&|request| request.batch_size = 5)));
        assert!(!with_device.is_sibling(&of(&|request| request.dtype = Dtype::F32)));
    }

    #[test]
    fn smaller_batches_of_the_same_model_are_covered() {
        let profiled = Fingerprint::new(&request(), &MachineIdentity::this(None));
        let covers = |change: &dyn Fn(&mut ProfilingRequest)| {
            let mut request = request();
            change(&mut request);
            profiled.covers(&request)
        };
        assert!(covers(&|_| {}));
        assert!(covers(&|request| (request.batch_size, request.max_prompt) = (1, 1)));
        assert!(covers(&|request| request.config.num_layers = 2));
        assert!(covers(&|request| request.threads = ComputeThreads { cpu: 9, gpu: 0 }));
        assert!(!covers(&|request| request.batch_size = 5));
        assert!(!covers(&|request| request.max_prompt = 513));
        assert!(!covers(&|request| request.max_context = 545));
        assert!(!covers(&|request| request.config.ffn_size = 64));
        assert!(!covers(&|request| request.dtype = Dtype::F32));
    }

    #[test]
    fn what_is_profiled_decides_the_key() {
        let machine = MachineIdentity::this(None);
        let key = |change: &dyn Fn(&mut ProfilingRequest)| {
            let mut request = request();
            change(&mut request);
            Fingerprint::new(&request, &machine).key()
        };
        let same = key(&|_| {});
        assert_eq!(same, key(&|request| request.config.num_layers = 3), "one layer's shapes count");
        assert_ne!(same, key(&|request| request.dtype = Dtype::F32));
        assert_ne!(same, key(&|request| request.threads.cpu = 2));
        assert_ne!(same, key(&|request| request.config.ffn_size = 64));
        assert_ne!(same, key(&|request| request.chunks = vec![8]));
    }
}
