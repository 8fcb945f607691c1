// Grouped matrices to wider forms. A block works on four records, 64 threads on each.
#pragma once

template <class T>
DEVICE void decompress(const u8* records, T* out, u32 n, u32 k, u32 bits, u32 group, bool floats,
                       u32 count) {
    const u32 index = blockIdx.x * 4 + threadIdx.x / 64;
    if (index >= count) return;
    const u32 groups = divided_up(k, group);
    const u8* record = records + (u64)index * record_bytes(bits, group, floats);
    const u32 first_row = index / groups * 16;
    const u32 first_input = index % groups * group;
    const u32 eighths = group / 8;
    for (u32 at = threadIdx.x % 64; at < 16 * eighths; at += 64) {
        const u32 row = at / eighths;
        const u32 input = first_input + at % eighths * 8;
        if (first_row + row >= n) continue;
        float values[8];
        decode8(record, bits, floats, row, at % eighths, values);
        // What is behind the last input is padding.
        const u32 present = input < k ? k - input : 0;
        store8(out + (u64)(first_row + row) * k + input, present, k % 8 == 0, values);
    }
}

KERNEL(decompress_bf16, 256,
       (const u8* records, bf16* out, u32 n, u32 k, u32 bits, u32 group, u32 floats, u32 count)) {
    decompress(records, out, n, k, bits, group, floats != 0, count);
}

KERNEL(decompress_f32, 256,
       (const u8* records, float* out, u32 n, u32 k, u32 bits, u32 group, u32 floats, u32 count)) {
    decompress(records, out, n, k, bits, group, floats != 0, count);
}

// 4-bit records to 8-bit ones; `dwords` is the number of dwords of integers in a narrow record.
KERNEL(widen, 256, (const u8* records, u8* out, u32 dwords, u32 count)) {
    const u32 index = blockIdx.x * 4 + threadIdx.x / 64;
    if (index >= count) return;
    const u32* from = reinterpret_cast<const u32*>(records) + (u64)index * (16 + dwords);
    u32* to = reinterpret_cast<u32*>(out) + (u64)index * (16 + 2 * dwords);
    for (u32 at = threadIdx.x % 64; at < 16 + dwords; at += 64) {
        const u32 dword = from[at];
        if (at < 16) {
            to[at] = dword;
            continue;
        }
        const u32 vector = (at - 16) / 16;
        const u32 row = at % 16;
        // Even inputs come from the low half, odd ones from the high half.
        const u32 first = (dword & 0xf) | (dword >> 8 & 0xf00) | (dword << 12 & 0xf0000) |
                          (dword << 4 & 0xf000000);
        const u32 last = (dword >> 8 & 0xf) | (dword >> 16 & 0xf00) | (dword << 4 & 0xf0000) |
                         (dword >> 4 & 0xf000000);
        to[16 + 32 * vector + row] = first;
        to[16 + 32 * vector + 16 + row] = last;
    }
}
