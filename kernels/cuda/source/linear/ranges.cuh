// Scales and minimums of stored records, as floats.
//
// Each kind has the inputs of a record and the bytes that precede its integers, its head. `of_two` returns
// the ranges of rows 2g and 2g+1 of a group, given the consecutive heads of 256 inputs.
#pragma once

struct RangesOfTwo {
    float scale[2];
    float minimum[2];
};

DEVICE float half_at(const u8* place) { return float_of_f16(*reinterpret_cast<const u16*>(place)); }

// A signed byte as a float.
DEVICE float float_of_byte(u8 byte) {
    // Behind the exponent of 2^23 the last place is 1.
    return float_of_bits(0x4b000000u | (byte ^ 0x80u)) - 8388736.0f;
}

// f16, a record for each group.
struct HalfRanges {
    static constexpr bool MINIMUMS = true;
    static constexpr u32 INPUTS = 32;
    static constexpr u32 HEAD = 64;

    DEVICE static RangesOfTwo of_two(const u8* heads, u32 group, u32 g) {
        const u8* own = heads + (HEAD * group + 4 * g);
        return {{half_at(own), half_at(own + 2)}, {half_at(own + 32), half_at(own + 34)}};
    }
};

// f16 scales, a record for two groups.
struct HalfScaleRanges {
    static constexpr bool MINIMUMS = false;
    static constexpr u32 INPUTS = 64;
    static constexpr u32 HEAD = 64;

    DEVICE static RangesOfTwo of_two(const u8* heads, u32 group, u32 g) {
        const u8* own = heads + (32 * group + 4 * g);
        return {{half_at(own), half_at(own + 2)}, {}};
    }
};

// Exponents of two, a record for four groups.
struct PowerRanges {
    static constexpr bool MINIMUMS = false;
    static constexpr u32 INPUTS = 128;
    static constexpr u32 HEAD = 64;

    DEVICE static RangesOfTwo of_two(const u8* heads, u32 group, u32 g) {
        const signed char* own = reinterpret_cast<const signed char*>(heads) + (16 * group + 2 * g);
        return {{power_of_two(own[0]), power_of_two(own[1])}, {}};
    }
};

// An f16 of a record of 256 inputs times a signed byte of a group.
template <u32 GROUP> struct ProductRanges {
    static constexpr bool MINIMUMS = false;
    static constexpr u32 INPUTS = 256;
    static constexpr u32 HEAD = GROUP == 16 ? 320 : 192;

    DEVICE static RangesOfTwo of_two(const u8* heads, u32 group, u32 g) {
        const u8* factors = heads + (32 + 16 * group + 2 * g);
        const u8* halves = heads + 4 * g;
        return {{half_at(halves) * float_of_byte(factors[0]),
                 half_at(halves + 2) * float_of_byte(factors[1])},
                {}};
    }
};

// Scales and minimums are each such a product.
struct ProductAndMinimumRanges {
    static constexpr bool MINIMUMS = true;
    static constexpr u32 INPUTS = 256;
    static constexpr u32 HEAD = 320;

    DEVICE static RangesOfTwo of_two(const u8* heads, u32 group, u32 g) {
        const u8* factors = heads + (64 + 32 * group + 2 * g);
        const u8* halves = heads + 4 * g;
        return {{half_at(halves) * float_of_byte(factors[0]),
                 half_at(halves + 2) * float_of_byte(factors[1])},
                {half_at(halves + 32) * float_of_byte(factors[16]),
                 half_at(halves + 34) * float_of_byte(factors[17])}};
    }
};
