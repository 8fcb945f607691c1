//! The capacity estimate of the search equals the device memory of compiled plans.

use std::collections::BTreeSet;

use model::config::{Dtype, ModelConfig};
use model::known::find_known;
use model::quantized_format::{Grouped, WeightFormat};
use program::compile::footprint;
use program::formats::{KvFormat, WeightFormats};
use program::ir::Instruction;
use program::map::{ChunkOrder, Chunking};
use program::plan::DeviceScratch;
use program::topology::MemoryId;

use super::{DeviceCapacity, PrefillStreams, StreamedPlacement};
use crate::budget::{MemoryLimits, PlacementRequest};
use crate::lia::OffloadVector;
use crate::machine::find_bundled as known_machine;
use crate::policy::{
    DefaultTiers, Flexgen, Formats, Placement, Policy, Residency, ResidentAttention,
};
use crate::search::Estimator;
use crate::split::Split;

const HOMES: DefaultTiers = DefaultTiers { kv: MemoryId::VRAM, prefill_hidden: MemoryId::VRAM };
const PLENTY_BYTES: u64 = 1 << 50;

/// A model and a shape to be placed on a machine with ample host memory.
struct Case {
    config: ModelConfig,
    formats: Formats,
    batches: (u16, u16),
    prompt: u32,
    prefill_chunk: Option<u32>,
    scratch: Option<DeviceScratch>,
}

impl Case {
    fn of(model: &str, layers: Option<usize>, batches: (u16, u16), prompt: u32) -> Case {
        let mut config = find_known(model).expect("known").config;
        config.num_layers = layers.unwrap_or(config.num_layers);
        let formats = Formats::plain(&config);
        Case { config, formats, batches, prompt, prefill_chunk: None, scratch: None }
    }

    fn small(batches: (u16, u16), prompt: u32) -> Case {
        let mut case = Case::of("opt-125m", Some(5), batches, prompt);
        case.config.vocab_size = 1024;
        case.formats = Formats::plain(&case.config);
        case
    }

    fn compressed(mut self) -> Case {
        let weights = WeightFormats::with_layers(&self.config, WeightFormat::Grouped(Grouped::W4));
        self.formats = Formats { weights, kv: KvFormat::Four, kv_select: None };
        self
    }

    fn with_estimator(&self, vram_bytes: u64, then: impl FnOnce(&Estimator<'_>)) {
        let limits = MemoryLimits {
            dram_bytes: PLENTY_BYTES,
            vram_bytes: Some(vram_bytes),
            vram_is_dram: false,
            slow_tier_bytes: MemoryLimits::NO_SLOW_TIER,
            device_scratch: self.scratch,
        };
        let pricing = &known_machine("ryzen7950x-a4000").expect("there").expect("valid");
        let request = &PlacementRequest {
            config: &self.config,
            placement: &Placement::from_policy(Policy::GpuOnly),
            formats: &self.formats,
            fuse_attention: true,
            dtype: Dtype::Bf16,
            max_prompt: self.prompt,
            shared_prompt: 0,
            max_context: self.prompt + 32,
            max_new: 32,
            logprobs: 0,
            prefill_chunk: self.prefill_chunk,
            storage: None,
            limits: &limits,
            routing: None,
        };
        let (batches, batch_size) = self.batches;
        let has_small_streams = false;
        let tiers = HOMES;
        then(&Estimator { request, batches, batch_size, pricing, tiers, has_small_streams });
    }
}

/// Returns some placements of every policy that leaves something open, with every tier of caches;
/// half of them unless all cases run (`make fuzz`).
fn placements() -> Vec<Placement> {
    let cut = |order| Some(Chunking { order, chunks: 4 });
    let split = |start, end, chunking| Policy::TwoSplit { split: Split { start, end }, chunking };
    let vectors = |prefill, decode| Policy::Lia { prefill, decode, spread: false };
    let policies = [
        split(0, 0, None),
        split(0, 4, None),
        split(3, 10, None),
        split(4, 7, None),
        split(3, 6, cut(ChunkOrder::Scores)),
        split(5, 10, cut(ChunkOrder::Attention)),
        Policy::OneSplit { start: 8, chunking: None },
        vectors(OffloadVector::FULL_GPU, OffloadVector::NAMED[1]),
        vectors(OffloadVector([true, false, false, true, false, false]), OffloadVector::FULL_CPU),
        Policy::Flexgen(Flexgen { spread: false, cpu_attention: false }),
        Policy::Flexgen(Flexgen { spread: true, cpu_attention: true }),
    ];
    let mut all = Vec::new();
    for policy in policies {
        let prefills: &[bool] = match policy {
            Policy::Lia { .. } | Policy::Flexgen(_) => &[false],
            _ => &[false, true],
        };
        for (kv, device_batches) in [(MemoryId::DRAM, 0), (MemoryId::VRAM, 0), (MemoryId::DRAM, 1)]
        {
            all.extend(prefills.iter().map(|prefill_on_cpu| Placement {
                prefill_on_cpu: *prefill_on_cpu,
                kv: Some(kv),
                device_batches,
                ..Placement::from_policy(policy)
            }));
        }
    }
    let runs_all_cases = std::env::var_os("TANDEM_FUZZ_CASES").is_some();
    let sampled = all.into_iter().enumerate();
    let sampled = sampled.filter(|(index, _)| runs_all_cases || (index + index / 2) % 2 == 0);
    sampled.map(|(_, placement)| placement).collect()
}

fn kinds() -> impl Iterator<Item = (ResidentAttention, bool)> {
    ResidentAttention::ALL.into_iter().flat_map(|kind| [(kind, false), (kind, true)])
}

/// Returns the device memory of a placement with the streams that need the minimum, computed
/// independently.
fn least_bytes(
    room: &DeviceCapacity<'_>,
    streamed: &StreamedPlacement,
    residency: &Residency,
) -> u64 {
    let PlacementRequest { config, limits, .. } = *room.estimator.request;
    let of_shape = |shape| {
        let (map, shape) = room.map_and_shape(streamed, residency, shape);
        let taken = footprint(config, &shape, &map, limits.device_scratch).expect("compiles");
        taken.device_bytes + taken.device_scratch_bytes
    };
    (0..streamed.shapes.len()).map(of_shape).min().expect("a shape")
}

/// Checks that the capacity is exact to the byte for every number of resident layers.
fn is_known_to_the_byte(case: &Case) {
    case.with_estimator(PLENTY_BYTES, |estimator| {
        let mut room = DeviceCapacity::new(estimator, PLENTY_BYTES);
        let layers = estimator.request.config.num_layers;
        for placement in placements() {
            let streamed = room.streamed(&placement);
            for (attention, head) in kinds() {
                for count in 0..=layers {
                    let residency = streamed.residency(count, layers, attention, head);
                    let bytes = least_bytes(&room, &streamed, &residency);
                    let mut has_room = |vram_bytes| {
                        room.vram_bytes = vram_bytes;
                        room.has_capacity(&streamed, &residency, PrefillStreams::Any)
                            .expect("compiles")
                    };
                    let what = format!("{bytes} {placement:?} {residency:?}");
                    assert!(has_room(bytes), "{what}");
                    assert!(bytes == 0 || !has_room(bytes - 1), "{what}");
                }
            }
        }
    });
}

#[test]
fn room_is_known_to_the_byte() {
    is_known_to_the_byte(&Case::small((2, 5), 24));
    is_known_to_the_byte(&Case::small((1, 3), 600).compressed());
}

#[test]
fn room_is_known_to_the_byte_beside_what_a_device_needs() {
    // A part for each stream, and a part that programs share.
    let scratch: DeviceScratch = |work| {
        let mut streams = BTreeSet::new();
        for program in &work.programs {
            streams.extend(program.instructions.iter().filter_map(|instruction| {
                let Instruction::Compute(compute) = instruction else { return None };
                Some((program.id, compute.at.batch, compute.at.stream))
            }));
        }
        let rows = work.programs.iter().map(|program| program.shape.stream_rows).max();
        512 * streams.len() as u64 + 4096 * u64::from(rows.unwrap_or(0))
    };
    is_known_to_the_byte(&Case { scratch: Some(scratch), ..Case::small((2, 5), 300) });
}

#[test]
fn room_is_known_to_the_byte_where_layers_are_in_different_formats() {
    let mut case = Case::small((1, 4), 24);
    let w4 = WeightFormats::with_layers(&case.config, WeightFormat::Grouped(Grouped::W4));
    for layer in [1, 4] {
        case.formats.weights.layers[layer].clone_from(&w4.layers[layer]);
    }
    is_known_to_the_byte(&case);
}

#[test]
fn room_is_known_to_the_byte_where_layers_have_windows() {
    let mut case = Case::of("gemma-3-1b", Some(7), (2, 4), 600);
    case.config.vocab_size = 1024;
    case.formats = Formats::plain(&case.config);
    assert_eq!(case.config.layers.windows_below(632), [512]);
    is_known_to_the_byte(&case);
}

/// Caches in device memory would have to be copied back to a CPU that computes chunks of prompts.
#[test]
fn what_cannot_compute_given_chunks_has_no_room() {
    let case = Case { prefill_chunk: Some(16), ..Case::small((2, 5), 24) };
    case.with_estimator(PLENTY_BYTES, |estimator| {
        let room = DeviceCapacity::new(estimator, PLENTY_BYTES);
        let split = Policy::TwoSplit { split: Split { start: 3, end: 10 }, chunking: None };
        let in_vram = Placement { kv: Some(MemoryId::VRAM), ..Placement::from_policy(split) };
        for (prefill_on_cpu, most) in [(false, 4), (true, 0)] {
            let streamed = room.streamed(&Placement { prefill_on_cpu, ..in_vram.clone() });
            let kind = ResidentAttention::WithKv;
            assert_eq!(
                room.max_resident_layers(&streamed, kind, true, PrefillStreams::Any)
                    .expect("compiles"),
                most
            );
            let all = streamed.residency(5, 5, kind, true);
            assert!(room.has_capacity(&streamed, &all, PrefillStreams::Any).expect("compiles"));
        }
    });
}

#[test]
fn as_many_layers_stay_as_fit() {
    let cases = [
        ("ryzen7950x-a4000", Case::of("opt-30b", None, (2, 25), 512)),
        ("ryzen7950x-a4000", Case::of("llama-2-34b", None, (1, 16), 1024).compressed()),
        ("spr-a100", Case::of("opt-66b", None, (2, 16), 64)),
    ];
    for (machine, case) in cases {
        let machine = known_machine(machine).expect("there").expect("valid");
        case.with_estimator(machine.vram_bytes(), |estimator| {
            let Estimator { request, batches, batch_size, .. } = *estimator;
            let room = DeviceCapacity::new(estimator, machine.vram_bytes());
            let layers = request.config.num_layers;
            let mut some = 0;
            for placement in placements() {
                let streamed = room.streamed(&placement);
                for (attention, head) in kinds() {
                    let most = |streams| {
                        room.max_resident_layers(&streamed, attention, head, streams)
                            .expect("compiles")
                    };
                    let (most, usual) = (most(PrefillStreams::Any), most(PrefillStreams::Usual));
                    assert!(usual <= most);
                    some += usize::from(most > 0);
                    let fits = |count| {
                        let residency = streamed.residency(count, layers, attention, head);
                        let placement = &Placement { residency, ..placement.clone() };
                        let request = PlacementRequest { placement, ..*request };
                        request.fits(batches, batch_size).expect("compiles")
                    };
                    let what = format!("{most} {attention:?} {head} {placement:?}");
                    assert!(most == 0 || fits(most), "{what}");
                    assert!(most + 1 >= layers || !fits(most + 1), "{what}");
                }
            }
            assert!(some > 0);
        });
    }
}
