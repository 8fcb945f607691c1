// Number formats and elementary functions: the polynomials of the CPU kernels, in their order, so that
// a GPU and a CPU differ only where sums are ordered otherwise.
#pragma once

#ifdef __CUDA_ARCH__
DEVICE float float_of_bits(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 bits_of_float(float value) { return __float_as_uint(value); }

// Nearest, ties to even; NaN stays NaN.
DEVICE bf16 bf16_of(float value) {
    bf16 result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return result;
}

DEVICE float float_of_f16(u16 bits) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(bits));
    return result;
}

DEVICE u16 f16_of(float value) {
    u16 result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return result;
}
#endif

DEVICE float to_float(bf16 value) { return float_of_bits((u32)value << 16); }
DEVICE float to_float(float value) { return value; }

template <class T> DEVICE T of_float(float value);
template <> DEVICE bf16 of_float<bf16>(float value) { return bf16_of(value); }
template <> DEVICE float of_float<float>(float value) { return value; }

// Two bf16 in the order in which they lie in memory.
DEVICE u32 bf16_pair(float low, float high) {
    return (u32)bf16_of(low) | (u32)bf16_of(high) << 16;
}

DEVICE float minus_infinity() { return float_of_bits(0xff800000u); }

// e^x, relative error about 1e-7; 0 below -87.3. NaN stays NaN.
DEVICE float exponential(float x) {
    const float lowest = -87.33655f;
    // Comparisons that NaN passes, which fminf and fmaxf would replace.
    float clamped = x < lowest ? lowest : x;
    clamped = clamped > 88.37f ? 88.37f : clamped;
    // x = n ln 2 + r; ln 2 in two parts keeps r exact.
    const float n = rintf(clamped * 1.44269504f);
    float r = fmaf(n, -0.6933594f, clamped);
    r = fmaf(n, 2.1219444e-4f, r);
    float p = 1.9875691e-4f;
    p = fmaf(p, r, 1.3981999e-3f);
    p = fmaf(p, r, 8.333452e-3f);
    p = fmaf(p, r, 4.1665796e-2f);
    p = fmaf(p, r, 1.6666666e-1f);
    p = fmaf(p, r, 0.5f);
    const float power = fmaf(p, r * r, r) + 1.0f;
    // NaN has no integer, and its product is NaN whatever the factor.
    const int exponent = n == n ? (int)n : 0;
    const float result = power * float_of_bits((u32)(exponent + 127) << 23);
    return x < lowest ? 0.0f : result;
}

// x / (1 + e^-x).
DEVICE float silu(float x) { return x / (1.0f + exponential(0.0f - x)); }

// x / (1 + e^(-factor x)).
DEVICE float times_sigmoid(float x, float factor) {
    return x / (1.0f + exponential(0.0f - factor * x));
}

// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as x times the sigmoid of twice the argument of tanh.
DEVICE float gelu_tanh(float x) {
    const float slope = fmaf(x * x, 0.071354814f, 1.5957692f);
    return x / (1.0f + exponential(0.0f - slope * x));
}

// x/2 (1 + erf(x / sqrt 2)), the erf form; absolute error of erf below 2e-7 (Abramowitz and Stegun
// 7.1.26).
DEVICE float gelu(float x) {
    const float scaled = x * 0.70710678f;
    const float magnitude = scaled < 0.0f ? 0.0f - scaled : scaled;
    const float t = 1.0f / fmaf(magnitude, 0.3275911f, 1.0f);
    float p = 1.0614054f;
    p = fmaf(p, t, -1.453152f);
    p = fmaf(p, t, 1.4214137f);
    p = fmaf(p, t, -0.28449674f);
    p = fmaf(p, t, 0.2548296f);
    const float tail = (p * t) * exponential(0.0f - magnitude * magnitude);
    // 1 + erf is 2 - tail on the right and tail on the left, which keeps the small values exact.
    const float one_plus_erf = x < 0.0f ? tail : 2.0f - tail;
    return (x * 0.5f) * one_plus_erf;
}
