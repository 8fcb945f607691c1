//! Tests of the files that come with the project, of rejected ones, and of the tables against the
//! paper's.

use super::{Machine, bundled_names, find_bundled};

fn machine(name: &str) -> Machine {
    find_bundled(name).expect("a machine").expect("a valid file")
}

fn text() -> &'static str {
    include_str!("../../machines/ryzen7950x-a4000.toml")
}

#[test]
fn the_machines_of_the_project_are_valid() {
    for name in bundled_names() {
        assert_eq!(machine(name).name, name);
    }
    assert!(find_bundled("SPR-A100").is_some() && find_bundled("spr-b200").is_none());
}

#[test]
fn every_figure_has_a_source_above_it() {
    for name in bundled_names() {
        let path = format!("{}/machines/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).expect("a file of the project");
        let mut sourced = false;
        for line in text.lines() {
            if line.starts_with('[') || line.trim().is_empty() {
                // Each section cites the sources of its figures, unless one source is cited above
                // the section.
                sourced = sourced && line.starts_with('[');
            } else if line.starts_with('#') {
                sourced = true;
            } else {
                assert!(sourced || line.starts_with("name"), "{name}: no source for {line}");
            }
        }
    }
}

#[test]
fn every_mistake_has_its_sentence() {
    let replaced = |from: &str, to: &str| {
        assert!(text().contains(from), "{from}");
        Machine::from_toml(&text().replace(from, to)).expect_err("refused").to_string()
    };
    let cases = [
        (replaced("h2d_gbps = 24.385", ""), "missing field `h2d_gbps`"),
        (replaced("h2d_gbps = 24.385", "h2d_gbps = -1"), "more than 0"),
        (replaced("h2d_gbps = 24.385", "h2d_gbps = nan"), "link.h2d_gbps is NaN"),
        (replaced("h2d_gbps = 24.385", "h2d_gbps = inf"), "finite"),
        (replaced("h2d_gbps = 24.385", "h2d_gbps = \"fast\""), "invalid type"),
        (replaced("h2d_gbps = 24.385", "h2d_gbps = 24385000000"), "the unit is probably wrong"),
        (replaced("h2d_gbps = 24.385", "h2d_gbps = 400"), "not Gbit/s"),
        (replaced("vram_gib = 16", "vram_gib = 17179869184"), "GiB"),
        (replaced("vram_gib = 16", "vram_gib = 0"), "more than 0"),
        (replaced("vram_gib = 16", "vram_gib = 16384"), "both are in GiB"),
        (replaced("linear_tflops = 76.7", "linear_gflops = 76700"), "unknown field"),
        (replaced("name = \"ryzen7950x-a4000\"", "name = \"\""), "no name"),
        (replaced("[memory]", "[memory"), "line"),
        (replaced("decompress_overhead_ms = 5.015", "decompress_overhead_ms = -5"), "less than 0"),
        (
            replaced("[cpu.bf16]", "stage_overhead_ms = -1\n[cpu.bf16]"),
            "cpu.stage_overhead_ms is -1; it must not be less than 0",
        ),
        (replaced("read_gbps = 4.964", "read_gbps = 0.0"), "nvme[0].read_gbps"),
    ];
    for (sentence, part) in cases {
        assert!(sentence.contains(part) && !sentence.contains('\n'), "{part}: {sentence}");
    }
    let running = |fields: &str| {
        let text = format!("{}\n[running]\n{fields}", text());
        Machine::from_toml(&text).expect_err("refused").to_string()
    };
    let cases = [
        (running("watts = 300.0"), "missing field `price_usd`"),
        (running("watts = 0.0\nprice_usd = 1"), "running.watts is 0; it must be more than 0"),
        (running("watts = nan\nprice_usd = 1"), "running.watts is NaN"),
        (running("watts = 1e9\nprice_usd = 1"), "the unit is probably wrong"),
        (running("watts = 1\nprice_usd = -1"), "running.price_usd is -1; it must not be less"),
        (running("watts = 1\nprice_usd = 1\nyears = 0"), "running.years is 0; it must be more"),
        (running("watts = 1\nprice_usd = 1\nusd_per_kwh = 1000"), "running.usd_per_kwh is 1000"),
        (running("watts = 1\nprice_usd = 1\nkwh = 1"), "unknown field"),
    ];
    for (sentence, part) in cases {
        assert!(sentence.contains(part) && !sentence.contains('\n'), "{part}: {sentence}");
    }
    let missing = Machine::from_toml("name = \"x\"").expect_err("refused").to_string();
    assert!(missing.contains("missing field"), "{missing}");
}

#[test]
fn a_tier_has_a_capacity_and_two_bandwidths() {
    let with = |tiers: &str| Machine::from_toml(&format!("{}\n{tiers}", text()));
    let tier = "[[tier]]\nname = \"CXL\"\ncapacity_gib = 2\ncpu_gbps = 17\nlink_gbps = 12\n";
    let machine = with(tier).expect("read");
    assert_eq!(machine.slow_tier_bytes(), [2 << 30, 0]);
    assert_eq!(Machine::from_toml(&machine.to_toml().expect("written")), Ok(machine));
    let refused = |tiers: String| with(&tiers).expect_err("refused").to_string();
    let three = refused(tier.repeat(3));
    assert!(three.contains("there are 3 [[tier]]; a plan uses 2"), "{three}");
    let slow = refused(tier.replace("cpu_gbps = 17", "cpu_gbps = 0"));
    assert!(slow.contains("tier[0].cpu_gbps is 0; it must be more than 0"), "{slow}");
    let short = refused(tier.replace("link_gbps = 12\n", ""));
    assert!(short.contains("missing field `link_gbps`"), "{short}");
}

#[test]
fn a_price_is_spread_over_three_years_unless_said_otherwise() {
    let read = |fields: &str| {
        let text = format!("{}\n[running]\nwatts = 500\nprice_usd = 4000\n{fields}", text());
        Machine::from_toml(&text).expect("read").running.expect("given")
    };
    assert_eq!((read("").years, read("").usd_per_kwh), (3.0, 0.1));
    let given = read("years = 5\nusd_per_kwh = 0.3");
    assert_eq!((given.years, given.usd_per_kwh), (5.0, 0.3));
    assert_eq!(Machine::from_toml(text()).expect("read").running, None);
}
