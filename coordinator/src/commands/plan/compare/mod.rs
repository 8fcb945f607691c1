//! `--compare A,B`: compares a model and a workload on described machines, each also with twice as
//! much of each of its resources.

mod row;
mod show;

use planner::machine::{Machine, Resource};
use shm::sync::{AtomicUsize, Ordering};

use crate::cli::request::{Described, PlanRequest, Verbosity};
use crate::engine::launch::LaunchError;
use crate::interrupt::Interrupt;
use crate::setup::described::{machine, open};
use crate::setup::progress_reporter::ProgressReporter;
use crate::setup::usage::Usage;
use row::Row;
use show::Comparison;

/// Returns the comparison as text or JSON.
///
/// # Errors
/// A model or machine that does not exist, a workload that fits none of the machines, or an
/// interrupt.
pub(super) fn plan(
    names: &[String],
    described: &Described,
    request: &PlanRequest,
    interrupt: &Interrupt,
) -> anyhow::Result<String> {
    let machines: Vec<Machine> =
        names.iter().map(|name| machine("--compare", name)).collect::<Result<_, _>>()?;
    let labels = labels(names, &machines)?;
    let opened = open(described)?;
    let has = |machine: &Machine| Resource::ALL.iter().filter(|one| machine.has(**one)).count();
    let searches: usize = machines.iter().map(|machine| 1 + has(machine)).sum();
    let reporter = ProgressReporter::begin("planning", Verbosity::Progress);
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
        rows.push(Row::of(label, &machine, described, &opened.config, count));
    }
    drop(reporter);
    let comparison = Comparison { model: &opened.config.name, described, rows: &rows };
    if rows.iter().all(|row| row.best.is_err()) {
        anyhow::bail!("{}", comparison.refusals().join(". "));
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
fn labels(names: &[String], machines: &[Machine]) -> Result<Vec<String>, Usage> {
    let mut labels = Vec::new();
    for (place, (name, machine)) in names.iter().zip(machines).enumerate() {
        if names[..place].contains(name) {
            return Err(Usage(format!("--compare names {name} twice; leave one of them out")));
        }
        let alike = machines.iter().filter(|other| other.name == machine.name).count();
        labels.push(match alike {
            1 => machine.name.clone(),
            _ => format!("{} ({name})", machine.name),
        });
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use planner::machine::{Machine, known};

    use super::labels;

    fn named(name: &str) -> Machine {
        let machine = known("spr-a100").expect("a machine").expect("a valid file");
        Machine { name: name.to_owned(), ..machine }
    }

    #[test]
    fn machines_with_the_same_name_are_told_apart() {
        let names = ["a.toml", "b.toml", "c.toml"].map(str::to_owned);
        let machines = [named("one"), named("two"), named("one")];
        let labels = labels(&names, &machines).expect("told apart");
        assert_eq!(labels, ["one (a.toml)", "two", "one (c.toml)"]);
    }

    #[test]
    fn a_machine_that_is_named_twice_is_refused() {
        let names = ["a.toml", "b.toml", "a.toml"].map(str::to_owned);
        let machines = [named("one"), named("two"), named("one")];
        let refusal = labels(&names, &machines).expect_err("refused").to_string();
        assert!(refusal.contains("a.toml twice"), "{refusal}");
    }
}
