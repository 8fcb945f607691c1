// Records of a grouped matrix (`model::compressed`) that linears read: 16 output rows of one group of
// inputs. 16 scales, 16 minimums, f16 or, with `floats`, f32; then dwords of 16 rows beside each
// other: eight 4-bit inputs of a row in a dword, the even ones in its low half, or four 8-bit ones.
#pragma once

DEVICE u32 range_bytes(bool floats) { return floats ? 128 : 64; }

DEVICE u32 record_bytes(u32 bits, u32 group, bool floats) {
    return range_bytes(floats) + 2 * group * bits;
}

// Scale and minimum of a row of a record.
struct RowRange {
    float scale;
    float minimum;
};

DEVICE RowRange range_of(const u8* record, u32 row, bool floats) {
    if (floats) {
        const float* numbers = reinterpret_cast<const float*>(record);
        return {numbers[row], numbers[16 + row]};
    }
    const u16* halves = reinterpret_cast<const u16*>(record);
    return {float_of_f16(halves[row]), float_of_f16(halves[16 + row])};
}

// Of the vectors of dwords that begin at `integers`.
DEVICE u32 record_dword(const u8* integers, u32 vector, u32 row) {
    return reinterpret_cast<const u32*>(integers)[16 * vector + row];
}

// As the CPU reads it: the product is rounded before the minimum is added.
DEVICE float decoded(RowRange range, float q) { return range.scale * q + range.minimum; }

// Inputs 8 * eighth to 8 * eighth + 7 of a row of a record.
DEVICE void decode8(const u8* record, u32 bits, bool floats, u32 row, u32 eighth, float* to) {
    const RowRange range = range_of(record, row, floats);
    const u8* integers = record + range_bytes(floats);
    if (bits == 4) {
        const u32 dword = record_dword(integers, eighth, row);
        for (u32 i = 0; i < 8; ++i) {
            const u32 nibble = i / 2 + i % 2 * 4;
            // Behind the exponent of 2^23 the last place is 1: no conversion, the same number.
            const u32 shifted = 0x4b000000u | (dword >> 4 * nibble & 15);
            to[i] = decoded(range, float_of_bits(shifted) - 8388608.0f);
        }
    } else {
        for (u32 i = 0; i < 8; ++i) {
            const u32 dword = record_dword(integers, 2 * eighth + i / 4, row);
            to[i] = decoded(range, (float)(signed char)(dword >> i % 4 * 8));
        }
    }
}
