//! The comparison of described machines, as text or JSON.

use std::fmt::Write;

use planner::machine::{OperatingCosts, Resource};
use serde_json::{Value, json};

use super::row::{BestPlan, MachineRow};
use report::plain_table::{plain_table, right_aligned};
use session::request::PlanWorkload;

/// Columns before those for twice a resource.
const COLUMNS: [&str; 7] =
    ["machine", "batches", "policy", "resident", "tokens/s", "step ms", "bottleneck"];
const NONE: &str = "-";

/// Several machines with the same workload.
pub(super) struct Comparison<'a> {
    pub(super) model: &'a str,
    pub(super) workload: &'a PlanWorkload,
    pub(super) rows: &'a [MachineRow],
}

impl Comparison<'_> {
    /// Returns the comparison as text.
    pub(super) fn text(&self) -> String {
        let PlanWorkload { prompt_len, gen_len, .. } = self.workload;
        let mut text = format!("{} · {prompt_len} + {gen_len} tokens · predicted\n", self.model);
        let _ = writeln!(text, "{}", self.table());
        text += "2x: tokens/s with twice as much of the resource and all else unchanged\n";
        text += "bottleneck: the lane that is busy for most of a decode step, and its share of \
                 the step\n";
        if self.has_running() {
            text += "kWh, USD: per million new tokens, under constant load\n";
        }
        for row in self.rows {
            if let Ok(BestPlan { note: Some(note), .. }) = &row.best {
                let _ = writeln!(text, "{}: {note}", row.label);
            }
        }
        for refusal in self.unplanned_machines() {
            let _ = writeln!(text, "{refusal}.");
        }
        text
    }

    /// Returns sentences about the machines that have no plan.
    pub(super) fn unplanned_machines(&self) -> Vec<String> {
        let refusals = self.rows.iter().filter_map(|row| {
            let refusal = row.best.as_ref().err()?;
            Some(format!("{}: {}", row.label, refusal.trim_end_matches('.')))
        });
        refusals.collect()
    }

    /// Returns the resources that at least one of the machines has.
    fn resources(&self) -> impl Iterator<Item = Resource> {
        let has = |wanted: &Resource| {
            self.rows.iter().any(|row| row.doubled.iter().any(|(resource, _)| resource == wanted))
        };
        Resource::ALL.into_iter().filter(has)
    }

    fn has_running(&self) -> bool {
        self.rows.iter().any(|row| row.running.is_some())
    }

    fn table(&self) -> comfy_table::Table {
        let mut table = plain_table();
        let mut header: Vec<String> = COLUMNS.map(str::to_owned).into();
        header.extend(self.resources().map(|resource| format!("2x {}", resource.name())));
        if self.has_running() {
            header.extend(["kWh", "USD"].map(str::to_owned));
        }
        let columns = header.len();
        table.set_header(header);
        for row in self.rows {
            table.add_row(self.cells(row));
        }
        right_aligned(&mut table, 4..6);
        right_aligned(&mut table, COLUMNS.len()..columns);
        table
    }

    fn cells(&self, row: &MachineRow) -> Vec<String> {
        let best = row.best.as_ref().ok();
        let cell = |format: fn(&BestPlan) -> String| best.map_or_else(|| NONE.to_owned(), format);
        let mut cells = vec![
            row.label.clone(),
            cell(|best| best.batches.to_string()),
            cell(|best| best.policy.to_owned()),
            cell(|best| best.resident.clone().unwrap_or_else(|| NONE.to_owned())),
            cell(|best| format!("{:.2}", best.tokens_per_s)),
            cell(|best| format!("{:.1}", best.decode_step_ms)),
            cell(|best| match &best.bottleneck {
                Some((lane, share)) => format!("{lane} {:.0}%", 100.0 * share),
                None => NONE.to_owned(),
            }),
        ];
        cells.extend(self.resources().map(|resource| {
            let doubled = row.doubled.iter().find(|(other, _)| *other == resource);
            match (doubled.and_then(|(_, doubled)| doubled.as_ref()), best) {
                (Some(doubled), Some(best)) => {
                    let times = doubled.tokens_per_s / best.tokens_per_s;
                    format!("{:.2} (x{times:.2})", doubled.tokens_per_s)
                }
                (Some(doubled), None) => format!("{:.2}", doubled.tokens_per_s),
                (None, _) => NONE.to_owned(),
            }
        }));
        if self.has_running() {
            let per_million = [OperatingCosts::kwh_per_million, OperatingCosts::usd_per_million];
            cells.extend(per_million.map(|cost| match row.per_million(cost) {
                Some(value) => format!("{value:.3}"),
                None => NONE.to_owned(),
            }));
        }
        cells
    }

    /// Returns the contents of the text as JSON.
    pub(super) fn json(&self) -> Value {
        let machine = |row: &MachineRow| {
            let mut value = match &row.best {
                Ok(best) => best.json(),
                Err(_) => json!({}),
            };
            let doubled = row.doubled.iter().map(|(resource, doubled)| {
                let value = doubled.as_ref().map_or(Value::Null, BestPlan::json);
                (resource.key().to_owned(), value)
            });
            value["twice"] = Value::Object(doubled.collect());
            value["machine"] = json!(row.label);
            value["refusal"] = json!(row.best.as_ref().err());
            value["kwh_per_million_tokens"] =
                json!(row.per_million(OperatingCosts::kwh_per_million));
            value["usd_per_million_tokens"] =
                json!(row.per_million(OperatingCosts::usd_per_million));
            value
        };
        json!({
            "model": self.model,
            "prompt_len": self.workload.prompt_len,
            "gen_len": self.workload.gen_len,
            "machines": self.rows.iter().map(machine).collect::<Vec<_>>(),
        })
    }
}

impl BestPlan {
    fn json(&self) -> Value {
        let bottleneck = |(lane, share): &(String, f64)| json!({ "lane": lane, "share": share });
        json!({
            "batches": self.batches.count,
            "batch_size": self.batches.size,
            "policy": self.policy,
            "resident": self.resident,
            "tokens_per_s": self.tokens_per_s,
            "decode_step_ms": self.decode_step_ms,
            "bottleneck": self.bottleneck.as_ref().map(bottleneck),
            "note": self.note,
        })
    }
}

#[cfg(test)]
mod tests {
    use planner::machine::{OperatingCosts, Resource};
    use serde_json::json;

    use super::super::row::{BestPlan, MachineRow};
    use super::Comparison;
    use session::request::{ModelChoice, PlanWorkload};
    use session::values::{Batches, BatchesChoice};

    fn described() -> PlanWorkload {
        PlanWorkload {
            model: ModelChoice {
                name: "m".to_owned(),
                revision: None,
                dummy_weights: true,
                layers: None,
                positions: None,
            },
            dtype: model::config::Dtype::Bf16,
            compress: None,
            batches: BatchesChoice::Auto,
            prompt_len: 512,
            gen_len: 32,
            policy: planner::policy::name::PolicyName::Auto,
            chunking: None,
            routing: None,
            speculation: None,
        }
    }

    fn best(tokens_per_s: f64) -> BestPlan {
        BestPlan {
            batches: Batches { count: 2, size: 8 },
            policy: "two-split",
            resident: Some("3 layers".to_owned()),
            tokens_per_s,
            decode_step_ms: 81.25,
            bottleneck: Some(("h2d.weights".to_owned(), 0.974)),
            note: None,
        }
    }

    fn rows() -> Vec<MachineRow> {
        let twice = |link| {
            let others = [Resource::Dram, Resource::DeviceMemory];
            let mut twice = vec![(Resource::Link, link)];
            twice.extend(others.map(|resource| (resource, None)));
            twice
        };
        let running =
            OperatingCosts { watts: 1000.0, price_usd: 0.0, years: 3.0, usd_per_kwh: 0.1 };
        let first = MachineRow {
            label: "one".to_owned(),
            running: Some(running),
            best: Ok(best(40.0)),
            doubled: twice(Some(best(60.0))),
        };
        let second = MachineRow {
            label: "other".to_owned(),
            running: None,
            best: Err("nothing fits other: it has 1 GiB.".to_owned()),
            doubled: twice(Some(best(7.0))),
        };
        vec![first, second]
    }

    fn line<'a>(text: &'a str, begin: &str) -> Vec<&'a str> {
        let line = text.lines().find(|line| line.trim_start().starts_with(begin));
        line.expect("a row").split_whitespace().collect()
    }

    #[test]
    fn every_machine_has_a_row_and_one_that_has_no_plan_a_sentence() {
        let (rows, described) = (rows(), described());
        let comparison = Comparison { model: "m", workload: &described, rows: &rows };
        let text = comparison.text();
        let first = line(&text, "one");
        assert_eq!(first[1..4], ["2x8", "two-split", "3"], "{text}");
        assert_eq!(first[5..9], ["40.00", "81.2", "h2d.weights", "97%"], "{text}");
        // A million tokens take 25000 s, at 1 kW.
        assert_eq!(first[9..], ["60.00", "(x1.50)", "-", "-", "6.944", "0.694"], "{text}");
        let second = line(&text, "other ");
        assert_eq!(
            second[1..],
            ["-", "-", "-", "-", "-", "-", "7.00", "-", "-", "-", "-"],
            "{text}"
        );
        assert!(text.contains("other: nothing fits other: it has 1 GiB.\n"), "{text}");
    }

    #[test]
    fn drives_have_a_column_where_a_machine_has_any() {
        let (mut rows, described) = (rows(), described());
        rows[0].doubled.push((Resource::Drives, Some(best(44.0))));
        let comparison = Comparison { model: "m", workload: &described, rows: &rows };
        let text = comparison.text();
        assert!(text.contains("2x drives"), "{text}");
        let first = line(&text, "one");
        assert_eq!(
            first[9..],
            ["60.00", "(x1.50)", "-", "-", "44.00", "(x1.10)", "6.944", "0.694"]
        );
        let second = line(&text, "other ");
        assert_eq!(second[7..], ["7.00", "-", "-", "-", "-", "-"], "{text}");
        assert_eq!(comparison.json()["machines"][0]["twice"]["drives"]["tokens_per_s"], 44.0);
    }

    #[test]
    fn json_holds_what_is_shown() {
        let (rows, described) = (rows(), described());
        let json = Comparison { model: "m", workload: &described, rows: &rows }.json();
        let first = &json["machines"][0];
        assert_eq!((&first["batches"], &first["batch_size"]), (&json!(2), &json!(8)));
        assert_eq!(first["bottleneck"], json!({"lane": "h2d.weights", "share": 0.974}));
        assert_eq!(first["twice"]["link"]["tokens_per_s"], 60.0);
        assert_eq!((&first["twice"]["dram"], &first["refusal"]), (&json!(null), &json!(null)));
        assert!((first["kwh_per_million_tokens"].as_f64().expect("a number") - 6.944).abs() < 1e-3);
        let second = &json["machines"][1];
        assert_eq!(second["machine"], "other");
        assert!(second["refusal"].as_str().expect("a sentence").contains("nothing fits"));
        assert_eq!(second["usd_per_million_tokens"], json!(null));
    }

    #[test]
    fn without_prices_there_are_no_columns_of_them() {
        let (mut rows, described) = (rows(), described());
        rows.truncate(1);
        rows[0].running = None;
        let text = Comparison { model: "m", workload: &described, rows: &rows }.text();
        assert!(!text.contains("USD") && !text.contains("kWh"), "{text}");
    }
}
