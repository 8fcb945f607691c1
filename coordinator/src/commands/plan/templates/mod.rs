//! Template files: `--machine-template` and `--table-template`.

use crate::cli::request::Template;

/// Returns a file that `plan` accepts unchanged and that contains every field of its kind.
#[must_use]
pub const fn template_text(template: Template) -> &'static str {
    match template {
        Template::Machine => include_str!("machine.toml"),
        Template::Table => include_str!("table.json"),
    }
}

#[cfg(test)]
mod tests {
    use planner::layer::table::OperationTable;
    use planner::machine::Machine;

    use super::{Template, template_text};

    #[test]
    fn templates_are_read_by_what_they_are_for_and_hold_every_field() {
        let machine = Machine::from_toml(template_text(Template::Machine)).expect("a machine");
        assert!(machine.cpu.f32.is_some() && machine.gpu.f32.is_some());
        assert!(machine.gpu.decompress_gbps.is_some() && !machine.nvme.is_empty());
        assert!(machine.cpu.bf16.four_bit.is_some() && machine.running.is_some());
        assert!(machine.memory.os_reserve_gib.is_some());
        assert!(machine.cpu.stage_overhead_ms > 0.0);
        assert!(machine.cpu.op_overhead_us > 0.0 && machine.gpu.op_overhead_us > 0.0);
        let table = OperationTable::from_json(template_text(Template::Table)).expect("a table");
        assert!(table.ops.iter().any(|op| op.kv) && table.ops.iter().any(|op| op.s2d_ms > 0.0));
    }
}
