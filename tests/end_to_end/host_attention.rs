//! Tests of a server whose sequences belong to the device or to the host: the answers equal those
//! of the CPU, although device memory has capacity for the caches of only a tenth of the sequences.

use serde_json::Value;

use crate::serve::{Served, allocations, ask_all, bodies, expected};

fn metric(served: &Served, name: &str) -> f64 {
    let metrics = served.get("/metrics").1;
    let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    let number = line.unwrap_or_else(|| panic!("{name}: {metrics}"));
    number.parse().expect("a number")
}

fn start(policy: &str, options: &[&str]) -> Served {
    let owners = ["--device", "emulated", "--host-attention", policy];
    let sizes = ["--slots", "10", "--device-slots", "1", "--context", "96"];
    Served::start(&[&owners[..], &sizes, options].concat())
}

#[test]
fn either_owner_answers_as_a_batch_job() {
    let bodies = bodies(50);
    let expected = expected(&bodies, &[]);
    let mut moved = 0.0;
    for policy in ["neo", "apex", "fastdecode", "gpu-only", "auto"] {
        // Prompts of up to 60 tokens, in chunks of at most 22, or whole.
        for chunk in ["32", "96"] {
            let served = start(policy, &["--prefill-chunk", chunk]);
            let found = ask_all(&served, &bodies);
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found, expected, "{policy} {chunk}: {}", bodies[i]);
            }
            let pipelined = metric(&served, "tandem_iterations_pipelined_total");
            let is_needed = chunk == "32" || policy == "fastdecode";
            assert!(pipelined > 0.0 || !is_needed, "{policy} {chunk}: the host attends");
            // The measured costs of the machine determine which shapes run.
            let deferred = metric(&served, "tandem_iterations_async_total");
            assert!(deferred == 0.0 || ["apex", "auto"].contains(&policy), "{policy} {chunk}");
            moved += metric(&served, "tandem_kv_moves_to_device_total");
            assert_eq!(served.end(), "", "{policy} {chunk}");
        }
    }
    assert!(moved > 0.0, "caches came to the device");
}

#[test]
fn workers_of_owners_allocate_nothing() {
    let is_plain = |body: &Value| body.get("structured_outputs").is_none();
    let bodies: Vec<Value> = bodies(40).into_iter().filter(is_plain).collect();
    let served = start("neo", &["--prefill-chunk", "32"]);
    ask_all(&served, &bodies);
    assert_eq!(allocations(&served), 0.0);
}
