// Linears of few rows over records of integers, which are multiplied as they are.
#pragma once

template <int COLUMN_TILES, int ROW_TILES, u32 BITS, bool FLOATS, bool SIXTEENS> struct RecordTile {
    static constexpr int M = COLUMN_TILES;
    static constexpr int N = ROW_TILES;
    // x of 32 rows takes as many registers as there are; it comes from a cache.
    static constexpr bool X_AHEAD = N <= 2;
    typedef RecordSource<BITS, FLOATS, SIXTEENS> Source;
    typedef LaneRecord<BITS, FLOATS> Record;

    // 32 inputs.
    struct Step {
        Record records[M];
        Words4 values[N];
    };

    LanePlaces<BITS, FLOATS, SIXTEENS> places;
    // The lane's ranges in the first record of each 16 columns. What is not there repeats the last ones.
    const u8* first[M];
    LaneRows<N> x;
    u32 k;
    // Inputs of all groups.
    u32 padded;

    template <class Rows>
    DEVICE RecordTile(const bf16* x, const Source& source, u32 rows, u32 k, const Rows& listed)
        : places(source.group), x(x, rows, k, listed), k(k), padded(source.groups * source.group) {
        const u32 last = divided_up(source.n, 16) - 1;
#pragma unroll
        for (int m = 0; m < M; ++m) {
            const u32 sixteen = smaller(blockIdx.x * M + m, last);
            const u64 before = (u64)sixteen * source.groups * places.bytes;
            first[m] = kept(source.records + before + places.ranges);
        }
    }

    DEVICE static u32 column(u32 g, u32 half) { return 2 * g + half; }

    DEVICE bool has_segment(u32 segment) const {
        return k % 8 == 0 && (segment + 1) * SEGMENT <= k;
    }

    DEVICE Step load(u32 at) const {
        Step step;
#pragma unroll
        for (int m = 0; m < M; ++m) {
            step.records[m] = places.load(first[m], at);
        }
        if (X_AHEAD) load_x(step, at);
        return step;
    }

    DEVICE void load_x(Step& step, u32 at) const {
#pragma unroll
        for (int n = 0; n < N; ++n) step.values[n] = x.load(n, at);
    }

    DEVICE void complete(Step& step, u32 at) const {
        if (!X_AHEAD) load_x(step, at);
    }

    // Any rows, zeros behind their end.
    DEVICE Step load_end(u32 at) const {
        const u32 eighth = lane_index() % 4 * 8;
        Step step;
        // Of two groups of 16 the second may not be there. Where x is zero the first one will do.
        const u32 back = at + eighth < padded ? 0 : places.bytes;
#pragma unroll
        for (int m = 0; m < M; ++m) step.records[m] = places.load(first[m] - back, at);
#pragma unroll
        for (int n = 0; n < N; ++n) step.values[n] = x.load_end(n, at);
        return step;
    }

    DEVICE void multiply(const Step& step, float (&sums)[M][N][4]) const {
        add_32_inputs<SIXTEENS>(sums, step.records, step.values, places.mask);
    }
};

template <int M, int N, int AHEAD, u32 BITS, bool FLOATS, bool SIXTEENS, class Rows = AllRows>
DEVICE void linear_grouped(const bf16* x, const RecordSource<BITS, FLOATS, SIXTEENS>& source,
                           u32 rows, u32 k, const Finish& to, const Rows& places = {}) {
    const RecordTile<M, N, BITS, FLOATS, SIXTEENS> tile(x, source, rows, k, places);
    linear_by_segments<AHEAD>(tile, rows, k, to, places);
}

#define LINEAR_GROUPED(name, threads, blocks, M, N, AHEAD, Source)                             \
    KERNEL_BESIDE(name, threads, blocks,                                                       \
                  (const bf16* x, const void* weight, const float* bias, void* out,            \
                   const void* gate, u32 rows, u32 n, u32 k, u32 form, u32 group, float factor, \
                   float limit)) {                                                             \
        linear_grouped<M, N, AHEAD>(x, Source(weight, n, k, group), rows, k,                   \
                                    Finish{bias, out, gate, n, form, factor, limit});          \
    }

// All kernels of a kind: KERNEL_OF(name, threads, blocks, M, N, AHEAD, Source).
#define GROUPED_TILES(KERNEL_OF, kind, FOUR_8_THREADS, FOUR_32_THREADS)           \
    KERNEL_OF(kind##_four_8_bf16, FOUR_8_THREADS, 2, 2, 1, 2, RecordSource<4>)    \
    KERNEL_OF(kind##_four_16_bf16, 224, 2, 2, 2, 2, RecordSource<4>)              \
    KERNEL_OF(kind##_four_32_bf16, FOUR_32_THREADS, 2, 2, 4, 1, RecordSource<4>)  \
    KERNEL_OF(kind##_eight_8_bf16, 224, 2, 2, 1, 4, RecordSource<8>)    \
    KERNEL_OF(kind##_eight_16_bf16, 224, 2, 2, 2, 1, RecordSource<8>)   \
    KERNEL_OF(kind##_eight_32_bf16, 224, 1, 2, 4, 1, RecordSource<8>)   \
    KERNEL_OF(kind##_expanded_8_bf16, 224, 2, 2, 1, 2, ExpandedSource)  \
    KERNEL_OF(kind##_expanded_16_bf16, 224, 2, 2, 2, 1, ExpandedSource) \
    KERNEL_OF(kind##_expanded_32_bf16, 224, 1, 2, 4, 1, ExpandedSource) \
    KERNEL_OF(kind##_sixteens_8_bf16, 224, 2, 2, 1, 2, SixteensSource)  \
    KERNEL_OF(kind##_sixteens_16_bf16, 224, 2, 2, 2, 1, SixteensSource) \
    KERNEL_OF(kind##_sixteens_32_bf16, 224, 1, 2, 4, 1, SixteensSource)

GROUPED_TILES(LINEAR_GROUPED, linear, 448, 224)
