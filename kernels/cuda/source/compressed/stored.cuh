// Forms of grouped matrices as files hold them (`model::compressed`), to the 8-bit records that linears
// read. Their numbers are those of `compressed.rs`.
#pragma once

// Integers: how many bits each, and what they stand for.
static constexpr u32 CODES_FOUR = 0;
static constexpr u32 CODES_FIVE = 1;
static constexpr u32 CODES_FIVE_SIGNED = 2;
static constexpr u32 CODES_SIX_SIGNED = 3;
static constexpr u32 CODES_TABLE = 4;
static constexpr u32 CODES_TABLE_OF_TWO = 5;
static constexpr u32 CODES_TABLE_OF_THREE = 6;

// What scales and minimums are made of.
static constexpr u32 SCALES_HALVES = 0;
static constexpr u32 SCALES_HALF_SCALES = 1;
static constexpr u32 SCALES_POWERS_OF_TWO = 2;
static constexpr u32 SCALES_PRODUCTS = 3;
static constexpr u32 SCALES_PRODUCTS_AND_MINIMUMS = 4;
static constexpr u32 SCALES_HALF_BYTE_PRODUCTS = 5;
static constexpr u32 SCALES_SUPER = 6;
static constexpr u32 SCALES_FLOAT_PRODUCTS = 7;

DEVICE u32 bits_of_codes(u32 codes) {
    switch (codes) {
        case CODES_FIVE:
        case CODES_FIVE_SIGNED: return 5;
        case CODES_SIX_SIGNED: return 6;
        case CODES_TABLE_OF_TWO: return 2;
        case CODES_TABLE_OF_THREE: return 3;
        default: return 4;
    }
}

// Groups of a record.
DEVICE u32 groups_of_record(u32 scales, u32 group) {
    switch (scales) {
        case SCALES_HALVES: return 1;
        case SCALES_HALF_SCALES: return 2;
        case SCALES_POWERS_OF_TWO: return 4;
        default: return 256 / group;
    }
}

// Bytes before the integers of a record.
DEVICE u32 head_bytes(u32 scales, u32 group) {
    switch (scales) {
        case SCALES_PRODUCTS: return divided_up(32 + 16 * (256 / group), 64) * 64;
        case SCALES_PRODUCTS_AND_MINIMUMS: return divided_up(64 + 32 * (256 / group), 64) * 64;
        case SCALES_HALF_BYTE_PRODUCTS:
        case SCALES_FLOAT_PRODUCTS: return divided_up(64 + 16 * (256 / group), 64) * 64;
        default: return 64;
    }
}

// 2^exponent, also below the least normal number.
DEVICE float power_of_two(int exponent) {
    return float_of_bits(exponent < -126 ? 0x00800000u >> (-126 - exponent)
                                         : (u32)(exponent + 127) << 23);
}

// Scale and minimum of a row, of the group at a place in its record.
DEVICE RowRange stored_range(const u8* record, u32 scales, float unit, u32 place, u32 row) {
    const u16* halves = reinterpret_cast<const u16*>(record);
    const signed char* bytes = reinterpret_cast<const signed char*>(record);
    switch (scales) {
        case SCALES_HALVES: return range_of(record, row, false);
        case SCALES_HALF_SCALES: return {float_of_f16(halves[16 * place + row]), 0.0f};
        case SCALES_POWERS_OF_TWO: return {power_of_two(bytes[16 * place + row]), 0.0f};
        case SCALES_PRODUCTS:
            return {float_of_f16(halves[row]) * (float)bytes[32 + 16 * place + row] * unit, 0.0f};
        case SCALES_HALF_BYTE_PRODUCTS: {
            const u32 both = record[64 + 16 * place + row];
            return {float_of_f16(halves[row]) * (float)(both & 15),
                    float_of_f16(halves[16 + row]) * (float)-(int)(both >> 4)};
        }
        case SCALES_SUPER: return {float_of_f16(halves[row]), 0.0f};
        case SCALES_FLOAT_PRODUCTS: {
            // An 8-bit float as f16, whose exponents have a bias that is greater by eight.
            const float times = float_of_f16((u16)(record[64 + 16 * place + row] << 7)) * 256.0f;
            return {reinterpret_cast<const float*>(record)[row] * times, 0.0f};
        }
        default: {
            const u32 at = 64 + 32 * place + row;
            return {float_of_f16(halves[row]) * (float)bytes[at],
                    float_of_f16(halves[16 + row]) * (float)bytes[at + 16]};
        }
    }
}

// A table of sixteen bytes, the first in the lowest bits.
struct StoredTable {
    u32 fours[4];
};

DEVICE u32 table_byte(const StoredTable& table, u32 index) {
    u32 four;
    switch (index / 4) {
        case 0: four = table.fours[0]; break;
        case 1: four = table.fours[1]; break;
        case 2: four = table.fours[2]; break;
        default: four = table.fours[3]; break;
    }
    return four >> (8 * (index % 4)) & 0xff;
}

// Codes of two or three bits of a row, one in each byte. Third bits follow two vectors of two bits.
DEVICE u32 few_bits(const u8* integers, bool has_third, u32 step, u32 row) {
    const u32 low = record_dword(integers, step / 4, row) >> (2 * (step % 4)) & 0x03030303u;
    if (!has_third) return low;
    return low | (record_dword(integers, 2, row) >> step & 0x01010101u) << 2;
}

// Four integers of a row as signed bytes, inputs 4 * step to 4 * step + 3 of a group, or of the groups
// that are stored together.
DEVICE u32 stored_bytes(const u8* integers, u32 codes, const StoredTable& table, u32 step,
                        u32 row) {
    if (codes == CODES_FOUR) {
        // Even inputs come from the low half, odd ones from the high half.
        const u32 dword = record_dword(integers, step / 2, row) >> (8 * (step % 2));
        return (dword & 0xf) | (dword >> 8 & 0xf00) | (dword << 12 & 0xf0000) |
               (dword << 4 & 0xf000000);
    }
    u32 dword;
    if (codes == CODES_TABLE_OF_TWO || codes == CODES_TABLE_OF_THREE) {
        dword = few_bits(integers, codes == CODES_TABLE_OF_THREE, step, row);
    } else {
        const u32 upper = bits_of_codes(codes) - 4;
        const u32 nibbles = record_dword(integers, (upper ? 1 : 0) + step / 2, row);
        dword = nibbles >> (4 * (step % 2)) & 0x0f0f0f0f;
        if (upper) {
            const u32 mask = upper == 1 ? 0x01010101u : 0x03030303u;
            dword |= (record_dword(integers, 0, row) >> (upper * step) & mask) << 4;
        }
    }
    u32 bytes = 0;
    for (u32 i = 0; i < 4; ++i) {
        const u32 code = dword >> (8 * i) & 0xff;
        u32 byte = code;
        if (codes >= CODES_TABLE) byte = table_byte(table, code);
        if (codes == CODES_FIVE_SIGNED) byte = code - 16;
        if (codes == CODES_SIX_SIGNED) byte = code - 32;
        bytes |= (byte & 0xff) << (8 * i);
    }
    return bytes;
}

// Records of a stored form to records of 8 bits, with ranges of f16 where the form has such and of f32
// else. A block works on four groups, 64 threads on each; `groups` are those of k, and `count` those
// of all blocks of rows. `unit` is a factor of scales that are products, and `table0` to `table3` are the
// bytes that codes of a table select.
KERNEL(expand, 256,
       (const u8* records, u8* out, u32 codes, u32 scales, u32 group, u32 groups, float unit,
        u32 table0, u32 table1, u32 table2, u32 table3, u32 count)) {
    const u32 index = blockIdx.x * 4 + threadIdx.x / 64;
    if (index >= count) return;
    const StoredTable table = {{table0, table1, table2, table3}};
    const u32 thread = threadIdx.x % 64;
    const u32 in_record = groups_of_record(scales, group);
    const u32 of_block = divided_up(groups, in_record);
    const u32 place = index % groups % in_record;
    const u32 group_bytes = 2 * group * bits_of_codes(codes);
    const u32 head = head_bytes(scales, group);
    const u64 before = (u64)(index / groups) * of_block + index % groups / in_record;
    const u8* record = records + before * (head + in_record * group_bytes);
    // Two groups of 16 integers of three bits share a vector of third bits.
    const u32 second = codes == CODES_TABLE_OF_THREE && group == 16 ? place % 2 : 0;
    const u8* integers = record + head + (place - second) * group_bytes;
    const bool floats = scales != SCALES_HALVES;
    u8* to = out + (u64)index * record_bytes(8, group, floats);
    if (!floats) {
        const u32* ranges = reinterpret_cast<const u32*>(record);
        if (thread < 16) reinterpret_cast<u32*>(to)[thread] = ranges[thread];
    } else if (thread < 16) {
        const RowRange range = stored_range(record, scales, unit, place, thread);
        reinterpret_cast<float*>(to)[thread] = range.scale;
        reinterpret_cast<float*>(to)[16 + thread] = range.minimum;
    }
    u32* dwords = reinterpret_cast<u32*>(to + range_bytes(floats));
    for (u32 at = thread; at < 4 * group; at += 64) {
        dwords[at] = stored_bytes(integers, codes, table, 4 * second + at / 16, at % 16);
    }
}
