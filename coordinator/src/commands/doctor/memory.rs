//! Amount of memory, the limit on locked memory, and the sizes of pages.

use rustix::process::{Resource, getrlimit};
use serde_json::Value;

use super::{Finding, Root, size};
use crate::engine::memory::available_bytes;

pub(super) fn findings(root: &Root) -> Vec<Finding> {
    let total = root.meminfo_bytes("MemTotal");
    let mut found = vec![
        bytes("total_bytes", "memory", total),
        bytes("available_bytes", "of that available", Some(available_bytes())),
    ];
    found.push(memlock(getrlimit(Resource::Memlock).current, total));
    found.push(transparent(root));
    found.push(shared(root));
    let free = root.meminfo_bytes("Hugetlb").unwrap_or(0);
    let pages = if free == 0 { "none".to_owned() } else { size(free) };
    found.push(Finding::new("hugetlb_bytes", "reserved huge pages", free, pages));
    found
}

fn bytes(name: &'static str, label: &str, bytes: Option<u64>) -> Finding {
    let shown = bytes.map_or_else(|| "unknown".to_owned(), size);
    Finding::new(name, label, bytes.map_or(Value::Null, Value::from), shown)
}

/// Returns the finding for the limit on locked memory, in bytes; `None` if there is no limit.
fn memlock(limit: Option<u64>, total: Option<u64>) -> Finding {
    let shown = limit.map_or_else(|| "unlimited".to_owned(), size);
    let value = limit.map_or_else(|| Value::from("unlimited"), Value::from);
    let fine = limit.is_none_or(|limit| total.is_some_and(|total| limit >= total));
    Finding::new("memlock", "memory that may be locked", value, shown).costs_unless(
        fine,
        "what exceeds it cannot be pinned, so it is copied once more on its way to a device; \
         ulimit -l unlimited lifts it",
    )
}

/// Returns the choice in brackets of a file like `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

fn choice(root: &Root, file: &str) -> Option<String> {
    let text = root.text(&format!("sys/kernel/mm/transparent_hugepage/{file}"))?;
    chosen(&text).map(str::to_owned)
}

fn setting(name: &'static str, label: &str, choice: Option<String>) -> Finding {
    let shown = choice.clone().unwrap_or_else(|| "not in this kernel".to_owned());
    Finding::new(name, label, choice.map_or(Value::Null, Value::from), shown)
}

fn transparent(root: &Root) -> Finding {
    let choice = choice(root, "enabled");
    let fine = matches!(choice.as_deref(), Some("always" | "madvise"));
    setting("transparent_huge_pages", "huge pages for private memory", choice).costs_unless(
        fine,
        "without a device, weights and KV lie in 4 KiB pages, whose translation slows decoding by \
         a twentieth or more; write madvise to /sys/kernel/mm/transparent_hugepage/enabled",
    )
}

/// Returns the finding for huge pages of shared memory. With a device, weights, KV and activations
/// on the host are shared between processes.
fn shared(root: &Root) -> Finding {
    let choice = choice(root, "shmem_enabled");
    let fine = matches!(choice.as_deref(), Some("always" | "within_size" | "force"));
    setting("shared_huge_pages", "huge pages for shared memory", choice).costs_unless(
        fine,
        "with a device, weights and KV of the host lie in 4 KiB pages, whose translation slows \
         reading them; write within_size to /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    )
}

#[cfg(test)]
mod tests {
    use super::{chosen, memlock};

    #[test]
    fn a_limit_below_the_memory_costs() {
        assert!(memlock(None, Some(10)).costs.is_none());
        assert!(memlock(Some(10), Some(10)).costs.is_none());
        assert!(memlock(Some(9), Some(10)).costs.is_some_and(|c| c.contains("ulimit")));
        assert!(memlock(Some(9), None).costs.is_some());
        assert_eq!(memlock(Some(8 << 20), None).shown, "8.0 MiB");
    }

    #[test]
    fn the_choice_is_in_brackets() {
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen("always madvise"), None);
    }
}
