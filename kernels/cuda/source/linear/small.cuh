// Linears of few rows over elements in rows.
#pragma once

template <int COLUMN_TILES, int ROW_TILES> struct PlainTile {
    static constexpr int M = COLUMN_TILES;
    static constexpr int N = ROW_TILES;

    // 32 inputs.
    struct Step {
        Words4 weights[M][2];
        Words4 values[N];
    };

    const bf16* weight;
    // Rows of the matrix that the lane multiplies, each from its first inputs on, behind `weight`.
    // Columns that are not there repeat the last one.
    u32 offsets[M][2];
    LaneRows<N> x;
    u32 k;

    template <class Rows>
    DEVICE PlainTile(const bf16* x, const PlainSource<bf16>& source, u32 rows, u32 k,
                     const Rows& places)
        : weight(kept(source.weight + (u64)(blockIdx.x * 16 * M) * k)), x(x, rows, k, places),
          k(k) {
        const u32 last = source.n - 1 - blockIdx.x * 16 * M;
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const u32 own = smaller(16 * m + 8 * half + lane_index() / 4, last);
                offsets[m][half] = kept(own * k + lane_index() % 4 * 8);
            }
        }
    }

    // Of the 16 of a tile, where the lane's sums belong.
    DEVICE static u32 column(u32 g, u32 half) { return g + 8 * half; }

    // Whether all of a segment can be read by `load`.
    DEVICE bool has_segment(u32 segment) const {
        return k % 8 == 0 && (segment + 1) * SEGMENT <= k;
    }

    DEVICE Step load(u32 at) const {
        Step step;
#pragma unroll
        for (int m = 0; m < M; ++m) {
            step.weights[m][0] = load16_once(weight + (offsets[m][0] + at));
            step.weights[m][1] = load16_once(weight + (offsets[m][1] + at));
        }
#pragma unroll
        for (int n = 0; n < N; ++n) step.values[n] = x.load(n, at);
        return step;
    }

    DEVICE void complete(Step&, u32) const {}

    // Any rows, zeros behind their end.
    DEVICE Step load_end(u32 at) const {
        const u32 before = lane_index() % 4 * 8;
        Step step;
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const bf16* row = weight + (offsets[m][half] - before);
                step.weights[m][half] = eight_bf16(row, at + before, k, k % 8 == 0);
            }
        }
#pragma unroll
        for (int n = 0; n < N; ++n) step.values[n] = x.load_end(n, at);
        return step;
    }

    DEVICE void multiply(const Step& step, float (&sums)[M][N][4]) const {
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (int n = 0; n < N; ++n) {
                multiply_32_inputs(sums[m][n], step.weights[m][0], step.weights[m][1],
                                   step.values[n]);
            }
        }
    }
};

template <int M, int N, int AHEAD, class Rows = AllRows>
DEVICE void linear_small(const bf16* x, const PlainSource<bf16>& source, u32 rows, u32 k,
                         const Finish& to, const Rows& places = {}) {
    const PlainTile<M, N> tile(x, source, rows, k, places);
    linear_by_segments<AHEAD>(tile, rows, k, to, places);
}

#define LINEAR_SMALL(name, threads, blocks, M, N, AHEAD)                                       \
    KERNEL_BESIDE(name, threads, blocks,                                                       \
                  (const bf16* x, const void* weight, const float* bias, void* out,            \
                   const void* gate, u32 rows, u32 n, u32 k, u32 form, u32 group, float factor, \
                   float limit)) {                                                             \
        linear_small<M, N, AHEAD>(x, PlainSource<bf16>(weight, n, k, group), rows, k,          \
                                  Finish{bias, out, gate, n, form, factor, limit});            \
    }

LINEAR_SMALL(linear_small_8_bf16, 448, 2, 1, 1, 2)
LINEAR_SMALL(linear_small_16_bf16, 224, 2, 2, 2, 2)
LINEAR_SMALL(linear_small_32_bf16, 224, 2, 2, 4, 1)
