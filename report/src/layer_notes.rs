//! Description of a model's layers, if these are of several kinds or have experts.

use std::collections::BTreeSet;

use model::config::ModelConfig;
use model::ops::Kv;
use program::ir::Instruction;
use program::plan::Plan;
use serde::Serialize;

/// Experts of a model, and how many of them a decode step of a batch is expected to use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ExpectedExperts {
    count: usize,
    per_token: usize,
    /// Expected number of distinct experts of a layer that a full batch uses, as the map counts on.
    expected_of_batch: f64,
}

impl ExpectedExperts {
    /// Returns the experts that a full batch uses; `None` for a model without experts.
    pub fn for_plan(plan: &Plan) -> Option<ExpectedExperts> {
        plan.config.experts.map(|experts| ExpectedExperts {
            count: experts.count,
            per_token: experts.per_token,
            expected_of_batch: plan
                .map
                .routing
                .expected_distinct(&experts, plan.shape.batch_size.into()),
        })
    }
}

/// Returns lines about the layers; empty if these are dense and attend to all positions.
pub(crate) fn layer_notes(plan: &Plan) -> String {
    let mut text = window_note(&plan.config, plan.shape.max_context as usize);
    text += &state_note(&plan.config);
    if let Some(experts) = ExpectedExperts::for_plan(plan) {
        let ExpectedExperts { count, per_token, expected_of_batch } = experts;
        let reason = match plan.map.routing.is_even() {
            true => "if all are as likely",
            false => "as counted in --routing",
        };
        text += &format!(
            "a row goes to {per_token} of a layer's {count} experts, a batch of {} to \
             {expected_of_batch:.0} of them {reason}; times count on that\n",
            plan.shape.batch_size
        );
        text += &routed_reads_note(plan);
    }
    text
}

/// Returns a line about reads of experts from drives in decode; empty if there are none.
fn routed_reads_note(plan: &Plan) -> String {
    let reads = plan.programs.last().into_iter().flat_map(|program| &program.lanes);
    let reads = reads.flat_map(|list| &list.instructions).filter_map(|work| match work {
        Instruction::Read(read) if read.op.is_expert() => Some(read),
        _ => None,
    });
    let layers = |is_routed: bool| {
        let of_kind = reads.clone().filter(|read| read.routing.is_some() == is_routed);
        of_kind.map(|read| read.at.layer).collect::<BTreeSet<_>>().len()
    };
    let (routed, whole) = (layers(true), layers(false));
    let cached = match plan.map.expert_slots {
        0 => String::new(),
        slots => {
            let pinned = match plan.map.pinned_experts.len() {
                0 => String::new(),
                pinned => format!(", {pinned} of them from the start"),
            };
            format!("; {slots} of these stay in memory for later steps{pinned}")
        }
    };
    match (routed, whole) {
        (0, 0) => String::new(),
        (0, _) => format!("a decode step reads all experts of {whole} layers from drives\n"),
        (_, _) => format!(
            "a decode step reads the experts that its rows go to from drives, in {routed} \
             layers{cached}\n"
        ),
    }
}

/// Returns a line about the attention windows that are shorter than the longest sequence.
fn window_note(config: &ModelConfig, longest: usize) -> String {
    let mut windows: Vec<(usize, usize)> = Vec::new();
    let all = (0..config.num_layers).filter_map(|layer| config.layers.kind(layer).window);
    for window in all.filter(|window| *window < longest) {
        match windows.iter_mut().find(|(known, _)| *known == window) {
            Some((_, count)) => *count += 1,
            None => windows.push((window, 1)),
        }
    }
    let notes = windows.iter().map(|(window, count)| {
        format!("{count} of {} layers attend to {window} positions at most", config.num_layers)
    });
    let listed: Vec<String> = notes.collect();
    match listed.is_empty() {
        true => String::new(),
        false => format!("{}; times are the mean of all layers\n", listed.join(", ")),
    }
}

/// Returns a line about the recurrent states that layers keep of a sequence.
fn state_note(config: &ModelConfig) -> String {
    let states = (0..config.num_layers).filter_map(|layer| {
        let state = |kv| config.state_bytes(config.layers.kind(layer), kv);
        Some(state(Kv::K)? + state(Kv::V)?)
    });
    let states: Vec<usize> = states.collect();
    if states.is_empty() {
        return String::new();
    }
    let (count, sequence_bytes) = (states.len(), states.iter().sum::<usize>());
    format!(
        "{count} of {} layers keep a state instead of a cache, {:.1} MB of a sequence together; \
         their operations go where those in their places go\n",
        config.num_layers,
        sequence_bytes as f64 / 1e6
    )
}

#[cfg(test)]
mod tests {
    use model::known::find_known;

    use super::window_note;

    #[test]
    fn windows_are_said_with_their_layers() {
        let note = |name: &str| window_note(&find_known(name).expect("known").config, 2048);
        assert_eq!(
            note("gemma-3-12b"),
            "40 of 48 layers attend to 1024 positions at most; times are the mean of all layers\n"
        );
        assert_eq!((note("opt-30b"), note("phi-4-mini")), (String::new(), String::new()));
    }
}
