// Scores of some query heads and a block of positions. A team of eight lanes takes a position; a sum is
// a chain in each lane, then a tree over the team, whatever else the block does.
#pragma once

// Copies `count` queries' heads, from head `first` of the group on, to shared memory as f32.
template <class T>
DEVICE void load_queries(const T* q, const Unit& unit, const Shape& shape, u32 row, u32 first,
                         u32 count, float* queries) {
    const T* from = q + shape.head_offset(unit, row, first);
    for (u32 i = threadIdx.x; i < count * shape.head_dim; i += blockDim.x) {
        queries[i] = to_float(from[i]);
    }
}

// Calls `put(head, position, score)` once for each head below `count` and position of the block from
// `first` on that is below `end`. All threads of the block come here.
template <u32 HEADS, class Rows, class Put>
DEVICE void score_positions(const Rows& keys, const float* queries, u32 count, u32 head_dim,
                            float scale, u32 first, u32 end, const Put& put) {
    const u32 lane = threadIdx.x % 8;
    const u32 teams = blockDim.x / 8;
#pragma unroll 1
    for (u32 at = 0; at < SPLIT && first + at < end; at += teams) {
        const u32 position = first + at + threadIdx.x / 8;
        float sums[HEADS] = {};
        if (position < end) {
#pragma unroll 1
            for (u32 element = 8 * lane; element < head_dim; element += 64) {
                float key[8];
                keys.eight(position, element, key);
                const u32 there = smaller(8, head_dim - element);
#pragma unroll
                for (u32 head = 0; head < HEADS; ++head) {
                    if (head < count) {
                        const float* query = queries + head * head_dim + element;
                        for (u32 i = 0; i < there; ++i) {
                            sums[head] = fmaf(query[i], key[i], sums[head]);
                        }
                    }
                }
            }
        }
#pragma unroll
        for (u32 head = 0; head < HEADS; ++head) {
            const float sum = team_sum<8>(sums[head]);
            if (head < count && lane == head % 8 && position < end) {
                put(head, position, sum * scale);
            }
        }
    }
}

struct PutScores {
    float* out;
    u64 stride;
    DEVICE void operator()(u32 head, u32 position, float score) const {
        out[head * stride + position] = score;
    }
};

// A block for (unit, positions, row); the heads of the group eight at a time.
template <class T, class Rows>
DEVICE void scores(const Unit* units, const T* q, const void* k_fresh, const void* k_cache,
                   float* out, const Shape shape, float scale) {
    const u32 HEADS = 8;
    SHARED(float, queries);
    const Unit unit = units[blockIdx.x];
    const u32 row = blockIdx.z;
    const u32 visible = unit.past + row + 1;
    const u32 begin = shape.first_seen(visible);
    const u32 block = begin / SPLIT + blockIdx.y;
    const u32 first = larger(begin, block * SPLIT);
    if (row >= unit.rows || first >= visible) return;
    const Rows keys(k_fresh, k_cache, unit, shape);
    const u64 stride = unit.past + unit.rows;
    for (u32 head = 0; head < shape.group(); head += HEADS) {
        const u32 count = smaller(HEADS, shape.group() - head);
        load_queries(q, unit, shape, row, head, count, queries);
        BLOCK_BARRIER();
        const PutScores put = {out + unit.scores_offset + (row * shape.group() + head) * stride,
                               stride};
        score_positions<HEADS>(keys, queries, count, shape.head_dim, scale, first,
                               smaller(visible, (block + 1) * SPLIT), put);
        BLOCK_BARRIER();
    }
}

#define SCORES(name, T, Rows)                                                                    \
    KERNEL_BESIDE(name, 128, 1,                                                                  \
           (const Unit* units, const T* q, const void* k_fresh, const void* k_cache, float* out, \
            u32 heads, u32 kv_heads, u32 head_dim, u32 window, float scale)) {                   \
        scores<T, Rows>(units, q, k_fresh, k_cache, out,                                         \
                        Shape{heads, kv_heads, head_dim, window}, scale);                        \
    }

SCORES(scores_bf16, bf16, PlainRows<bf16>)
SCORES(scores_f32, float, PlainRows<float>)
SCORES(scores_four_bf16, bf16, FourRows)
SCORES(scores_four_f32, float, FourRows)
