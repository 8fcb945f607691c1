// Rotary position embedding of the start of each head, rotate-half form, in place; a block for each
// row.
#pragma once

struct RopeTables {
    // `[tables, rotary_dim / 2]`.
    const float* inverse_frequencies;
    // The table of each row, or none: the first is everyone's.
    const u32* table_of_row;
    u32 rotary_dim;
    float attention_factor;
};

template <class T>
DEVICE void rope(const u32* positions, const RopeTables& tables, T* x, u32 heads, u32 head_dim) {
    const u32 half = tables.rotary_dim / 2;
    const float position = (float)positions[blockIdx.x];
    const u32 table = tables.table_of_row ? tables.table_of_row[blockIdx.x] : 0;
    T* row = x + (u64)blockIdx.x * heads * head_dim;
    // A thread keeps its pair from head to head, so that it needs the sine once.
    const u32 together = blockDim.x / half;
    const u32 first = threadIdx.x / half;
    if (first >= together) return;
    const u32 pair = threadIdx.x % half;
    const float angle = position * tables.inverse_frequencies[(u64)table * half + pair];
    const float cosine = cosf(angle) * tables.attention_factor;
    const float sine = sinf(angle) * tables.attention_factor;
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
       (const u32* positions, const float* inverse_frequencies, const u32* table_of_row, bf16* x,
        u32 heads, u32 head_dim, u32 rotary_dim, float attention_factor)) {
    const RopeTables tables = {inverse_frequencies, table_of_row, rotary_dim, attention_factor};
    rope(positions, tables, x, heads, head_dim);
}

KERNEL(rope_f32, 256,
       (const u32* positions, const float* inverse_frequencies, const u32* table_of_row, float* x,
        u32 heads, u32 head_dim, u32 rotary_dim, float attention_factor)) {
    const RopeTables tables = {inverse_frequencies, table_of_row, rotary_dim, attention_factor};
    rope(positions, tables, x, heads, head_dim);
}
