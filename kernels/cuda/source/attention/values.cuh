// Weighted values of some query heads over a range of positions. The threads that together hold a head,
// eight elements each, are a team; teams take positions in turn, and their sums are added in order.
#pragma once

template <u32 HEADS> struct ValueSums {
    float sum[HEADS][8];
};

// Elements that a team holds.
DEVICE u32 team_elements(u32 head_dim) { return divided_up(head_dim, 8) * 8; }

// Adds `weights[head * stride + position]` times the values of the positions `first` to `end - 1`.
template <u32 HEADS, class Rows>
DEVICE void add_values(const Rows& values, const float* weights, u64 stride, u32 count,
                       u32 head_dim, u32 first, u32 end, ValueSums<HEADS>& sums) {
    const u32 threads = team_elements(head_dim) / 8;
    const u32 teams = blockDim.x / threads;
    const u32 team = threadIdx.x / threads;
    const u32 element = threadIdx.x % threads * 8;
    if (team >= teams) return;
#pragma unroll 1
    for (u32 position = first + team; position < end; position += teams) {
        float value[8];
        values.eight(position, element, value);
#pragma unroll
        for (u32 head = 0; head < HEADS; ++head) {
            if (head < count) {
                const float weight = weights[head * stride + position];
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    sums.sum[head][i] = fmaf(weight, value[i], sums.sum[head][i]);
                }
            }
        }
    }
}

// Adds up the teams' sums of every head and calls `put(head, element, sum)`. `parts` has room for one
// head of every team. All threads of the block come here.
template <u32 HEADS, class Put>
DEVICE void join_values(const ValueSums<HEADS>& sums, u32 count, u32 head_dim, float* parts,
                        const Put& put) {
    const u32 padded = team_elements(head_dim);
    const u32 teams = blockDim.x / (padded / 8);
    const bool has_team = threadIdx.x / (padded / 8) < teams;
#pragma unroll
    for (u32 head = 0; head < HEADS; ++head) {
        if (head < count) {
            BLOCK_BARRIER();
            if (has_team) {
                for (u32 i = 0; i < 8; ++i) parts[threadIdx.x * 8 + i] = sums.sum[head][i];
            }
            BLOCK_BARRIER();
            for (u32 element = threadIdx.x; element < head_dim; element += blockDim.x) {
                float sum = parts[element];
#pragma unroll 1
                for (u32 team = 1; team < teams; ++team) sum += parts[team * padded + element];
                put(head, element, sum);
            }
        }
    }
}

template <class T> struct PutHead {
    T* out;
    u32 head_dim;
    DEVICE void operator()(u32 head, u32 element, float sum) const {
        out[head * head_dim + element] = of_float<T>(sum);
    }
};

// A block for (unit, eight heads of the group, row).
template <class T, class Rows>
DEVICE void weighted_values(const Unit* units, const float* probabilities, const void* v_fresh,
                            const void* v_cache, T* out, const Shape shape) {
    const u32 HEADS = 8;
    SHARED(float, parts);
    const Unit unit = units[blockIdx.x];
    const u32 first = blockIdx.y * HEADS;
    const u32 row = blockIdx.z;
    if (row >= unit.rows) return;
    const Rows values(v_fresh, v_cache, unit, shape);
    const u32 count = smaller(HEADS, shape.group() - first);
    const u64 stride = unit.past + unit.rows;
    const float* weights =
        probabilities + unit.scores_offset + (row * shape.group() + first) * stride;
    ValueSums<HEADS> sums = {};
    const u32 visible = unit.past + row + 1;
    add_values(values, weights, stride, count, shape.head_dim, shape.first_seen(visible), visible, sums);
    const PutHead<T> put = {out + shape.head_offset(unit, row, first), shape.head_dim};
    join_values(sums, count, shape.head_dim, parts, put);
}

#define WEIGHTED_VALUES(name, T, Rows)                                                            \
    KERNEL(name, 128,                                                                             \
           (const Unit* units, const float* probabilities, const void* v_fresh,                   \
            const void* v_cache, T* out, u32 heads, u32 kv_heads, u32 head_dim, u32 window)) {    \
        weighted_values<T, Rows>(units, probabilities, v_fresh, v_cache, out,                     \
                                 Shape{heads, kv_heads, head_dim, window});                       \
    }

WEIGHTED_VALUES(weighted_values_bf16, bf16, PlainRows<bf16>)
WEIGHTED_VALUES(weighted_values_f32, float, PlainRows<float>)
WEIGHTED_VALUES(weighted_values_four_bf16, bf16, FourRows)
WEIGHTED_VALUES(weighted_values_four_f32, float, FourRows)
