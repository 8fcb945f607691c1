// Kernels with known faults, by which the shim's own tests see that it reports them.
#pragma once

// Sums of neighbours through shared memory: `out[i] = i + (i + 1) % 64`, if the barrier is there. Rows of
// shared memory are `stride` long; anything but 8 is wrong.
KERNEL(selftest_neighbours, 64, (u32* out, u32 stride)) {
    SHARED(u32, values);
    const u32 i = threadIdx.x;
    values[i / 8 * 8 + i % 8] = i;
    BLOCK_BARRIER();
    const u32 next = (i + 1) % 64;
    out[blockIdx.x * 64 + i] = i + values[next / 8 * stride + next % 8];
}

// The upper half of the block leaves before the barrier.
KERNEL(selftest_divergent_barrier, 64, (u32* out)) {
    if (threadIdx.x >= 32) return;
    BLOCK_BARRIER();
    out[threadIdx.x] = 1;
}

// Two barriers, each for half of the block.
KERNEL(selftest_other_barrier, 64, (u32* out)) {
    if (threadIdx.x < 32) {
        BLOCK_BARRIER();
    } else {
        BLOCK_BARRIER();
    }
    out[threadIdx.x] = 1;
}

// Odd lanes leave the shuffle out.
KERNEL(selftest_divergent_shuffle, 32, (u32* out)) {
    u32 value = threadIdx.x;
    if (value % 2 == 0) value = SHUFFLE_XOR(value, 2);
    out[threadIdx.x] = value;
}

// Writes one word behind the shared memory that the launch gave.
KERNEL(selftest_shared_overrun, 32, (u32* out, u32 words)) {
    SHARED(u32, values);
    values[words] = threadIdx.x;
    out[threadIdx.x] = 1;
}

// Copies through shared memory and reads them without, or with, waiting.
KERNEL(selftest_copy, 32, (const u32* from, u32* out, u32 waits)) {
    SHARED(u32, values);
    copy16_async(values + 4 * threadIdx.x, from + 4 * threadIdx.x, true);
    copy_commit();
    if (waits) copy_wait<0>();
    for (u32 i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = values[4 * threadIdx.x + i];
}

// A 16-byte copy to a place that is not on a boundary of 16.
KERNEL(selftest_misaligned_copy, 32, (const u32* from, u32* out)) {
    SHARED(u32, values);
    copy16_async(values + 1 + 4 * threadIdx.x, from + 4 * threadIdx.x, true);
    out[threadIdx.x] = 1;
}

// out[row][column] of 16 by 8 = sum of a[row][k] * b[column][k], as the instruction says.
KERNEL(selftest_multiply, 32, (const bf16* a, const bf16* b, float* out)) {
    const u32 g = lane_index() / 4;
    const u32 t = lane_index() % 4;
    u32 left[4], right[2];
    for (u32 i = 0; i < 4; ++i) {
        const bf16* from = a + (g + i % 2 * 8) * 16 + 2 * t + i / 2 * 8;
        left[i] = from[0] | u32(from[1]) << 16;
    }
    for (u32 i = 0; i < 2; ++i) {
        const bf16* from = b + g * 16 + 2 * t + i * 8;
        right[i] = from[0] | u32(from[1]) << 16;
    }
    float d[4] = {};
    multiply_16_8_16(d, left, right);
    for (u32 i = 0; i < 4; ++i) out[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
}
