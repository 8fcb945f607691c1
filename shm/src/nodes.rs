//! NUMA nodes of a mapping's pages.
//!
//! A node is the memory of one memory controller: that of a socket, or of an expander without
//! cores. rustix wraps neither of the two system calls, so they are made here.

use rustix::io::Errno;

use crate::mapping::Mapping;

/// Upper bound on node numbers, as in Linux.
const NODES_MAX: u16 = 1024;

const MASK_BITS: usize = 64;

/// Error of placing pages on the requested nodes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodesError {
    /// A node does not exist, has no memory, or is not available to this process.
    #[error(
        "Memory cannot be placed on NUMA node {}: it does not exist, has no memory, or this \
         process may not use it (`numactl --hardware`, cpuset.mems).",
        listed(nodes)
    )]
    Missing { nodes: Vec<u16> },
    #[error(
        "Placing memory on NUMA nodes is not permitted here; in a container add CAP_SYS_NICE, or a \
         seccomp profile that allows mbind."
    )]
    NotPermitted,
    #[error("The kernel refused to place memory on NUMA nodes: {source}.")]
    Refused { source: Errno },
    /// Some pages are on other nodes, because the requested ones had too little free memory.
    #[error(
        "{elsewhere} of {looked_at} checked pages of memory are on other nodes than {}: these \
         nodes have too little free memory.",
        listed(nodes)
    )]
    Elsewhere { nodes: Vec<u16>, elsewhere: usize, looked_at: usize },
}

/// Returns the nodes as a list for messages.
pub fn listed(nodes: &[u16]) -> String {
    nodes.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}

impl Mapping {
    /// Binds pages that are first accessed from now on to these nodes, round-robin if there are
    /// several. For shared memory this applies to accesses by any process. An empty list changes
    /// nothing.
    ///
    /// # Errors
    /// Fails if a node is not available to this process, or if the system refuses.
    pub fn bind(&self, nodes: &[u16]) -> Result<(), NodesError> {
        if nodes.is_empty() {
            return Ok(());
        }
        let mut mask = [0u64; NODES_MAX as usize / MASK_BITS];
        for node in nodes {
            let Some(word) = mask.get_mut(usize::from(*node) / MASK_BITS) else {
                return Err(NodesError::Missing { nodes: nodes.to_vec() });
            };
            *word |= 1 << (usize::from(*node) % MASK_BITS);
        }
        let mode = if nodes.len() > 1 { libc::MPOL_INTERLEAVE } else { libc::MPOL_BIND };
        // SAFETY: needed because no library wraps the call. The range is this mapping, the mask
        // outlives the call, which reads one bit less than the given count; no byte of memory
        // changes.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base(),
                self.size_bytes(),
                mode,
                mask.as_ptr(),
                usize::from(NODES_MAX) + 1,
                0,
            )
        };
        match (done, Errno::from_io_error(&std::io::Error::last_os_error())) {
            (0, _) => Ok(()),
            (_, Some(Errno::INVAL)) => Err(NodesError::Missing { nodes: nodes.to_vec() }),
            (_, Some(Errno::PERM | Errno::NOSYS)) => Err(NodesError::NotPermitted),
            (_, source) => Err(NodesError::Refused { source: source.unwrap_or(Errno::IO) }),
        }
    }

    /// Returns the nodes of up to `most` evenly spaced pages, as reported by the kernel; pages that
    /// have not been accessed yet are on no node and are omitted.
    ///
    /// # Errors
    /// Fails if the system refuses.
    fn nodes_of_pages(&self, most: usize) -> Result<Vec<u16>, NodesError> {
        let page = rustix::param::page_size();
        let pages = self.size_bytes().div_ceil(page);
        let stride = pages.div_ceil(most.max(1)).max(1);
        let asked: Vec<*mut u8> = (0..pages)
            .step_by(stride)
            .map(|index| self.base().wrapping_add(index * page))
            .collect();
        let mut found = vec![-1i32; asked.len()];
        // SAFETY: needed because no library wraps the call. Without target nodes it moves nothing;
        // it reads the addresses and writes as many results, and both arrays outlive it.
        let done = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                asked.len(),
                asked.as_ptr(),
                std::ptr::null::<i32>(),
                found.as_mut_ptr(),
                0,
            )
        };
        if done < 0 {
            let errno = Errno::from_io_error(&std::io::Error::last_os_error());
            return Err(match errno {
                Some(Errno::PERM | Errno::NOSYS) => NodesError::NotPermitted,
                source => NodesError::Refused { source: source.unwrap_or(Errno::IO) },
            });
        }
        // A negative number is an error code: the page is not present.
        Ok(found.into_iter().filter_map(|node| u16::try_from(node).ok()).collect())
    }

    /// Checks, by up to `most` pages, that accessed pages are on the nodes of [`Mapping::bind`].
    ///
    /// # Errors
    /// Fails if pages are on other nodes, or if the system refuses.
    pub fn check_nodes(&self, nodes: &[u16], most: usize) -> Result<(), NodesError> {
        if nodes.is_empty() {
            return Ok(());
        }
        let found = self.nodes_of_pages(most)?;
        let elsewhere = found.iter().filter(|node| !nodes.contains(node)).count();
        match elsewhere {
            0 => Ok(()),
            _ => Err(NodesError::Elsewhere {
                nodes: nodes.to_vec(),
                elsewhere,
                looked_at: found.len(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `None` if the system does not permit these calls.
    fn permitted<T>(test: &str, outcome: Result<T, NodesError>) -> Option<T> {
        match outcome {
            Err(error @ NodesError::NotPermitted) => {
                println!("SKIP {test}: {error}");
                None
            }
            outcome => Some(outcome.expect("permitted")),
        }
    }

    /// Returns the nodes of this machine that have memory.
    fn present() -> Vec<u16> {
        let has_memory = |node: &u16| {
            let path = format!("/sys/devices/system/node/node{node}/meminfo");
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.lines().any(|line| line.contains("MemTotal:") && !line.ends_with(" 0 kB"))
        };
        let found: Vec<u16> = (0..NODES_MAX).filter(has_memory).collect();
        if found.is_empty() { vec![0] } else { found }
    }

    /// Returns 64 pages that were bound and accessed.
    fn touched(nodes: &[u16]) -> Result<Mapping, NodesError> {
        let mapping = Mapping::private(64 << 12).expect("memory");
        mapping.bind(nodes)?;
        assert_eq!(mapping.nodes_of_pages(64)?, [], "nobody touched a page");
        mapping.populate(0, mapping.size_bytes());
        Ok(mapping)
    }

    #[test]
    fn pages_lie_on_the_node_that_they_were_bound_to() {
        for node in present() {
            let name = "pages_lie_on_the_node_that_they_were_bound_to";
            let Some(mapping) = permitted(name, touched(&[node])) else { return };
            assert_eq!(mapping.nodes_of_pages(64), Ok(vec![node; 64]));
            assert_eq!(mapping.nodes_of_pages(10).map(|found| found.len()), Ok(10));
            assert_eq!(mapping.check_nodes(&[node], 64), Ok(()));
            let nodes = vec![node + 1];
            let elsewhere =
                NodesError::Elsewhere { nodes: nodes.clone(), elsewhere: 64, looked_at: 64 };
            assert_eq!(mapping.check_nodes(&nodes, 64), Err(elsewhere));
            assert_eq!((mapping.bind(&[]), mapping.check_nodes(&[], 64)), (Ok(()), Ok(())));
        }
    }

    #[test]
    fn pages_take_turns_on_several_nodes() {
        let (name, nodes) = ("pages_take_turns_on_several_nodes", present());
        if nodes.len() < 2 {
            println!("SKIP {name}: one NUMA node here; make test-nodes starts a machine of three");
            return;
        }
        let Some(mapping) = permitted(name, touched(&nodes)) else { return };
        let found = mapping.nodes_of_pages(64).expect("as before");
        for node in &nodes {
            let count = found.iter().filter(|one| *one == node).count();
            assert!(count >= 64 / nodes.len(), "{count} of 64 on node {node}");
        }
        assert_eq!(mapping.check_nodes(&nodes, 64), Ok(()));
    }

    #[test]
    fn shared_memory_lies_where_whoever_bound_it_said() {
        let name = "shared_memory_lies_where_whoever_bound_it_said";
        for node in present() {
            let segment = crate::Segment::create(name, 64 << 12).expect("memory");
            if permitted(name, segment.bind(&[node])).is_none() {
                return;
            }
            // Accessed through another mapping of the same pages.
            let fd = segment.fd().try_clone_to_owned().expect("a descriptor");
            let other = crate::Segment::attach(fd, 64 << 12, crate::Access::ReadWrite);
            let other = other.expect("the same memory");
            other.populate(0, 64 << 12);
            assert_eq!(other.nodes_of_pages(64), Ok(vec![node; 64]));
        }
    }

    #[test]
    fn nodes_that_are_missing_are_an_error() {
        let mapping = Mapping::private(1 << 12).expect("memory");
        for nodes in [vec![NODES_MAX - 1], vec![NODES_MAX], vec![u16::MAX]] {
            match mapping.bind(&nodes) {
                Err(NodesError::NotPermitted) => {
                    println!("SKIP nodes_that_are_missing_are_an_error: mbind is not permitted");
                }
                outcome => assert_eq!(outcome, Err(NodesError::Missing { nodes })),
            }
        }
        let missing = NodesError::Missing { nodes: vec![2, 3] }.to_string();
        assert!(missing.contains("2, 3"), "{missing}");
    }
}
