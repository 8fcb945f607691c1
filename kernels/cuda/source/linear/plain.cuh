// Linears in f32, for verification: fused multiply-adds, a chain for each segment of inputs. A block
// has 64 columns and 16 rows, a thread four rows of one column.
#pragma once

template <class Source, class Rows = AllRows>
DEVICE void linear_plain(const float* x, const Source source, u32 rows, u32 k, const Finish to,
                         const Rows places = {}) {
    const u32 inputs = 32;
    // Of odd length, so that the lanes' columns lie in different banks.
    const u32 stride = inputs + 1;
    SHARED(float, weights);
    float* values = weights + 64 * stride;
    const u32 column = threadIdx.x % 64;
    const u32 first_column = blockIdx.x * 64;
    const u32 first_row = blockIdx.y * 16;
    const u32 own = threadIdx.x / 64 * 4;
    float totals[4] = {};
    float sums[4] = {};
    for (u32 first = 0; first < k; first += inputs) {
        // 80 lines of four pieces of eight inputs: 64 columns, then 16 rows.
        for (u32 at = threadIdx.x; at < 80 * 4; at += 256) {
            const u32 line = at / 4;
            const u32 input = first + at % 4 * 8;
            float eight[8];
            if (line < 64) {
                source.eight(first_column + line, input, eight);
            } else {
                const u32 row = first_row + line - 64;
                const u32 count = row < rows && input < k ? k - input : 0;
                const u64 from = count ? places.input(row) : 0;
                load8(x + from * k + input, count, k % 8 == 0, eight);
            }
            for (u32 i = 0; i < 8; ++i) weights[line * stride + at % 4 * 8 + i] = eight[i];
        }
        BLOCK_BARRIER();
        for (u32 i = 0; i < smaller(inputs, k - first); ++i) {
            const float weight = weights[column * stride + i];
            for (u32 row = 0; row < 4; ++row) {
                sums[row] = fmaf(values[(own + row) * stride + i], weight, sums[row]);
            }
        }
        BLOCK_BARRIER();
        if ((first + inputs) % SEGMENT == 0 || first + inputs >= k) {
            for (u32 row = 0; row < 4; ++row) {
                totals[row] += sums[row];
                sums[row] = 0.0f;
            }
        }
    }
    // Through places of the thread's own, so that what follows a sum is there once.
    for (u32 i = 0; i < 4; ++i) weights[i * 256 + threadIdx.x] = totals[i];
#pragma unroll 1
    for (u32 i = 0; i < 4; ++i) {
        const u32 row = first_row + own + i;
        if (row < rows && first_column + column < to.n) {
            const float total = weights[i * 256 + threadIdx.x];
            finish<float>(to, places.output(row), first_column + column, total);
        }
    }
}

#define LINEAR_PLAIN(name, Source)                                                              \
    KERNEL(name, 256,                                                                           \
           (const float* x, const void* weight, const float* bias, void* out, const void* gate, \
            u32 rows, u32 n, u32 k, u32 form, u32 group, float factor, float limit)) {          \
        const Finish to = {bias, out, gate, n, form, factor, limit};                            \
        linear_plain(x, Source(weight, n, k, group), rows, k, to);                              \
    }

LINEAR_PLAIN(linear_f32, PlainSource<float>)
LINEAR_PLAIN(linear_four_f32, RecordSource<4>)
LINEAR_PLAIN(linear_eight_f32, RecordSource<8>)
LINEAR_PLAIN(linear_expanded_f32, ExpandedSource)
LINEAR_PLAIN(linear_stored_f32, StoredSource)
