// Warp and block collectives. All 32 lanes take part, always: no kernel here has partial masks, which
// keeps divergence an error that the CPU build can report.
#pragma once

#ifdef __CUDA_ARCH__
DEVICE u32 lane_index() { return threadIdx.x % 32; }
#define SHUFFLE_XOR(value, lanes) __shfl_xor_sync(0xffffffffu, value, lanes)
#endif

// Sums and maxima over teams of LANES neighbouring lanes, a power of two; every lane has the result.
// A tree: the order depends on LANES alone.
template <int LANES> DEVICE float team_sum(float value) {
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) value += SHUFFLE_XOR(value, lanes);
    return value;
}

template <int LANES> DEVICE float team_maximum(float value) {
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
        value = fmaxf(value, SHUFFLE_XOR(value, lanes));
    }
    return value;
}

// Over the block, of up to 32 warps, through `parts`, 32 floats of shared memory that nothing else uses
// before the next barrier.
DEVICE float block_sum(float value, float* parts) {
    value = team_sum<32>(value);
    if (lane_index() == 0) parts[threadIdx.x / 32] = value;
    BLOCK_BARRIER();
    float sum = parts[0];
    for (u32 warp = 1; warp < blockDim.x / 32; ++warp) sum += parts[warp];
    return sum;
}

DEVICE float block_maximum(float value, float* parts) {
    value = team_maximum<32>(value);
    if (lane_index() == 0) parts[threadIdx.x / 32] = value;
    BLOCK_BARRIER();
    float maximum = parts[0];
    for (u32 warp = 1; warp < blockDim.x / 32; ++warp) maximum = fmaxf(maximum, parts[warp]);
    return maximum;
}
