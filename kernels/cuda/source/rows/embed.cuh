// Rows of a table, a block for each, as f32.
#pragma once

template <class T>
DEVICE void embed(const u32* tokens, const T* table, const u32* positions, const T* position_table,
                  u32 offset, float* out, u32 hidden) {
    const u32 row = blockIdx.x;
    const T* token = table + (u64)tokens[row] * hidden;
    const T* position = nullptr;
    if (positions) position = position_table + ((u64)positions[row] + offset) * hidden;
    float* to = out + (u64)row * hidden;
    for (u32 i = threadIdx.x; i < hidden; i += blockDim.x) {
        float value = to_float(token[i]);
        if (position) value += to_float(position[i]);
        to[i] = value;
    }
}

KERNEL(embed_bf16, 256,
       (const u32* tokens, const bf16* table, const u32* positions, const bf16* position_table,
        u32 offset, float* out, u32 hidden)) {
    embed(tokens, table, positions, position_table, offset, out, hidden);
}

KERNEL(embed_f32, 256,
       (const u32* tokens, const float* table, const u32* positions, const float* position_table,
        u32 offset, float* out, u32 hidden)) {
    embed(tokens, table, positions, position_table, offset, out, hidden);
}

KERNEL(embed_grouped, 256,
       (const u32* tokens, const u8* records, float* out, u32 hidden, u32 bits, u32 group)) {
    const u32 row = blockIdx.x;
    const u32 token = tokens[row];
    const u32 groups = divided_up(hidden, group);
    const u32 bytes = record_bytes(bits, group, false);
    for (u32 at = 8 * threadIdx.x; at < hidden; at += 8 * blockDim.x) {
        const u8* record = records + ((u64)(token / 16) * groups + at / group) * bytes;
        float values[8];
        decode8(record, bits, false, token % 16, at % group / 8, values);
        for (u32 i = 0; i < 8 && at + i < hidden; ++i) out[(u64)row * hidden + at + i] = values[i];
    }
}
