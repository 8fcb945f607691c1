// Decode attention on tensor cores, for bf16: blocks of 256 positions apart, as in decode.cuh, whose scratch
// and second kernel it takes. A warp takes 64 positions, 16 at a time.
//
// Scores are products of 16 positions and eight columns, one for each head. Values are products of 16
// elements and eight columns of weights, which are two bf16 each, the second what the first leaves, so that
// no weight is rounded coarser than 2^-17.
#pragma once

static constexpr u32 WARP_POSITIONS = SPLIT / 4;
static constexpr u32 WARP_TILES = WARP_POSITIONS / 16;

// The columns of weights: of eight heads both parts in turn; of fewer the first parts, then the second.
template <u32 HEADS> struct WeightColumns {
    static constexpr u32 PASSES = HEADS == 8 ? 2 : 1;

    // The head of the lane's column, and whether there is one.
    DEVICE static u32 head() { return HEADS == 1 ? 0 : lane_index() / 4 % HEADS; }
    DEVICE static bool used() { return HEADS != 1 || lane_index() / 4 < 2; }

    DEVICE static u32 pair(float first, float second, bool rest) {
        const float first_part = float_of_bits(bits_of_float(first) & 0xffff0000u);
        const float second_part = float_of_bits(bits_of_float(second) & 0xffff0000u);
        return bf16_both(rest ? first - first_part : first_part,
                         rest ? second - second_part : second_part);
    }

    // What the lane holds of its column, of its four positions.
    DEVICE static void part(const float (&weight)[4], u32 pass, u32 (&to)[2]) {
        const bool rest = HEADS == 8 ? pass == 1 : lane_index() / 4 >= HEADS;
        to[0] = pair(weight[0], weight[1], rest);
        to[1] = pair(weight[2], weight[3], rest);
    }

    // Puts the sums of an element, of columns 2t and 2t + 1, in `[HEADS][head_dim]`.
    DEVICE static void put(float first, float second, u32 element, u32 head_dim, float* to) {
        const u32 head = 2 * (lane_index() % 4);
        if (HEADS == 4) {
            first += SHUFFLE_XOR(first, 2);
            second += SHUFFLE_XOR(second, 2);
        }
        if (HEADS == 1) {
            if (head == 0) to[element] = first + second;
        } else if (head < HEADS) {
            to[head * head_dim + element] = first;
            to[(head + 1) * head_dim + element] = second;
        }
    }
};

template <class Heads, int HEAD, u32 HEADS> struct DecodeShared {
    // What the warps' values take the place of, once scores are there.
    union {
        typename Heads::Staged staged;
        float parts[4][HEADS * HEAD];
    };
    float weights[HEADS][SPLIT];
    // Of each warp and head: the highest score, and the sum of the weights.
    float highest[4][8];
    float totals[4][8];
};

// A block for (unit, positions, HEADS heads of the group).
//
// `Heads` is K and V of a warp's positions, `origin` on, those before `first` and from `end` on as zeros:
// `ask` gives it the queries, `score` the scores of 16 positions, of lines g and g + 8 and heads 2t and
// 2t + 1. `Values` adds up their values with the weights of lines 2t, 2t + 1, 2t + 8 and 2t + 9 of the
// lane's column.
template <class Heads, int HEAD, u32 HEADS>
DEVICE void attention_part_matrix(const Unit* units, const bf16* q, const void* k_fresh,
                                  const void* v_fresh, const void* k_cache, const void* v_cache,
                                  float* scratch, const Shape shape, float scale) {
    typedef DecodeShared<Heads, HEAD, HEADS> Shared;
    SHARED(Shared, shared);
    const Unit unit = units[blockIdx.x];
    const u32 positions = unit.past + 1;
    const u32 begin = shape.first_seen(positions);
    const u32 block = begin / SPLIT + blockIdx.y;
    const u32 first = larger(begin, block * SPLIT);
    if (unit.rows == 0 || first >= positions) return;
    const u32 end = smaller(positions, (block + 1) * SPLIT);
    const u32 warp = threadIdx.x / 32;
    const u32 line = warp * WARP_POSITIONS;
    const u32 origin = block * SPLIT + line;
    Heads heads(shared->staged, typename Heads::Rows(k_fresh, k_cache, unit, shape),
                typename Heads::Rows(v_fresh, v_cache, unit, shape), origin, first, end);
    const u32 first_head = blockIdx.z * HEADS;
    const u32 count = smaller(HEADS, shape.group() - first_head);
    heads.ask(q + shape.head_offset(unit, 0, first_head), count);

    const u32 g = lane_index() / 4;
    const u32 t = lane_index() % 4;
    float scores[WARP_TILES][4];
    float highest[2] = {minus_infinity(), minus_infinity()};
    heads.await_keys();
#pragma unroll
    for (u32 tile = 0; tile < WARP_TILES; ++tile) {
        const u32 position = origin + 16 * tile;
        const bool there = position < end && position + 16 > first;
        if (there) heads.score(tile, scores[tile]);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 own = position + g + i / 2 * 8;
            const bool seen = there && own >= first && own < end;
            scores[tile][i] = seen ? scores[tile][i] * scale : minus_infinity();
            highest[i % 2] = fmaxf(highest[i % 2], scores[tile][i]);
        }
    }
    typename Heads::Values values(heads);
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        for (int lanes = 4; lanes < 32; lanes *= 2) {
            highest[i] = fmaxf(highest[i], SHUFFLE_XOR(highest[i], lanes));
        }
        if (g == 0) shared->highest[warp][2 * t + i] = highest[i];
    }
    BLOCK_BARRIER();
#pragma unroll
    for (u32 i = 0; i < (HEADS == 1 ? 1 : 2); ++i) {
        const u32 head = 2 * t + i;
        for (u32 other = 0; other < 4; ++other) {
            highest[i] = fmaxf(highest[i], shared->highest[other][head]);
        }
        float total = 0.0f;
#pragma unroll
        for (u32 tile = 0; tile < WARP_TILES; ++tile) {
#pragma unroll
            for (u32 row = 0; row < 2; ++row) {
                float& score = scores[tile][2 * row + i];
                score = exponential(score - highest[i]);
                total += score;
            }
        }
        for (int lanes = 4; lanes < 32; lanes *= 2) total += SHUFFLE_XOR(total, lanes);
        if (g == 0) shared->totals[warp][head] = total;
#pragma unroll
        for (u32 at = 0; at < 2 * WARP_TILES; ++at) {
            const float weight = scores[at / 2][2 * (at % 2) + i];
            if (head < HEADS) shared->weights[head][line + g + 8 * at] = weight;
        }
    }
    heads.await_values();
    WARP_BARRIER();
    typedef WeightColumns<HEADS> Columns;
    const float* column = shared->weights[Columns::head()] + line + 2 * t;
#pragma unroll 1
    for (u32 tile = 0; tile < WARP_TILES; ++tile) {
        const u32 position = origin + 16 * tile;
        if (position >= end || position + 16 <= first) continue;
        float weight[4];
        for (u32 i = 0; i < 4; ++i) {
            weight[i] = Columns::used() ? column[16 * tile + i % 2 + i / 2 * 8] : 0.0f;
        }
        values.add(heads, tile, weight);
    }
    values.put(shared->parts[warp]);
    BLOCK_BARRIER();
    const u64 stride = (u64)gridDim.y * (HEAD + 2);
    float* part = scratch + ((u64)blockIdx.x * shape.group() + first_head) * stride +
                  blockIdx.y * (HEAD + 2);
    for (u32 at = threadIdx.x; at < count * HEAD; at += blockDim.x) {
        float sum = shared->parts[0][at];
        for (u32 other = 1; other < 4; ++other) sum += shared->parts[other][at];
        part[at / HEAD * stride + at % HEAD] = sum;
    }
    if (threadIdx.x < count) {
        const u32 head = threadIdx.x;
        float top = shared->highest[0][head];
        float total = shared->totals[0][head];
        for (u32 other = 1; other < 4; ++other) {
            top = fmaxf(top, shared->highest[other][head]);
            total += shared->totals[other][head];
        }
        part[head * stride + HEAD] = top;
        part[head * stride + HEAD + 1] = total;
    }
}

#define ATTENTION_PART_MATRIX(name, HEAD, HEADS, BLOCKS, ...)                                             \
    KERNEL_BESIDE(name, 128, BLOCKS,                                                              \
           (const Unit* units, const bf16* q, const void* k_fresh, const void* v_fresh,           \
            const void* k_cache, const void* v_cache, float* scratch, u32 heads, u32 kv_heads,    \
            u32 head_dim, u32 window, float scale)) {                                             \
        typedef __VA_ARGS__ Source;                                                               \
        attention_part_matrix<Source, HEAD, HEADS>(units, q, k_fresh, v_fresh, k_cache, v_cache,  \
                                                   scratch,                                       \
                                                   Shape{heads, kv_heads, HEAD, window},          \
                                                   scale);                                        \
    }
