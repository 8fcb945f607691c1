// RMS norm of rows in place, as of the heads of q and k, and of rows that are added to the residual
// stream. The order of a sum depends on the width alone.
#pragma once

// This thread's share of a sum of squares.
template <class T> DEVICE float squares_of(const T* x, u32 width, u32 first, u32 step) {
    float squares = 0.0f;
    for (u32 i = first; i < width; i += step) {
        const float value = to_float(x[i]);
        squares = fmaf(value, value, squares);
    }
    return squares;
}

DEVICE float rms_scale(float squares, u32 width, float eps) {
    return 1.0f / sqrtf(squares / (float)width + eps);
}

// A warp for each narrow row.
template <class T>
DEVICE void head_norm(T* x, const float* gain, float eps, u32 count, u32 width) {
    const u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    // The same for the whole warp.
    if (row >= count) return;
    T* own = x + (u64)row * width;
    const float squares = team_sum<32>(squares_of(own, width, lane_index(), 32));
    const float scale = rms_scale(squares, width, eps);
    for (u32 i = lane_index(); i < width; i += 32) {
        own[i] = of_float<T>(to_float(own[i]) * scale * gain[i]);
    }
}

// A block for each row. Each thread writes the elements that it alone has read.
template <class T> DEVICE void row_norm(T* x, const float* gain, float eps, u32 width) {
    SHARED(float, parts);
    T* own = x + (u64)blockIdx.x * width;
    const float squares = block_sum(squares_of(own, width, threadIdx.x, blockDim.x), parts);
    const float scale = rms_scale(squares, width, eps);
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        own[i] = of_float<T>(to_float(own[i]) * scale * gain[i]);
    }
}

template <class T>
DEVICE void add_norm(const T* x, const float* gain, float eps, float* out, u32 width) {
    SHARED(float, parts);
    const T* own = x + (u64)blockIdx.x * width;
    float* to = out + (u64)blockIdx.x * width;
    const float squares = block_sum(squares_of(own, width, threadIdx.x, blockDim.x), parts);
    const float scale = rms_scale(squares, width, eps);
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        to[i] = to[i] + to_float(own[i]) * scale * gain[i];
    }
}

#define RMS_KERNELS(name, T)                                                            \
    KERNEL(head_norm_##name, 256,                                                       \
           (T* x, const float* gain, float eps, u32 count, u32 width)) {                \
        head_norm(x, gain, eps, count, width);                                          \
    }                                                                                   \
    KERNEL(row_norm_##name, 256, (T* x, const float* gain, float eps, u32 width)) {     \
        row_norm(x, gain, eps, width);                                                  \
    }                                                                                   \
    KERNEL(add_norm_##name, 256,                                                        \
           (const T* x, const float* gain, float eps, float* out, u32 width)) {         \
        add_norm(x, gain, eps, out, width);                                             \
    }

RMS_KERNELS(bf16, bf16)
RMS_KERNELS(f32, float)
