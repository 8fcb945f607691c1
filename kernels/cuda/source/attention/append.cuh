// Fresh rows of K or V into the caches of their units, and the rows they share; a warp for (unit, row).
#pragma once

template <class T>
DEVICE void append(const Unit* units, const T* fresh, T* cache, u32 kv_heads, u32 head_dim) {
    const Unit unit = units[blockIdx.x];
    const u32 index = blockIdx.y;
    if (index >= unit.appended()) return;
    const T* from =
        fresh + ((u64)unit.appended_row(index) * kv_heads + unit.kv_head) * head_dim;
    T* to = cache + unit.cache_offset + (u64)unit.appended_place(index) * head_dim;
    for (u32 i = threadIdx.x; i < head_dim; i += blockDim.x) to[i] = from[i];
}

KERNEL(append_bf16, 32,
       (const Unit* units, const bf16* fresh, bf16* cache, u32 kv_heads, u32 head_dim)) {
    append(units, fresh, cache, kv_heads, head_dim);
}

KERNEL(append_f32, 32,
       (const Unit* units, const float* fresh, float* cache, u32 kv_heads, u32 head_dim)) {
    append(units, fresh, cache, kv_heads, head_dim);
}

template <class T>
DEVICE void append_four(const Unit* units, const T* fresh, u8* cache, u32 kv_heads, u32 head_dim) {
    const Unit unit = units[blockIdx.x];
    const u32 index = blockIdx.y;
    if (index >= unit.appended()) return;
    const u64 place = unit.cache_offset / head_dim + unit.appended_place(index);
    const u64 row = unit.appended_row(index);
    quantise_head(fresh + (row * kv_heads + unit.kv_head) * head_dim, head_dim,
                  cache + place * kv_record_bytes(head_dim));
}

KERNEL(append_four_bf16, 32,
       (const Unit* units, const bf16* fresh, u8* cache, u32 kv_heads, u32 head_dim)) {
    append_four(units, fresh, cache, kv_heads, head_dim);
}

KERNEL(append_four_f32, 32,
       (const Unit* units, const float* fresh, u8* cache, u32 kv_heads, u32 head_dim)) {
    append_four(units, fresh, cache, kv_heads, head_dim);
}
