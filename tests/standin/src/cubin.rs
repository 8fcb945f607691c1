//! The parts of a cubin that a driver needs to launch its kernels: the device for which it was
//! compiled, the names of kernels, and the sizes of parameters. A cubin is an ELF file; each kernel
//! has a section of notes.

use crate::ptx::Entry;

const MAGIC: &[u8] = b"\x7fELF";
/// `EM_CUDA`
const MACHINE: u16 = 190;
/// Prefix of the names of sections with notes.
const NOTES: &str = ".nv.info.";
/// Format of a note whose value has an explicit length.
const SIZED: u8 = 4;
/// `EIATTR_KPARAM_INFO`
const PARAMETER: u8 = 0x17;
/// ABI version of cubins of CUDA 13, which 12.8 also produces for devices from 10.0 on.
const LATER_FORM: u8 = 8;

/// Device and kernels of a cubin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cubin {
    /// Compute capability, major and minor.
    pub(crate) capability: (i32, i32),
    pub(crate) entries: Vec<Entry>,
}

fn bytes<const N: usize>(image: &[u8], at: usize) -> Option<[u8; N]> {
    image.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(image: &[u8], at: usize) -> Option<usize> {
    bytes(image, at).map(u16::from_le_bytes).map(usize::from)
}

fn u32_at(image: &[u8], at: usize) -> Option<usize> {
    bytes(image, at).map(u32::from_le_bytes).map(|value| value as usize)
}

fn u64_at(image: &[u8], at: usize) -> Option<usize> {
    bytes(image, at).map(u64::from_le_bytes).map(|value| value as usize)
}

/// Returns true if an image starts like a cubin.
pub(crate) fn is_cubin(first: &[u8]) -> bool {
    first == MAGIC
}

/// Returns the size of a cubin according to its header: it ends with the table of its sections or
/// that of its segments.
pub(crate) fn size_bytes(header: &[u8]) -> Option<usize> {
    let segments = u64_at(header, 32)? + u16_at(header, 54)? * u16_at(header, 56)?;
    let sections = u64_at(header, 40)? + u16_at(header, 58)? * u16_at(header, 60)?;
    Some(segments.max(sections))
}

/// Size of a header in bytes.
pub(crate) const HEADER_BYTES: usize = 64;

impl Cubin {
    /// Parses a cubin; `None` if it is not a cubin or is damaged.
    pub(crate) fn read(image: &[u8]) -> Option<Cubin> {
        if image.get(..4)? != MAGIC || u16_at(image, 18)? != usize::from(MACHINE) {
            return None;
        }
        if image.len() < size_bytes(image)? {
            return None;
        }
        let (flags, form) = (u32_at(image, 48)?, *image.get(8)?);
        let generation = if form >= LATER_FORM { flags >> 8 } else { flags } & 0xff;
        let (first, step, count) = (u64_at(image, 40)?, u16_at(image, 58)?, u16_at(image, 60)?);
        let section = |index: usize| {
            let at = first + index * step;
            Some((u32_at(image, at)?, u64_at(image, at + 24)?, u64_at(image, at + 32)?))
        };
        let (_, names, _) = section(u16_at(image, 62)?)?;
        let mut entries = Vec::new();
        for index in 0..count {
            let (name, from, size) = section(index)?;
            let text = image.get(names + name..)?.split(|byte| *byte == 0).next()?;
            let Some(name) = std::str::from_utf8(text).ok()?.strip_prefix(NOTES) else { continue };
            let notes = image.get(from..from.checked_add(size)?)?;
            entries.push(Entry { name: name.to_owned(), parameters: parameters(notes)? });
        }
        let capability = ((generation / 10) as i32, (generation % 10) as i32);
        Some(Cubin { capability, entries })
    }

    /// Returns true if a device of this compute capability can run it.
    pub(crate) fn runs_on(&self, major: i32, minor: i32) -> bool {
        self.capability.0 == major && self.capability.1 <= minor
    }
}

/// Returns the sizes of parameters in order; notes list them backwards.
fn parameters(notes: &[u8]) -> Option<Vec<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at + 4 <= notes.len() {
        let (form, kind, size) = (notes[at], notes[at + 1], u16_at(notes, at + 2)?);
        at += 4;
        if form != SIZED {
            continue;
        }
        if kind == PARAMETER {
            found.push((u16_at(notes, at + 4)?, u32_at(notes, at + 8)? >> 18));
        }
        at += size;
    }
    found.sort_unstable();
    Some(found.into_iter().map(|(_, size_bytes)| size_bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx;

    #[test]
    fn cubins_have_the_kernels_and_parameters_of_the_ptx() {
        let mut expected = ptx::entries(cuda_kernels::PTX).expect("PTX");
        expected.sort_by(|a, b| a.name.cmp(&b.name));
        for cubin in cuda_kernels::Cubin::all() {
            let image = cubin.image().expect("it is whole");
            assert_eq!(size_bytes(&image[..HEADER_BYTES]), Some(image.len()));
            let mut found = Cubin::read(&image).expect("a cubin");
            found.entries.sort_by(|a, b| a.name.cmp(&b.name));
            let (major, minor) = cubin.capability;
            assert_eq!(found.capability, (major as i32, minor as i32));
            assert!(found.entries == expected, "{:?}", cubin.capability);
        }
    }

    #[test]
    fn a_cubin_that_is_cut_off_is_refused() {
        let image = cuda_kernels::Cubin::all()[0].image().expect("it is whole");
        for size in [0, 3, 40, 63, 64, image.len() / 2, image.len() - 1] {
            assert_eq!(Cubin::read(&image[..size]), None, "{size}");
        }
        assert_eq!(Cubin::read(cuda_kernels::PTX.as_bytes()), None);
    }
}
