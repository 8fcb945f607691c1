//! Tests of the table of registers, spills, shared memory and occupancy of every kernel
//! (`cubin/budgets.tsv`): it has all kernels, agrees with the committed cubins and the launches,
//! and linears and attention spill no registers.

mod launches;

use std::collections::BTreeMap;

use cuda_kernels::Cubin;

/// Notes of a cubin about a kernel: attributes of `.nv.info`, each with a symbol and a number.
const REGISTERS: u8 = 0x2f;
const FRAME_BYTES: u8 = 0x11;
/// Format of a note whose value has an explicit length.
const SIZED: u8 = 4;

/// Resources of a multiprocessor that a kernel takes, and the blocks that fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Usage {
    registers: u32,
    spilled_bytes: u32,
    frame_bytes: u32,
    blocks: u32,
    occupancy_percent: u32,
}

/// Returns the table by kernel and generation, for example `90`.
fn budgets() -> BTreeMap<(String, u32), Usage> {
    let text = include_str!("../cubin/budgets.tsv");
    let rows = text.lines().filter(|line| !line.starts_with('#')).skip(1);
    let found = rows.map(|row| {
        let fields: Vec<&str> = row.split('\t').collect();
        let [kernel, generation, numbers @ ..] = &fields[..] else { panic!("{row}") };
        let numbers: Vec<u32> = numbers.iter().map(|text| text.parse().expect(row)).collect();
        let [registers, stored, loaded, frame_bytes, blocks, occupancy_percent] = numbers[..]
        else {
            panic!("{row}")
        };
        let spilled_bytes = stored + loaded;
        let usage = Usage { registers, spilled_bytes, frame_bytes, blocks, occupancy_percent };
        ((kernel.to_string(), generation.parse().expect(row)), usage)
    });
    found.collect()
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes")))
}

fn name_at(names: &[u8], at: usize) -> &str {
    let name = names[at..].split(|byte| *byte == 0).next().expect("a name");
    std::str::from_utf8(name).expect("a name")
}

/// Sections of an ELF file by name.
fn sections(image: &[u8]) -> BTreeMap<&str, &[u8]> {
    let (first, step, count) = (u32_at(image, 40), u16_at(image, 58), u16_at(image, 60));
    let header = |index: usize| &image[first + index * step..][..step];
    let content = |header: &[u8]| (u32_at(header, 24), u32_at(header, 32));
    let (names, size) = content(header(u16_at(image, 62)));
    let names = &image[names..][..size];
    let found = (0..count).filter_map(|index| {
        let (from, size) = content(header(index));
        Some((name_at(names, u32_at(header(index), 0)), image.get(from..from + size)?))
    });
    found.collect()
}

/// Returns the numbers of one attribute of a cubin, by kernel.
fn noted(image: &[u8], attribute: u8) -> BTreeMap<String, u32> {
    let sections = sections(image);
    let (notes, symbols, names) = (sections[".nv.info"], sections[".symtab"], sections[".strtab"]);
    let mut found = BTreeMap::new();
    let mut at = 0;
    while at < notes.len() {
        let (form, kind, size) = (notes[at], notes[at + 1], u16_at(notes, at + 2));
        at += 4;
        if form != SIZED {
            continue;
        }
        if kind == attribute {
            // Symbols have 24 bytes each.
            let name = name_at(names, u32_at(symbols, 24 * u32_at(notes, at)));
            found.insert(name.to_owned(), u32_at(notes, at + 4) as u32);
        }
        at += size;
    }
    found
}

fn generation(cubin: &Cubin) -> u32 {
    let (major, minor) = cubin.capability;
    10 * major + minor
}

#[test]
fn the_table_has_what_the_cubins_say_of_every_kernel() {
    let budgets = budgets();
    let kernels: Vec<&str> = cuda_kernels::PTX
        .split(".entry")
        .skip(1)
        .filter_map(|text| text.split(['(', '{']).next())
        .map(str::trim)
        .collect();
    assert!(kernels.len() > 100);
    for cubin in Cubin::all() {
        let image = cubin.image().expect("it is whole");
        let (registers, frames) = (noted(&image, REGISTERS), noted(&image, FRAME_BYTES));
        for kernel in &kernels {
            let context = format!("{kernel} sm_{}", generation(cubin));
            let usage = budgets.get(&((*kernel).to_owned(), generation(cubin)));
            let usage = usage.unwrap_or_else(|| panic!("{context} has no row"));
            assert_eq!(registers[*kernel], usage.registers, "{context}");
            assert_eq!(frames[*kernel], usage.frame_bytes, "{context}");
            assert!(usage.blocks >= 1 && usage.occupancy_percent <= 100, "{context}: {usage:?}");
        }
    }
    assert_eq!(budgets.len(), kernels.len() * Cubin::all().len(), "rows of removed kernels");
}

#[test]
fn linears_and_attention_keep_everything_in_registers() {
    let mut seen = 0;
    for ((kernel, generation), usage) in budgets() {
        let kinds = ["linear_", "expert_", "attention_"];
        if kinds.iter().any(|kind| kernel.starts_with(kind)) {
            seen += 1;
            let outside = usage.spilled_bytes + usage.frame_bytes;
            assert_eq!(outside, 0, "{kernel} sm_{generation}: {usage:?}");
        }
    }
    assert!(seen > 60 * Cubin::all().len(), "{seen}");
}

#[test]
fn occupancies_are_those_of_the_launches() {
    let committed = include_str!("../cubin/launch_sizes.tsv");
    assert!(
        committed == launches::table(),
        "launches changed: write the example launch_sizes' output to kernels/cuda/cubin/\
         launch_sizes.tsv, run scripts/ptx.sh --cubins and commit"
    );
}
