// The sums of a warp, turned through shared memory so that neighbouring lanes store neighbours.
#pragma once

// `parts` is shared memory of the block, whose warps have M and N alike. PAIRED: rows g and g+8 of what
// tensor cores multiplied are columns 2g and 2g+1. A block of eight warps has up to 48 KiB of it.
template <bool PAIRED, int M, int N, class Rows>
DEVICE void finish_turned(const float (&totals)[M][N][4], float* parts, u32 first_column,
                          u32 first_row, u32 rows, const Finish& to, const Rows& places) {
    constexpr u32 width = 16 * M;
    // Tiles of eight rows that there is room for.
    constexpr int TOGETHER = 8 * (width + 1) * 4 * 8 * N <= 48 << 10 ? N : N / 2;
    const u32 g = lane_index() / 4;
    const u32 t = lane_index() % 4;
    float* turned = parts + threadIdx.x / 32 * (8 * TOGETHER) * (width + 1);
    const u32 own = lane_index() % width;
    const u32 column = first_column + own;
#pragma unroll
    for (int first_tile = 0; first_tile < N; first_tile += TOGETHER) {
        if (first_tile > 0) WARP_BARRIER();
#pragma unroll
        for (int n = 0; n < TOGETHER; ++n) {
#pragma unroll
            for (int m = 0; m < M; ++m) {
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    const u32 place = PAIRED ? 2 * g + i / 2 : g + i / 2 * 8;
                    turned[(8 * n + 2 * t + i % 2) * (width + 1) + 16 * m + place] =
                        totals[m][first_tile + n][i];
                }
            }
        }
        WARP_BARRIER();
        const u32 first = first_row + 8 * first_tile;
#pragma unroll 1
        for (u32 i = lane_index() / width; i < 8 * TOGETHER; i += 32 / width) {
            if (first + i < rows && column < to.n) {
                finish<bf16>(to, places.output(first + i), column, turned[i * (width + 1) + own]);
            }
        }
    }
}
