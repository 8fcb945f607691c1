// Linears of a mixture of experts: the kernels of ordinary linears over the rows of one expert, whose
// places in the routing are listed. Blocks behind an expert's last row end at once.
#pragma once

// The rows of an expert: `per_row` places of the routing belong to each row of x, 1 or all of a row's.
struct ListedRows {
    static constexpr bool LISTED = true;
    const u32* slots;
    u32 per_row;

    DEVICE u64 input(u32 row) const { return slots[row] / per_row; }
    DEVICE u32 output(u32 row) const { return slots[row]; }
};

// What a block of an expert works on.
struct ExpertRows {
    u32 expert;
    u32 count;
    ListedRows listed;

    DEVICE ExpertRows(const u32* starts, const u32* slots, u32 per_row)
        : expert(blockIdx.z), count(starts[blockIdx.z + 1] - starts[blockIdx.z]),
          listed{slots + starts[blockIdx.z], per_row} {}

    // The expert's own matrix of all of them.
    template <class Source>
    DEVICE Source source(const void* weight, u32 n, u32 k, u32 group) const {
        const u64 before = expert * Source::matrix_bytes(n, k, group);
        return Source(static_cast<const u8*>(weight) + before, n, k, group);
    }

    DEVICE const float* bias(const float* all, u32 n) const {
        return all ? all + (u64)expert * n : all;
    }
};

#define EXPERT_KERNEL(name, threads, blocks, T, block_rows, run)                              \
    KERNEL_BESIDE(name, threads, blocks,                                                      \
                  (const T* x, const void* weight, const float* bias, void* out,              \
                   const void* gate, const u32* starts, const u32* slots, u32 per_row, u32 n, \
                   u32 k, u32 form, u32 group, float factor, float limit)) {                  \
        const ExpertRows rows(starts, slots, per_row);                                        \
        if (blockIdx.y * block_rows >= rows.count) return;                                    \
        const Finish to = {rows.bias(bias, n), out, gate, n, form, factor, limit};            \
        run;                                                                                  \
    }

#define EXPERT_SMALL(name, threads, blocks, M, N, AHEAD)                                      \
    EXPERT_KERNEL(name, threads, blocks, bf16, 8 * N,                                         \
                  (linear_small<M, N, AHEAD>(                                                 \
                      x, rows.source<PlainSource<bf16>>(weight, n, k, group), rows.count, k,  \
                      to, rows.listed)))

#define EXPERT_GROUPED(name, threads, blocks, M, N, AHEAD, Source)                            \
    EXPERT_KERNEL(name, threads, blocks, bf16, 8 * N,                                         \
                  (linear_grouped<M, N, AHEAD>(x, rows.source<Source>(weight, n, k, group),   \
                                               rows.count, k, to, rows.listed)))

#define EXPERT_STORED(name, threads, blocks, N, AHEAD, Form)                                  \
    EXPERT_KERNEL(name, threads, blocks, bf16, 8 * N,                                         \
                  (linear_stored<N, AHEAD>(x, rows.source<StoredMatrix<Form>>(weight, n, k, group), \
                                           rows.count, k, to, rows.listed)))

#define EXPERT_PLAIN(name, Source)                                                            \
    EXPERT_KERNEL(name, 256, 1, float, 16,                                                    \
                  linear_plain(x, rows.source<Source>(weight, n, k, group), rows.count, k, to, \
                               rows.listed))

EXPERT_SMALL(expert_small_8_bf16, 448, 2, 1, 1, 2)
EXPERT_SMALL(expert_small_16_bf16, 224, 2, 2, 2, 2)
EXPERT_SMALL(expert_small_32_bf16, 224, 2, 2, 4, 1)
// Fewer threads than an ordinary linear has: the lists of rows take registers.
GROUPED_TILES(EXPERT_GROUPED, expert, 384, 192)
STORED_FORMS(EXPERT_STORED, expert)

EXPERT_KERNEL(expert_wide_64_bf16, 256, 1, bf16, 64,
              (linear_wide<Wide64>(x, rows.source<PlainSource<bf16>>(weight, n, k, group).weight,
                               rows.count, k, to, rows.listed)))

EXPERT_PLAIN(expert_f32, PlainSource<float>)
EXPERT_PLAIN(expert_four_f32, RecordSource<4>)
EXPERT_PLAIN(expert_eight_f32, RecordSource<8>)
EXPERT_PLAIN(expert_expanded_f32, ExpandedSource)
EXPERT_PLAIN(expert_stored_f32, StoredSource)
