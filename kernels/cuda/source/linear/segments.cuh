// Linears of few rows: weights go from memory straight to registers, each segment of inputs to a warp.
//
// A block has 16 * M columns and 8 * N rows. Its warps take a segment each, leave their sums in shared
// memory, and the segments are added in order. `Tile` says what the weights are, and loads and multiplies
// 32 inputs; the next AHEAD loads are always on their way, also across segments. What a tile has no registers
// for ahead of time it loads when it `complete`s a step.
#pragma once

// Leaves a warp's sums of a segment in its part of shared memory.
template <class Tile>
DEVICE void leave_sums(const float (&sums)[Tile::M][Tile::N][4], float* part) {
    constexpr u32 columns = 16 * Tile::M;
    const u32 g = lane_index() / 4;
    const u32 t = lane_index() % 4;
#pragma unroll
    for (int m = 0; m < Tile::M; ++m) {
#pragma unroll
        for (int n = 0; n < Tile::N; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const u32 output = (8 * n + 2 * t + i % 2) * columns + 16 * m +
                                   Tile::column(g, i / 2);
                part[output] = sums[m][n][i];
            }
        }
    }
}

// Adds `count` parts, which lie `stride` floats apart, in order. Before the first segment, `base` is 0.
DEVICE void add_sums(float* totals, const float* parts, u32 outputs, u32 stride, u32 base,
                     u32 count) {
    for (u32 output = threadIdx.x; output < outputs; output += blockDim.x) {
        float total = base ? totals[output] : 0.0f;
        for (u32 part = 0; part < count; ++part) total += parts[part * stride + output];
        totals[output] = total;
    }
}

template <class Tile, class Rows>
DEVICE void finish_totals(const float* totals, u32 rows, const Finish& to, const Rows& places) {
    constexpr u32 columns = 16 * Tile::M;
    constexpr u32 outputs = columns * 8 * Tile::N;
#pragma unroll 1
    for (u32 output = threadIdx.x; output < outputs; output += blockDim.x) {
        const u32 row = blockIdx.y * 8 * Tile::N + output / columns;
        const u32 column = blockIdx.x * columns + output % columns;
        if (row < rows && column < to.n) {
            finish<bf16>(to, places.output(row), column, totals[output]);
        }
    }
}

template <int AHEAD, class Tile, class Rows>
DEVICE void linear_by_segments(const Tile& tile, u32 rows, u32 k, const Finish& to,
                               const Rows& places) {
    constexpr int M = Tile::M;
    constexpr int N = Tile::N;
    constexpr u32 columns = 16 * M;
    constexpr u32 outputs = columns * 8 * N;
    constexpr u32 steps = SEGMENT / 32;
    // Of the thread that adds an output's parts.
    SHARED(float, totals);
    float* parts = totals + outputs;
    const u32 warps = blockDim.x / 32;
    const u32 warp = threadIdx.x / 32;
    const u32 segments = divided_up(k, SEGMENT);
    bool is_whole = tile.has_segment(warp);
    typename Tile::Step ahead[AHEAD];
    if (is_whole) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) ahead[i] = tile.load(warp * SEGMENT + 32 * i);
    }
    for (u32 base = 0; base < segments; base += warps) {
        float sums[M][N][4] = {};
        const u32 first = (base + warp) * SEGMENT;
        const bool next_is_whole = tile.has_segment(base + warps + warp);
        if (is_whole) {
            u32 at = first;
#pragma unroll 1
            for (u32 left = steps / AHEAD; left > 0; --left) {
                // Behind the segment comes the warp's next one.
                const u32 next = at + 32 * AHEAD + (left == 1 ? (warps - 1) * SEGMENT : 0);
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) {
                    tile.complete(ahead[i], at + 32 * i);
                    tile.multiply(ahead[i], sums);
                    if (left > 1 || next_is_whole) ahead[i] = tile.load(next + 32 * i);
                }
                at = next;
            }
        } else {
#pragma unroll 1
            for (u32 at = first; at < smaller(k, first + SEGMENT); at += 32) {
                tile.multiply(tile.load_end(at), sums);
            }
        }
        is_whole = next_is_whole;
        leave_sums<Tile>(sums, parts + warp * outputs);
        BLOCK_BARRIER();
        add_sums(totals, parts, outputs, outputs, base, smaller(warps, segments - base));
        // The parts are read before the next ones lie in their places.
        if (base + warps < segments) BLOCK_BARRIER();
    }
    finish_totals<Tile>(totals, rows, to, places);
}

// The rows of x that a lane multiplies: row g of each tile of eight, from its first inputs on. Rows that
// are not there repeat the last one, and nothing becomes of their sums.
template <int N> struct LaneRows {
    const bf16* x;
    // Elements of x before each: there are fewer than 2^32.
    u32 offsets[N];
    u32 k;

    template <class Rows>
    DEVICE LaneRows(const bf16* x, u32 rows, u32 k, const Rows& places) : x(x), k(k) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const u32 own = smaller(blockIdx.y * 8 * N + 8 * n + lane_index() / 4, rows - 1);
            const u32 offset = (u32)places.input(own) * k + lane_index() % 4 * 8;
            // Of many rows there are no registers for all: they are computed again.
            offsets[n] = N > 2 && !Rows::LISTED ? offset : kept(offset);
        }
    }

    // Of 32 inputs from `at` on, rows on boundaries and all of them there.
    DEVICE Words4 load(int n, u32 at) const { return load16_again(x + (offsets[n] + at)); }
    // Any rows, zeros behind their end.
    DEVICE Words4 load_end(int n, u32 at) const {
        const u32 before = lane_index() % 4 * 8;
        return eight_bf16(x + (offsets[n] - before), at + before, k, k % 8 == 0);
    }
};
