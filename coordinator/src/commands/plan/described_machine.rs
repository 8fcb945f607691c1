//! `--machine FILE.toml`: plans a model and a workload for a described machine, which need not be
//! this one.

use super::drafts::DraftsOutput;
use super::show::PlanOutput;
use super::vectors::LiaVectors;
use crate::cli::request::PlanRequest;
use session::machine_plan;
use session::machine_plan::MachinePlanner;
use session::measured_machine::MeasuredMachine;
use session::progress_reporter::ProgressReporter;
use session::request::{PlanWorkload, Verbosity};

/// Returns the plan as text or JSON.
///
/// # Errors
/// A model or machine that does not exist, or a workload that does not fit.
pub(super) fn plan_described(
    machine: &str,
    workload: &PlanWorkload,
    request: &PlanRequest,
) -> anyhow::Result<String> {
    let description = machine_plan::load_machine("--machine", machine)?;
    let machine = match &workload.speculation {
        // Steps with drafts are priced by the described rates, and those without have to be too.
        Some(_) => MeasuredMachine::without_measurements(&description),
        None => MeasuredMachine::load(description, machine, workload.policy)?,
    };
    let model = machine_plan::open(workload)?;
    let planner = MachinePlanner::new(workload, &machine, &model.config);
    let reporter = ProgressReporter::start("planning", Verbosity::Progress);
    let (chosen, note) = planner.choose_placement()?;
    let drafts = match &workload.speculation {
        Some(assumed) => {
            let found = planner.choose_drafts(&chosen, assumed)?;
            Some(DraftsOutput { assumed, chosen: &chosen, found })
        }
        None => None,
    };
    drop(reporter);
    PlanOutput {
        chosen: &chosen,
        machine: &machine.description.name,
        limits: planner.limits,
        notes: note.as_slice(),
        vectors: LiaVectors::for_plan(&chosen, &machine.description)?,
        threads: None,
        drafts,
    }
    .render(request)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use model::config::Dtype;
    use planner::policy::name::PolicyName;
    use serde_json::Value;

    use super::*;
    use crate::cli::request::{PlanSource, Template};
    use crate::commands::plan::templates;
    use session::request::ModelChoice;
    use session::values::{Batches, BatchesChoice};

    /// Returns the machine template without additional host memory.
    fn template() -> String {
        let text = templates::template_text(Template::Machine);
        let (before, tier) = text.split_once("[[tier]]\n").expect("slower memory");
        let (_, after) = tier.split_once("\n\n").expect("more");
        format!("{before}\n{after}")
    }

    /// Returns the plan of opt-1.3b for a machine with the given host memory and drives.
    fn planned(dram_gib: f64, drives: &[f64], json: bool) -> anyhow::Result<String> {
        let template = template();
        let (before, rest) = template.split_once("dram_gib = 128").expect("host memory");
        let (between, after) = rest.split_once("[[nvme]]\nread_gbps = 5.0\n").expect("a drive");
        let mut text = format!("{before}dram_gib = {dram_gib}{between}");
        for read_gbps in drives {
            writeln!(text, "[[nvme]]\nread_gbps = {read_gbps}").expect("written");
        }
        let text = format!("{text}{after}")
            .replace("os_reserve_gib = 4.0", "os_reserve_gib = 0")
            .replace("vram_gib = 16", "vram_gib = 0.5");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("machine.toml");
        std::fs::write(&path, text).expect("written");
        let machine = path.to_string_lossy().into_owned();
        let model = ModelChoice {
            name: "opt-1.3b".to_owned(),
            revision: None,
            dummy_weights: true,
            layers: Some(12),
            positions: None,
        };
        let workload = PlanWorkload {
            model,
            dtype: Dtype::Bf16,
            compress: None,
            batches: BatchesChoice::Fixed(Batches { count: 1, size: 4 }),
            prompt_len: 64,
            gen_len: 8,
            policy: PolicyName::Auto,
            chunking: None,
            routing: None,
            speculation: None,
        };
        let source =
            PlanSource::Machine { machine: machine.clone(), workload: Box::new(workload.clone()) };
        plan_described(&machine, &workload, &PlanRequest { source, json, chart: None })
    }

    #[test]
    fn what_memory_lacks_is_read_from_drives_and_said() {
        let text = planned(1.0, &[5.0, 7.0], false).expect("planned");
        let line = text.lines().find(|line| line.starts_with("read from NVMe in every step: "));
        let line = line.unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains(" of 12 layers") && line.ends_with(" GB from 2 drives"), "{line}");
        let answer: Value =
            serde_json::from_str(&planned(1.0, &[5.0, 7.0], true).expect("planned")).expect("JSON");
        let read = &answer["read_from_nvme"];
        assert_eq!((&read["drives"], &answer["note"]), (&2.into(), &Value::Null), "{read}");
        let layers = read["weights"].as_array().expect("a list").iter();
        let layers = layers.map(|reads| reads["layers"].as_array().expect("a list").len());
        assert!((2..12).contains(&layers.sum::<usize>()), "{read}");
        // 100.7 MB per layer.
        let bytes = read["bytes_per_step"].as_u64().expect("bytes");
        assert!((200_000_000..1_200_000_000).contains(&bytes), "{read}");
        assert!(line.contains(read["summary"].as_str().expect("words")), "{line}");
    }

    #[test]
    fn drives_change_nothing_where_memory_suffices() {
        let with = planned(16.0, &[5.0], false).expect("planned");
        assert_eq!(with, planned(16.0, &[], false).expect("planned"));
        assert!(!with.contains("NVMe"), "{with}");
        let refused = planned(0.3, &[5.0], false).expect_err("too little for anything");
        let refused = format!("{refused:#}");
        assert!(refused.contains("even where weights are read from storages"), "{refused}");
    }
}
