// Pairs of bf16 in a word, the first of them in its low half, and integers of four bits as floats.
#pragma once

#ifdef __CUDA_ARCH__
// Both rounded to nearest, ties to even; one instruction.
DEVICE u32 bf16_both(float low, float high) {
    u32 result;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}

// 2^x, relative error about 2^-22; numbers below the least normal one become 0. Exactly 1 for 0.
DEVICE float exponential_2(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// Bytes of two words: byte i of the result is the one that digit i of `selector` numbers, or, if the
// digit's highest bit is set, eight times the highest bit of that byte.
DEVICE u32 bytes_of(u32 low, u32 high, u32 selector) {
    u32 result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
    return result;
}

// Bits that leave at the upper end come back at the lower one; `by` counts modulo 32.
DEVICE u32 rotated_left(u32 word, u32 by) {
    u32 result;
    asm("shf.l.wrap.b32 %0, %1, %1, %2;" : "=r"(result) : "r"(word), "r"(by));
    return result;
}

// Bits of `a` where `mask` has zeros and of `b` where it has ones, in one instruction.
DEVICE u32 chosen(u32 a, u32 b, u32 mask) {
    u32 result;
    asm("lop3.b32 %0, %1, %2, %3, 0xd8;" : "=r"(result) : "r"(a), "r"(b), "r"(mask));
    return result;
}

// (word & mask) | others, in one instruction.
DEVICE u32 masked_or(u32 word, u32 mask, u32 others) {
    u32 result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(others));
    return result;
}

// a * b + c of both, rounded once.
DEVICE u32 bf16_multiply_add(u32 a, u32 b, u32 c) {
    u32 result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}

// Starts a copy of 4 or 8 bytes; zeros instead where `present` is false.
template <int BYTES> DEVICE void copy_async(void* shared, const void* global, bool present) {
    const u32 address = (u32)__cvta_generic_to_shared(shared);
    const int bytes = present ? BYTES : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(global),
                 "n"(BYTES), "r"(bytes)
                 : "memory");
}
#endif

// The integers in the low bits of a word's halves.
DEVICE u32 nibbles_as_bf16(u32 word) {
    // 128 + q, less 128, without rounding.
    return bf16_multiply_add(masked_or(word, 0x000f000fu, 0x43004300u), 0x3f803f80u, 0xc300c300u);
}

// Of a group of 4-bit integers q: their elements are scale * q + minimum.
struct NibbleRange {
    float scale;
    // Beside 128 + q.
    float origin;

    DEVICE NibbleRange(float step, float minimum)
        : scale(step), origin(fmaf(-128.0f, step, minimum)) {}

    // The integers in the low bits of a word's bytes, as elements rounded to bf16.
    DEVICE void decode(u32 word, u32& first, u32& second) const {
        const u32 nibbles = word & 0x0f0f0f0fu;
        float element[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            // The f32 128 + q has q in its second byte from above.
            const u32 bits = bytes_of(nibbles, 0x43000000u, 0x7044u | i << 8);
            element[i] = fmaf(float_of_bits(bits), scale, origin);
        }
        first = bf16_both(element[0], element[1]);
        second = bf16_both(element[2], element[3]);
    }
};
