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

    // Pieces of 16 bytes that a thread copies to a stage; the first of them are weights.
    static const u32 COPIES = LINES * 4 * PARTS / 256;
    static const u32 OF_WEIGHTS = COLUMNS * 4 * PARTS / 256;

    bf16* shared;
    // Of the thread's lines: its pieces in the first tile, and, a bit each, which lines there are.
    const bf16* from[COPIES];
    u32 present;
    // The thread's inputs in a tile, the same of all its lines, and its place in a stage.
    u32 own;
    u32 to;
    u32 k;

    template <class Rows>
    DEVICE Wide(const bf16* x, const bf16* weight, u32 rows, u32 n, u32 k, bf16* shared,
                const Rows& places)
        : shared(shared), present(0), k(k) {
        // Two lines of a part, then the same lines of the next part.
        const u32 part = threadIdx.x / 8 % PARTS;
        const u32 piece = threadIdx.x % 4 * 8;
        const u32 line = threadIdx.x / (8 * PARTS) * 2 + threadIdx.x % 8 / 4;
        own = 32 * part + piece;
        to = kept(part * PART + line * 32 + piece);
#pragma unroll
        for (u32 i = 0; i < COPIES; ++i) {
            if (i < OF_WEIGHTS) {
                const u32 column = blockIdx.x * COLUMNS + line + i * (64 / PARTS);
                present |= (column < n ? 1 : 0) << i;
                from[i] = kept(weight + (u64)smaller(column, n - 1) * k + own);
            } else {
                const u32 row = blockIdx.y * ROWS + line + (i - OF_WEIGHTS) * (64 / PARTS);
                present |= (row < rows ? 1 : 0) << i;
                from[i] = kept(x + places.input(smaller(row, rows - 1)) * k + own);
            }
        }
        present = kept(present);
    }

    // Starts to fill a stage with a tile of inputs, zeros where nothing is.
    DEVICE void fill(u32 tile) const {
        bf16* stage = shared + tile % STAGES * (PARTS * PART) + to;
        const u32 first = tile * INPUTS;
        const bool is_input = first + own < k;
#pragma unroll
        for (u32 i = 0; i < COPIES; ++i) {
            const bool copies = is_input && (present >> i & 1);
            copy16_async(stage + i * (64 / PARTS) * 32, from[i] + (is_input ? first : 0), copies);
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
    const W wide(x, weight, rows, to.n, k, shared, places);
    float totals[W::M][W::N][4] = {};
    float sums[W::M][W::N][4] = {};
    const u32 tiles = divided_up(k, W::INPUTS);
    for (u32 tile = 0; tile < W::STAGES - 1; ++tile) {
        if (tile < tiles) wide.fill(tile);
        copy_commit();
    }
    for (u32 tile = 0; tile < tiles; ++tile) {
        copy_wait<W::STAGES - 2>();
        // Everybody's copies have come, and everybody is done with the stage that is filled next.
        BLOCK_BARRIER();
        if (tile + W::STAGES - 1 < tiles) wide.fill(tile + W::STAGES - 1);
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
    const u32 warp = threadIdx.x / 32;
    const u32 column = blockIdx.x * W::COLUMNS + warp % 4 * (16 * W::M);
    const u32 row = blockIdx.y * W::ROWS + warp / 4 * (W::ROWS / 2);
    finish_turned<false>(totals, reinterpret_cast<float*>(shared), column, row, rows, to, places);
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
