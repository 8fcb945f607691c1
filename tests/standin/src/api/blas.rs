//! The functions of cuBLASLt that Tandem calls; one file implements all libraries. Products are
//! computed as work of their stream, in f32, output by output.

use std::ffi::{c_int, c_void};

use super::{put, result};
use crate::code;
use crate::objects::CublasObject;
use crate::settings::settings;
use crate::state::{enter, enter_device};
use crate::streams::{QueuedProduct, QueuedWork};

const BF16: u32 = 14;
const F32: u32 = 0;
const COLUMNS: u32 = 3;
const TRANSPOSE_A: u32 = 3;
/// `CUBLAS_STATUS_NOT_SUPPORTED`
const NOT_SUPPORTED: u32 = 15;

fn make(name: &'static str, handle: *mut usize, object: CublasObject) -> u32 {
    result(enter(name).and_then(|mut state| {
        state.objects.push(object);
        // SAFETY: the caller's pointer, as documented.
        unsafe { put(handle, state.objects.len()) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtCreate(handle: *mut usize) -> u32 {
    make("cublasLtCreate", handle, CublasObject::Library)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtGetVersion() -> usize {
    120_000
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulDescCreate(
    handle: *mut usize,
    _compute: u32,
    _scale: u32,
) -> u32 {
    make("cublasLtMatmulDescCreate", handle, CublasObject::Product(false))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulPreferenceCreate(handle: *mut usize) -> u32 {
    make("cublasLtMatmulPreferenceCreate", handle, CublasObject::Preference)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatrixLayoutCreate(
    handle: *mut usize,
    kind: u32,
    rows: u64,
    columns: u64,
    leading: i64,
) -> u32 {
    make(
        "cublasLtMatrixLayoutCreate",
        handle,
        CublasObject::Layout { kind, rows, columns, leading },
    )
}

macro_rules! ends {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(_handle: usize) -> u32 {
                0
            }
        )*
    };
}

ends! { cublasLtDestroy cublasLtMatmulDescDestroy cublasLtMatrixLayoutDestroy cublasLtMatmulPreferenceDestroy }

/// Accepts every preference: there is only one algorithm.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    _handle: usize,
    _attribute: u32,
    _value: *const c_void,
    _size_bytes: usize,
) -> u32 {
    result(enter("cublasLtMatmulPreferenceSetAttribute").map(drop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulDescSetAttribute(
    handle: usize,
    attribute: u32,
    value: *const c_int,
    size_bytes: usize,
) -> u32 {
    result(enter("cublasLtMatmulDescSetAttribute").and_then(|mut state| {
        match state.objects.get_mut(handle.wrapping_sub(1)) {
            Some(CublasObject::Product(transposed))
                if attribute == TRANSPOSE_A && size_bytes == 4 =>
            {
                // SAFETY: needed to read the value; the caller's pointer, as documented.
                *transposed = unsafe { value.read_unaligned() } == 1;
                Ok(())
            }
            _ => Err(code::INVALID_VALUE),
        }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatrixLayoutSetAttribute(
    handle: usize,
    attribute: u32,
    value: *const u64,
    size_bytes: usize,
) -> u32 {
    result(enter("cublasLtMatrixLayoutSetAttribute").and_then(|mut state| {
        match state.objects.get_mut(handle.wrapping_sub(1)) {
            Some(CublasObject::Layout { columns, .. })
                if attribute == COLUMNS && size_bytes == 8 =>
            {
                // SAFETY: needed to read the value; the caller's pointer, as documented.
                *columns = unsafe { value.read_unaligned() };
                Ok(())
            }
            _ => Err(code::INVALID_VALUE),
        }
    }))
}

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

const ALGORITHM: [u64; 8] = [7; 8];

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _library: usize,
    _product: usize,
    _a: usize,
    _b: usize,
    _c: usize,
    _d: usize,
    _preference: usize,
    _wanted: c_int,
    found: *mut Found,
    count: *mut c_int,
) -> u32 {
    let one =
        Found { algorithm: ALGORITHM, workspace_bytes: 0, state: 0, waves: 1.0, reserved: [0; 4] };
    // SAFETY: the caller's pointers, as documented.
    result(
        enter("cublasLtMatmulAlgoGetHeuristic")
            .and_then(|_| unsafe { put(found, one).and_then(|()| put(count, 1)) }),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmul(
    _library: usize,
    product: usize,
    alpha: *const f32,
    a: usize,
    a_layout: usize,
    b: usize,
    b_layout: usize,
    beta: *const f32,
    c: usize,
    _c_layout: usize,
    d: usize,
    d_layout: usize,
    algorithm: *const [u64; 8],
    _workspace: usize,
    _workspace_bytes: usize,
    stream: usize,
) -> u32 {
    result(enter_device("cublasLtMatmul").and_then(|mut state| {
        // SAFETY: needed to read factors and algorithm; the caller's pointers, as documented.
        let (factors, chosen) =
            unsafe { ((alpha.read(), beta.read()), algorithm.read_unaligned()) };
        let object = |handle: usize| state.objects.get(handle.wrapping_sub(1)).copied();
        let layout = |handle, expected| match object(handle) {
            Some(CublasObject::Layout { kind, rows, columns, leading })
                if kind == expected && leading == rows.cast_signed() =>
            {
                Ok((rows as usize, columns as usize))
            }
            _ => Err(code::INVALID_VALUE),
        };
        let (k, n) = layout(a_layout, BF16)?;
        let (inner, rows) = layout(b_layout, BF16)?;
        let out = layout(d_layout, F32)?;
        let transposed = matches!(object(product), Some(CublasObject::Product(true)));
        let is_supported = transposed && factors == (1.0, 0.0) && c == d && chosen == ALGORITHM;
        let on_device = state.ranges.is_device(a, n * k * 2)
            && state.ranges.is_device(b, rows * k * 2)
            && state.ranges.is_device(d, rows * n * 4);
        if !is_supported || inner != k || out != (n, rows) || !on_device {
            return Err(code::INVALID_VALUE);
        }
        if settings().refused_rows == Some(rows) {
            return Err(NOT_SUPPORTED);
        }
        state.load_product((n, k))?;
        state.enqueue(stream, QueuedWork::Product(QueuedProduct { a, b, d, rows, n, k }))
    }))
}
