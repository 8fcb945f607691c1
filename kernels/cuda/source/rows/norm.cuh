// RMS norm and layer norm over rows of the f32 residual stream, a block for each row. The order of a
// sum depends on `hidden` alone.
#pragma once

template <class T>
DEVICE void norm(const float* x, const float* gain, const float* bias, float eps,
                 const u32* row_index, T* out, u32 hidden) {
    SHARED(float, parts);
    const u32 row = blockIdx.x;
    const float* from = x + (u64)(row_index ? row_index[row] : row) * hidden;
    float mean = 0.0f;
    if (bias) {
        float sum = 0.0f;
        for (u32 i = threadIdx.x; i < hidden; i += blockDim.x) sum += from[i];
        mean = block_sum(sum, parts) / (float)hidden;
    }
    float squares = 0.0f;
    for (u32 i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float centered = from[i] - mean;
        squares = fmaf(centered, centered, squares);
    }
    // Another place than the first sum's, which some threads may still read.
    squares = block_sum(squares, parts + 32);
    const float scale = 1.0f / sqrtf(squares / (float)hidden + eps);
    for (u32 i = threadIdx.x; i < hidden; i += blockDim.x) {
        float value = (from[i] - mean) * scale * gain[i];
        if (bias) value += bias[i];
        out[(u64)row * hidden + i] = of_float<T>(value);
    }
}

KERNEL(norm_bf16, 256,
       (const float* x, const float* gain, const float* bias, float eps, const u32* row_index,
        bf16* out, u32 hidden)) {
    norm(x, gain, bias, eps, row_index, out, hidden);
}

KERNEL(norm_f32, 256,
       (const float* x, const float* gain, const float* bias, float eps, const u32* row_index,
        float* out, u32 hidden)) {
    norm(x, gain, bias, eps, row_index, out, hidden);
}
