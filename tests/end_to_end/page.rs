//! Tests of what the page of a server shows in addition to its chat: the placement of the model,
//! and the activity of its lanes.

use serde_json::{Value, json};

use crate::command::Place;
use crate::serve::Served;

/// Returns the seconds that each lane was busy.
fn lanes(served: &Served) -> Vec<(String, f64)> {
    let metrics = served.get("/metrics").1;
    let lines = metrics.lines().filter_map(|line| {
        let rest = line.strip_prefix("tandem_lane_busy_seconds_total{lane=\"")?;
        let (name, seconds) = rest.split_once("\"} ")?;
        Some((name.to_owned(), seconds.parse().ok()?))
    });
    lines.collect()
}

#[test]
fn the_placement_and_the_activity_of_lanes_are_reported() {
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 20, "ignore_eos": true});
    for (device, place, lane) in
        [("none", "on the CPU", "cpu.compute"), ("emulated", "on the device", "gpu.compute")]
    {
        let options = ["--slots", "2", "--device", device, "--policy"];
        let policy = if device == "none" { "cpu-only" } else { "gpu-only" };
        let served = Served::start(&[&options[..], &[policy]].concat());
        let (status, reply) = served.get("/placement");
        assert_eq!(status, 200, "{reply}");
        let reply: Value = serde_json::from_str(&reply).expect("JSON");
        let entries = reply["placement"].as_array().expect("entries");
        let has = |name: &str| entries.iter().any(|entry| entry["name"] == name);
        assert!(has("policy") && has(place), "{reply}");
        let before = lanes(&served);
        assert!(before.iter().any(|(name, _)| name == lane), "{before:?}");
        assert_eq!(served.post("/v1/completions", &body).0, 200);
        let after = lanes(&served);
        let busy = |lanes: &[(String, f64)]| {
            lanes.iter().find(|(name, _)| name == lane).map_or(0.0, |(_, seconds)| *seconds)
        };
        assert!(busy(&after) > busy(&before), "{before:?}, {after:?}");
        assert_eq!(served.end(), "");
    }
}

#[test]
fn the_placement_names_what_is_read_from_drives() {
    let place = Place::on_drive();
    let drive = place.path("drive").display().to_string();
    let served = Served::start(&["--slots", "2", "--nvme", &drive, "--nvme-ops", "all"]);
    let (status, reply) = served.get("/placement");
    assert_eq!(status, 200, "{reply}");
    assert!(reply.contains("read in each step") && reply.contains("from 1 drive"), "{reply}");
    assert_eq!(served.end(), "");
}
