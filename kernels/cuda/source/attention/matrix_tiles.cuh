// Tiles of K or V for prefill attention on tensor cores: 64 positions as bf16 in shared memory, brought in
// while other work goes on. Positions before `begin` and from `end` on are zeros.
#pragma once

template <int HEAD> struct MatrixTile {
    static constexpr u32 THREADS = 128;
    static constexpr u32 POSITIONS = 64;
    // Pieces of 16 bytes of a position.
    static constexpr u32 PIECES = HEAD / 8;

    // Place of a piece in a tile. Pieces of neighbouring positions change places, so that eight positions
    // of one piece lie in different banks.
    DEVICE static bf16* piece(bf16* tile, u32 line, u32 index) {
        return tile + line * HEAD + (index ^ line % 8) * 8;
    }

    // Place of piece 2 * pair + odd, odd being 0 or 1: four places serve all pairs, and lines that are
    // a multiple of eight apart, for the rest is known to the compiler.
    DEVICE static bf16* of_pair(bf16* tile, u32 line, u32 pair, u32 odd) {
        return tile + line * HEAD + (pair % 4 * 2 + odd ^ line % 8) * 8 + pair / 4 * 64;
    }

    // Whether all positions of a tile are there, one `stride` behind the other.
    template <class Rows> DEVICE static bool is_plain(const Rows& rows, u32 first, u32 begin, u32 end) {
        return first >= begin && first + POSITIONS <= end && rows.in_a_row(first, POSITIONS);
    }
};

// Of a cache of elements: copied as they are.
template <int HEAD> struct PlainTiles {
    typedef MatrixTile<HEAD> Tile;
    typedef PlainRows<bf16> Rows;
    static constexpr bool STAGED = false;

    bf16* tile;
    Rows rows;

    DEVICE PlainTiles(bf16* place, u8*, const Rows& all) : tile(place), rows(all) {}

    DEVICE void start(u32 first, u32 begin, u32 end) const {
        if (first >= end) return;
        constexpr u32 STEP = Tile::THREADS / Tile::PIECES;
        const u32 index = threadIdx.x % Tile::PIECES;
        const u32 own = threadIdx.x / Tile::PIECES;
        bf16* to = Tile::piece(tile, own, index);
        if (Tile::is_plain(rows, first, begin, end)) {
            const u32 stride = STEP * rows.stride(first);
            const bf16* from = rows.row(first + own) + index * 8;
#pragma unroll
            for (u32 i = 0; i < Tile::POSITIONS / STEP; ++i) {
                copy16_async(to + i * STEP * HEAD, from, true);
                from += stride;
            }
            return;
        }
#pragma unroll 1
        for (u32 i = 0; i < Tile::POSITIONS / STEP; ++i) {
            const u32 position = first + own + i * STEP;
            const bool present = position >= begin && position < end;
            const bf16* row = present ? rows.row(position) : rows.fresh;
            copy16_async(to + i * STEP * HEAD, row + index * 8, present);
        }
    }

    DEVICE void unpack() const {}
};

// Of 4-bit records: they are copied as they are, and unpacked once they have come. An element is
// scale * q + minimum, rounded to bf16.
template <int HEAD> struct FourTiles {
    typedef MatrixTile<HEAD> Tile;
    typedef FourRows Rows;
    static constexpr bool STAGED = true;
    static constexpr u32 GROUPS = HEAD / 64;
    static constexpr u32 BYTES = HEAD / 2 + 4 * GROUPS;
    // A record is nine words, of four bytes a group.
    static constexpr u32 WORDS = 9;
    static constexpr u32 WORD = BYTES / WORDS;

    bf16* tile;
    u8* records;
    Rows rows;

    DEVICE FourTiles(bf16* place, u8* staged, const Rows& all)
        : tile(place), records(staged), rows(all) {}

    DEVICE void start(u32 first, u32 begin, u32 end) const {
        if (first >= end) return;
        const bool plain = Tile::is_plain(rows, first, begin, end);
        const u8* base = plain ? rows.record(first) : rows.fresh;
        const u32 stride = plain ? rows.stride(first) : 0;
#pragma unroll 1
        for (u32 at = threadIdx.x; at < Tile::POSITIONS * WORDS; at += Tile::THREADS) {
            const u32 line = at / WORDS;
            const u32 position = first + line;
            const bool present = plain || (position >= begin && position < end);
            const u8* record = present && !plain ? rows.record(position) : base + line * stride;
            copy_async<WORD>(records + at * WORD, record + at % WORDS * WORD, present);
        }
    }

    // A thread has some of the words of one position.
    DEVICE void unpack() const {
        const u32 line = threadIdx.x % Tile::POSITIONS;
        const u8* record = records + line * BYTES;
        constexpr u32 TURNS = Tile::THREADS / Tile::POSITIONS;
        // Not unrolled: scores wait in registers.
#pragma unroll 1
        for (u32 i = 0; i < HEAD / 16 / TURNS; ++i) {
            const u32 at = threadIdx.x / Tile::POSITIONS + i * TURNS;
            const u32 group = at / 4;
            const u16* scale = reinterpret_cast<const u16*>(record + HEAD / 2) + group;
            const NibbleRange range(float_of_f16(scale[0]), float_of_f16(scale[GROUPS]));
            const u32* words = reinterpret_cast<const u32*>(record + 8 * at);
            Words4 low, high;
#pragma unroll
            for (u32 word = 0; word < 2; ++word) {
                range.decode(words[word], low.word[2 * word], low.word[2 * word + 1]);
                range.decode(words[word] >> 4, high.word[2 * word], high.word[2 * word + 1]);
            }
            const u32 index = 8 * group + at % 4;
            *reinterpret_cast<Words4*>(Tile::piece(tile, line, index)) = low;
            *reinterpret_cast<Words4*>(Tile::piece(tile, line, index + 4)) = high;
        }
    }
};
