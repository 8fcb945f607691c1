//! `--compare A,B`: compares a model and a workload on described machines, each also with twice as
//! much of each of its resources.

mod row;
mod show;

use planner::machine::{Machine, Resource};
use shm::sync::{AtomicUsize, Ordering};

use crate::cli::request::PlanRequest;
use engine::launch::LaunchError;
use row::MachineRow;
use session::argument_error::ArgumentError;
use session::interrupt::Interrupt;
use session::machine_plan::{load_machine, open};
use session::progress_reporter::ProgressReporter;
use session::request::{PlanWorkload, Verbosity};
use show::Comparison;

/// Returns the comparison as text or JSON.
///
/// # Errors
/// A model or machine that does not exist, a workload that fits none of the machines, or an
/// interrupt.
pub(super) fn plan_comparison(
    names: &[String],
    workload: &PlanWorkload,
    request: &PlanRequest,
    interrupt: &Interrupt,
) -> anyhow::Result<String> {
    let machines: Vec<Machine> =
        names.iter().map(|name| load_machine("--compare", name)).collect::<Result<_, _>>()?;
    let labels = unique_labels(names, &machines)?;
    let model = open(workload)?;
    let count_resources = |machine: &Machine| {
        Resource::ALL.iter().filter(|resource| machine.has_resource(**resource)).count()
    };
    let searches: usize = machines.iter().map(|machine| 1 + count_resources(machine)).sum();
    let reporter = ProgressReporter::start("planning", Verbosity::Progress);
    let done = AtomicUsize::new(0);
    let mut rows = Vec::new();
    for (label, machine) in labels.into_iter().zip(machines) {
        if interrupt.is_requested() {
            return Err(LaunchError::Interrupted.into());
        }
        let name = label.clone();
        let report = |done: usize| reporter.update(&name, Some(done as f64 / searches as f64));
        report(done.load(Ordering::Relaxed));
        let count = || report(1 + done.fetch_add(1, Ordering::Relaxed));
        rows.push(MachineRow::search(label, &machine, workload, &model.config, count));
    }
    drop(reporter);
    let comparison = Comparison { model: &model.config.name, workload, rows: &rows };
    if rows.iter().all(|row| row.best.is_err()) {
        anyhow::bail!("{}", comparison.unplanned_machines().join(". "));
    }
    match request.json {
        true => Ok(serde_json::to_string_pretty(&comparison.json())? + "\n"),
        false => Ok(comparison.text()),
    }
}

/// Returns the name of each machine, followed by the argument that specified it if the name is not
/// unique.
///
/// # Errors
/// An argument that is given twice.
fn unique_labels(names: &[String], machines: &[Machine]) -> Result<Vec<String>, ArgumentError> {
    let mut labels = Vec::new();
    for (index, (name, machine)) in names.iter().zip(machines).enumerate() {
        if names[..index].contains(name) {
            return Err(ArgumentError(format!(
                "--compare names {name} twice; leave one of them out"
            )));
        }
        let same_name = machines.iter().filter(|other| other.name == machine.name).count();
        labels.push(match same_name {
            1 => machine.name.clone(),
            _ => format!("{} ({name})", machine.name),
        });
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use planner::machine::{Machine, find_bundled};

    use super::unique_labels;

    fn named(name: &str) -> Machine {
        let machine = find_bundled("spr-a100").expect("a machine").expect("a valid file");
        Machine { name: name.to_owned(), ..machine }
    }

    #[test]
    fn machines_with_the_same_name_are_told_apart() {
        let names = ["a.toml", "b.toml", "c.toml"].map(str::to_owned);
        let machines = [named("one"), named("two"), named("one")];
        let labels = unique_labels(&names, &machines).expect("told apart");
        assert_eq!(labels, ["one (a.toml)", "two", "one (c.toml)"]);
    }

    #[test]
    fn a_machine_that_is_named_twice_is_refused() {
        let names = ["a.toml", "b.toml", "a.toml"].map(str::to_owned);
        let machines = [named("one"), named("two"), named("one")];
        let refusal = unique_labels(&names, &machines).expect_err("refused").to_string();
        assert!(refusal.contains("a.toml twice"), "{refusal}");
    }
}
