// What decode attention on tensor cores takes of caches of bf16, with heads of 64 or 128 elements that
// several query heads share. Every element goes from memory to the registers of the lane that multiplies
// it, 16 bytes at a time, the next 16 positions while the last ones are multiplied.
#pragma once

template <int HEAD, u32 HEADS> struct PlainValues;

template <int HEAD, u32 HEADS> struct PlainHeads {
    typedef PlainRows<bf16> Rows;
    typedef PlainValues<HEAD, HEADS> Values;
    // Pieces of 16 bytes that a lane takes of a position.
    static constexpr u32 KEY_PIECES = HEAD / 32;
    static constexpr u32 VALUE_PIECES = HEAD / 64;
    // Nothing is staged.
    struct Staged {
        u32 nothing;
    };

    Rows keys;
    Rows values;
    u32 origin;
    u32 first;
    u32 end;
    // Of head g, the elements that the lane has of a key.
    Words4 query[KEY_PIECES];
    // Of lines g and g + 8 of 16 positions, pieces t + 4i.
    Words4 key[2][KEY_PIECES];

    DEVICE PlainHeads(Staged&, const Rows& k_rows, const Rows& v_rows, u32 from, u32 begin, u32 limit)
        : keys(k_rows), values(v_rows), origin(from), first(begin), end(limit) {
        load_keys(first_tile());
    }

    // The first of the tiles that have a position which is seen.
    DEVICE u32 first_tile() const { return first > origin ? (first - origin) / 16 : 0; }

    DEVICE static Words4 zeros() { return {{0, 0, 0, 0}}; }

    DEVICE bool present(u32 position) const { return position >= first && position < end; }

    DEVICE void load_keys(u32 tile) {
        const u32 position = origin + 16 * tile + lane_index() / 4;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const bool there = tile < WARP_TILES && present(position + 8 * i);
            const bf16* row = there ? keys.row(position + 8 * i) : keys.fresh;
#pragma unroll
            for (u32 at = 0; at < KEY_PIECES; ++at) {
                key[i][at] = there ? load16(row + 8 * (lane_index() % 4 + 4 * at)) : zeros();
            }
        }
    }

    DEVICE void ask(const bf16* q, u32 count) {
        const u32 head = lane_index() / 4;
#pragma unroll
        for (u32 at = 0; at < KEY_PIECES; ++at) {
            query[at] = head < count ? load16(q + head * HEAD + 8 * (lane_index() % 4 + 4 * at)) : zeros();
        }
    }

    DEVICE void await_keys() const {}
    DEVICE void await_values() const {}

    DEVICE void score(u32 tile, float (&scores)[4]) {
        Words4 own[2][KEY_PIECES];
#pragma unroll
        for (u32 at = 0; at < 2 * KEY_PIECES; ++at) {
            own[at / KEY_PIECES][at % KEY_PIECES] = key[at / KEY_PIECES][at % KEY_PIECES];
        }
        load_keys(tile + 1);
        for (u32 i = 0; i < 4; ++i) scores[i] = 0.0f;
#pragma unroll
        for (u32 at = 0; at < KEY_PIECES; ++at) {
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const u32 four[4] = {own[0][at].word[2 * half], own[1][at].word[2 * half],
                                     own[0][at].word[2 * half + 1], own[1][at].word[2 * half + 1]};
                const u32 asked[2] = {query[at].word[2 * half], query[at].word[2 * half + 1]};
                multiply_16_8_16(scores, four, asked);
            }
        }
    }
};

template <int HEAD, u32 HEADS> struct PlainValues {
    typedef PlainHeads<HEAD, HEADS> Heads;

    // Of each 64 elements, tiles of 16: rows g and g + 8 are elements 8g + 2 * tile and the next.
    float sums[Heads::VALUE_PIECES][4][4];
    // Of lines 2t, 2t + 1, 2t + 8 and 2t + 9 of 16 positions, pieces g + 8i.
    Words4 value[4][Heads::VALUE_PIECES];

    DEVICE explicit PlainValues(const Heads& heads) {
#pragma unroll
        for (u32 at = 0; at < Heads::VALUE_PIECES * 16; ++at) sums[at / 16][at / 4 % 4][at % 4] = 0.0f;
        load(heads, heads.first_tile());
    }

    DEVICE void load(const Heads& heads, u32 tile) {
        const u32 position = heads.origin + 16 * tile + 2 * (lane_index() % 4);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 own = position + i % 2 + i / 2 * 8;
            const bool there = tile < WARP_TILES && heads.present(own);
            const bf16* row = there ? heads.values.row(own) : heads.values.fresh;
#pragma unroll
            for (u32 at = 0; at < Heads::VALUE_PIECES; ++at) {
                value[i][at] = there ? load16(row + 8 * (lane_index() / 4 + 8 * at)) : Heads::zeros();
            }
        }
    }

    DEVICE void add(const Heads& heads, u32 tile, const float (&weight)[4]) {
        typedef WeightColumns<HEADS> Columns;
        // Of the first and the last two positions, an element of a tile's row g, then of its row g + 8.
        u32 pairs[Heads::VALUE_PIECES][4][4];
#pragma unroll
        for (u32 at = 0; at < Heads::VALUE_PIECES; ++at) {
#pragma unroll
            for (u32 word = 0; word < 4; ++word) {
#pragma unroll
                for (u32 i = 0; i < 2; ++i) {
                    const u32 one = value[2 * i][at].word[word];
                    const u32 other = value[2 * i + 1][at].word[word];
                    pairs[at][word][2 * i] = bytes_of(one, other, 0x5410);
                    pairs[at][word][2 * i + 1] = bytes_of(one, other, 0x7632);
                }
            }
        }
        load(heads, tile + 1);
#pragma unroll
        for (u32 pass = 0; pass < Columns::PASSES; ++pass) {
            u32 column[2];
            Columns::part(weight, pass, column);
#pragma unroll
            for (u32 at = 0; at < Heads::VALUE_PIECES; ++at) {
#pragma unroll
                for (u32 word = 0; word < 4; ++word) {
                    multiply_16_8_16(sums[at][word], pairs[at][word], column);
                }
            }
        }
    }

    DEVICE void put(float* to) const {
#pragma unroll
        for (u32 at = 0; at < Heads::VALUE_PIECES; ++at) {
#pragma unroll
            for (u32 word = 0; word < 4; ++word) {
#pragma unroll
                for (u32 row = 0; row < 2; ++row) {
                    const u32 element = 64 * at + 8 * (lane_index() / 4) + 2 * word + row;
                    WeightColumns<HEADS>::put(sums[at][word][2 * row], sums[at][word][2 * row + 1],
                                              element, HEAD, to);
                }
            }
        }
    }
};

#define ATTENTION_PART_PLAIN(name, HEAD, HEADS)                                                   \
    ATTENTION_PART_MATRIX(name, HEAD, HEADS, 4, PlainHeads<HEAD, HEADS>)

ATTENTION_PART_PLAIN(attention_decode_4_64_bf16, 64, 4)
ATTENTION_PART_PLAIN(attention_decode_8_64_bf16, 64, 8)
ATTENTION_PART_PLAIN(attention_decode_4_128_bf16, 128, 4)
ATTENTION_PART_PLAIN(attention_decode_8_128_bf16, 128, 8)
