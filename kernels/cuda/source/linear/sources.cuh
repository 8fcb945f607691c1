// Where the weights of a linear come from: elements in rows, or records of integers.
#pragma once

// Inputs of one chain of sums.
static constexpr u32 SEGMENT = 512;

// Rows off boundaries, and ends of rows: one by one.
DEVICE Words4 eight_single_bf16(const bf16* row, u32 at, u32 k) {
    Words4 words;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const u32 input = at + 2 * i;
        const u32 low = input < k ? row[input] : 0;
        const u32 high = input + 1 < k ? row[input + 1] : 0;
        words.word[i] = low | high << 16;
    }
    return words;
}

// Rows of x and of outputs in one order.
struct AllRows {
    static constexpr bool LISTED = false;
    DEVICE u64 input(u32 row) const { return row; }
    DEVICE u32 output(u32 row) const { return row; }
};

// Eight bf16 of a row from input `at` on, zeros behind input `k`. `wide`: rows lie on boundaries of 16.
DEVICE Words4 eight_bf16(const bf16* row, u32 at, u32 k, bool wide) {
    return wide && at + 8 <= k ? load16(row + at) : eight_single_bf16(row, at, k);
}

// Row-major `[n, k]`.
template <class T> struct PlainSource {
    const T* weight;
    u32 n;
    u32 k;

    DEVICE PlainSource(const void* weight, u32 n, u32 k, u32)
        : weight(static_cast<const T*>(weight)), n(n), k(k) {}

    // Bytes of a matrix, where several lie behind each other.
    DEVICE static u64 matrix_bytes(u32 n, u32 k, u32) { return (u64)n * k * sizeof(T); }

    // Eight weights of a column as bf16, zeros where there are none.
    DEVICE Words4 eight(u32 column, u32 at, bool wide) const {
        if (column >= n) return {};
        return eight_bf16(weight + (u64)column * k, at, k, wide);
    }

    DEVICE void eight(u32 column, u32 at, float* to) const {
        const u32 count = column < n && at < k ? k - at : 0;
        load8(weight + (u64)column * k + at, count, k % 8 == 0, to);
    }
};

// Records of BITS, with ranges of f32 if FLOATS; eight inputs never lie in two groups. SIXTEENS: on
// tensor cores, groups have 16 inputs, and 32 or 64 otherwise.
template <u32 BITS, bool FLOATS = false, bool SIXTEENS = false> struct RecordSource {
    const u8* records;
    u32 n;
    u32 k;
    u32 group;
    u32 groups;

    DEVICE RecordSource(const void* records, u32 n, u32 k, u32 group)
        : records(static_cast<const u8*>(records)), n(n), k(k), group(group),
          groups(divided_up(k, group)) {}

    // As above: each matrix is padded by itself.
    DEVICE static u64 matrix_bytes(u32 n, u32 k, u32 group) {
        return (u64)divided_up(n, 16) * divided_up(k, group) * record_bytes(BITS, group, FLOATS);
    }

    DEVICE void eight(u32 column, u32 at, float* to) const {
        for (u32 i = 0; i < 8; ++i) to[i] = 0.0f;
        if (column >= n || at >= k) return;
        const u64 index = (u64)(column / 16) * groups + at / group;
        const u8* record = records + index * record_bytes(BITS, group, FLOATS);
        decode8(record, BITS, FLOATS, column % 16, at % group / 8, to);
    }
};

// What `expand` makes of stored forms.
typedef RecordSource<8, true> ExpandedSource;
typedef RecordSource<8, true, true> SixteensSource;

// One tensor-core step pair for 32 inputs. A lane 4g+t holds inputs 8t to 8t+7 of its rows, as wide
// loads bring them; step `j` takes 8t+4j to 8t+4j+3 as the inputs that the instruction calls 2t, 2t+1,
// 2t+8 and 2t+9. Every kernel does so, and so every sum has one order.
DEVICE void multiply_32_inputs(float (&d)[4], const Words4& column, const Words4& column8,
                               const Words4& row) {
    for (int j = 0; j < 2; ++j) {
        const u32 a[4] = {column.word[2 * j], column8.word[2 * j], column.word[2 * j + 1],
                          column8.word[2 * j + 1]};
        const u32 b[2] = {row.word[2 * j], row.word[2 * j + 1]};
        multiply_16_8_16(d, a, b);
    }
}
