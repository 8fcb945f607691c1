//! Amount of memory, the limit on locked memory, and the sizes of pages.

use engine::memory::available_bytes;
use rustix::process::{Resource, getrlimit};
use serde_json::Value;

use super::{Finding, Root, format_size};

pub(super) fn findings(root: &Root) -> Vec<Finding> {
    let total = root.meminfo_bytes("MemTotal");
    let mut found = vec![
        bytes_finding("total_bytes", "memory", total),
        bytes_finding("available_bytes", "available memory", Some(available_bytes())),
    ];
    found.push(memlock_finding(getrlimit(Resource::Memlock).current, total));
    found.push(transparent_finding(root));
    found.push(shared_finding(root));
    let free = root.meminfo_bytes("Hugetlb").unwrap_or(0);
    let pages = if free == 0 { "none".to_owned() } else { format_size(free) };
    found.push(Finding::new("hugetlb_bytes", "reserved huge pages", free, pages));
    found
}

fn bytes_finding(name: &'static str, label: &str, bytes: Option<u64>) -> Finding {
    let shown = bytes.map_or_else(|| "unknown".to_owned(), format_size);
    Finding::new(name, label, bytes.map_or(Value::Null, Value::from), shown)
}

/// Returns the finding for the limit on locked memory, in bytes; `None` if there is no limit.
fn memlock_finding(limit: Option<u64>, total: Option<u64>) -> Finding {
    let shown = limit.map_or_else(|| "unlimited".to_owned(), format_size);
    let value = limit.map_or_else(|| Value::from("unlimited"), Value::from);
    let is_sufficient = limit.is_none_or(|limit| total.is_some_and(|total| limit >= total));
    Finding::new("memlock", "lockable memory", value, shown).costs_unless(
        is_sufficient,
        "memory beyond this limit cannot be pinned and is copied once more on its way to a \
         device; `ulimit -l unlimited` removes the limit",
    )
}

/// Returns the choice in brackets of a file like `always [madvise] never`.
fn bracketed_choice(text: &str) -> Option<&str> {
    text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
}

fn hugepage_choice(root: &Root, file: &str) -> Option<String> {
    let text = root.text(&format!("sys/kernel/mm/transparent_hugepage/{file}"))?;
    bracketed_choice(&text).map(str::to_owned)
}

fn setting_finding(name: &'static str, label: &str, choice: Option<String>) -> Finding {
    let shown = choice.clone().unwrap_or_else(|| "not in this kernel".to_owned());
    Finding::new(name, label, choice.map_or(Value::Null, Value::from), shown)
}

fn transparent_finding(root: &Root) -> Finding {
    let choice = hugepage_choice(root, "enabled");
    let is_enabled = matches!(choice.as_deref(), Some("always" | "madvise"));
    setting_finding("transparent_huge_pages", "huge pages for private memory", choice).costs_unless(
        is_enabled,
        "without a device, weights and KV use 4 KiB pages, whose address translation slows \
         decoding by 5% or more; write madvise to /sys/kernel/mm/transparent_hugepage/enabled",
    )
}

/// Returns the finding for huge pages of shared memory. With a device, weights, KV and activations
/// on the host are shared between processes.
fn shared_finding(root: &Root) -> Finding {
    let choice = hugepage_choice(root, "shmem_enabled");
    let is_enabled = matches!(choice.as_deref(), Some("always" | "within_size" | "force"));
    setting_finding("shared_huge_pages", "huge pages for shared memory", choice).costs_unless(
        is_enabled,
        "with a device, weights and KV in host memory use 4 KiB pages, whose address translation \
         slows reading them; write within_size to \
         /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    )
}

#[cfg(test)]
mod tests {
    use super::{bracketed_choice, memlock_finding};

    #[test]
    fn a_limit_below_the_memory_costs() {
        assert!(memlock_finding(None, Some(10)).costs.is_none());
        assert!(memlock_finding(Some(10), Some(10)).costs.is_none());
        assert!(memlock_finding(Some(9), Some(10)).costs.is_some_and(|c| c.contains("ulimit")));
        assert!(memlock_finding(Some(9), None).costs.is_some());
        assert_eq!(memlock_finding(Some(8 << 20), None).shown, "8.0 MiB");
    }

    #[test]
    fn the_choice_is_in_brackets() {
        assert_eq!(bracketed_choice("always [madvise] never"), Some("madvise"));
        assert_eq!(bracketed_choice("always madvise"), None);
    }
}
