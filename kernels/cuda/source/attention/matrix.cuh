// Prefill attention on tensor cores, for bf16 and heads of 64 or 128 elements.
//
// A block takes 64 queries of a unit, 16 for each of its four warps, and walks over the positions in
// tiles of 64, counted from position 0 on, that its queries see. K of the next tile comes in beside the values of this one, V beside
// the next scores. Weights are rounded to bf16 before they meet V, and their sum is that of the rounded
// ones. Fresh rows that a query does not see must be finite: they meet a weight of 0.
#pragma once

template <int HEAD> struct MatrixAttention {
    static constexpr u32 TILE = 64;
    static constexpr u32 PIECES = HEAD / 8;
    // Steps of 16 and tiles of 8 along the head; tiles of 8 positions.
    static constexpr int STEPS = HEAD / 16;
    static constexpr int ELEMENTS = HEAD / 8;
    static constexpr int POSITIONS = TILE / 8;

    // Place of a piece of 16 bytes in a tile. Pieces of neighbouring rows change places, so that eight
    // rows of one piece lie in different banks.
    DEVICE static bf16* piece(bf16* tile, u32 line, u32 index) {
        return tile + line * HEAD + (index ^ line % 8) * 8;
    }

    // Starts to fill a tile with positions of K or V, zeros before `begin` and behind `end`.
    DEVICE static void fill(bf16* tile, const PlainRows<bf16>& rows, u32 first, u32 begin, u32 end) {
        if (first >= end) return;
        for (u32 at = threadIdx.x; at < TILE * PIECES; at += 128) {
            const u32 line = at / PIECES;
            const u32 position = first + line;
            const bool present = position >= begin && position < end;
            const bf16* row = present ? rows.row(position) : rows.fresh;
            copy16_async(piece(tile, line, at % PIECES), row + at % PIECES * 8, present);
        }
    }

    // scores = queries * keys; the warp's queries are lines `line` to `line + 15`.
    DEVICE static void score(bf16* queries, u32 line, bf16* keys, float (&scores)[POSITIONS][4]) {
        const u32 lane = lane_index();
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            u32 query[4];
            load_matrices(piece(queries, line + lane % 16, 2 * step + lane / 16), query);
#pragma unroll
            for (int pair = 0; pair < POSITIONS / 2; ++pair) {
                u32 key[4];
                const u32 position = 16 * pair + lane / 16 * 8 + lane % 8;
                load_matrices(piece(keys, position, 2 * step + lane / 8 % 2), key);
                const u32 low[2] = {key[0], key[1]};
                const u32 high[2] = {key[2], key[3]};
                multiply_16_8_16(scores[2 * pair], query, low);
                multiply_16_8_16(scores[2 * pair + 1], query, high);
            }
        }
    }

    // sums += weights * values, the weights in the places in which the scores came.
    DEVICE static void weigh(const float (&weights)[POSITIONS][4], bf16* values,
                             float (&sums)[ELEMENTS][4]) {
        const u32 lane = lane_index();
#pragma unroll
        for (int step = 0; step < POSITIONS / 2; ++step) {
            const u32 weight[4] = {bf16_pair(weights[2 * step][0], weights[2 * step][1]),
                                   bf16_pair(weights[2 * step][2], weights[2 * step][3]),
                                   bf16_pair(weights[2 * step + 1][0], weights[2 * step + 1][1]),
                                   bf16_pair(weights[2 * step + 1][2], weights[2 * step + 1][3])};
#pragma unroll
            for (int pair = 0; pair < ELEMENTS / 2; ++pair) {
                u32 value[4];
                const u32 position = 16 * step + lane % 16;
                load_matrices_turned(piece(values, position, 2 * pair + lane / 16), value);
                const u32 low[2] = {value[0], value[1]};
                const u32 high[2] = {value[2], value[3]};
                multiply_16_8_16(sums[2 * pair], weight, low);
                multiply_16_8_16(sums[2 * pair + 1], weight, high);
            }
        }
    }
};

template <int HEAD>
DEVICE void attention_matrix(const Unit* units, const bf16* q, const void* k_fresh,
                             const void* v_fresh, const void* k_cache, const void* v_cache,
                             const float* sinks, bf16* out, const Shape shape, float scale) {
    typedef MatrixAttention<HEAD> A;
    SHARED(bf16, queries);
    bf16* keys = queries + A::TILE * HEAD;
    bf16* values = keys + A::TILE * HEAD;
    const Unit unit = units[blockIdx.x];
    const u32 group = shape.group();
    const u32 total = unit.rows * group;
    const u32 first_query = blockIdx.y * A::TILE;
    if (first_query >= total) return;
    const PlainRows<bf16> k_rows(k_fresh, k_cache, unit, shape);
    const PlainRows<bf16> v_rows(v_fresh, v_cache, unit, shape);
    const u32 count = smaller(A::TILE, total - first_query);
    // Positions that the block's queries see, and the tile that they begin in.
    const u32 begin = shape.first_seen(unit.past + first_query / group + 1);
    const u32 end = unit.past + (first_query + count - 1) / group + 1;
    const u32 first_tile = begin / A::TILE * A::TILE;
    for (u32 at = threadIdx.x; at < A::TILE * A::PIECES; at += 128) {
        const u32 line = at / A::PIECES;
        const u32 query = first_query + line;
        const bool present = line < count;
        const u64 from = present ? shape.head_offset(unit, query / group, query % group) : 0;
        copy16_async(A::piece(queries, line, at % A::PIECES), q + from + at % A::PIECES * 8, present);
    }
    A::fill(keys, k_rows, first_tile, begin, end);
    copy_commit();
    A::fill(values, v_rows, first_tile, begin, end);
    copy_commit();

    const u32 line = threadIdx.x / 32 * 16;
    const u32 t = lane_index() % 4;
    // A lane has parts of two queries, `own` and `own + 8` of the block.
    const u32 own = line + lane_index() / 4;
    u32 start[2];
    u32 limit[2];
    // A sink is what a query begins with: a score whose weight meets no value.
    float highest[2];
    float total_weight[2];
    for (u32 i = 0; i < 2; ++i) {
        const u32 query = own + 8 * i;
        const bool present = query < count;
        limit[i] = present ? unit.past + (first_query + query) / group + 1 : 0;
        start[i] = shape.first_seen(limit[i]);
        highest[i] = present ? sink_of(sinks, unit, shape, (first_query + query) % group) : minus_infinity();
        total_weight[i] = sinks ? 1.0f : 0.0f;
    }
    float sums[A::ELEMENTS][4] = {};
    for (u32 first = first_tile; first < end; first += A::TILE) {
        float scores[A::POSITIONS][4] = {};
        copy_wait<1>();
        BLOCK_BARRIER();
        A::score(queries, line, keys, scores);
        BLOCK_BARRIER();
        A::fill(keys, k_rows, first + A::TILE, begin, end);
        copy_commit();
        float factor[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float tile_highest = minus_infinity();
#pragma unroll
            for (int at = 0; at < A::POSITIONS * 2; ++at) {
                const u32 position = first + at / 2 * 8 + 2 * t + at % 2;
                float& score = scores[at / 2][2 * i + at % 2];
                const bool sees = position >= start[i] && position < limit[i];
                score = sees ? score * scale : minus_infinity();
                tile_highest = fmaxf(tile_highest, score);
            }
            const float new_highest = fmaxf(highest[i], team_maximum<4>(tile_highest));
            // A query that sees nothing has nothing to scale.
            const bool sees_tile = first < limit[i] && first + A::TILE > start[i];
            factor[i] = sees_tile ? exponential(highest[i] - new_highest) : 1.0f;
            float tile_weight = 0.0f;
#pragma unroll
            for (int at = 0; at < A::POSITIONS * 2; ++at) {
                const u32 position = first + at / 2 * 8 + 2 * t + at % 2;
                float& score = scores[at / 2][2 * i + at % 2];
                const float weight = exponential(score - new_highest);
                const bool sees = position >= start[i] && position < limit[i];
                score = sees ? to_float(bf16_of(weight)) : 0.0f;
                tile_weight += score;
            }
            total_weight[i] = fmaf(total_weight[i], factor[i], team_sum<4>(tile_weight));
            highest[i] = new_highest;
        }
#pragma unroll
        for (int element = 0; element < A::ELEMENTS; ++element) {
            for (int i = 0; i < 4; ++i) sums[element][i] *= factor[i / 2];
        }
        copy_wait<1>();
        BLOCK_BARRIER();
        A::weigh(scores, values, sums);
        BLOCK_BARRIER();
        A::fill(values, v_rows, first + A::TILE, begin, end);
        copy_commit();
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u32 query = first_query + own + 8 * i;
        if (query >= total) continue;
        bf16* to = out + shape.head_offset(unit, query / group, query % group) + 2 * t;
#pragma unroll
        for (int element = 0; element < A::ELEMENTS; ++element) {
            to[8 * element] = bf16_of(sums[element][2 * i] / total_weight[i]);
            to[8 * element + 1] = bf16_of(sums[element][2 * i + 1] / total_weight[i]);
        }
    }
}

#define ATTENTION_MATRIX(name, HEAD)                                                              \
    KERNEL(name, 128,                                                                             \
           (const Unit* units, const bf16* q, const void* k_fresh, const void* v_fresh,           \
            const void* k_cache, const void* v_cache, const float* sinks, bf16* out, u32 heads,   \
            u32 kv_heads, u32 head_dim, u32 window, float scale)) {                               \
        attention_matrix<HEAD>(units, q, k_fresh, v_fresh, k_cache, v_cache, sinks, out,          \
                               Shape{heads, kv_heads, head_dim, window}, scale);                  \
    }

ATTENTION_MATRIX(attention_prefill_64_bf16, 64)
ATTENTION_MATRIX(attention_prefill_128_bf16, 128)
