// 4-bit records of the KV cache, one for each position of a head: integers, then an f16 scale for each
// group of 64 elements, then an f16 minimum for each. A byte holds an element of a group's first half
// in its low bits and the one as far into the second half in its high bits.
#pragma once

DEVICE u32 kv_groups(u32 head_dim) { return divided_up(head_dim, 64); }
DEVICE u32 kv_record_bytes(u32 head_dim) { return head_dim / 2 + 4 * kv_groups(head_dim); }

// The largest f16 that is not above `value`, and the smallest that is not below it, as bits.
DEVICE u16 f16_below(float value) {
    const u16 near = f16_of(value);
    if (float_of_f16(near) <= value) return near;
    // Down is away from zero for negative numbers; below +0 comes the smallest negative one.
    if (near == 0) return 0x8001;
    return near & 0x8000 ? near + 1 : near - 1;
}

DEVICE u16 f16_above(float value) {
    const u16 near = f16_of(value);
    return float_of_f16(near) >= value ? near : near + 1;
}

// What an f16 can hold: NaN becomes 0, what is too large the largest, -0 becomes 0.
DEVICE float sane(float value) {
    const float largest = 65504.0f;
    value = value == value ? value : 0.0f;
    value = value < largest ? value : largest;
    value = value > -largest ? value : -largest;
    return value + 0.0f;
}

DEVICE u32 nearest_step(float steps) {
    // Adding 2^23 leaves the rounded integer in the low bits of the sum.
    return bits_of_float((steps < 15.0f ? steps : 15.0f) + 8388608.0f) & 0xff;
}

// A warp quantises one head; all its lanes come here.
template <class T> DEVICE void quantise_head(const T* x, u32 head_dim, u8* record) {
    const u32 groups = kv_groups(head_dim);
    for (u32 group = 0; group < groups; ++group) {
        const u32 half = smaller(64, head_dim - 64 * group) / 2;
        // A lane has the two elements of a byte; lanes without one repeat the first.
        const u32 lane = lane_index() < half ? lane_index() : 0;
        const float low = sane(to_float(x[64 * group + lane]));
        const float high = sane(to_float(x[64 * group + half + lane]));
        const float highest = team_maximum<32>(fmaxf(low, high));
        const float lowest = 0.0f - team_maximum<32>(0.0f - fminf(low, high));
        const u16 minimum = f16_below(lowest);
        const float offset = float_of_f16(minimum);
        const u16 scale = f16_above((highest - offset) / 15.0f);
        const float inverse = scale == 0 ? 0.0f : 1.0f / float_of_f16(scale);
        if (lane_index() < half) {
            const u32 byte = nearest_step((low - offset) * inverse) |
                             nearest_step((high - offset) * inverse) << 4;
            record[32 * group + lane] = (u8)byte;
        }
        if (lane_index() == 0) {
            // By bytes: records lie on boundaries of one when heads are short.
            u8* ranges = record + head_dim / 2 + 2 * group;
            ranges[0] = (u8)scale;
            ranges[1] = (u8)(scale >> 8);
            ranges[2 * groups] = (u8)minimum;
            ranges[2 * groups + 1] = (u8)(minimum >> 8);
        }
    }
}

// Eight elements of a record from element `at` on, a multiple of eight; zeros behind the head.
DEVICE void decode_kv8(const u8* record, u32 head_dim, u32 at, float* to) {
    const u32 group = at / 64;
    const u32 half = smaller(64, head_dim - 64 * group) / 2;
    const u32 first = at - 64 * group;
    const u8* bytes = record + 32 * group;
    // By bytes: records lie on boundaries of one when heads are short.
    const u8* ranges = record + head_dim / 2 + 2 * group;
    const u8* minimums = ranges + 2 * kv_groups(head_dim);
    const RowRange range = {float_of_f16((u16)(ranges[0] | ranges[1] << 8)),
                            float_of_f16((u16)(minimums[0] | minimums[1] << 8))};
    if (head_dim % 16 == 0) {
        // Halves of groups are then multiples of eight and records of four: eight bytes in two words,
        // of which the eight elements are all in the low bits or all in the high ones.
        const bool high = first >= half;
        const u32* words = reinterpret_cast<const u32*>(bytes + first - (high ? half : 0));
        for (u32 i = 0; i < 8; ++i) {
            to[i] = decoded(range, words[i / 4] >> (i % 4 * 8 + (high ? 4 : 0)) & 15);
        }
        return;
    }
    for (u32 i = 0; i < 8; ++i) {
        const u32 element = first + i;
        if (at + i >= head_dim) {
            to[i] = 0.0f;
        } else if (element < half) {
            to[i] = decoded(range, bytes[element] & 15);
        } else {
            to[i] = decoded(range, bytes[element - half] >> 4);
        }
    }
}

// A warp for each position.
template <class T> DEVICE void quantise_kv(const T* x, u8* out, u32 positions, u32 head_dim) {
    const u32 position = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (position >= positions) return;
    quantise_head(x + (u64)position * head_dim, head_dim,
                  out + (u64)position * kv_record_bytes(head_dim));
}

KERNEL(quantise_kv_bf16, 256, (const bf16* x, u8* out, u32 positions, u32 head_dim)) {
    quantise_kv(x, out, positions, head_dim);
}

KERNEL(quantise_kv_f32, 256, (const float* x, u8* out, u32 positions, u32 head_dim)) {
    quantise_kv(x, out, positions, head_dim);
}
