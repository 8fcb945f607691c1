// Rotary position embedding, rotate-half form, in place; a block for each row.
#pragma once

template <class T>
DEVICE void rope(const u32* positions, const float* inverse_frequencies, T* x, u32 heads,
                 u32 head_dim) {
    const u32 half = head_dim / 2;
    const float position = (float)positions[blockIdx.x];
    T* row = x + (u64)blockIdx.x * heads * head_dim;
    // A thread keeps its pair from head to head, so that it needs the sine once.
    const u32 together = blockDim.x / half;
    const u32 first = threadIdx.x / half;
    if (first >= together) return;
    const u32 pair = threadIdx.x % half;
    const float angle = position * inverse_frequencies[pair];
    const float cosine = cosf(angle);
    const float sine = sinf(angle);
    for (u32 head = first; head < heads; head += together) {
        T* low = row + head * head_dim + pair;
        T* high = low + half;
        const float a = to_float(*low);
        const float b = to_float(*high);
        *low = of_float<T>(a * cosine - b * sine);
        *high = of_float<T>(b * cosine + a * sine);
    }
}

KERNEL(rope_bf16, 256,
       (const u32* positions, const float* inverse_frequencies, bf16* x, u32 heads, u32 head_dim)) {
    rope(positions, inverse_frequencies, x, heads, head_dim);
}

KERNEL(rope_f32, 256,
       (const u32* positions, const float* inverse_frequencies, float* x, u32 heads,
        u32 head_dim)) {
    rope(positions, inverse_frequencies, x, heads, head_dim);
}
