// Prefill attention: many fresh rows, causal, scores never in memory.
//
// A *query* is one (row, head of the group), numbered row by row; a block takes 16 of a unit, eight
// threads each, and walks over the positions in fixed tiles, counted from position 0 on, that its
// queries see. A tile that a query does not see changes nothing of its sums, so no query depends on the
// others of its block. A sink is what a query begins with: a score whose weight meets no value.
#pragma once

static constexpr u32 TILE_QUERIES = 16;
// Elements of the longest head that a thread holds.
static constexpr u32 OWN_ELEMENTS = 256 / 8;

// Copies `count` positions to shared memory as f32, `stride` apart.
template <class Rows>
DEVICE void load_tile(const Rows& rows, u32 first, u32 count, u32 head_dim, u32 stride, float* to) {
    const u32 pieces = divided_up(head_dim, 8);
#pragma unroll 1
    for (u32 at = threadIdx.x; at < count * pieces; at += blockDim.x) {
        const u32 element = at % pieces * 8;
        float eight[8];
        rows.eight(first + at / pieces, element, eight);
        float* place = to + at / pieces * stride + element;
        for (u32 i = 0; i < smaller(8, head_dim - element); ++i) place[i] = eight[i];
    }
}

template <class T, class Rows>
DEVICE void attention_prefill(const Unit* units, const T* q, const void* k_fresh,
                              const void* v_fresh, const void* k_cache, const void* v_cache,
                              const float* sinks, T* out, const Shape shape, float scale) {
    SHARED(float, queries);
    const u32 head_dim = shape.head_dim;
    // Of odd length, so that neighbouring rows lie in different banks.
    const u32 stride = head_dim | 1;
    const u32 tile = head_dim <= 128 ? 32 : 16;
    float* keys_or_values = queries + TILE_QUERIES * stride;
    float* weights = keys_or_values + tile * stride;
    const Unit unit = units[blockIdx.x];
    const u32 total = unit.rows * shape.group();
    const u32 first_query = blockIdx.y * TILE_QUERIES;
    if (first_query >= total) return;
    const Rows keys(k_fresh, k_cache, unit, shape);
    const Rows values(v_fresh, v_cache, unit, shape);
    const u32 count = smaller(TILE_QUERIES, total - first_query);
    for (u32 at = threadIdx.x; at < count * head_dim; at += blockDim.x) {
        const u32 query = first_query + at / head_dim;
        const u64 from = shape.head_offset(unit, query / shape.group(), query % shape.group());
        queries[at / head_dim * stride + at % head_dim] = to_float(q[from + at % head_dim]);
    }
    const u32 own = threadIdx.x / 8;
    const u32 lane = threadIdx.x % 8;
    const u32 query = first_query + own;
    // Positions that this thread's query sees, `start` to `limit - 1`, and that the block's queries do.
    const u32 limit = own < count ? unit.past + query / shape.group() + 1 : 0;
    const u32 start = shape.first_seen(limit);
    const u32 begin = shape.first_seen(unit.past + first_query / shape.group() + 1);
    const u32 end = unit.past + (first_query + count - 1) / shape.group() + 1;
    const float* own_query = queries + own * stride;
    float* own_weights = weights + own * 33;
    float sums[OWN_ELEMENTS] = {};
    float highest = own < count ? sink_of(sinks, unit, shape, query % shape.group()) : minus_infinity();
    float sum = sinks ? 1.0f : 0.0f;
    for (u32 first = begin / tile * tile; first < end; first += tile) {
        // Places of the tile that have a position which a query of the block sees.
        const u32 skipped = begin > first ? begin - first : 0;
        const u32 there = smaller(tile, end - first) - skipped;
        float* from_skipped = keys_or_values + skipped * stride;
        BLOCK_BARRIER();
        load_tile(keys, first + skipped, there, head_dim, stride, from_skipped);
        BLOCK_BARRIER();
        float tile_highest = minus_infinity();
        for (u32 place = lane; place < tile; place += 8) {
            float score = minus_infinity();
            if (first + place >= start && first + place < limit) {
                score = 0.0f;
                const float* key = keys_or_values + place * stride;
#pragma unroll 4
                for (u32 i = 0; i < head_dim; ++i) score = fmaf(own_query[i], key[i], score);
                score *= scale;
            }
            own_weights[place] = score;
            tile_highest = fmaxf(tile_highest, score);
        }
        const float new_highest = fmaxf(highest, team_maximum<8>(tile_highest));
        // Where nothing was seen yet, and nothing is now, there is nothing to scale.
        const bool sees = first < limit && first + tile > start;
        const float factor = sees ? exponential(highest - new_highest) : 1.0f;
        float tile_sum = 0.0f;
        for (u32 place = lane; place < tile; place += 8) {
            float weight = 0.0f;
            if (first + place >= start && first + place < limit) {
                weight = exponential(own_weights[place] - new_highest);
            }
            own_weights[place] = weight;
            tile_sum += weight;
        }
        sum = fmaf(sum, factor, team_sum<8>(tile_sum));
        highest = new_highest;
        BLOCK_BARRIER();
        load_tile(values, first + skipped, there, head_dim, stride, from_skipped);
        BLOCK_BARRIER();
        const u32 seen = first < limit ? smaller(tile, limit - first) : 0;
        const u32 unseen = start > first ? start - first : 0;
#pragma unroll
        for (u32 i = 0; i < OWN_ELEMENTS; ++i) sums[i] *= factor;
#pragma unroll 1
        for (u32 place = unseen; place < seen; ++place) {
            const float weight = own_weights[place];
            const float* value = keys_or_values + place * stride;
#pragma unroll
            for (u32 i = 0; i < OWN_ELEMENTS; ++i) {
                const u32 element = lane + 8 * i;
                if (element < head_dim) sums[i] = fmaf(weight, value[element], sums[i]);
            }
        }
    }
    if (own >= count) return;
    T* to = out + shape.head_offset(unit, query / shape.group(), query % shape.group());
#pragma unroll
    for (u32 i = 0; i < OWN_ELEMENTS; ++i) {
        const u32 element = lane + 8 * i;
        if (element < head_dim) to[element] = of_float<T>(sums[i] / sum);
    }
}

#define ATTENTION_PREFILL(name, T, Rows)                                                          \
    KERNEL_BESIDE(name, 128, 1,                                                                   \
           (const Unit* units, const T* q, const void* k_fresh, const void* v_fresh,              \
            const void* k_cache, const void* v_cache, const float* sinks, T* out, u32 heads,      \
            u32 kv_heads, u32 head_dim, u32 window, float scale)) {                               \
        attention_prefill<T, Rows>(units, q, k_fresh, v_fresh, k_cache, v_cache, sinks, out,      \
                                   Shape{heads, kv_heads, head_dim, window}, scale);              \
    }

ATTENTION_PREFILL(attention_prefill_bf16, bf16, PlainRows<bf16>)
ATTENTION_PREFILL(attention_prefill_f32, float, PlainRows<float>)
ATTENTION_PREFILL(attention_prefill_four_bf16, bf16, FourRows)
ATTENTION_PREFILL(attention_prefill_four_f32, float, FourRows)
