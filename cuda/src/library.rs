//! NVIDIA's libraries other than the driver, opened under all names with which they are
//! distributed.
//!
//! None of them is required; the users of a library report the consequences of its absence.

use libloading::Library as Opened;

/// A library that Tandem uses if it is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NvidiaLibrary {
    /// Matrix products.
    CublasLt,
    /// Management: PCIe link, driver release, memory in use.
    Nvml,
    /// GPUDirect Storage.
    CuFile,
}

impl NvidiaLibrary {
    /// All libraries.
    pub const ALL: [NvidiaLibrary; 3] =
        [NvidiaLibrary::CublasLt, NvidiaLibrary::Nvml, NvidiaLibrary::CuFile];

    /// Returns the name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            NvidiaLibrary::CublasLt => "cuBLASLt",
            NvidiaLibrary::Nvml => "NVML",
            NvidiaLibrary::CuFile => "cuFile",
        }
    }

    /// Returns the file names, the most specific first: an unversioned link belongs to development
    /// packages and may lead to any version.
    pub const fn files(self) -> &'static [&'static str] {
        match self {
            NvidiaLibrary::CublasLt => {
                &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"]
            }
            NvidiaLibrary::Nvml => &["libnvidia-ml.so.1", "libnvidia-ml.so"],
            NvidiaLibrary::CuFile => &["libcufile.so.0", "libcufile.so"],
        }
    }

    /// Returns the packages that contain the library.
    pub const fn packages(self) -> &'static str {
        match self {
            NvidiaLibrary::CublasLt => {
                "Debian's libcublaslt12, or pip's nvidia-cublas-cu12 with its lib folder on \
                 LD_LIBRARY_PATH"
            }
            NvidiaLibrary::Nvml => "Debian's libnvidia-ml1, part of the driver",
            NvidiaLibrary::CuFile => {
                "Debian's libcufile0, or pip's nvidia-cufile-cu12 with its lib folder on \
                 LD_LIBRARY_PATH"
            }
        }
    }

    /// Returns the file name under which the loader finds the library; `None` if it is not
    /// installed.
    pub fn find(self) -> Option<&'static str> {
        self.open().map(|(file, _)| file)
    }

    pub(crate) fn open(self) -> Option<(&'static str, Opened)> {
        self.files().iter().find_map(|file| {
            // SAFETY: needed to load a library by name, which runs its initialisers: NVIDIA's own,
            // which any program that uses it relies on.
            let opened = unsafe { Opened::new(*file) }.ok()?;
            Some((*file, opened))
        })
    }
}

/// Returns a function of a library by name, copied out of it.
///
/// # Safety
/// `F` is the type of the function with that name, and the library stays loaded while it is called.
pub(crate) unsafe fn function<F: Copy>(library: &Opened, name: &str) -> Option<F> {
    // SAFETY: needed to reach a foreign function; the caller vouches for its type.
    unsafe { library.get::<F>(name) }.ok().map(|symbol| *symbol)
}
