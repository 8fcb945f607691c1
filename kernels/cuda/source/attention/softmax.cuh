// Softmax of a row of scores; a block for (unit, head, row). The order of the sum is the row's length's.
#pragma once

KERNEL(softmax, 128, (const Unit* units, const float* scores, float* probabilities, u32 group)) {
    SHARED(float, parts);
    const Unit unit = units[blockIdx.x];
    const u32 row = blockIdx.z;
    if (row >= unit.rows) return;
    const u32 visible = unit.past + row + 1;
    const u64 stride = unit.past + unit.rows;
    const u64 first = unit.scores_offset + (row * group + blockIdx.y) * stride;
    const float* from = scores + first;
    float* to = probabilities + first;
    float highest = minus_infinity();
    for (u32 i = threadIdx.x; i < visible; i += blockDim.x) highest = fmaxf(highest, from[i]);
    highest = block_maximum(highest, parts);
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < visible; i += blockDim.x) {
        const float weight = exponential(from[i] - highest);
        to[i] = weight;
        sum += weight;
    }
    // Another place than the maximum's, which some threads may still read.
    const float factor = 1.0f / block_sum(sum, parts + 32);
    for (u32 i = threadIdx.x; i < visible; i += blockDim.x) to[i] *= factor;
}
