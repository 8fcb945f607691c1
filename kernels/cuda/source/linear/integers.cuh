// Weights of records as tensor cores multiply them: the integers themselves, which bf16 holds exactly.
#pragma once

static constexpr u32 ONES = 0x3f803f80u;

// Eight 4-bit integers of a row. `mask` is 0x000f000f, in a register where the loop keeps it: an
// instruction takes one constant.
DEVICE Words4 integers_of(u32 dword, u32 mask) {
    Words4 words;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        // Behind the exponent of 128 the last place is 1, and 128 is subtracted exactly.
        const u32 pair = masked_or(dword >> 4 * i, mask, 0x43004300u);
        words.word[i] = bf16_multiply_add(pair, ONES, 0xc300c300u);
    }
    return words;
}

// Eight signed bytes of a row.
DEVICE Words4 integers_of_bytes(u32 low, u32 high) {
    Words4 words;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const u32 bytes = (i < 2 ? low : high) ^ 0x80808080u;
        u32 halves[2];
#pragma unroll
        for (u32 j = 0; j < 2; ++j) {
            // Behind the exponent of 2^23 the last place is 1. The difference fits the upper half.
            const u32 shifted = bytes_of(bytes, 0x4b000000u, 0x7540u + 2 * (i % 2) + j);
            halves[j] = bits_of_float(float_of_bits(shifted) - 8388736.0f);
        }
        words.word[i] = bytes_of(halves[0], halves[1], 0x7632u);
    }
    return words;
}

// Scales and minimums of two neighbouring rows of a record, as they are loaded.
template <bool FLOATS> struct RangePair;

template <> struct RangePair<false> {
    u32 scales;
    u32 minimums;

    DEVICE static RangePair load(const u8* first) {
        return {load4_again(first), load4_again(first + 32)};
    }
    DEVICE RangePair beside(u32 lanes) const {
        return {SHUFFLE_XOR(scales, lanes), SHUFFLE_XOR(minimums, lanes)};
    }
    DEVICE float scale(u32 row) const { return float_of_f16((u16)(scales >> 16 * row)); }
    DEVICE float minimum(u32 row) const { return float_of_f16((u16)(minimums >> 16 * row)); }
};

template <> struct RangePair<true> {
    Words2 scales;
    Words2 minimums;

    DEVICE static RangePair load(const u8* first) {
        return {load8_again(first), load8_again(first + 64)};
    }
    DEVICE RangePair beside(u32 lanes) const {
        RangePair other;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            other.scales.word[i] = SHUFFLE_XOR(scales.word[i], lanes);
            other.minimums.word[i] = SHUFFLE_XOR(minimums.word[i], lanes);
        }
        return other;
    }
    DEVICE float scale(u32 row) const { return float_of_bits(scales.word[row]); }
    DEVICE float minimum(u32 row) const { return float_of_bits(minimums.word[row]); }
};

// What a lane 4g+t has of 16 rows and 32 inputs: rows 2g and 2g+1, inputs 8t to 8t+7, and the ranges of
// the group in which they lie.
template <u32 BITS, bool FLOATS> struct LaneRecord {
    Words2 integers[BITS / 4];
    RangePair<FLOATS> ranges;

    DEVICE static LaneRecord load(const u8* ranges, const u8* integers) {
        LaneRecord own;
        own.integers[0] = load8_once(integers);
        if (BITS == 8) own.integers[BITS / 4 - 1] = load8_once(integers + 64);
        own.ranges = RangePair<FLOATS>::load(ranges);
        return own;
    }

    DEVICE Words4 row(u32 row, u32 mask) const {
        if (BITS == 4) return integers_of(integers[0].word[row], mask);
        return integers_of_bytes(integers[0].word[row], integers[BITS / 4 - 1].word[row]);
    }
};

// Where a lane finds its part of the records of 16 columns, for every 32 inputs.
template <u32 BITS, bool FLOATS, bool SIXTEENS> struct LanePlaces {
    u32 group_bits;
    // Of an input's number: its place in a group, in steps of 32.
    u32 in_group_mask;
    u32 bytes;
    // Of `integers_of`.
    u32 mask;
    // Of the lane's ranges in the first record, and from there to its integers.
    u32 ranges;
    u32 integers;

    DEVICE LanePlaces(u32 group)
        : group_bits(SIXTEENS ? 4u : kept(group == 64 ? 6u : 5u)),
          in_group_mask(group == 64 ? 32 : 0),
          bytes(record_bytes(BITS, group, FLOATS)), mask(kept(0x000f000fu)) {
        const u32 pair = lane_index() / 4;
        const u32 eighth = lane_index() % 4;
        // Two groups of 16 are two eighths each.
        const u32 record = SIXTEENS ? eighth / 2 * bytes : 0;
        const u32 pair_bytes = range_bytes(FLOATS) / 16;
        ranges = record + pair_bytes * pair;
        integers = range_bytes(FLOATS) - pair_bytes * pair + 8 * pair +
                        (SIXTEENS ? eighth % 2 : eighth) * 16 * BITS;
    }

    // `first`: the lane's ranges in the first record; `at`: a multiple of 32.
    DEVICE LaneRecord<BITS, FLOATS> load(const u8* first, u32 at) const {
        const u8* own = first + (at >> group_bits) * bytes;
        const u32 in_group = SIXTEENS ? 0 : at & in_group_mask;
        return LaneRecord<BITS, FLOATS>::load(own, own + (integers + in_group * 2 * BITS));
    }
};

// Adds scale * (sum of q * x) + minimum * (sum of x) of one group.
template <bool FLOATS>
DEVICE void add_group(float (&sums)[4], const RangePair<FLOATS>& ranges, const float (&products)[4],
                      const float (&values)[4]) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        sums[i] = fmaf(ranges.scale(i / 2), products[i], sums[i]);
        sums[i] = fmaf(ranges.minimum(i / 2), values[i % 2], sums[i]);
    }
}

DEVICE Words4 kept_if(bool kept, const Words4& words) {
    Words4 result;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) result.word[i] = kept ? words.word[i] : 0;
    return result;
}

// The products of 32 inputs of one group, or, with PARTS, of those of its lanes of one half alone, the
// other half's inputs as zeros. Sums of x are products with ones.
template <bool PARTS, int M, int N, u32 BITS, bool FLOATS>
DEVICE void add_inputs(float (&sums)[M][N][4], const LaneRecord<BITS, FLOATS> (&records)[M],
                       const Words4 (&values)[N], u32 mask, bool is_kept) {
    const Words4 ones = kept_if(!PARTS || is_kept, {ONES, ONES, ONES, ONES});
    Words4 even[M];
    Words4 odd[M];
    RangePair<FLOATS> ranges[M];
#pragma unroll
    for (int m = 0; m < M; ++m) {
        ranges[m] = records[m].ranges;
        if (PARTS) {
            const RangePair<FLOATS> other = ranges[m].beside(2);
            if (!is_kept) ranges[m] = other;
        }
        even[m] = kept_if(!PARTS || is_kept, records[m].row(0, mask));
        odd[m] = kept_if(!PARTS || is_kept, records[m].row(1, mask));
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
        float totals[4] = {};
        multiply_32_inputs(totals, ones, ones, values[n]);
#pragma unroll
        for (int m = 0; m < M; ++m) {
            float products[4] = {};
            multiply_32_inputs(products, even[m], odd[m], values[n]);
            add_group(sums[m][n], ranges[m], products, totals);
        }
    }
}

// The products of 32 inputs: a group or half of one, or, with SIXTEENS, two groups of 16.
template <bool SIXTEENS, int M, int N, u32 BITS, bool FLOATS>
DEVICE void add_32_inputs(float (&sums)[M][N][4], const LaneRecord<BITS, FLOATS> (&records)[M],
                          const Words4 (&values)[N], u32 mask) {
    if (!SIXTEENS) {
        add_inputs<false>(sums, records, values, mask, true);
        return;
    }
    const bool is_second = lane_index() % 4 >= 2;
#pragma unroll 1
    for (u32 part = 0; part < 2; ++part) {
        add_inputs<true>(sums, records, values, mask, is_second == (part == 1));
    }
}
