// Linears of up to 64 rows over records as files have them, which are not expanded first.
//
// A sum has the bits of the sum over the same records expanded to 8 bits: the integers, the chain of
// products of each group and the order of groups are equal. A form without minimums adds none, which
// differs from adding zeros only where a sum of x is infinite.
//
// A block has 32 columns, and its warps take one segment each, as in `linear_by_segments`. A warp
// multiplies spans of 256 inputs. Meanwhile the heads of the next span's records are copied to shared
// memory, where they are converted to floats once a span, and the integers of the next AHEAD steps of
// 32 inputs are loaded to registers.
#pragma once

// Inputs of a span, and of its steps.
static constexpr u32 SPAN = 256;
static constexpr u32 SPAN_STEPS = 8;

template <class CodesOf, class RangesOf> struct StoredForm {
    typedef CodesOf Codes;
    typedef RangesOf Ranges;
    // Groups of a step.
    static constexpr u32 GROUPS = 32 / Codes::GROUP;
    static constexpr u32 STEP_BYTES = 64 * Codes::BITS;
    static constexpr u32 RECORD_STEPS = Ranges::INPUTS / 32;
    static constexpr u32 RECORD_BYTES = Ranges::HEAD + RECORD_STEPS * STEP_BYTES;
    static constexpr u32 SPAN_RECORDS = SPAN / Ranges::INPUTS;
    static constexpr u32 SPAN_BYTES = SPAN_RECORDS * RECORD_BYTES;
    // Pieces of 16 bytes of the heads of a span, at most one for each lane.
    static constexpr u32 HEAD_PIECES = Ranges::HEAD / 16;
    static constexpr u32 PIECES = SPAN_RECORDS * HEAD_PIECES;
    static_assert(PIECES <= 32, "a lane copies a piece");

    // From the first record's first integers to those of a step.
    DEVICE static u32 step_place(u32 step) {
        return step / RECORD_STEPS * RECORD_BYTES + step % RECORD_STEPS * STEP_BYTES;
    }
};

template <class Form> struct StoredMatrix {
    const u8* records;
    u32 n;
    u32 block_records;

    DEVICE StoredMatrix(const void* records, u32 n, u32 k, u32)
        : records(static_cast<const u8*>(records)), n(n),
          block_records(divided_up(k, Form::Ranges::INPUTS)) {}

    // Bytes of a matrix, where several lie behind each other.
    DEVICE static u64 matrix_bytes(u32 n, u32 k, u32) {
        return (u64)divided_up(n, 16) * divided_up(k, Form::Ranges::INPUTS) * Form::RECORD_BYTES;
    }
};

template <int ROW_TILES, class FormOf> struct StoredTile {
    static constexpr int M = 2;
    static constexpr int N = ROW_TILES;
    typedef FormOf Form;
    typedef typename Form::Codes Codes;
    typedef typename Form::Ranges Ranges;
    // x of 32 rows takes as many registers as there are; it comes from a cache.
    static constexpr bool X_AHEAD = N <= 2;
    static constexpr int X_TOGETHER = N == 4 ? 4 : N == 8 ? 2 : N;
    static constexpr u32 OUTPUTS = 16 * M * 8 * N;
    // Floats of a warp: its ranges of a span, and later its sums. Of each 16 columns 256 ranges.
    static constexpr u32 OWN = OUTPUTS < M * 256 ? M * 256 : OUTPUTS;
    static constexpr u32 MINIMUMS = SPAN_STEPS * 16;

    struct Step {
        Codes codes[M];
        Words4 values[X_AHEAD ? N : 1];
    };

    // The first record of each 16 columns. Columns behind the matrix repeat its last ones.
    const u8* first[M];
    CodeMasks masks;
    // Where in the records the lane has its integers of the first step.
    u32 place;
    u32 upper_place;
    LaneRows<N> x;
    u32 k;
    u32 block_records;
    // The warp's heads and ranges.
    u8* heads;
    float* ranges;

    template <class Rows>
    DEVICE StoredTile(const bf16* x, const StoredMatrix<Form>& matrix, u32 rows, u32 k,
                      float* own, u8* heads, const Rows& listed)
        : x(x, rows, k, listed), k(k), block_records(matrix.block_records), heads(heads),
          ranges(own) {
        const u32 g = lane_index() / 4;
        const u32 t = lane_index() % 4;
        masks = {kept(0x000f000fu), kept(0x0f0f0f0fu), kept(Codes::rotation(t))};
        place = kept(Ranges::HEAD + Codes::place(g, t));
        upper_place = kept(Ranges::HEAD + Codes::upper_place(g, t));
        const u32 last = divided_up(matrix.n, 16) - 1;
#pragma unroll
        for (int m = 0; m < M; ++m) {
            const u32 sixteen = smaller(blockIdx.x * M + m, last);
            const u64 before = (u64)sixteen * block_records;
            first[m] = kept(matrix.records + before * Form::RECORD_BYTES);
        }
    }

    DEVICE static u32 column(u32 g, u32 half) { return 2 * g + half; }

    // Returns true if the rows of x have all inputs of a span and begin on boundaries of 16 bytes.
    DEVICE bool has_span(u32 at) const { return k % 8 == 0 && at + SPAN <= k; }

    // Starts to copy the heads of the span from input `at` on; zeros behind the last record.
    DEVICE void copy_heads(u32 at) const {
        const u32 lane = lane_index();
        if (lane < Form::PIECES) {
            const u32 record = at / SPAN * Form::SPAN_RECORDS + lane / Form::HEAD_PIECES;
            const bool present = record < block_records;
            const u32 from = present ? record * Form::RECORD_BYTES : 0;
#pragma unroll
            for (int m = 0; m < M; ++m) {
                copy16_async(heads + (m * Form::PIECES + lane) * 16,
                             first[m] + (from + lane % Form::HEAD_PIECES * 16), present);
            }
        }
        copy_commit();
    }

    // Waits until the heads that the lanes copied are there and no lane reads the last ranges.
    DEVICE void await_heads() const {
        copy_wait<0>();
        WARP_BARRIER();
    }

    // Converts the copied heads to floats.
    DEVICE void convert_heads() const {
        const u32 g = lane_index() / 4;
        const u32 t = lane_index() % 4;
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
            for (u32 i = 0; i < 2 * Form::GROUPS; ++i) {
                const u32 group = 2 * Form::GROUPS * t + i;
                const RangesOfTwo two = Ranges::of_two(heads + m * Form::PIECES * 16, group, g);
                float* to = ranges + (m * 256 + group * 16 + 2 * g);
                store_two(to, two.scale);
                if (Ranges::MINIMUMS) store_two(to + MINIMUMS, two.minimum);
            }
        }
        // The next heads are copied to where these were, and other lanes read the ranges.
        WARP_BARRIER();
    }

    DEVICE static void store_two(float* to, const float (&from)[2]) {
        *reinterpret_cast<Words2*>(to) = {bits_of_float(from[0]), bits_of_float(from[1])};
    }
    DEVICE static void load_two(const float* from, float (&to)[2]) {
        const Words2 words = *reinterpret_cast<const Words2*>(from);
        to[0] = float_of_bits(words.word[0]);
        to[1] = float_of_bits(words.word[1]);
    }

    // Addresses of the integers and x of consecutive steps.
    struct Places {
        const u8* codes[M];
        const u8* upper[M];
        const bf16* values[X_AHEAD ? N : 1];
    };

    // Returns those of the steps from `step` of the span at `at` on.
    DEVICE Places places(u32 at, u32 step) const {
        const u32 before = at / SPAN * Form::SPAN_BYTES + Form::step_place(step);
        Places of;
#pragma unroll
        for (int m = 0; m < M; ++m) {
            of.codes[m] = first[m] + (before + place);
            of.upper[m] = first[m] + (before + upper_place);
        }
        if (X_AHEAD) {
#pragma unroll
            for (int n = 0; n < N; ++n) {
                of.values[X_AHEAD ? n : 0] = x.x + (x.offsets[n] + at + 32 * step);
            }
        }
        return of;
    }

    // Loads step `i` of them.
    DEVICE void load(Step& to, const Places& from, u32 i, bool with_x) const {
#pragma unroll
        for (int m = 0; m < M; ++m) {
            to.codes[m] = Codes::load(from.codes[m] + Form::step_place(i),
                                      from.upper[m] + Form::step_place(i));
        }
        if (X_AHEAD && with_x) {
#pragma unroll
            for (int n = 0; n < N; ++n) {
                to.values[X_AHEAD ? n : 0] = load16_again(from.values[X_AHEAD ? n : 0] + 32 * i);
            }
        }
    }

    // Adds the products of step `step` of a span, whose first input is `at`. AT_END: x may end before.
    template <bool AT_END>
    DEVICE void multiply(const Step& own, u32 step, u32 at, float (&sums)[M][N][4]) const {
        // The sums of 64 rows leave registers for one group.
#pragma unroll (N < 8 ? 2 : 1)
        for (u32 group = 0; group < Form::GROUPS; ++group) {
            add_group<AT_END>(own, step * Form::GROUPS + group, group, at, sums);
        }
    }

    // Inputs of x from `at` on, zeros behind the end of its rows.
    DEVICE Words4 x_at_end(int n, u32 at) const {
        const u32 own = at + lane_index() % 4 * 8;
        Words4 words = {};
        if (k % 8 == 0) {
            if (own < k) words = x.load(n, at);
            return words;
        }
        // No model has such rows, so this takes few instructions and not little time.
        const bf16* from = x.x + (x.offsets[n] + at);
#pragma unroll 1
        for (u32 i = 0; i < 8; ++i) {
            const u32 value = own + i < k ? from[i] : 0;
#pragma unroll
            for (u32 word = 0; word < 3; ++word) {
                words.word[word] = words.word[word] >> 16 | words.word[word + 1] << 16;
            }
            words.word[3] = words.word[3] >> 16 | value << 16;
        }
        return words;
    }

    // scale * (sum of q * x) + minimum * (sum of x) of a group.
    template <bool AT_END>
    DEVICE void add_group(const Step& own, u32 group, u32 half, u32 at,
                          float (&sums)[M][N][4]) const {
        constexpr int TOGETHER = AT_END ? 1 : X_TOGETHER;
        const bool is_kept = Form::GROUPS == 1 || lane_index() % 4 / 2 == half;
        const u32 factor = is_kept ? ONES : 0;
        const u32 addend = is_kept ? Codes::ADDEND : 0;
        const Words4 ones = {ONES, ONES, ONES, ONES};
        Words4 rows[M][2];
        float scales[M][2];
        float minimums[M][2];
#pragma unroll
        for (int m = 0; m < M; ++m) {
            const float* from = ranges + (m * 256 + group * 16 + lane_index() / 4 * 2);
            load_two(from, scales[m]);
            if (Ranges::MINIMUMS) load_two(from + MINIMUMS, minimums[m]);
#pragma unroll
            for (u32 row = 0; row < 2; ++row) {
                rows[m][row] = own.codes[m].row(row, masks, factor, addend);
            }
        }
#pragma unroll
        for (int first_tile = 0; first_tile < N; first_tile += TOGETHER) {
            Words4 values[TOGETHER];
#pragma unroll
            for (int n = 0; n < TOGETHER; ++n) {
                if (AT_END) {
                    values[n] = x_at_end(first_tile + n, at);
                } else if (X_AHEAD) {
                    values[n] = own.values[n];
                } else {
                    values[n] = x.load(first_tile + n, at);
                }
            }
#pragma unroll
            for (int n = 0; n < TOGETHER; ++n) {
                float totals[4] = {};
                if (Ranges::MINIMUMS) multiply_32_inputs(totals, ones, ones, values[n]);
#pragma unroll
                for (int m = 0; m < M; ++m) {
                    float products[4] = {};
                    multiply_32_inputs(products, rows[m][0], rows[m][1], values[n]);
#pragma unroll
                    for (u32 i = 0; i < 4; ++i) {
                        float& sum = sums[m][first_tile + n][i];
                        sum = fmaf(scales[m][i / 2], products[i], sum);
                        if (Ranges::MINIMUMS) sum = fmaf(minimums[m][i / 2], totals[i % 2], sum);
                    }
                }
            }
        }
    }
};

template <int N, int AHEAD, class Form, class Rows = AllRows>
DEVICE void linear_stored(const bf16* x, const StoredMatrix<Form>& matrix, u32 rows, u32 k,
                          const Finish& to, const Rows& places = {}) {
    typedef StoredTile<N, Form> Tile;
    SHARED(float, totals);
    float* parts = totals + Tile::OUTPUTS;
    const u32 warps = blockDim.x / 32;
    const u32 warp = threadIdx.x / 32;
    u8* heads = reinterpret_cast<u8*>(parts + warps * Tile::OWN) + warp * (Tile::M * 512);
    const Tile tile(x, matrix, rows, k, parts + warp * Tile::OWN, heads, places);
    const u32 segments = divided_up(k, SEGMENT);
    typename Tile::Step ahead[AHEAD];
    u32 at = warp * SEGMENT;
    bool is_whole = tile.has_span(at);
    if (at < k) tile.copy_heads(at);
    if (is_whole) {
        const typename Tile::Places own = tile.places(at, 0);
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) tile.load(ahead[i], own, i, true);
    }
    tile.await_heads();
    for (u32 base = 0; base < segments; base += warps) {
        float sums[Tile::M][N][4] = {};
        const u32 end = smaller(k, (base + warp + 1) * SEGMENT);
#pragma unroll 1
        while (at < end) {
            tile.convert_heads();
            // The warp continues with its next segment.
            const u32 next = at + SPAN + (at % SEGMENT ? (warps - 1) * SEGMENT : 0);
            const bool next_is_whole = tile.has_span(next);
            if (next < k) tile.copy_heads(next);
            if (is_whole) {
#pragma unroll 1
                for (u32 step = 0; step < SPAN_STEPS; step += AHEAD) {
                    const bool is_last = step + AHEAD == SPAN_STEPS;
                    const typename Tile::Places behind =
                        is_last ? tile.places(next, 0) : tile.places(at, step + AHEAD);
#pragma unroll
                    for (int i = 0; i < AHEAD; ++i) {
                        // A step of many rows takes as long as a load, so one ahead is enough if
                        // it begins before the step.
                        const typename Tile::Step own = ahead[i];
                        const bool has_next = !is_last || next_is_whole;
                        if (!Tile::X_AHEAD && has_next) tile.load(ahead[i], behind, i, true);
                        tile.template multiply<false>(own, step + i, at + 32 * (step + i), sums);
                        if (Tile::X_AHEAD && has_next) tile.load(ahead[i], behind, i, true);
                    }
                }
            } else {
#pragma unroll 1
                for (u32 step = 0; at + 32 * step < smaller(k, at + SPAN); ++step) {
                    typename Tile::Step own;
                    tile.load(own, tile.places(at, step), 0, false);
                    tile.template multiply<true>(own, step, at + 32 * step, sums);
                }
            }
            at = next;
            is_whole = next_is_whole;
            tile.await_heads();
        }
        // The sums go where the ranges are.
        leave_sums<Tile>(sums, parts + warp * Tile::OWN);
        BLOCK_BARRIER();
        const u32 count = smaller(warps, segments - base);
        add_sums(totals, parts, Tile::OUTPUTS, Tile::OWN, base, count);
        // The parts are read before ranges lie in their places.
        if (base + warps < segments) BLOCK_BARRIER();
    }
    finish_totals<Tile>(totals, rows, to, places);
}

typedef StoredForm<FourCodes, ProductAndMinimumRanges> Q4K;
typedef StoredForm<SplitCodes<1, false>, ProductAndMinimumRanges> Q5K;
typedef StoredForm<SplitCodes<2, true>, ProductRanges<16>> Q6K;
typedef StoredForm<SplitCodes<1, true>, HalfScaleRanges> Q50;
typedef StoredForm<SplitCodes<1, false>, HalfRanges> Q51;
typedef StoredForm<TableCodes<NonLinearTable>, HalfScaleRanges> Iq4Nl;
typedef StoredForm<TableCodes<NonLinearTable>, ProductRanges<32>> Iq4Xs;
typedef StoredForm<TableCodes<E2M1Table>, PowerRanges> Mxfp4;

#define LINEAR_STORED(name, threads, blocks, N, AHEAD, Form)                                   \
    KERNEL_BESIDE(name, threads, blocks,                                                       \
                  (const bf16* x, const void* weight, const float* bias, void* out,            \
                   const void* gate, u32 rows, u32 n, u32 k, u32 form, u32 group, float factor, \
                   float limit)) {                                                             \
        linear_stored<N, AHEAD>(x, StoredMatrix<Form>(weight, n, k, group), rows, k,           \
                                Finish{bias, out, gate, n, form, factor, limit});              \
    }

// All kernels of a form: KERNEL_OF(name, threads, blocks, N, AHEAD, Form).
#define STORED_TILES(KERNEL_OF, kind, Form)        \
    KERNEL_OF(kind##_8_bf16, 192, 2, 1, 4, Form)   \
    KERNEL_OF(kind##_16_bf16, 192, 2, 2, 2, Form)  \
    KERNEL_OF(kind##_32_bf16, 192, 2, 4, 1, Form)  \
    KERNEL_OF(kind##_64_bf16, 128, 2, 8, 1, Form)

#define STORED_FORMS(KERNEL_OF, kind)             \
    STORED_TILES(KERNEL_OF, kind##_q4_k, Q4K)     \
    STORED_TILES(KERNEL_OF, kind##_q5_k, Q5K)     \
    STORED_TILES(KERNEL_OF, kind##_q6_k, Q6K)     \
    STORED_TILES(KERNEL_OF, kind##_q5_0, Q50)     \
    STORED_TILES(KERNEL_OF, kind##_q5_1, Q51)     \
    STORED_TILES(KERNEL_OF, kind##_iq4_nl, Iq4Nl) \
    STORED_TILES(KERNEL_OF, kind##_iq4_xs, Iq4Xs) \
    STORED_TILES(KERNEL_OF, kind##_mxfp4, Mxfp4)

STORED_FORMS(LINEAR_STORED, linear)
