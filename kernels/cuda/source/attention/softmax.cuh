// Softmax of a row of scores; a block for (unit, head, row). The order of the sum is that of the positions that
// the row sees; a sink comes last.
#pragma once

KERNEL(softmax, 128,
       (const Unit* units, const float* scores, const float* sinks, float* probabilities, u32 heads,
        u32 kv_heads, u32 head_dim, u32 window)) {
    SHARED(float, parts);
    const Unit unit = units[blockIdx.x];
    const u32 row = blockIdx.z;
    if (row >= unit.rows) return;
    const Shape shape = {heads, kv_heads, head_dim, window};
    const u32 begin = shape.first_seen(unit.past + row + 1);
    const u32 visible = unit.past + row + 1 - begin;
    const u64 stride = unit.past + unit.rows;
    const u64 first = unit.scores_offset + (row * shape.group() + blockIdx.y) * stride + begin;
    const float sink = sink_of(sinks, unit, shape, blockIdx.y);
    const float* from = scores + first;
    float* to = probabilities + first;
    float highest = sink;
    for (u32 i = threadIdx.x; i < visible; i += blockDim.x) highest = fmaxf(highest, from[i]);
    highest = block_maximum(highest, parts);
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < visible; i += blockDim.x) {
        const float weight = exponential(from[i] - highest);
        to[i] = weight;
        sum += weight;
    }
    // Another place than the maximum's, which some threads may still read.
    sum = block_sum(sum, parts + 32);
    if (sinks) sum += exponential(sink - highest);
    const float factor = 1.0f / sum;
    for (u32 i = threadIdx.x; i < visible; i += blockDim.x) to[i] *= factor;
}
