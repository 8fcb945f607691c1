// What decode attention on tensor cores takes of 4-bit records, with heads of 64 or 128 elements.
//
// The integers of a record are bf16 exactly. Scales and minimums come in where a group's elements are summed:
// a score is scale * sum(q x) + minimum * sum(x) of every group, and values are sums of (weight * scale) q,
// beside those of weight * minimum. A warp copies all records of its positions before it begins.
#pragma once

template <int HEAD, u32 HEADS> struct FourValues;

template <int HEAD, u32 HEADS> struct FourHeads {
    static constexpr u32 GROUPS = HEAD / 64;
    static constexpr u32 BYTES = HEAD / 2 + 4 * GROUPS;
    // A record is nine words, of four bytes a group.
    static constexpr u32 WORDS = 9;
    static constexpr u32 WORD = BYTES / WORDS;
    static constexpr u32 POSITIONS = WARP_POSITIONS;
    typedef FourRows Rows;
    typedef FourValues<HEAD, HEADS> Values;

    // The block's records of K and V. Where those of K were come the warps' values.
    struct Staged {
        u8 keys[SPLIT * BYTES];
        u8 values[SPLIT * BYTES];
    };

    // Starts to copy the records of the warp's positions, `origin` on; zeros before `first` and from `end` on.
    DEVICE static void start(u8* to, const FourRows& rows, u32 origin, u32 first, u32 end) {
        if (origin >= first && origin + POSITIONS <= end && rows.in_a_row(origin, POSITIONS) &&
            rows.stride(origin) == BYTES) {
            const u8* from = rows.record(origin) + lane_index() * WORD;
            u8* place = to + lane_index() * WORD;
#pragma unroll
            for (u32 i = 0; i < POSITIONS * WORDS / 32; ++i) {
                copy_async<WORD>(place + i * 32 * WORD, from + i * 32 * WORD, true);
            }
            return;
        }
        if (origin >= end) return;
        const u32 lines = smaller(POSITIONS, divided_up(end - origin, 16) * 16);
#pragma unroll 1
        for (u32 at = lane_index(); at < lines * WORDS; at += 32) {
            const u32 position = origin + at / WORDS;
            const bool present = position >= first && position < end;
            const u8* record = present ? rows.record(position) : rows.fresh;
            copy_async<WORD>(to + at * WORD, record + at % WORDS * WORD, present);
        }
    }

    // Scale and minimum of a group of a record.
    DEVICE static RowRange range(const u8* record, u32 group) {
        const u16* scales = reinterpret_cast<const u16*>(record + HEAD / 2);
        return {float_of_f16(scales[group]), float_of_f16(scales[GROUPS + group])};
    }

    // Two words of a record.
    DEVICE static void words(const u8* from, u32 (&to)[2]) {
        if (WORD == 8) {
            const Words2 both = *reinterpret_cast<const Words2*>(from);
            to[0] = both.word[0];
            to[1] = both.word[1];
        } else {
            to[0] = reinterpret_cast<const u32*>(from)[0];
            to[1] = reinterpret_cast<const u32*>(from)[1];
        }
    }

    // The queries as what the integers of records meet: of head g, elements in the order in which words
    // hold them; and the sum of each group's elements of heads 2t and 2t + 1.
    u32 query[GROUPS][2][2][2];
    float query_sum[GROUPS][4];

        u8* keys;
    u8* values;

    DEVICE FourHeads(Staged& staged, const FourRows& k_rows, const FourRows& v_rows, u32 origin, u32 first,
                     u32 end) {
        const u32 before = origin % SPLIT * BYTES;
        keys = staged.keys + before;
        values = staged.values + before;
        start(keys, k_rows, origin, first, end);
        copy_commit();
        start(values, v_rows, origin, first, end);
        copy_commit();
    }

    DEVICE void ask(const bf16* q, u32 count) {
        const u32 head = lane_index() / 4;
        const bf16* own = q + (head < count ? head : 0) * HEAD;
        const u32 ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
#pragma unroll
        for (u32 group = 0; group < GROUPS; ++group) {
            for (u32 i = 0; i < 4; ++i) query_sum[group][i] = 0.0f;
#pragma unroll
            for (u32 word = 0; word < 2; ++word) {
#pragma unroll
                for (u32 half = 0; half < 2; ++half) {
                    const bf16* from = own + 64 * group + 32 * half + 4 * (2 * (lane_index() % 4) + word);
                    Words2 four = *reinterpret_cast<const Words2*>(from);
                    if (head >= count) four.word[0] = four.word[1] = 0;
                    query[group][word][0][half] = bytes_of(four.word[0], four.word[1], 0x5410);
                    query[group][word][1][half] = bytes_of(four.word[0], four.word[1], 0x7632);
                }
#pragma unroll
                for (u32 odd = 0; odd < 2; ++odd) {
                    multiply_16_8_16(query_sum[group], ones, query[group][word][odd]);
                }
            }
        }
    }

    DEVICE void await_keys() const {
        copy_wait<1>();
        WARP_BARRIER();
    }
    // The barrier behind is the caller's.
    DEVICE void await_values() const { copy_wait<0>(); }

    DEVICE void score(u32 tile, float (&scores)[4]) const {
        const u8* record[2];
        for (u32 i = 0; i < 2; ++i) {
            record[i] = keys + (16 * tile + lane_index() / 4 + 8 * i) * BYTES;
        }
        for (u32 i = 0; i < 4; ++i) scores[i] = 0.0f;
#pragma unroll
        for (u32 group = 0; group < GROUPS; ++group) {
            u32 key[2][2];
            for (u32 i = 0; i < 2; ++i) words(record[i] + 32 * group + 8 * (lane_index() % 4), key[i]);
            float sums[4] = {};
#pragma unroll
            for (u32 word = 0; word < 2; ++word) {
#pragma unroll
                for (u32 odd = 0; odd < 2; ++odd) {
                    const u32 shift = 8 * odd;
                    const u32 four[4] = {
                        nibbles_as_bf16(key[0][word] >> shift),
                        nibbles_as_bf16(key[1][word] >> shift),
                        nibbles_as_bf16(key[0][word] >> (shift + 4)),
                        nibbles_as_bf16(key[1][word] >> (shift + 4)),
                    };
                    multiply_16_8_16(sums, four, query[group][word][odd]);
                }
            }
            for (u32 i = 0; i < 4; ++i) {
                const RowRange both = range(record[i / 2], group);
                scores[i] = fmaf(both.scale, sums[i], scores[i]);
                scores[i] = fmaf(both.minimum, query_sum[group][i], scores[i]);
            }
        }
    }
};

template <int HEAD, u32 HEADS> struct FourValues {
    typedef FourHeads<HEAD, HEADS> Heads;

    // Of a group, tiles of 16 elements: rows g and g + 8 are elements 32 * (tile % 2) + 4g + tile / 2 and
    // the second behind it.
    float sums[Heads::GROUPS][4][4];
    float minimums[Heads::GROUPS][4];

    DEVICE explicit FourValues(const Heads&) {
#pragma unroll
        for (u32 group = 0; group < Heads::GROUPS; ++group) {
            for (u32 i = 0; i < 4; ++i) {
                minimums[group][i] = 0.0f;
                for (u32 tile = 0; tile < 4; ++tile) sums[group][tile][i] = 0.0f;
            }
        }
    }

    DEVICE void add(const Heads& heads, u32 tile, const float (&weight)[4]) {
        typedef WeightColumns<HEADS> Columns;
        const u32 g = lane_index() / 4;
        const u32 t = lane_index() % 4;
        const u32 ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
        const u8* record[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            record[i] = heads.values + (16 * tile + 2 * t + i % 2 + i / 2 * 8) * Heads::BYTES;
        }
#pragma unroll
        for (u32 group = 0; group < Heads::GROUPS; ++group) {
            u32 word[4];
            float scaled[4];
            float least[4];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const RowRange range = Heads::range(record[i], group);
                word[i] = reinterpret_cast<const u32*>(record[i] + 32 * group)[g];
                scaled[i] = weight[i] * range.scale;
                least[i] = weight[i] * range.minimum;
            }
            u32 upper[2];
            u32 lower[2];
            for (u32 i = 0; i < 2; ++i) {
                lower[i] = bytes_of(word[2 * i], word[2 * i + 1], 0x5410);
                upper[i] = bytes_of(word[2 * i], word[2 * i + 1], 0x7632);
            }
#pragma unroll
            for (u32 pass = 0; pass < Columns::PASSES; ++pass) {
                u32 column[2];
                Columns::part(least, pass, column);
                multiply_16_8_16(minimums[group], ones, column);
                Columns::part(scaled, pass, column);
#pragma unroll
                for (u32 tile = 0; tile < 4; ++tile) {
                    const u32 four[4] = {
                        nibbles_as_bf16(lower[0] >> 4 * tile),
                        nibbles_as_bf16(upper[0] >> 4 * tile),
                        nibbles_as_bf16(lower[1] >> 4 * tile),
                        nibbles_as_bf16(upper[1] >> 4 * tile),
                    };
                    multiply_16_8_16(sums[group][tile], four, column);
                }
            }
        }
    }

    DEVICE void put(float* to) const {
        const u32 g = lane_index() / 4;
#pragma unroll
        for (u32 group = 0; group < Heads::GROUPS; ++group) {
#pragma unroll
            for (u32 tile = 0; tile < 4; ++tile) {
#pragma unroll
                for (u32 row = 0; row < 2; ++row) {
                    const u32 element = 64 * group + 32 * (tile % 2) + 4 * g + tile / 2 + 2 * row;
                    WeightColumns<HEADS>::put(
                        sums[group][tile][2 * row] + minimums[group][2 * row],
                        sums[group][tile][2 * row + 1] + minimums[group][2 * row + 1], element, HEAD, to);
                }
            }
        }
    }
};

#define ATTENTION_PART_FOUR(name, HEAD, HEADS, BLOCKS)                                            \
    ATTENTION_PART_MATRIX(name, HEAD, HEADS, BLOCKS, FourHeads<HEAD, HEADS>)

ATTENTION_PART_FOUR(attention_decode_four_1_64_bf16, 64, 1, 5)
ATTENTION_PART_FOUR(attention_decode_four_4_64_bf16, 64, 4, 5)
ATTENTION_PART_FOUR(attention_decode_four_8_64_bf16, 64, 8, 5)
ATTENTION_PART_FOUR(attention_decode_four_1_128_bf16, 128, 1, 5)
ATTENTION_PART_FOUR(attention_decode_four_4_128_bf16, 128, 4, 5)
ATTENTION_PART_FOUR(attention_decode_four_8_128_bf16, 128, 8, 4)
