// Linears of few rows: weights go from memory straight to registers, each segment of inputs to a warp.
//
// A block has 16 * M columns and 8 * N rows; its eight warps take a segment each, leave their sums in
// shared memory, and the segments are added in order.
#pragma once

template <int M, int N, class Source, class Rows = AllRows>
DEVICE void linear_small(const bf16* x, const Source source, u32 rows, u32 k, const Finish to,
                         const Rows places = {}) {
    const u32 columns = 16 * M;
    const u32 outputs = columns * 8 * N;
    const u32 own = (outputs + 255) / 256;
    SHARED(float, parts);
    const u32 warp = threadIdx.x / 32;
    const u32 g = lane_index() / 4;
    const u32 t = lane_index() % 4;
    const u32 first_column = blockIdx.x * columns;
    const u32 first_row = blockIdx.y * 8 * N;
    const u32 segments = divided_up(k, SEGMENT);
    const bool wide = k % 8 == 0;
    float totals[own] = {};
    for (u32 base = 0; base < segments; base += 8) {
        float sums[M][N][4] = {};
        const u32 first = (base + warp) * SEGMENT;
        const u32 end = smaller(k, first + SEGMENT);
#pragma unroll(M* N > 2 ? 1 : 2)
        for (u32 at = first; at < end; at += 32) {
            Words4 weights[M][2];
            Words4 values[N];
#pragma unroll
            for (int m = 0; m < M; ++m) {
                weights[m][0] = source.eight(first_column + 16 * m + g, at + 8 * t, wide);
                weights[m][1] = source.eight(first_column + 16 * m + g + 8, at + 8 * t, wide);
            }
#pragma unroll
            for (int n = 0; n < N; ++n) {
                const u32 row = first_row + 8 * n + g;
                values[n] = {};
                if (row < rows) {
                    values[n] = eight_bf16(x + places.input(row) * k, at + 8 * t, k, wide);
                }
            }
#pragma unroll
            for (int m = 0; m < M; ++m) {
#pragma unroll
                for (int n = 0; n < N; ++n) {
                    multiply_32_inputs(sums[m][n], weights[m][0], weights[m][1], values[n]);
                }
            }
        }
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int n = 0; n < N; ++n) {
                for (u32 i = 0; i < 4; ++i) {
                    const u32 row = 8 * n + 2 * t + i % 2;
                    const u32 column = 16 * m + g + i / 2 * 8;
                    parts[warp * outputs + row * columns + column] = sums[m][n][i];
                }
            }
        }
        BLOCK_BARRIER();
        const u32 count = smaller(8, segments - base);
#pragma unroll
        for (u32 i = 0; i < own; ++i) {
            const u32 output = threadIdx.x + 256 * i;
            if (output < outputs) {
                for (u32 part = 0; part < count; ++part) {
                    totals[i] += parts[part * outputs + output];
                }
            }
        }
        BLOCK_BARRIER();
    }
#pragma unroll
    for (u32 i = 0; i < own; ++i) {
        const u32 output = threadIdx.x + 256 * i;
        const u32 row = first_row + output / columns;
        const u32 column = first_column + output % columns;
        if (output < outputs && row < rows && column < to.n) {
            finish<bf16>(to, places.output(row), column, totals[i]);
        }
    }
}

#define LINEAR_SMALL(name, M, N, Source)                                                       \
    KERNEL(name, 256,                                                                          \
           (const bf16* x, const void* weight, const float* bias, void* out, const void* gate, \
            u32 rows, u32 n, u32 k, u32 form, u32 group, float factor, float limit)) {         \
        linear_small<M, N>(x, Source(weight, n, k, group), rows, k,                            \
                           Finish{bias, out, gate, n, form, factor, limit});                   \
    }

LINEAR_SMALL(linear_small_8_bf16, 1, 1, PlainSource<bf16>)
LINEAR_SMALL(linear_small_16_bf16, 1, 2, PlainSource<bf16>)
LINEAR_SMALL(linear_small_32_bf16, 2, 4, PlainSource<bf16>)
LINEAR_SMALL(linear_four_8_bf16, 1, 1, RecordSource<4>)
LINEAR_SMALL(linear_four_16_bf16, 1, 2, RecordSource<4>)
LINEAR_SMALL(linear_four_32_bf16, 2, 4, RecordSource<4>)
LINEAR_SMALL(linear_eight_8_bf16, 1, 1, RecordSource<8>)
LINEAR_SMALL(linear_eight_16_bf16, 1, 2, RecordSource<8>)
LINEAR_SMALL(linear_eight_32_bf16, 2, 4, RecordSource<8>)
LINEAR_SMALL(linear_expanded_8_bf16, 1, 1, ExpandedSource)
LINEAR_SMALL(linear_expanded_16_bf16, 1, 2, ExpandedSource)
LINEAR_SMALL(linear_expanded_32_bf16, 2, 4, ExpandedSource)
