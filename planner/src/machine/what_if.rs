//! What-if analysis: a machine with one resource doubled.

use super::{Machine, OperandRates, RooflineRates};

/// A resource that can be doubled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// The link, in both directions.
    Link,
    /// Bandwidth of host memory, including the CPU's rates for weights and KV.
    Dram,
    /// Capacity of device memory.
    DeviceMemory,
    /// Bandwidth of the drives.
    Drives,
}

impl Resource {
    pub const ALL: [Resource; 4] =
        [Resource::Link, Resource::Dram, Resource::DeviceMemory, Resource::Drives];

    /// Returns the name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Resource::Link => "link",
            Resource::Dram => "DRAM",
            Resource::DeviceMemory => "device memory",
            Resource::Drives => "drives",
        }
    }

    /// Returns the key in JSON.
    pub const fn key(self) -> &'static str {
        match self {
            Resource::Link => "link",
            Resource::Dram => "dram",
            Resource::DeviceMemory => "device_memory",
            Resource::Drives => "drives",
        }
    }
}

impl Machine {
    /// Returns true if the machine has the resource.
    pub const fn has_resource(&self, resource: Resource) -> bool {
        match resource {
            Resource::Link | Resource::Dram | Resource::DeviceMemory => true,
            Resource::Drives => !self.nvme.is_empty(),
        }
    }

    /// Returns the machine with the resource doubled and everything else unchanged. The result is
    /// not measured.
    #[must_use]
    pub fn with_doubled(&self, resource: Resource) -> Machine {
        let mut machine = Machine { profile: None, ..self.clone() };
        match resource {
            Resource::Link => {
                machine.link.h2d_gbps *= 2.0;
                machine.link.d2h_gbps *= 2.0;
            }
            Resource::Dram => {
                machine.memory.dram_gbps *= 2.0;
                double_bandwidths(&mut machine.cpu.bf16);
                machine.cpu.f32.iter_mut().for_each(double_bandwidths);
            }
            Resource::DeviceMemory => machine.memory.vram_gib *= 2.0,
            Resource::Drives => {
                machine.nvme.iter_mut().for_each(|drive| drive.read_gbps *= 2.0);
            }
        }
        machine
    }
}

fn double_bandwidths(rates: &mut RooflineRates) {
    rates.linear_gbps *= 2.0;
    rates.attention_gbps *= 2.0;
    if let Some(OperandRates { linear_gbps, attention_gbps, .. }) = &mut rates.four_bit {
        *linear_gbps *= 2.0;
        *attention_gbps *= 2.0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Machine, OperandRates, find_bundled};
    use super::Resource;

    fn machine() -> Machine {
        let mut machine =
            find_bundled("ryzen7950x-a4000").expect("a machine").expect("a valid file");
        machine.cpu.bf16.four_bit = Some(OperandRates {
            linear_gbps: 20.0,
            linear_tflops: 2.0,
            attention_gbps: 5.0,
            attention_tflops: 1.0,
        });
        machine.cpu.f32 = Some(machine.cpu.bf16);
        machine
    }

    #[test]
    fn the_link_is_twice_as_fast_both_ways() {
        let (one, two) = (machine(), machine().with_doubled(Resource::Link));
        assert_eq!(two.link.h2d_gbps, 2.0 * one.link.h2d_gbps);
        assert_eq!(two.link.d2h_gbps, 2.0 * one.link.d2h_gbps);
        assert_eq!(Machine { link: one.link, ..two }, one);
    }

    #[test]
    fn the_cpu_reads_twice_as_fast_and_computes_as_before() {
        let (one, two) = (machine(), machine().with_doubled(Resource::Dram));
        assert_eq!(two.memory.dram_gbps, 2.0 * one.memory.dram_gbps);
        for rates in [two.cpu.bf16, two.cpu.f32.expect("given")] {
            for (four_bit, linear_gbps, attention_gbps) in
                [(false, 52.1, 10.06), (true, 40.0, 10.0)]
            {
                let (rates, before) = (rates.stored(four_bit), one.cpu.bf16.stored(four_bit));
                assert_eq!(rates.linear_gbps, linear_gbps);
                assert_eq!(rates.attention_gbps, attention_gbps);
                assert_eq!(rates.linear_tflops, before.linear_tflops);
                assert_eq!(rates.attention_tflops, before.attention_tflops);
            }
        }
        assert_eq!((&two.gpu, two.link), (&one.gpu, one.link));
        assert_eq!(two.dram_bytes(), one.dram_bytes());
    }

    #[test]
    fn drives_are_twice_as_fast_where_there_are_any() {
        let (one, two) = (machine(), machine().with_doubled(Resource::Drives));
        let rates = |machine: &Machine| {
            machine.nvme.iter().map(|drive| drive.read_gbps).collect::<Vec<_>>()
        };
        assert!(one.has_resource(Resource::Drives) && !rates(&one).is_empty());
        let doubled: Vec<f64> = rates(&one).into_iter().map(|gbps| 2.0 * gbps).collect();
        assert_eq!(rates(&two), doubled);
        assert!(!Machine { nvme: Vec::new(), ..one }.has_resource(Resource::Drives));
    }

    #[test]
    fn device_memory_is_twice_as_large() {
        let (one, two) = (machine(), machine().with_doubled(Resource::DeviceMemory));
        assert_eq!(two.vram_bytes(), 2 * one.vram_bytes());
        assert_eq!(Machine { memory: one.memory, ..two }, one);
    }
}
