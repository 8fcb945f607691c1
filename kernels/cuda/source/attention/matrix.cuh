// Prefill attention on tensor cores, for bf16 and heads of 64 or 128 elements, over caches of elements or
// of 4-bit records.
//
// A block takes 64 queries of a unit, 16 for each of its four warps, and walks over the positions in
// tiles of 64, counted from position 0 on, that its queries see. K of the next tile comes in beside the
// values of this one, V beside the next scores. A tile that a query does not see changes nothing of its sums.
//
// Scores count in powers of two, and weights are exp2's. They are rounded to bf16 before they meet V,
// and their sum is that of the rounded ones. Fresh rows that a query does not see must be finite: they
// meet a weight of 0.
#pragma once

template <int HEAD> struct MatrixAttention {
    typedef MatrixTile<HEAD> Tile;
    static constexpr u32 QUERIES = 64;
    // Steps of 16 and tiles of 8 along the head; tiles of 8 positions.
    static constexpr int STEPS = HEAD / 16;
    static constexpr int ELEMENTS = HEAD / 8;
    static constexpr int POSITIONS = Tile::POSITIONS / 8;

    // A warp's queries, of which a lane has parts of two.
    u32 queries[STEPS][4];
    float sums[ELEMENTS][4];
    // The sums of the weights, in each column alike.
    float totals[4];
    // The highest score of each of the two.
    float highest[2];

    // scores = queries * keys.
    DEVICE void score(bf16* keys, float (&scores)[POSITIONS][4]) const {
        const u32 lane = lane_index();
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (int pair = 0; pair < POSITIONS / 2; ++pair) {
                u32 key[4];
                const u32 position = lane / 16 * 8 + lane % 8;
                bf16* from = Tile::of_pair(keys, position, step, lane / 8 % 2);
                load_matrices(from + 16 * pair * HEAD, key);
                const u32 low[2] = {key[0], key[1]};
                const u32 high[2] = {key[2], key[3]};
                multiply_16_8_16(scores[2 * pair], queries[step], low);
                multiply_16_8_16(scores[2 * pair + 1], queries[step], high);
            }
        }
    }

    // Scores to weights, and what was summed before to what it is beside the new highest scores. Where a
    // query saw nothing yet and sees nothing now, 0 stands for its highest score.
    DEVICE void soften(float (&scores)[POSITIONS][4], float scale) {
        float factor[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float tile_highest = minus_infinity();
#pragma unroll
            for (int at = 0; at < POSITIONS * 2; ++at) {
                float& score = scores[at / 2][2 * i + at % 2];
                score *= scale;
                tile_highest = fmaxf(tile_highest, score);
            }
            const float new_highest = fmaxf(highest[i], team_maximum<4>(tile_highest));
            const float origin = new_highest == minus_infinity() ? 0.0f : new_highest;
            factor[i] = exponential_2(highest[i] - origin);
            highest[i] = new_highest;
#pragma unroll
            for (int at = 0; at < POSITIONS * 2; ++at) {
                float& score = scores[at / 2][2 * i + at % 2];
                score = exponential_2(score - origin);
            }
        }
        // Most tiles have no new highest score.
        if (factor[0] == 1.0f && factor[1] == 1.0f) return;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            totals[i] *= factor[i / 2];
#pragma unroll
            for (int element = 0; element < ELEMENTS; ++element) sums[element][i] *= factor[i / 2];
        }
    }

    // sums += weights * values, the weights in the places in which the scores came.
    DEVICE void weigh(const float (&weights)[POSITIONS][4], bf16* values) {
        const u32 lane = lane_index();
        const u32 ones[2] = {0x3f803f80u, 0x3f803f80u};
#pragma unroll
        for (int step = 0; step < POSITIONS / 2; ++step) {
            const u32 weight[4] = {bf16_both(weights[2 * step][0], weights[2 * step][1]),
                                   bf16_both(weights[2 * step][2], weights[2 * step][3]),
                                   bf16_both(weights[2 * step + 1][0], weights[2 * step + 1][1]),
                                   bf16_both(weights[2 * step + 1][2], weights[2 * step + 1][3])};
            multiply_16_8_16(totals, weight, ones);
#pragma unroll
            for (int pair = 0; pair < ELEMENTS / 2; ++pair) {
                u32 value[4];
                bf16* from = Tile::of_pair(values, lane % 16, pair, lane / 16);
                load_matrices_turned(from + 16 * step * HEAD, value);
                const u32 low[2] = {value[0], value[1]};
                const u32 high[2] = {value[2], value[3]};
                multiply_16_8_16(sums[2 * pair], weight, low);
                multiply_16_8_16(sums[2 * pair + 1], weight, high);
            }
        }
    }
};

template <int HEAD, class Tiles>
DEVICE void attention_matrix(const Unit* units, const bf16* q, const void* k_fresh,
                             const void* v_fresh, const void* k_cache, const void* v_cache,
                             const float* sinks, bf16* out, const Shape shape, float scale) {
    typedef MatrixAttention<HEAD> A;
    constexpr u32 TILE = A::Tile::POSITIONS;
    SHARED(bf16, keys);
    bf16* values = keys + TILE * HEAD;
    const Unit unit = units[blockIdx.x];
    const u32 group = shape.group();
    const u32 total = unit.rows * group;
    // The last queries see most and come first.
    const u32 first_query = (gridDim.y - 1 - blockIdx.y) * A::QUERIES;
    if (first_query >= total) return;
    u8* staged = reinterpret_cast<u8*>(values + TILE * HEAD);
    const Tiles k_tiles(keys, staged, typename Tiles::Rows(k_fresh, k_cache, unit, shape));
    const Tiles v_tiles(values, staged + TILE * kv_record_bytes(HEAD),
                        typename Tiles::Rows(v_fresh, v_cache, unit, shape));
    const u32 count = smaller(A::QUERIES, total - first_query);
    // Positions that the block's queries see, and the tile that they begin in.
    const u32 begin = shape.first_seen(unit.past + first_query / group + 1);
    const u32 end = unit.past + (first_query + count - 1) / group + 1;
    const u32 first_tile = begin / TILE * TILE;
    k_tiles.start(first_tile, begin, end);
    copy_commit();
    v_tiles.start(first_tile, begin, end);
    copy_commit();

    const float to_twos = 1.44269504f;
    const u32 line = threadIdx.x / 32 * 16;
    const u32 t = lane_index() % 4;
    // A lane has parts of two queries, `own` and `own + 8` of the block.
    const u32 own = line + lane_index() / 4;
    A state;
    // Of records that wait in shared memory the first position is computed again, for want of registers.
    u32 start[2];
    u32 limit[2];
    for (u32 i = 0; i < 2; ++i) {
        const u32 query = first_query + own + 8 * i;
        const bool present = query < total;
        limit[i] = present ? unit.past + query / group + 1 : 0;
        start[i] = shape.first_seen(limit[i]);
        // In the place of a query that is not there stands any: no query meets another.
        const bf16* from = q + (present ? shape.head_offset(unit, query / group, query % group) : 0);
#pragma unroll
        for (int step = 0; step < A::STEPS; ++step) {
            const u32* pairs = reinterpret_cast<const u32*>(from + 16 * step + 2 * t);
            state.queries[step][i] = pairs[0];
            state.queries[step][2 + i] = pairs[4];
        }
        // A sink is what a query begins with: a score whose weight meets no value.
        state.highest[i] = present ? sink_of(sinks, unit, shape, query % group) * to_twos
                                   : minus_infinity();
        state.totals[2 * i] = state.totals[2 * i + 1] = sinks ? 1.0f : 0.0f;
    }
#pragma unroll
    for (int element = 0; element < A::ELEMENTS; ++element) {
        for (int i = 0; i < 4; ++i) state.sums[element][i] = 0.0f;
    }
    // Of the warp's queries: the first and the last position that each of them sees begins and ends with.
    const u32 warp_first = first_query + line;
    const u32 warp_last = smaller(warp_first + 15, total - 1);
    const u32 least_limit = unit.past + warp_first / group + 1;
    const u32 most_limit = warp_first < total ? unit.past + warp_last / group + 1 : 0;
    for (u32 first = first_tile; first < end; first += TILE) {
        const bool sees = first < most_limit && first + TILE > shape.first_seen(least_limit);
        const bool sees_all =
            first + TILE <= least_limit && first >= shape.first_seen(most_limit);
        float scores[A::POSITIONS][4] = {};
        copy_wait<1>();
        BLOCK_BARRIER();
        if (Tiles::STAGED) {
            k_tiles.unpack();
            BLOCK_BARRIER();
            k_tiles.start(first + TILE, begin, end);
            copy_commit();
        }
        if (sees) state.score(keys, scores);
        if (!Tiles::STAGED) {
            BLOCK_BARRIER();
            k_tiles.start(first + TILE, begin, end);
            copy_commit();
        }
        if (sees) {
            if (!sees_all) {
#pragma unroll
                for (int at = 0; at < A::POSITIONS * 4; ++at) {
                    const int i = at / 2 % 2;
                    const u32 position = first + at / 4 * 8 + 2 * t + at % 2;
                    const u32 least = Tiles::STAGED ? shape.first_seen(limit[i]) : start[i];
                    const bool seen = position >= least && position < limit[i];
                    if (!seen) scores[at / 4][at % 4] = minus_infinity();
                }
            }
            state.soften(scores, scale * to_twos);
        }
        copy_wait<1>();
        BLOCK_BARRIER();
        if (Tiles::STAGED) {
            v_tiles.unpack();
            BLOCK_BARRIER();
            v_tiles.start(first + TILE, begin, end);
            copy_commit();
        }
        if (sees) state.weigh(scores, values);
        if (!Tiles::STAGED) {
            BLOCK_BARRIER();
            v_tiles.start(first + TILE, begin, end);
            copy_commit();
        }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 query = first_query + own + 8 * i;
        if (query >= total) continue;
        const float factor = 1.0f / state.totals[2 * i];
        bf16* head = out + shape.head_offset(unit, query / group, query % group);
        u32* to = reinterpret_cast<u32*>(head + 2 * t);
#pragma unroll
        for (int element = 0; element < A::ELEMENTS; ++element) {
            const float* sums = state.sums[element] + 2 * i;
            to[4 * element] = bf16_both(sums[0] * factor, sums[1] * factor);
        }
    }
}

#define ATTENTION_MATRIX(name, HEAD, Tiles)                                                       \
    KERNEL_BESIDE(name, 128, 3,                                                                   \
           (const Unit* units, const bf16* q, const void* k_fresh, const void* v_fresh,           \
            const void* k_cache, const void* v_cache, const float* sinks, bf16* out, u32 heads,   \
            u32 kv_heads, u32 head_dim, u32 window, float scale)) {                               \
        attention_matrix<HEAD, Tiles<HEAD>>(units, q, k_fresh, v_fresh, k_cache, v_cache, sinks,  \
                                            out, Shape{heads, kv_heads, HEAD, window}, scale);     \
    }

ATTENTION_MATRIX(attention_prefill_64_bf16, 64, PlainTiles)
ATTENTION_MATRIX(attention_prefill_128_bf16, 128, PlainTiles)
ATTENTION_MATRIX(attention_prefill_four_64_bf16, 64, FourTiles)
ATTENTION_MATRIX(attention_prefill_four_128_bf16, 128, FourTiles)
