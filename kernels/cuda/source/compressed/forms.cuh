// Stored forms that linears read without expanding them, as a number that a launch passes in place of a
// group: inputs of a group, codes of the integers, what ranges are made of, and the table of the codes.
#pragma once

static constexpr u32 TABLE_NON_LINEAR = 0;

DEVICE constexpr u32 stored_form(u32 group, u32 codes, u32 scales, u32 table) {
    return group | codes << 8 | scales << 12 | table << 16;
}

// Signed bytes that the codes of a table stand for, the first in the lowest bits.
DEVICE StoredTable table_of_form(u32 form) {
    if (form >> 16 == TABLE_NON_LINEAR) {
        return {{0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}};
    }
    return {{0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}};
}

// A matrix of records of any such form, for kernels that are no faster for knowing it.
struct StoredSource {
    const u8* records;
    u32 n;
    u32 k;
    u32 form;

    DEVICE StoredSource(const void* records, u32 n, u32 k, u32 form)
        : records(static_cast<const u8*>(records)), n(n), k(k), form(form) {}

    DEVICE static u32 group(u32 form) { return form & 0xff; }
    DEVICE static u32 codes(u32 form) { return form >> 8 & 15; }
    DEVICE static u32 scales(u32 form) { return form >> 12 & 15; }
    DEVICE static u32 groups_bytes(u32 form) { return 2 * group(form) * bits_of_codes(codes(form)); }
    DEVICE static u32 inputs(u32 form) {
        return group(form) * groups_of_record(scales(form), group(form));
    }
    DEVICE static u32 bytes(u32 form) {
        return head_bytes(scales(form), group(form)) +
               groups_of_record(scales(form), group(form)) * groups_bytes(form);
    }

    // Bytes of a matrix, where several lie behind each other.
    DEVICE static u64 matrix_bytes(u32 n, u32 k, u32 form) {
        return (u64)divided_up(n, 16) * divided_up(k, inputs(form)) * bytes(form);
    }

    // Inputs `at` to `at + 7` of a column, zeros where there are none; `at` is a multiple of eight.
    DEVICE void eight(u32 column, u32 at, float* to) const {
        for (u32 i = 0; i < 8; ++i) to[i] = 0.0f;
        if (column >= n || at >= k) return;
        const u32 of_record = inputs(form);
        const u64 index = (u64)(column / 16) * divided_up(k, of_record) + at / of_record;
        const u8* record = records + index * bytes(form);
        const u32 place = at % of_record / group(form);
        const u8* integers =
            record + head_bytes(scales(form), group(form)) + place * groups_bytes(form);
        const RowRange range = stored_range(record, scales(form), 1.0f, place, column % 16);
        const StoredTable table = table_of_form(form);
        for (u32 i = 0; i < 8; ++i) {
            const u32 step = at % group(form) / 4 + i / 4;
            const u32 bytes = stored_bytes(integers, codes(form), table, step, column % 16);
            to[i] = decoded(range, (float)(signed char)(bytes >> i % 4 * 8));
        }
    }
};

// A thread for eight inputs of a column; threads beside each other have columns of a record.
template <class T>
DEVICE void decompress_stored(const u8* records, T* out, u32 n, u32 k, u32 form, u32 count) {
    const u32 index = blockIdx.x * 4 + threadIdx.x / 64;
    if (index >= count) return;
    const StoredSource source(records, n, k, form);
    const u32 groups = divided_up(k, StoredSource::group(form));
    const u32 eighths = StoredSource::group(form) / 8;
    for (u32 at = threadIdx.x % 64; at < 16 * eighths; at += 64) {
        const u32 column = index / groups * 16 + at / eighths;
        const u32 input = index % groups * StoredSource::group(form) + at % eighths * 8;
        if (column >= n) continue;
        float values[8];
        source.eight(column, input, values);
        // What is behind the last input is padding.
        const u32 present = input < k ? k - input : 0;
        store8(out + (u64)column * k + input, present, k % 8 == 0, values);
    }
}

KERNEL(decompress_stored_bf16, 256,
       (const u8* records, bf16* out, u32 n, u32 k, u32 form, u32 count)) {
    decompress_stored(records, out, n, k, form, count);
}

KERNEL(decompress_stored_f32, 256,
       (const u8* records, float* out, u32 n, u32 k, u32 form, u32 count)) {
    decompress_stored(records, out, n, k, form, count);
}
