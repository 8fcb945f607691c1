//! Operations on a finished sum: bias, activation, residual, rounding.

use super::gate::Gate;
use crate::number::Number;
use crate::simd::partial::{load_up_to, store_up_to};
use crate::simd::{MAX_LANES, Simd, math};

/// Floats in a cache line.
const LINE: usize = 16;
/// Number of vectors that are multiplied by a gate together.
const TOGETHER: usize = 4;

/// Destination of a linear's results. All slices are `[rows, n]`, unless stated otherwise, and
/// written in full.
#[derive(Debug)]
pub enum LinearOut<'a, T> {
    Store(&'a mut [T]),
    /// `max(result, 0)`.
    Relu(&'a mut [T]),
    /// `max(result, 0)²`.
    ReluSquared(&'a mut [T]),
    /// GELU of the result, computed with erf.
    Gelu(&'a mut [T]),
    /// `silu(gate) * result`.
    SiluMul {
        gate: &'a [T],
        out: &'a mut [T],
    },
    /// `gelu(gate) * result`, with the tanh approximation of GELU.
    GeluTanhMul {
        gate: &'a [T],
        out: &'a mut [T],
    },
    /// `min(silu(gate), limit) * u`, where u is the result, clamped to `-limit..=limit`.
    LimitedSiluMul {
        gate: &'a [T],
        out: &'a mut [T],
        limit: f32,
    },
    /// `silu(g) * u`, where g is the gate, at most `limit`, and u the result, clamped to
    /// `-limit..=limit`.
    SiluOfLimitedMul {
        gate: &'a [T],
        out: &'a mut [T],
        limit: f32,
    },
    /// `(u + 1) * g * sigmoid(alpha * g)`, where g is the gate, at most `limit`, and u the result,
    /// clamped to `-limit..=limit`.
    ClampedSwiGlu {
        gate: &'a [T],
        out: &'a mut [T],
        alpha: f32,
        limit: f32,
    },
    /// `x * silu(result)`: the result is the gate.
    TimesSilu {
        x: &'a [T],
        out: &'a mut [T],
    },
    /// `x * sigmoid(result)`.
    TimesSigmoid {
        x: &'a [T],
        out: &'a mut [T],
    },
    /// `x * sigmoid(result)` for all `head_dim` elements of a head, of which each result is the
    /// gate. x and out are `[rows, n, head_dim]`.
    TimesSigmoidOfHead {
        x: &'a [T],
        out: &'a mut [T],
        head_dim: usize,
    },
    /// `x * gelu(result)`, with the tanh approximation of GELU.
    TimesGeluTanh {
        x: &'a [T],
        out: &'a mut [T],
    },
    /// `out += result`: the residual stream, in place.
    AddTo(&'a mut [f32]),
    /// `out += factor * result`.
    AddScaled {
        out: &'a mut [f32],
        factor: f32,
    },
    StoreF32(&'a mut [f32]),
    /// `factor * result`.
    StoreScaled {
        out: &'a mut [f32],
        factor: f32,
    },
    /// `cap * tanh(factor * result / cap)`.
    StoreCapped {
        out: &'a mut [f32],
        factor: f32,
        cap: f32,
    },
}

/// A [`LinearOut`] as pointers, so that tasks can write disjoint parts of it.
#[derive(Debug)]
pub enum Epilogue<T> {
    Store(*mut T),
    Relu(*mut T),
    ReluSquared(*mut T),
    Gelu(*mut T),
    Gated { gate: *const T, out: *mut T, with: Gate },
    GatedHead { x: *const T, out: *mut T, head_dim: usize },
    Add { out: *mut f32, factor: f32 },
    StoreF32 { out: *mut f32, factor: f32 },
    StoreCapped { out: *mut f32, factor: f32, cap: f32 },
}

impl<T> Clone for Epilogue<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Epilogue<T> {}

impl<T: Number> Epilogue<T> {
    /// Converts `out` to pointers, after checking that every slice has `len` elements.
    pub(super) fn new(out: LinearOut<'_, T>, len: usize) -> Self {
        let gated = |gate: &[T], out: &mut [T], with| {
            assert_eq!(gate.len(), len, "gate is [rows, n]");
            (out.len(), Epilogue::Gated { gate: gate.as_ptr(), out: out.as_mut_ptr(), with })
        };
        let add =
            |out: &mut [f32], factor| (out.len(), Epilogue::Add { out: out.as_mut_ptr(), factor });
        let store_f32 = |out: &mut [f32], factor| {
            (out.len(), Epilogue::StoreF32 { out: out.as_mut_ptr(), factor })
        };
        let (written, epilogue) = match out {
            LinearOut::Store(out) => (out.len(), Epilogue::Store(out.as_mut_ptr())),
            LinearOut::Relu(out) => (out.len(), Epilogue::Relu(out.as_mut_ptr())),
            LinearOut::ReluSquared(out) => (out.len(), Epilogue::ReluSquared(out.as_mut_ptr())),
            LinearOut::Gelu(out) => (out.len(), Epilogue::Gelu(out.as_mut_ptr())),
            LinearOut::SiluMul { gate, out } => gated(gate, out, Gate::Silu),
            LinearOut::GeluTanhMul { gate, out } => gated(gate, out, Gate::GeluTanh),
            LinearOut::LimitedSiluMul { gate, out, limit } => {
                gated(gate, out, Gate::LimitedSilu { limit })
            }
            LinearOut::SiluOfLimitedMul { gate, out, limit } => {
                gated(gate, out, Gate::SiluOfLimited { limit })
            }
            LinearOut::ClampedSwiGlu { gate, out, alpha, limit } => {
                gated(gate, out, Gate::Clamped { alpha, limit })
            }
            LinearOut::TimesSilu { x, out } => gated(x, out, Gate::BySilu),
            LinearOut::TimesSigmoid { x, out } => gated(x, out, Gate::BySigmoid),
            LinearOut::TimesSigmoidOfHead { x, out, head_dim } => {
                assert!(x.len() == len * head_dim && head_dim > 0, "x is [rows, n, head_dim]");
                assert_eq!(out.len(), x.len(), "out is [rows, n, head_dim]");
                (len, Epilogue::GatedHead { x: x.as_ptr(), out: out.as_mut_ptr(), head_dim })
            }
            LinearOut::TimesGeluTanh { x, out } => gated(x, out, Gate::ByGeluTanh),
            // A factor of 1 changes no bit.
            LinearOut::AddTo(out) => add(out, 1.0),
            LinearOut::AddScaled { out, factor } => add(out, factor),
            LinearOut::StoreF32(out) => store_f32(out, 1.0),
            LinearOut::StoreScaled { out, factor } => store_f32(out, factor),
            LinearOut::StoreCapped { out, factor, cap } => {
                (out.len(), Epilogue::StoreCapped { out: out.as_mut_ptr(), factor, cap })
            }
        };
        assert_eq!(written, len, "out is [rows, n]");
        epilogue
    }

    /// Returns the outputs from element `offset` on.
    pub(super) fn skip(self, offset: usize) -> Self {
        match self {
            Epilogue::Store(out) => Epilogue::Store(out.wrapping_add(offset)),
            Epilogue::Relu(out) => Epilogue::Relu(out.wrapping_add(offset)),
            Epilogue::ReluSquared(out) => Epilogue::ReluSquared(out.wrapping_add(offset)),
            Epilogue::Gelu(out) => Epilogue::Gelu(out.wrapping_add(offset)),
            Epilogue::Gated { gate, out, with } => {
                let (gate, out) = (gate.wrapping_add(offset), out.wrapping_add(offset));
                Epilogue::Gated { gate, out, with }
            }
            Epilogue::GatedHead { x, out, head_dim } => {
                let first = offset * head_dim;
                let (x, out) = (x.wrapping_add(first), out.wrapping_add(first));
                Epilogue::GatedHead { x, out, head_dim }
            }
            Epilogue::Add { out, factor } => {
                Epilogue::Add { out: out.wrapping_add(offset), factor }
            }
            Epilogue::StoreF32 { out, factor } => {
                Epilogue::StoreF32 { out: out.wrapping_add(offset), factor }
            }
            Epilogue::StoreCapped { out, factor, cap } => {
                Epilogue::StoreCapped { out: out.wrapping_add(offset), factor, cap }
            }
        }
    }

    /// Prefetches the memory to which `count` neighbouring outputs are added, the first at element
    /// `at`. It comes from the third-level cache, and a row's part is too short for the processor's
    /// own prefetcher.
    #[inline(always)]
    pub(super) fn prefetch<S: Simd>(self, s: S, at: usize, count: usize) {
        if let Epilogue::Add { out, .. } = self {
            for line in (0..count).step_by(LINE) {
                s.prefetch(out.wrapping_add(at + line).cast_const().cast());
            }
        }
    }

    /// Finishes `count` neighbouring outputs of one row, the first at element `at`.
    ///
    /// # Safety
    /// `sums` holds `count` sums and `bias` `count` values; elements `at..at + count` are within
    /// the outputs, and no other thread accesses them.
    #[inline(always)]
    pub(super) unsafe fn finish<S: Simd>(
        self,
        s: S,
        sums: *const f32,
        bias: Option<*const f32>,
        at: usize,
        count: usize,
    ) {
        let mut done = 0;
        if let Epilogue::Gated { gate, out, with } = self {
            while const { !S::IS_PORTABLE } && done + TOGETHER * S::LANES <= count {
                let bias = bias.map(|bias| bias.wrapping_add(done));
                let (gate, out) = (gate.wrapping_add(at + done), out.wrapping_add(at + done));
                // SAFETY: `TOGETHER` vectors of sums, biases and outputs remain from
                // `done` on.
                unsafe { gated(s, with, sums.add(done), bias, gate, out) };
                done += TOGETHER * S::LANES;
            }
        }
        for first in (done..count).step_by(S::LANES) {
            let width = S::LANES.min(count - first);
            // SAFETY: `width` sums, biases and outputs remain from `first` on.
            unsafe {
                let mut value = load_up_to(s, sums.add(first), width);
                if let Some(bias) = bias {
                    value = s.add(value, load_up_to(s, bias.add(first), width));
                }
                self.write(s, value, at + first, width);
            }
        }
    }

    /// Applies the epilogue to `width` values and writes them.
    ///
    /// # Safety
    /// Elements `at..at + width` are within the outputs; `width <= LANES`.
    #[inline(always)]
    unsafe fn write<S: Simd>(self, s: S, value: S::F, at: usize, width: usize) {
        // SAFETY: the caller's promise covers every access below.
        unsafe {
            match self {
                Epilogue::Store(out) => store_up_to(s, out.add(at), value, width),
                Epilogue::Relu(out) => {
                    // NaN must be preserved, not become 0.
                    let relu = s.select_less(value, s.zero(), s.zero(), value);
                    store_up_to(s, out.add(at), relu, width);
                }
                Epilogue::ReluSquared(out) => {
                    let relu = s.select_less(value, s.zero(), s.zero(), value);
                    store_up_to(s, out.add(at), s.mul(relu, relu), width);
                }
                Epilogue::Gelu(out) => store_up_to(s, out.add(at), math::gelu(s, value), width),
                Epilogue::Gated { gate, out, with } => {
                    let gate = load_up_to(s, gate.add(at), width);
                    let [product] = with.apply(s, [gate], [value]);
                    store_up_to(s, out.add(at), product, width);
                }
                Epilogue::GatedHead { x, out, head_dim } => {
                    let [gates] = math::sigmoid(s, [value]);
                    let (x, out) = (x.add(at * head_dim), out.add(at * head_dim));
                    gate_heads(s, gates, width, x, out, head_dim);
                }
                Epilogue::Add { out, factor } => {
                    let value = s.mul(value, s.splat(factor));
                    let sum = s.add(load_up_to(s, out.cast_const().add(at), width), value);
                    store_up_to(s, out.add(at), sum, width);
                }
                Epilogue::StoreF32 { out, factor } => {
                    store_up_to(s, out.add(at), s.mul(value, s.splat(factor)), width);
                }
                Epilogue::StoreCapped { out, factor, cap } => {
                    let capped = math::capped(s, s.mul(value, s.splat(factor)), cap);
                    store_up_to(s, out.add(at), capped, width);
                }
            }
        }
    }
}

/// Applies `with` to the gates and `sum + bias` of [`TOGETHER`] vectors.
///
/// # Safety
/// Each pointer is valid for that number of values.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "vectors are surer to stay in registers by index")]
unsafe fn gated<S: Simd, T: Number>(
    s: S,
    with: Gate,
    sums: *const f32,
    bias: Option<*const f32>,
    gate: *const T,
    out: *mut T,
) {
    let (mut gates, mut values) = ([s.zero(); TOGETHER], [s.zero(); TOGETHER]);
    for i in 0..TOGETHER {
        let at = i * S::LANES;
        // SAFETY: the caller's promise.
        unsafe {
            values[i] = s.load(sums.add(at));
            if let Some(bias) = bias {
                values[i] = s.add(values[i], s.load(bias.add(at)));
            }
            gates[i] = T::load(s, gate.add(at));
        }
    }
    let products = with.apply(s, gates, values);
    for i in 0..TOGETHER {
        // SAFETY: as above.
        unsafe { T::store(s, out.add(i * S::LANES), products[i]) };
    }
}

/// Multiplies the elements of `count` neighbouring heads by the head's gate.
///
/// # Safety
/// `x` and `out` are valid for `count * head_dim` elements; `count <= LANES`.
#[inline(always)]
unsafe fn gate_heads<S: Simd, T: Number>(
    s: S,
    gates: S::F,
    count: usize,
    x: *const T,
    out: *mut T,
    head_dim: usize,
) {
    let mut all = [0.0f32; MAX_LANES];
    // SAFETY: `all` has the elements of any vector.
    unsafe { store_up_to(s, all.as_mut_ptr(), gates, count) };
    for (head, gate) in all[..count].iter().enumerate() {
        for first in (0..head_dim).step_by(S::LANES) {
            let (at, width) = (head * head_dim + first, S::LANES.min(head_dim - first));
            // SAFETY: the head is one of `count`, and `width` elements of it remain from `first`
            // on.
            unsafe {
                let product = s.mul(load_up_to(s, x.add(at), width), s.splat(*gate));
                store_up_to(s, out.add(at), product, width);
            }
        }
    }
}
