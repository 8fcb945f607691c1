// Twins of the instructions behind `source/primitives`, included after its types.
#pragma once

inline float float_of_bits(u32 bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

inline u32 bits_of_float(float value) {
    u32 bits;
    memcpy(&bits, &value, 4);
    return bits;
}

inline bf16 bf16_of(float value) {
    const u32 bits = bits_of_float(value);
    if (value != value) return bf16(bits >> 16 | 0x40);
    return bf16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float float_of_f16(u16 bits) {
    const u32 sign = u32(bits & 0x8000) << 16;
    const u32 exponent = bits >> 10 & 31;
    const u32 fraction = bits & 1023;
    if (exponent == 31) return float_of_bits(sign | 0x7f800000 | fraction << 13);
    if (exponent > 0) return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    // Below the smallest normal number the fraction counts steps of 2^-24.
    const float magnitude = float(fraction) * float_of_bits(0x33800000);
    return float_of_bits(sign | bits_of_float(magnitude));
}

inline u16 f16_of(float value) {
    const u32 bits = bits_of_float(value);
    const u32 sign = bits >> 16 & 0x8000;
    const u32 magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return u16(0x7fff);
    if (magnitude >= 0x477ff000) return u16(sign | 0x7c00);
    if (magnitude < 0x38800000) {
        // Steps of 2^-24, rounded to even by an addition in whose last place they lie.
        const float steps = float_of_bits(magnitude) + 0.5f;
        return u16(sign | (bits_of_float(steps) - bits_of_float(0.5f)));
    }
    const u32 rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return u16(sign | ((rounded >> 13) - (112 << 10)));
}

inline u32 bf16_both(float low, float high) { return u32(bf16_of(low)) | u32(bf16_of(high)) << 16; }

inline float exponential_2(float x) { return exp2f(x); }

inline u32 masked_or(u32 word, u32 mask, u32 others) { return (word & mask) | others; }

inline u32 bf16_multiply_add(u32 a, u32 b, u32 c) {
    u32 result = 0;
    for (u32 shift = 0; shift < 32; shift += 16) {
        const float x = shim::bf16_value(a >> shift & 0xffff);
        const float y = shim::bf16_value(b >> shift & 0xffff);
        result |= u32(bf16_of(fmaf(x, y, shim::bf16_value(c >> shift & 0xffff)))) << shift;
    }
    return result;
}

inline u32 bytes_of(u32 low, u32 high, u32 selector) {
    const u64 bytes = u64(high) << 32 | low;
    u32 result = 0;
    for (u32 i = 0; i < 4; ++i) {
        const u32 digit = selector >> (4 * i);
        const u32 byte = u32(bytes >> (digit & 7) * 8 & 0xff);
        result |= (digit & 8 ? (byte >> 7) * 0xff : byte) << (8 * i);
    }
    return result;
}

inline u32 rotated_left(u32 word, u32 by) { return u32((u64(word) << 32 | word) << by % 32 >> 32); }

inline u32 chosen(u32 a, u32 b, u32 mask) { return (a & ~mask) | (b & mask); }

inline void copy16_async(void* shared, const void* global, bool present) {
    shim::start_copy(shared, global, present, 16);
}
template <int BYTES> inline void copy_async(void* shared, const void* global, bool present) {
    static_assert(BYTES == 4 || BYTES == 8, "16 bytes have a copy of their own");
    shim::start_copy(shared, global, present, BYTES);
}
inline void copy_commit() { shim::commit_copies(); }
template <int LEFT> inline void copy_wait() { shim::wait_copies(LEFT); }

// The products of a step are added exactly and rounded once, as far as f64 goes.
inline void multiply_16_8_16_at(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2],
                                shim::Site site) {
    u32 own[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    shim::show(own, sizeof own, site);
    const u32 g = lane_index() / 4;
    const u32 t = lane_index() % 4;
    for (u32 i = 0; i < 4; ++i) {
        const u32 row = g + i / 2 * 8;
        const u32 column = 2 * t + i % 2;
        double sum = d[i];
        for (u32 k = 0; k < 16; ++k) {
            const u32* left = static_cast<const u32*>(shim::shown_by(row % 8 * 4 + k % 8 / 2));
            const u32* right = static_cast<const u32*>(shim::shown_by(column * 4 + k % 8 / 2));
            const u32 shift = k % 2 * 16;
            const float x = shim::bf16_value(left[row / 8 + k / 8 * 2] >> shift & 0xffff);
            const float y = shim::bf16_value(right[4 + k / 8] >> shift & 0xffff);
            sum += double(x) * double(y);
        }
        d[i] = float(sum);
    }
}
#define multiply_16_8_16(d, a, b) multiply_16_8_16_at(d, a, b, HERE)

// Lane 4g+t receives two elements of each matrix; `turned` says of a column instead of a row.
inline void load_matrices_at(const void* row, u32 (&to)[4], bool turned, shim::Site site) {
    shim::check_alignment(row, 16);
    shim::show(&row, sizeof row, site);
    const u32 g = lane_index() / 4;
    const u32 t = lane_index() % 4;
    for (u32 matrix = 0; matrix < 4; ++matrix) {
        u32 pair[2];
        for (u32 i = 0; i < 2; ++i) {
            const u32 line = turned ? 2 * t + i : g;
            const u32 element = turned ? g : 2 * t + i;
            const bf16* from;
            memcpy(&from, shim::shown_by(matrix * 8 + line), sizeof from);
            pair[i] = from[element];
        }
        to[matrix] = pair[0] | pair[1] << 16;
    }
}
#define load_matrices(row, to) load_matrices_at(row, to, false, HERE)
#define load_matrices_turned(row, to) load_matrices_at(row, to, true, HERE)
