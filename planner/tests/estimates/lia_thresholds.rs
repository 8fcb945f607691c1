//! LIA §7.1 and fig. 9: the points at which the best vector changes, on LIA's own machine.

use std::collections::BTreeSet;

use model::config::{Dtype, ModelConfig};
use model::known::find_known as model;
use planner::lia::{LiaStage, LiaWorkload, OffloadVector, best_vector, rank_vectors};
use planner::machine::{Machine, find_bundled};

fn spr_a100() -> Machine {
    find_bundled("spr-a100").expect("a machine").expect("a valid file")
}

fn winner(
    machine: &Machine,
    config: &ModelConfig,
    stage: LiaStage,
    batch: u32,
    length: u32,
) -> OffloadVector {
    let case = LiaWorkload { batch, length, dtype: Dtype::Bf16, resident: false };
    best_vector(machine, config, stage, &case).expect("rates").0
}

/// "The transition between these two regions is approximately defined by BL = 850" (prefill), "when
/// B is less than 858 all sublayers are offloaded to the CPU" (decode).
#[test]
fn opt_175b_changes_its_vector_near_850_and_858() {
    let (machine, config) = (spr_a100(), model("opt-175b").expect("known").config);
    let lengths = [32u32, 64, 128, 256, 512, 1024, 2016];

    let (mut last_cpu, mut first_gpu) = (0, u32::MAX);
    let mut winners = BTreeSet::new();
    for length in (32..=2016).step_by(62) {
        for batch in 1..=1024 {
            let vector = winner(&machine, &config, LiaStage::Prefill, batch, length);
            winners.insert(("prefill", vector));
            match vector {
                OffloadVector::FULL_CPU => last_cpu = last_cpu.max(batch * length),
                _ => first_gpu = first_gpu.min(batch * length),
            }
        }
    }
    let product = f64::from(last_cpu + first_gpu) / 2.0;
    println!(
        "prefill: all CPU up to B x L = {last_cpu}, all GPU from {first_gpu}; LIA 850, error \
         {:+.1}%",
        (product / 850.0 - 1.0) * 100.0
    );
    assert!((product / 850.0 - 1.0).abs() < 0.15, "{product}");

    let mut turns = Vec::new();
    for length in lengths {
        let of = |batch| winner(&machine, &config, LiaStage::Decode, batch, length);
        winners.extend((1..=1024).map(|batch| ("decode", of(batch))));
        let turn =
            (1..=1024).find(|batch| of(*batch) != OffloadVector::FULL_CPU).expect("it turns");
        assert_eq!(of(turn + 8), OffloadVector::PARTIAL_CPU);
        assert_eq!(of(1024), OffloadVector::PARTIAL_CPU);
        turns.push(turn);
    }
    println!("decode: partial from B = {turns:?} for L = {lengths:?}");
    let turn = f64::from(turns[0]);
    println!("LIA 858, error {:+.1}%", (turn / 858.0 - 1.0) * 100.0);
    assert!((turn / 858.0 - 1.0).abs() < 0.15, "{turn}");
    // "Determined by B, independent of L."
    assert!(turns.iter().all(|other| *other == turns[0]), "{turns:?}");

    println!("winners: {winners:?}");
    let others: Vec<_> =
        winners.iter().filter(|(_, vector)| !OffloadVector::NAMED.contains(vector)).collect();
    assert!(others.is_empty(), "{others:?}");
}

/// Strictly, other vectors win at the threshold itself: in decode the CPU may keep QKV for a few
/// values of B, which gains a ten-thousandth of the latency.
#[test]
fn between_the_named_policies_others_win_by_next_to_nothing() {
    let (machine, config) = (spr_a100(), model("opt-175b").expect("known").config);
    for stage in [LiaStage::Prefill, LiaStage::Decode] {
        for length in [32, 512, 2016] {
            let mut strict = Vec::new();
            for batch in 1..=1024 {
                let case = LiaWorkload { batch, length, dtype: Dtype::Bf16, resident: false };
                let ranking = rank_vectors(&machine, &config, stage, &case).expect("rates");
                assert_eq!(ranking.len(), 64);
                let named = ranking
                    .iter()
                    .find(|(vector, _)| OffloadVector::NAMED.contains(vector))
                    .expect("3");
                if named != &ranking[0] {
                    let gain = named.1 / ranking[0].1 - 1.0;
                    assert!(gain < 5e-4, "{stage:?} {batch}x{length}: {gain}");
                    strict.push((batch, ranking[0].0));
                }
            }
            println!("{stage:?}, L = {length}: strictly others at {strict:?}");
            assert!(strict.len() <= 4, "{strict:?}");
        }
    }
}

/// Equal rates, but with the bus's own data rate for the link: shows the effect of choosing a
/// measured link rate.
#[test]
fn a_faster_link_turns_earlier() {
    let (mut machine, config) = (spr_a100(), model("opt-175b").expect("known").config);
    let turn = |machine: &Machine| {
        (1..=1024).find(|b| {
            winner(machine, &config, LiaStage::Decode, *b, 512) != OffloadVector::FULL_CPU
        })
    };
    let measured = turn(&machine).expect("it turns");
    machine.link.h2d_gbps = 31.5;
    machine.link.d2h_gbps = 31.5;
    let nominal = turn(&machine).expect("it turns");
    println!(
        "decode turns at B = {measured} with the measured link, {nominal} with the bus's rate"
    );
    assert!(nominal < measured);
}
