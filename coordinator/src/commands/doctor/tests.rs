//! The doctor on a simulated machine made of files, and on one without any.

use std::path::Path;

use super::{Root, Section, disks, examine, format_size, memory, show};

/// Creates a folder that contains these files.
fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (path, text) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
        std::fs::write(path, text).expect("writable");
    }
    folder
}

fn costs(findings: &[super::Finding], name: &str) -> Option<String> {
    findings.iter().find(|finding| finding.name == name).expect(name).costs.clone()
}

#[test]
fn files_of_the_system_become_findings() {
    let folder = machine(&[
        ("proc/meminfo", "MemTotal:  1048576 kB\nHugetlb:   2048 kB\n"),
        ("proc/mounts", "/dev/sda1 /nowhere-at-all ext4 rw 0 0\n"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
        ("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [within_size] never\n"),
        ("sys/block/sda/size", "2097152\n"),
        ("sys/block/sda/queue/rotational", "1\n"),
        ("sys/block/nvme0n1/size", "4194304\n"),
        ("sys/block/nvme0n1/device/model", "FAST 1\n"),
        ("sys/block/nvme0n1/queue/rotational", "0\n"),
        ("sys/block/loop0/size", "8\n"),
        ("sys/block/sdb/size", "0\n"),
    ]);
    let root = Root(folder.path().to_owned());
    let found = memory::findings(&root);
    assert_eq!(found[0].shown, "1.0 GiB");
    assert!(costs(&found, "transparent_huge_pages").is_some());
    assert!(costs(&found, "shared_huge_pages").is_none());
    let reserved = found.iter().find(|finding| finding.name == "hugetlb_bytes").expect("pages");
    assert_eq!(reserved.value, 2 << 20);
    let found = disks::findings(&root);
    let labels: Vec<&str> = found.iter().map(|finding| finding.label.as_str()).collect();
    assert_eq!(labels, ["nvme0n1", "sda", "NVMe drives"]);
    assert_eq!(found[0].value["model"], "FAST 1");
    assert_eq!(found[0].value["nvme"], true);
    assert_eq!(found[1].value["mounts"][0]["at"], "/nowhere-at-all");
    assert!(found[1].value["mounts"][0]["free_bytes"].is_null());
    assert!(costs(&found, "nvme").is_none());
}

#[test]
fn a_system_that_says_nothing_is_no_failure() {
    let folder = machine(&[]);
    let sections = examine(folder.path());
    let text = show::text(&sections);
    assert!(text.contains("unknown") && text.contains("not in this kernel"), "{text}");
    let nvme = sections.iter().find(|section| section.name == "disks").expect("disks");
    assert!(costs(&nvme.findings, "nvme").is_some_and(|costs| costs.contains("staged")));
}

#[test]
fn every_finding_of_this_machine_is_told_in_both_forms() {
    let sections: Vec<Section> = examine(Path::new("/"));
    let text = show::text(&sections);
    let json: serde_json::Value =
        serde_json::from_str(&show::json(&sections).expect("JSON")).expect("JSON");
    for (section, written) in sections.iter().zip(json["sections"].as_array().expect("sections")) {
        assert_eq!(written["name"], section.name);
        let all = written["findings"].as_array().expect("findings");
        assert!(!all.is_empty() && all.len() == section.findings.len(), "{written}");
        for finding in &section.findings {
            assert!(text.contains(&finding.label), "{}", finding.label);
            if let Some(costs) = &finding.costs {
                assert!(text.contains(costs) && !costs.ends_with('.'), "{costs}");
            }
        }
    }
}

#[test]
fn sizes_have_the_largest_unit_that_fits() {
    assert_eq!(format_size(3 << 40), "3.0 TiB");
    assert_eq!(format_size(1 << 30), "1.0 GiB");
    assert_eq!(format_size(8 << 20), "8.0 MiB");
    assert_eq!(format_size(512), "0.5 KiB");
}
