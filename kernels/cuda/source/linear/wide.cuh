// Linears of many rows on tensor cores: tiles of columns and rows, whose inputs go through stages of
// shared memory that are filled beside the arithmetic.
//
// A stage has parts of 32 inputs, in which rows are 64 bytes, so the 16-byte pieces that eight lanes read
// or write together lie in different banks, and no piece has to be moved. `k` is a multiple of eight.
#pragma once

template <int TILE_ROWS, int TILE_COLUMNS, int PARTS, int STAGE_COUNT> struct Wide {
    static const u32 ROWS = TILE_ROWS;
    static const u32 COLUMNS = TILE_COLUMNS;
    static const u32 LINES = COLUMNS + ROWS;
    static const u32 INPUTS = 32 * PARTS;
    static const u32 STAGES = STAGE_COUNT;
    static const u32 PART = LINES * 32;
    // Eight warps: four along the columns, two along the rows.
    static const int M = COLUMNS / 64;
    static const int N = ROWS / 16;

    const bf16* x;
    const bf16* weight;
    u32 rows;
    u32 k;
    bf16* shared;
    u32 first_column;
    u32 first_row;

    // Starts to fill a stage with a tile of inputs, zeros where nothing is.
    template <class Rows> DEVICE void fill(u32 tile, u32 n, const Rows& places) const {
        bf16* stage = shared + tile % STAGES * (PARTS * PART);
#pragma unroll
        for (u32 first = 0; first < LINES * 4 * PARTS; first += 256) {
            // Two lines of a part, then the same lines of the next part.
            const u32 at = first + threadIdx.x;
            const u32 line = at / (8 * PARTS) * 2 + at % 8 / 4;
            const u32 part = at / 8 % PARTS;
            const u32 piece = at % 4 * 8;
            const u32 input = tile * INPUTS + 32 * part + piece;
            const bool is_weight = line < COLUMNS;
            const u32 from = is_weight ? first_column + line : first_row + line - COLUMNS;
            const bool present = input < k && from < (is_weight ? n : rows);
            const bf16* base = is_weight ? weight : x;
            const u64 place = present && !is_weight ? places.input(from) : from;
            // An address that exists, also where nothing is read.
            copy16_async(stage + part * PART + line * 32 + piece,
                         present ? base + place * k + input : base, present);
        }
    }

    // Adds the products of a stage.
    DEVICE void multiply(u32 tile, float (&sums)[M][N][4]) const {
        const u32 warp = threadIdx.x / 32;
        const u32 g = lane_index() / 4;
        const u32 t = lane_index() % 4;
        const bf16* stage = shared + tile % STAGES * (PARTS * PART);
        const bf16* columns = stage + (warp % 4 * (16 * M) + g) * 32 + 8 * t;
        const bf16* values = stage + (COLUMNS + warp / 4 * (ROWS / 2) + g) * 32 + 8 * t;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            Words4 weights[M][2];
#pragma unroll
            for (int m = 0; m < M; ++m) {
                weights[m][0] = load16(columns + part * PART + 16 * m * 32);
                weights[m][1] = load16(columns + part * PART + (16 * m + 8) * 32);
            }
#pragma unroll
            for (int n = 0; n < N; ++n) {
                const Words4 row = load16(values + part * PART + 8 * n * 32);
#pragma unroll
                for (int m = 0; m < M; ++m) {
                    multiply_32_inputs(sums[m][n], weights[m][0], weights[m][1], row);
                }
            }
        }
    }
};

template <class W, class Rows = AllRows>
DEVICE void linear_wide(const bf16* x, const bf16* weight, u32 rows, u32 k, const Finish to,
                        const Rows places = {}) {
    SHARED(bf16, shared);
    const W wide = {x, weight, rows, k, shared, blockIdx.x * W::COLUMNS, blockIdx.y * W::ROWS};
    float totals[W::M][W::N][4] = {};
    float sums[W::M][W::N][4] = {};
    const u32 tiles = divided_up(k, W::INPUTS);
    for (u32 tile = 0; tile < W::STAGES - 1; ++tile) {
        if (tile < tiles) wide.fill(tile, to.n, places);
        copy_commit();
    }
    for (u32 tile = 0; tile < tiles; ++tile) {
        copy_wait<W::STAGES - 2>();
        // Everybody's copies have come, and everybody is done with the stage that is filled next.
        BLOCK_BARRIER();
        if (tile + W::STAGES - 1 < tiles) wide.fill(tile + W::STAGES - 1, to.n, places);
        copy_commit();
        wide.multiply(tile, sums);
        if ((tile + 1) % (SEGMENT / W::INPUTS) == 0 || tile + 1 == tiles) {
#pragma unroll
            for (int m = 0; m < W::M; ++m) {
#pragma unroll
                for (int n = 0; n < W::N; ++n) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        totals[m][n][i] += sums[m][n][i];
                        sums[m][n][i] = 0.0f;
                    }
                }
            }
        }
    }
    BLOCK_BARRIER();
    // Eight rows of a warp's columns at a time, turned so that neighbouring lanes store neighbours.
    const u32 width = 16 * W::M;
    const u32 warp = threadIdx.x / 32;
    const u32 g = lane_index() / 4;
    const u32 t = lane_index() % 4;
    float* turned = reinterpret_cast<float*>(shared) + warp * 8 * (width + 1);
    const u32 own = lane_index() % width;
    const u32 column = wide.first_column + warp % 4 * width + own;
#pragma unroll
    for (int n = 0; n < W::N; ++n) {
#pragma unroll
        for (int m = 0; m < W::M; ++m) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                turned[(2 * t + i % 2) * (width + 1) + 16 * m + g + i / 2 * 8] = totals[m][n][i];
            }
        }
        WARP_BARRIER();
        const u32 first = wide.first_row + warp / 4 * (W::ROWS / 2) + 8 * n;
        for (u32 i = lane_index() / width; i < 8; i += 32 / width) {
            if (first + i < rows && column < to.n) {
                finish<bf16>(to, places.output(first + i), column, turned[i * (width + 1) + own]);
            }
        }
        WARP_BARRIER();
    }
}

// By rows and columns of a tile.
typedef Wide<64, 64, 2, 3> Wide64;
typedef Wide<128, 64, 1, 4> Wide128Narrow;
typedef Wide<128, 128, 1, 3> Wide128;

#define LINEAR_WIDE(name, W)                                                                   \
    KERNEL(name, 256,                                                                          \
           (const bf16* x, const bf16* weight, const float* bias, void* out, const void* gate, \
            u32 rows, u32 n, u32 k, u32 form, u32, float factor, float limit)) {               \
        const Finish to = {bias, out, gate, n, form, factor, limit};                           \
        linear_wide<W>(x, weight, rows, k, to);                                                \
    }

LINEAR_WIDE(linear_wide_64_bf16, Wide64)
LINEAR_WIDE(linear_wide_128_narrow_bf16, Wide128Narrow)
LINEAR_WIDE(linear_wide_128_bf16, Wide128)
