// Integers of stored records as tensor cores multiply them: bf16, which holds them exactly.
//
// Of a step of 32 inputs, which is one group or two of 16, lane 4g+t has rows 2g and 2g+1 and inputs 8t
// to 8t+7. `row` returns the eight integers of one of its rows, times `factor` plus `addend`: 1 and
// ADDEND, or zeros, which make the integers zeros.
#pragma once

// What lanes keep for all steps.
struct CodeMasks {
    // 0x000f000f and 0x0f0f0f0f, kept: an instruction takes one constant.
    u32 halves;
    u32 bytes;
    // By how much a lane rotates a dword of upper bits.
    u32 rotation;
};

// Four bytes below 128 as bf16: behind the exponent of 128 the last place is 1.
DEVICE void bytes_as_bf16(u32 bytes, u32 factor, u32 addend, u32& first, u32& second) {
    first = bf16_multiply_add(bytes_of(bytes, 0x43434343u, 0x4140u), factor, addend);
    second = bf16_multiply_add(bytes_of(bytes, 0x43434343u, 0x4342u), factor, addend);
}

// Integers of four bits; the even inputs of a dword are in its low half.
struct FourCodes {
    static constexpr u32 BITS = 4;
    static constexpr u32 GROUP = 32;
    // 128 and what integers are stored too large by, negated, as a pair.
    static constexpr u32 ADDEND = 0xc300c300u;

    Words2 dwords;

    // Where in the integers of a step the lane has its lower bits, and its upper ones.
    DEVICE static u32 place(u32 g, u32 t) { return 8 * g + 64 * t; }
    DEVICE static u32 upper_place(u32, u32) { return 0; }
    DEVICE static u32 rotation(u32) { return 0; }

    DEVICE static FourCodes load(const u8* own, const u8*) { return {load8_once(own)}; }
    DEVICE Words4 row(u32 row, const CodeMasks& masks, u32 factor, u32 addend) const {
        Words4 words;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 pair = masked_or(dwords.word[row] >> 4 * i, masks.halves, 0x43004300u);
            words.word[i] = bf16_multiply_add(pair, factor, addend);
        }
        return words;
    }
};

// Integers of UPPER bits above four lower ones. A group has a vector of dwords of upper bits, then
// vectors of lower ones. A byte of these has an input in its low half, and in its high half the one that
// is four later.
template <u32 UPPER, bool SIGNED> struct SplitCodes {
    static constexpr u32 BITS = 4 + UPPER;
    static constexpr u32 GROUP = UPPER == 2 ? 16 : 32;
    static constexpr u32 OFFSET = SIGNED ? (UPPER == 2 ? 0x00200020u : 0x00100010u) : 0;
    static constexpr u32 ADDEND = 0xc300c300u + OFFSET;
    static constexpr u32 GROUP_BYTES = 2 * GROUP * BITS;
    static constexpr u32 MASK = UPPER == 2 ? 0x30303030u : 0x10101010u;
    // Vectors of lower bits in a group.
    static constexpr u32 VECTORS = GROUP / 8;

    Words2 upper;
    Words2 dwords;

    DEVICE static u32 upper_place(u32 g, u32 t) { return t / VECTORS * GROUP_BYTES + 8 * g; }
    DEVICE static u32 place(u32 g, u32 t) {
        return upper_place(g, t) + 64 * (1 + t % VECTORS);
    }
    // The first of the upper bits of the lane's first four inputs goes to bit 4 of each byte.
    DEVICE static u32 rotation(u32 t) { return (4 - 2 * UPPER * (t % VECTORS)) % 32; }

    DEVICE static SplitCodes load(const u8* own, const u8* upper) {
        return {load8_again(upper), load8_once(own)};
    }
    DEVICE Words4 row(u32 row, const CodeMasks& masks, u32 factor, u32 addend) const {
        const u32 lower = dwords.word[row];
        const u32 bits = rotated_left(upper.word[row], masks.rotation);
        Words4 words;
        bytes_as_bf16(masked_or(bits, MASK, lower & masks.bytes), factor, addend, words.word[0],
                      words.word[1]);
        bytes_as_bf16(masked_or(bits >> UPPER, MASK, lower >> 4 & masks.bytes), factor, addend,
                      words.word[2], words.word[3]);
        return words;
    }
};

// The sixteen values of a table: low and high bytes of their bf16.
struct NonLinearTable {
    static constexpr bool SIGN_AND_SIZE = false;
    static constexpr u32 LOW[4] = {0x82a6d0feu, 0x20b00c44u, 0x18c85080u, 0xe2b28a54u};
    static constexpr u32 HIGH[4] = {0xc2c2c2c2u, 0xc1c1c2c2u, 0x4241413fu, 0x42424242u};
};
// The second half is the first one negated.
struct E2M1Table {
    static constexpr bool SIGN_AND_SIZE = true;
    static constexpr u32 LOW[4] = {0x40008000u, 0x4000c080u, 0, 0};
    static constexpr u32 HIGH[4] = {0x40403f00u, 0x41414040u, 0, 0};
};

// Codes of four bits that select from a table, in bytes as the lower bits above.
template <class Table> struct TableCodes {
    static constexpr u32 BITS = 4;
    static constexpr u32 GROUP = 32;
    static constexpr u32 ADDEND = 0;

    Words2 dwords;

    DEVICE static u32 place(u32 g, u32 t) { return 8 * g + 64 * t; }
    DEVICE static u32 upper_place(u32, u32) { return 0; }
    DEVICE static u32 rotation(u32) { return 0; }
    DEVICE static TableCodes load(const u8* own, const u8*) { return {load8_once(own)}; }

    // One byte of the values of inputs 0, 4, 1 and 5. `upper`: ones where a code's highest bit is.
    DEVICE static u32 looked_up(const u32 (&bytes)[4], u32 codes, u32 upper) {
        const u32 first = bytes_of(bytes[0], bytes[1], codes);
        if (Table::SIGN_AND_SIZE) return first;
        return chosen(first, bytes_of(bytes[2], bytes[3], codes), upper);
    }
    DEVICE Words4 row(u32 row, const CodeMasks&, u32, u32) const {
        const u32 dword = dwords.word[row];
        const u32 codes = dword & 0x77777777u;
        u32 signs = dword & 0x88888888u;
        // Digits of 0 or of 9, which is the sign of byte 1.
        if (!Table::SIGN_AND_SIZE) signs |= signs >> 3;
        Words4 words;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const u32 upper = Table::SIGN_AND_SIZE ? 0 : bytes_of(0x8000u, 0, signs >> 16 * i);
            const u32 low = looked_up(Table::LOW, codes >> 16 * i, upper);
            u32 high = looked_up(Table::HIGH, codes >> 16 * i, upper);
            if (Table::SIGN_AND_SIZE) {
                // The bytes of two inputs twice each: their highest bits are those of the codes.
                const u32 twice = bytes_of(signs, 0, i ? 0x3322u : 0x1100u);
                high = masked_or(twice, 0x80008000u, masked_or(twice << 4, 0x00800080u, high));
            }
            words.word[i] = bytes_of(low, high, 0x6240u);
            words.word[2 + i] = bytes_of(low, high, 0x7351u);
        }
        return words;
    }
};
