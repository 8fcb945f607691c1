// Linears of more rows over records of integers, in groups of 32 or 64: tiles of 64 columns and 64 rows,
// of which x goes through stages of shared memory and the records straight to registers.
//
// Eight warps: four along the columns, of 16 each, two along the rows. `k` is a multiple of eight.
#pragma once

template <u32 BITS, bool FLOATS> struct RecordsWide {
    static const u32 ROWS = 64;
    static const u32 COLUMNS = 64;
    static const u32 INPUTS = 64;
    static const u32 STAGES = 4;
    static const u32 PART = ROWS * 32;
    // Tiles of records that are on their way.
    static const int AHEAD = 2;
    static const int N = 4;
    typedef LaneRecord<BITS, FLOATS> Record;

    struct Tile {
        Record parts[2];
    };

    LanePlaces<BITS, FLOATS, false> places;
    const u8* first;
    u32 padded;
    u32 k;
    bf16* shared;
    // Sums of x of each 32 inputs, of two tiles.
    float* sums_of_x;
    // Of the thread's two rows of x: its piece in the first tile, and whether they are there.
    const bf16* from[2];
    bool present[2];
    u32 own;
    u32 to;

    template <class Rows>
    DEVICE RecordsWide(const bf16* x, const RecordSource<BITS, FLOATS>& source, u32 rows, u32 k,
                       bf16* shared, const Rows& listed)
        : places(source.group), padded(source.groups * source.group), k(k), shared(shared),
          sums_of_x(reinterpret_cast<float*>(shared + STAGES * 2 * PART)) {
        const u32 last = divided_up(source.n, 16) - 1;
        const u32 sixteen = smaller(blockIdx.x * (COLUMNS / 16) + threadIdx.x / 32 % 4, last);
        const u64 before = (u64)sixteen * source.groups * places.bytes;
        first = kept(source.records + before + places.ranges);
        // Two rows of the first 32 inputs, then of the second.
        const u32 part = threadIdx.x / 8 % 2;
        const u32 piece = threadIdx.x % 4 * 8;
        const u32 line = threadIdx.x / 16 * 2 + threadIdx.x % 8 / 4;
        own = 32 * part + piece;
        to = kept(part * PART + line * 32 + piece);
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const u32 row = blockIdx.y * ROWS + line + 32 * i;
            present[i] = row < rows;
            from[i] = kept(x + listed.input(smaller(row, rows - 1)) * k + own);
        }
    }

    DEVICE const bf16* stage(u32 tile) const { return shared + tile % STAGES * (2 * PART); }

    // Starts to fill a stage with inputs of x, zeros where nothing is.
    DEVICE void fill(u32 tile) const {
        bf16* stage = shared + tile % STAGES * (2 * PART) + to;
        const bool is_input = tile * INPUTS + own < k;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            copy16_async(stage + i * 32 * 32, from[i] + (is_input ? tile * INPUTS : 0),
                         is_input && present[i]);
        }
    }

    // Any records behind the last ones: nothing is made of them.
    DEVICE Tile load(u32 tile) const {
        Tile own;
#pragma unroll
        for (u32 part = 0; part < 2; ++part) {
            const u32 at = tile * INPUTS + 32 * part;
            own.parts[part] = places.load(first, at < padded ? at : 0);
        }
        return own;
    }

    // Sums of x of a tile: a warp has eight rows.
    DEVICE void add_x(u32 tile) const {
        const u32 warp = threadIdx.x / 32;
        const bf16* row = stage(tile) + (8 * warp + lane_index() / 4) * 32 + lane_index() % 4 * 8;
        const Words4 ones = {ONES, ONES, ONES, ONES};
#pragma unroll
        for (u32 part = 0; part < 2; ++part) {
            float sums[4] = {};
            multiply_32_inputs(sums, ones, ones, load16(row + part * PART));
            if (lane_index() < 4) {
                float* to = sums_of_x + (tile % 2 * 2 + part) * ROWS + 8 * warp + 2 * lane_index();
                to[0] = sums[0];
                to[1] = sums[1];
            }
        }
    }

    // Adds the products of a tile.
    DEVICE void multiply(u32 tile, const Tile& records, float (&sums)[1][N][4]) const {
        const u32 g = lane_index() / 4;
        const u32 t = lane_index() % 4;
        const u32 first_row = threadIdx.x / 128 * (ROWS / 2);
#pragma unroll
        for (u32 part = 0; part < 2; ++part) {
            if (tile * INPUTS + 32 * part >= k) continue;
            const Record& record = records.parts[part];
            const Words4 even = record.row(0, places.mask);
            const Words4 odd = record.row(1, places.mask);
            const bf16* values = stage(tile) + part * PART + (first_row + g) * 32 + 8 * t;
            const float* x_sums = sums_of_x + (tile % 2 * 2 + part) * ROWS + first_row + 2 * t;
#pragma unroll
            for (int n = 0; n < N; ++n) {
                float products[4] = {};
                multiply_32_inputs(products, even, odd, load16(values + 8 * n * 32));
                const float totals[4] = {x_sums[8 * n], x_sums[8 * n + 1], 0.0f, 0.0f};
                add_group(sums[0][n], record.ranges, products, totals);
            }
        }
    }
};

template <u32 BITS, bool FLOATS, class Rows = AllRows>
DEVICE void linear_grouped_wide(const bf16* x, const RecordSource<BITS, FLOATS>& source, u32 rows,
                                u32 k, const Finish& to, const Rows& listed = {}) {
    typedef RecordsWide<BITS, FLOATS> W;
    SHARED(bf16, shared);
    const W wide(x, source, rows, k, shared, listed);
    float totals[1][W::N][4] = {};
    float sums[1][W::N][4] = {};
    const u32 tiles = divided_up(k, W::INPUTS);
    typename W::Tile ahead[W::AHEAD];
#pragma unroll
    for (int i = 0; i < W::AHEAD; ++i) ahead[i] = wide.load(i);
    for (u32 tile = 0; tile < W::STAGES - 1; ++tile) {
        if (tile < tiles) wide.fill(tile);
        copy_commit();
    }
    copy_wait<W::STAGES - 2>();
    BLOCK_BARRIER();
    wide.add_x(0);
    for (u32 base = 0; base < tiles; base += W::AHEAD) {
#pragma unroll
        for (int i = 0; i < W::AHEAD; ++i) {
            const u32 tile = base + i;
            if (tile >= tiles) break;
            copy_wait<W::STAGES - 3>();
            // Everybody's copies of the next tile have come and sums of x of this one are there, and
            // everybody is done with the stage that is filled next.
            BLOCK_BARRIER();
            if (tile + W::STAGES - 1 < tiles) wide.fill(tile + W::STAGES - 1);
            copy_commit();
            if (tile + 1 < tiles) wide.add_x(tile + 1);
            wide.multiply(tile, ahead[i], sums);
            ahead[i] = wide.load(tile + W::AHEAD);
            if ((tile + 1) % (SEGMENT / W::INPUTS) == 0 || tile + 1 == tiles) {
#pragma unroll
                for (int n = 0; n < W::N; ++n) {
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        totals[0][n][j] += sums[0][n][j];
                        sums[0][n][j] = 0.0f;
                    }
                }
            }
        }
    }
    BLOCK_BARRIER();
    const u32 warp = threadIdx.x / 32;
    const u32 column = blockIdx.x * W::COLUMNS + warp % 4 * 16;
    const u32 row = blockIdx.y * W::ROWS + warp / 4 * (W::ROWS / 2);
    finish_turned<true>(totals, reinterpret_cast<float*>(shared), column, row, rows, to, listed);
}

#define LINEAR_GROUPED_WIDE(name, Source)                                                      \
    KERNEL_BESIDE(name, 256, 2,                                                                \
                  (const bf16* x, const void* weight, const float* bias, void* out,            \
                   const void* gate, u32 rows, u32 n, u32 k, u32 form, u32 group, float factor, \
                   float limit)) {                                                             \
        linear_grouped_wide(x, Source(weight, n, k, group), rows, k,                           \
                            Finish{bias, out, gate, n, form, factor, limit});                  \
    }

LINEAR_GROUPED_WIDE(linear_four_wide_bf16, RecordSource<4>)
