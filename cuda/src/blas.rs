//! Matrix products by cuBLASLt, where the library is installed.
//!
//! A [`MatmulPlan`] uses one algorithm for all numbers of rows, without splitting sums, so that a
//! row's bits do not depend on other rows.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use libloading::Library as Opened;

use crate::context::Context;
use crate::error::CudaError;
use crate::library::{NvidiaLibrary, function};
use crate::memory::DeviceAddress;
use crate::stream::Stream;

/// Size of the scratch that an algorithm may use.
pub const BLAS_WORKSPACE_BYTES: u64 = 32 << 20;

const SUCCESS: u32 = 0;
/// `CUBLAS_COMPUTE_32F`
const COMPUTE_F32: u32 = 68;
/// `CUDA_R_32F`
const F32: u32 = 0;
/// `CUDA_R_16BF`
const BF16: u32 = 14;
/// `CUBLASLT_MATMUL_DESC_TRANSA`
const DESC_TRANSPOSE_A: u32 = 3;
/// `CUBLAS_OP_T`
const TRANSPOSED: c_int = 1;
/// `CUBLASLT_MATRIX_LAYOUT_COLS`
const LAYOUT_COLUMNS: u32 = 3;
/// `CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES`
const PREFER_WORKSPACE_BYTES: u32 = 1;
/// `CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK`; 0 allows no split of the sums.
const PREFER_REDUCTION: u32 = 3;
/// `CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES` to `_D_BYTES`
const PREFER_ALIGNMENTS: [u32; 4] = [5, 6, 7, 8];
/// Minimum alignment of all operands.
const ALIGNMENT_BYTES: u32 = 16;

/// `cublasLtMatmulHeuristicResult_t`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Found {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    state: u32,
    waves: f32,
    reserved: [c_int; 4],
}

type Pointer = *mut c_void;
type CreateFn = unsafe extern "C" fn(*mut Pointer) -> u32;
type DestroyFn = unsafe extern "C" fn(Pointer) -> u32;
type SetAttributeFn = unsafe extern "C" fn(Pointer, u32, *const c_void, usize) -> u32;

macro_rules! table {
    ($($field:ident: $type:ty = $symbol:literal;)*) => {
        /// The library's functions, and the library itself, which must stay loaded as long.
        struct Table {
            $($field: $type,)*
            _library: Opened,
        }

        impl Table {
            /// Loads all functions; `None` if one is missing.
            fn load(library: Opened) -> Option<Table> {
                Some(Table {
                    $($field: {
                        // SAFETY: needed to reach a foreign function, whose signature the library's
                        // interface fixes since CUDA 11; the table keeps the library.
                        unsafe { function::<$type>(&library, $symbol) }?
                    },)*
                    _library: library,
                })
            }
        }
    };
}

table! {
    create: CreateFn = "cublasLtCreate";
    destroy: DestroyFn = "cublasLtDestroy";
    version: unsafe extern "C" fn() -> usize = "cublasLtGetVersion";
    desc_create: unsafe extern "C" fn(*mut Pointer, u32, u32) -> u32 = "cublasLtMatmulDescCreate";
    desc_set: SetAttributeFn = "cublasLtMatmulDescSetAttribute";
    desc_destroy: DestroyFn = "cublasLtMatmulDescDestroy";
    layout_create: unsafe extern "C" fn(*mut Pointer, u32, u64, u64, i64) -> u32
        = "cublasLtMatrixLayoutCreate";
    layout_set: SetAttributeFn = "cublasLtMatrixLayoutSetAttribute";
    layout_destroy: DestroyFn = "cublasLtMatrixLayoutDestroy";
    preference_create: CreateFn = "cublasLtMatmulPreferenceCreate";
    preference_set: SetAttributeFn = "cublasLtMatmulPreferenceSetAttribute";
    preference_destroy: DestroyFn = "cublasLtMatmulPreferenceDestroy";
    heuristic: unsafe extern "C" fn(
        Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, c_int, *mut Found, *mut c_int
    ) -> u32 = "cublasLtMatmulAlgoGetHeuristic";
    multiply: unsafe extern "C" fn(
        Pointer, Pointer, *const f32, u64, Pointer, u64, Pointer, *const f32, u64, Pointer, u64,
        Pointer, *const [u64; 8], u64, usize, Pointer
    ) -> u32 = "cublasLtMatmul";
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cuBLASLt's functions")
    }
}

/// An initialised cuBLASLt on a context.
#[derive(Debug)]
pub struct Blas {
    table: Table,
    handle: Pointer,
    file: &'static str,
    _context: Context,
}

// SAFETY: needed because of the handle, which the library allows on any thread.
unsafe impl Send for Blas {}
// SAFETY: as for `Send`; the library's functions may be called concurrently with one handle.
unsafe impl Sync for Blas {}

impl Blas {
    /// Opens cuBLASLt on the context that is current. `None` if the library is missing or
    /// incomplete, or refuses: the caller then uses its own kernels.
    pub fn open(context: &Context) -> Option<Arc<Blas>> {
        let (file, library) = NvidiaLibrary::CublasLt.open()?;
        let table = Table::load(library)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: needed to initialise; the library writes one pointer.
        let result = unsafe { (table.create)(&raw mut handle) };
        let made = result == SUCCESS && !handle.is_null();
        made.then(|| Arc::new(Blas { table, handle, file, _context: context.clone() }))
    }

    /// Returns the name of the file and the version, like `libcublasLt.so.12 (120103)`.
    pub fn describe(&self) -> String {
        // SAFETY: needed to query the version; the call takes no arguments.
        let version = unsafe { (self.table.version)() };
        format!("{} ({version})", self.file)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: needed to end what `open` began; products hold this.
        let _ = unsafe { (self.table.destroy)(self.handle) };
    }
}

/// Descriptors of a product, released when dropped.
#[derive(Debug)]
struct Descriptors {
    blas: Arc<Blas>,
    desc: Pointer,
    /// Layouts of the weight, the activations and the sums.
    layouts: [Pointer; 3],
}

// SAFETY: needed because of the pointers, which the library allows on any thread.
unsafe impl Send for Descriptors {}

impl Drop for Descriptors {
    fn drop(&mut self) {
        let table = &self.blas.table;
        // SAFETY: needed to release what was created here; null where creating failed.
        unsafe {
            for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
                let _ = (table.layout_destroy)(layout);
            }
            if !self.desc.is_null() {
                let _ = (table.desc_destroy)(self.desc);
            }
        }
    }
}

/// `sums = x · weightᵀ` in f32 for bf16 operands of one shape, `x` `[rows, k]` and `weight` `[n,
/// k]`.
#[derive(Debug)]
pub struct MatmulPlan {
    /// Modified by every call, since the layouts contain the number of rows.
    descriptors: Mutex<Descriptors>,
    algorithm: [u64; 8],
    rows_max: u32,
}

impl MatmulPlan {
    /// Creates a product of up to `rows_max` rows; `None` if the library has no algorithm for it.
    pub fn new(blas: &Arc<Blas>, rows_max: u32, n: u32, k: u32) -> Option<MatmulPlan> {
        let table = &blas.table;
        let null = std::ptr::null_mut();
        let mut descriptors =
            Descriptors { blas: Arc::clone(blas), desc: null, layouts: [null; 3] };
        let (rows, n, k) = (u64::from(rows_max), u64::from(n), u64::from(k));
        // The library is column-major: a row-major [r, c] is its [c, r].
        let shapes = [(BF16, k, n), (BF16, k, rows), (F32, n, rows)];
        let size = size_of::<c_int>();
        // SAFETY: needed to describe the product. The library writes a pointer for each and reads
        // one integer of the given size.
        unsafe {
            succeeded((table.desc_create)(&raw mut descriptors.desc, COMPUTE_F32, F32))?;
            let transposed = std::ptr::from_ref(&TRANSPOSED).cast();
            succeeded((table.desc_set)(descriptors.desc, DESC_TRANSPOSE_A, transposed, size))?;
            for (layout, (kind, inner, outer)) in descriptors.layouts.iter_mut().zip(shapes) {
                succeeded((table.layout_create)(layout, kind, inner, outer, inner.cast_signed()))?;
            }
        }
        let algorithm = descriptors.algorithm()?;
        Some(MatmulPlan { descriptors: Mutex::new(descriptors), algorithm, rows_max })
    }

    /// Enqueues the product of the first `rows` rows.
    ///
    /// # Errors
    /// Fails if the library refuses, or because of an earlier failure on the device.
    ///
    /// # Safety
    /// The requirements of [`crate::Kernel::launch`] apply to the operands: `x` and `weight` bf16,
    /// `sums` f32 `[rows, n]`, `workspace` of [`BLAS_WORKSPACE_BYTES`], all on 16-byte boundaries.
    ///
    /// # Panics
    /// Panics if `rows` exceeds the maximum for which the product was created.
    pub unsafe fn enqueue(
        &self,
        stream: &Stream,
        rows: u32,
        x: DeviceAddress,
        weight: DeviceAddress,
        sums: DeviceAddress,
        workspace: DeviceAddress,
    ) -> Result<(), CudaError> {
        assert!(rows <= self.rows_max, "the product was made for {} rows", self.rows_max);
        let descriptors = self.descriptors.lock().unwrap_or_else(PoisonError::into_inner);
        let table = &descriptors.blas.table;
        let [a, b, d] = descriptors.layouts;
        let columns = u64::from(rows);
        for layout in [b, d] {
            let value = (&raw const columns).cast();
            // SAFETY: needed to set the number of rows; the library reads one u64.
            let result =
                unsafe { (table.layout_set)(layout, LAYOUT_COLUMNS, value, size_of::<u64>()) };
            check("cublasLtMatrixLayoutSetAttribute", result)?;
        }
        let (one, zero) = (1.0f32, 0.0f32);
        // A product is one launch, or two if operands are prepared first.
        stream.count(2);
        // SAFETY: needed to multiply. The factors are read during the call; the caller vouches for
        // the operands, descriptors and stream are alive.
        let result = unsafe {
            (table.multiply)(
                descriptors.blas.handle,
                descriptors.desc,
                &raw const one,
                weight,
                a,
                x,
                b,
                &raw const zero,
                sums,
                d,
                sums,
                d,
                &raw const self.algorithm,
                workspace,
                BLAS_WORKSPACE_BYTES as usize,
                stream.stream.cast(),
            )
        };
        check("cublasLtMatmul", result)
    }
}

impl Descriptors {
    fn algorithm(&self) -> Option<[u64; 8]> {
        let table = &self.blas.table;
        let mut preference = std::ptr::null_mut();
        // SAFETY: needed to query an algorithm; the library writes one pointer.
        succeeded(unsafe { (table.preference_create)(&raw mut preference) })?;
        let found = self.preferred(preference);
        // SAFETY: needed to release what was just created.
        let _ = unsafe { (table.preference_destroy)(preference) };
        found
    }

    fn preferred(&self, preference: Pointer) -> Option<[u64; 8]> {
        let table = &self.blas.table;
        let prefer_u32 = |attribute, value: u32| {
            // SAFETY: needed to set a constraint; the library reads one u32.
            succeeded(unsafe {
                (table.preference_set)(preference, attribute, (&raw const value).cast(), 4)
            })
        };
        prefer_u32(PREFER_REDUCTION, 0)?;
        for attribute in PREFER_ALIGNMENTS {
            prefer_u32(attribute, ALIGNMENT_BYTES)?;
        }
        let workspace = BLAS_WORKSPACE_BYTES as usize;
        let [a, b, d] = self.layouts;
        let mut found =
            Found { algorithm: [0; 8], workspace_bytes: 0, state: 1, waves: 0.0, reserved: [0; 4] };
        let mut count = 0;
        // SAFETY: needed for the query; the library reads one usize, and writes one result and one
        // count.
        unsafe {
            let size = size_of::<usize>();
            let value = (&raw const workspace).cast();
            succeeded((table.preference_set)(preference, PREFER_WORKSPACE_BYTES, value, size))?;
            succeeded((table.heuristic)(
                self.blas.handle,
                self.desc,
                a,
                b,
                d,
                d,
                preference,
                1,
                &raw mut found,
                &raw mut count,
            ))?;
        }
        (count >= 1 && found.state == SUCCESS).then_some(found.algorithm)
    }
}

fn succeeded(result: u32) -> Option<()> {
    (result == SUCCESS).then_some(())
}

fn check(call: &'static str, result: u32) -> Result<(), CudaError> {
    if result == SUCCESS { Ok(()) } else { Err(CudaError::Blas { call, code: result }) }
}
