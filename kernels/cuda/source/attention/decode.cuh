// Decode attention: one fresh row behind a cache. Blocks of 256 positions are worked on apart, so that
// few sequences still fill the device, and are put together in order by a second kernel.
//
// Scratch of a (unit, head of the group, block of positions): the weighted values with the block's own
// highest score, that score, and the sum of the weights.
#pragma once

struct PutShared {
    float* scores;
    u32 first;
    DEVICE void operator()(u32 head, u32 position, float score) const {
        scores[head * SPLIT + position - first] = score;
    }
};

struct PutPart {
    float* scratch;
    u64 stride;
    DEVICE void operator()(u32 head, u32 element, float sum) const {
        scratch[head * stride + element] = sum;
    }
};

// A block for (unit, positions, HEADS heads of the group).
template <class T, class Rows, u32 HEADS>
DEVICE void attention_part(const Unit* units, const T* q, const void* k_fresh, const void* v_fresh,
                           const void* k_cache, const void* v_cache, float* scratch,
                           const Shape shape, float scale) {
    SHARED(float, weights);
    // First the queries, then the teams' sums of values.
    float* room = weights + HEADS * SPLIT;
    const Unit unit = units[blockIdx.x];
    const u32 positions = unit.past + 1;
    const u32 begin = shape.first_seen(positions);
    const u32 block = begin / SPLIT + blockIdx.y;
    const u32 first = larger(begin, block * SPLIT);
    if (unit.rows == 0 || first >= positions) return;
    const u32 first_head = blockIdx.z * HEADS;
    const u32 count = smaller(HEADS, shape.group() - first_head);
    const u32 end = smaller(positions, (block + 1) * SPLIT);
    const Rows keys(k_fresh, k_cache, unit, shape);
    const Rows values(v_fresh, v_cache, unit, shape);
    const u64 stride = (u64)gridDim.y * (shape.head_dim + 2);
    float* part = scratch + ((u64)blockIdx.x * shape.group() + first_head) * stride +
                  blockIdx.y * (shape.head_dim + 2);

    load_queries(q, unit, shape, 0, first_head, count, room);
    BLOCK_BARRIER();
    const PutShared put = {weights, first};
    score_positions<HEADS>(keys, room, count, shape.head_dim, scale, first, end, put);
    BLOCK_BARRIER();
    // A warp for each head in turn.
    for (u32 head = threadIdx.x / 32; head < count; head += blockDim.x / 32) {
        float* row = weights + head * SPLIT;
        float highest = minus_infinity();
        for (u32 i = lane_index(); i < end - first; i += 32) highest = fmaxf(highest, row[i]);
        highest = team_maximum<32>(highest);
        float sum = 0.0f;
        for (u32 i = lane_index(); i < end - first; i += 32) {
            row[i] = exponential(row[i] - highest);
            sum += row[i];
        }
        sum = team_sum<32>(sum);
        if (lane_index() == 0) {
            part[head * stride + shape.head_dim] = highest;
            part[head * stride + shape.head_dim + 1] = sum;
        }
    }
    BLOCK_BARRIER();
    ValueSums<HEADS> sums = {};
    // Weights count from the block's first position.
    add_values(values, weights - first, SPLIT, count, shape.head_dim, first, end, sums);
    const PutPart put_part = {part, stride};
    join_values(sums, count, shape.head_dim, room, put_part);
}

// A block for (unit, head of the group). A sink is one more part, of no values.
template <class T>
DEVICE void attention_combine(const Unit* units, const float* scratch, const float* sinks, T* out,
                              const Shape shape, u32 splits) {
    const Unit unit = units[blockIdx.x];
    if (unit.rows == 0) return;
    const u32 head_dim = shape.head_dim;
    const float* parts =
        scratch + ((u64)blockIdx.x * shape.group() + blockIdx.y) * splits * (head_dim + 2);
    const u32 positions = unit.past + 1;
    const u32 count = divided_up(positions, SPLIT) - shape.first_seen(positions) / SPLIT;
    const float sink = sink_of(sinks, unit, shape, blockIdx.y);
    float highest = sink;
    for (u32 i = 0; i < count; ++i) highest = fmaxf(highest, parts[i * (head_dim + 2) + head_dim]);
    for (u32 element = threadIdx.x; element < head_dim; element += blockDim.x) {
        float sum = sinks ? exponential(sink - highest) : 0.0f;
        float value = 0.0f;
#pragma unroll 1
        for (u32 i = 0; i < count; ++i) {
            const float* part = parts + i * (head_dim + 2);
            const float factor = exponential(part[head_dim] - highest);
            sum = fmaf(part[head_dim + 1], factor, sum);
            value = fmaf(part[element], factor, value);
        }
        out[shape.head_offset(unit, 0, blockIdx.y) + element] = of_float<T>(value / sum);
    }
}

#define ATTENTION_PART(name, T, Rows, HEADS)                                                      \
    KERNEL_BESIDE(name, 128, 1,                                                                   \
           (const Unit* units, const T* q, const void* k_fresh, const void* v_fresh,              \
            const void* k_cache, const void* v_cache, float* scratch, u32 heads, u32 kv_heads,    \
            u32 head_dim, u32 window, float scale)) {                                             \
        attention_part<T, Rows, HEADS>(units, q, k_fresh, v_fresh, k_cache, v_cache, scratch,     \
                                       Shape{heads, kv_heads, head_dim, window}, scale);          \
    }

ATTENTION_PART(attention_decode_1_bf16, bf16, PlainRows<bf16>, 1)
ATTENTION_PART(attention_decode_4_bf16, bf16, PlainRows<bf16>, 4)
ATTENTION_PART(attention_decode_8_bf16, bf16, PlainRows<bf16>, 8)
ATTENTION_PART(attention_decode_1_f32, float, PlainRows<float>, 1)
ATTENTION_PART(attention_decode_4_f32, float, PlainRows<float>, 4)
ATTENTION_PART(attention_decode_8_f32, float, PlainRows<float>, 8)
ATTENTION_PART(attention_decode_four_1_bf16, bf16, FourRows, 1)
ATTENTION_PART(attention_decode_four_4_bf16, bf16, FourRows, 4)
ATTENTION_PART(attention_decode_four_8_bf16, bf16, FourRows, 8)
ATTENTION_PART(attention_decode_four_1_f32, float, FourRows, 1)
ATTENTION_PART(attention_decode_four_4_f32, float, FourRows, 4)
ATTENTION_PART(attention_decode_four_8_f32, float, FourRows, 8)

KERNEL(attention_combine_bf16, 128,
       (const Unit* units, const float* scratch, const float* sinks, bf16* out, u32 heads,
        u32 kv_heads, u32 head_dim, u32 window, u32 splits)) {
    attention_combine(units, scratch, sinks, out, Shape{heads, kv_heads, head_dim, window}, splits);
}

KERNEL(attention_combine_f32, 128,
       (const Unit* units, const float* scratch, const float* sinks, float* out, u32 heads,
        u32 kv_heads, u32 head_dim, u32 window, u32 splits)) {
    attention_combine(units, scratch, sinks, out, Shape{heads, kv_heads, head_dim, window}, splits);
}
