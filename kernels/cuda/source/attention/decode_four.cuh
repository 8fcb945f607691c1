// Decode attention over 4-bit records on tensor cores, for bf16 and heads of 64 or 128 elements: blocks of
// 256 positions apart, as in decode.cuh, whose scratch and second kernel it takes.
//
// The integers of a record are bf16 exactly. Scales and minimums come in where a group's elements are summed:
// a score is scale * sum(q x) + minimum * sum(x) of every group, and values are sums of (weight * scale) q,
// beside those of weight * minimum. A product with a weight meets the integers as two bf16, one of which is
// what the other leaves, so that nothing is rounded coarser than 2^-17.
//
// A warp takes 64 positions, and copies all their records before it begins.
#pragma once

template <int HEAD, u32 HEADS> struct FourDecode {
    static constexpr u32 GROUPS = HEAD / 64;
    static constexpr u32 BYTES = HEAD / 2 + 4 * GROUPS;
    // A record is nine words, of four bytes a group.
    static constexpr u32 WORDS = 9;
    static constexpr u32 WORD = BYTES / WORDS;
    static constexpr u32 POSITIONS = SPLIT / 4;
    static constexpr u32 TILES = POSITIONS / 16;

    // Shared memory: the records of K and V, weights, and the warps' highest scores and sums of weights.
    // Where the records of K were come the warps' values.
    struct Shared {
        u8 keys[SPLIT * BYTES];
        u8 values[SPLIT * BYTES];
        float weights[HEADS][SPLIT];
        float highest[4][8];
        float totals[4][8];
    };

    // Starts to copy the records of the warp's positions, `origin` on; zeros before `first` and from `end` on.
    DEVICE static void start(u8* to, const FourRows& rows, u32 origin, u32 first, u32 end) {
        if (origin >= first && origin + POSITIONS <= end && rows.in_a_row(origin, POSITIONS) &&
            rows.stride(origin) == BYTES) {
            const u8* from = rows.record(origin) + lane_index() * WORD;
            u8* place = to + lane_index() * WORD;
#pragma unroll
            for (u32 i = 0; i < POSITIONS * WORDS / 32; ++i) {
                copy_async<WORD>(place + i * 32 * WORD, from + i * 32 * WORD, true);
            }
            return;
        }
        if (origin >= end) return;
        const u32 lines = smaller(POSITIONS, divided_up(end - origin, 16) * 16);
#pragma unroll 1
        for (u32 at = lane_index(); at < lines * WORDS; at += 32) {
            const u32 position = origin + at / WORDS;
            const bool present = position >= first && position < end;
            const u8* record = present ? rows.record(position) : rows.fresh;
            copy_async<WORD>(to + at * WORD, record + at % WORDS * WORD, present);
        }
    }

    // Scale and minimum of a group of a record.
    DEVICE static RowRange range(const u8* record, u32 group) {
        const u16* scales = reinterpret_cast<const u16*>(record + HEAD / 2);
        return {float_of_f16(scales[group]), float_of_f16(scales[GROUPS + group])};
    }

    // Two words of a record.
    DEVICE static void words(const u8* from, u32 (&to)[2]) {
        if (WORD == 8) {
            const Words2 both = *reinterpret_cast<const Words2*>(from);
            to[0] = both.word[0];
            to[1] = both.word[1];
        } else {
            to[0] = reinterpret_cast<const u32*>(from)[0];
            to[1] = reinterpret_cast<const u32*>(from)[1];
        }
    }

    // The queries as what the integers of records meet: of head g, elements in the order in which words
    // hold them; and the sum of each group's elements of heads 2t and 2t + 1.
    u32 query[GROUPS][2][2][2];
    float query_sum[GROUPS][4];

    DEVICE FourDecode(const bf16* q, u32 count) {
        const u32 head = lane_index() / 4;
        const bf16* own = q + (head < count ? head : 0) * HEAD;
        const u32 ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
#pragma unroll
        for (u32 group = 0; group < GROUPS; ++group) {
            for (u32 i = 0; i < 4; ++i) query_sum[group][i] = 0.0f;
#pragma unroll
            for (u32 word = 0; word < 2; ++word) {
#pragma unroll
                for (u32 half = 0; half < 2; ++half) {
                    const bf16* from = own + 64 * group + 32 * half + 4 * (2 * (lane_index() % 4) + word);
                    Words2 four = *reinterpret_cast<const Words2*>(from);
                    if (head >= count) four.word[0] = four.word[1] = 0;
                    query[group][word][0][half] = bytes_of(four.word[0], four.word[1], 0x5410);
                    query[group][word][1][half] = bytes_of(four.word[0], four.word[1], 0x7632);
                }
#pragma unroll
                for (u32 odd = 0; odd < 2; ++odd) {
                    multiply_16_8_16(query_sum[group], ones, query[group][word][odd]);
                }
            }
        }
    }

    // Scores of 16 positions, whose records are `records`: of lines g and g + 8, heads 2t and 2t + 1.
    DEVICE void score(const u8* records, float (&scores)[4]) const {
        const u8* record[2];
        for (u32 i = 0; i < 2; ++i) record[i] = records + (lane_index() / 4 + 8 * i) * BYTES;
        for (u32 i = 0; i < 4; ++i) scores[i] = 0.0f;
#pragma unroll
        for (u32 group = 0; group < GROUPS; ++group) {
            u32 key[2][2];
            for (u32 i = 0; i < 2; ++i) words(record[i] + 32 * group + 8 * (lane_index() % 4), key[i]);
            float sums[4] = {};
#pragma unroll
            for (u32 word = 0; word < 2; ++word) {
#pragma unroll
                for (u32 odd = 0; odd < 2; ++odd) {
                    const u32 shift = 8 * odd;
                    const u32 four[4] = {
                        nibbles_as_bf16(key[0][word] >> shift),
                        nibbles_as_bf16(key[1][word] >> shift),
                        nibbles_as_bf16(key[0][word] >> (shift + 4)),
                        nibbles_as_bf16(key[1][word] >> (shift + 4)),
                    };
                    multiply_16_8_16(sums, four, query[group][word][odd]);
                }
            }
            for (u32 i = 0; i < 4; ++i) {
                const RowRange both = range(record[i / 2], group);
                scores[i] = fmaf(both.scale, sums[i], scores[i]);
                scores[i] = fmaf(both.minimum, query_sum[group][i], scores[i]);
            }
        }
    }
};

// Weighted values of a warp's positions. Column g of what the integers meet is head g; of fewer than eight
// heads the second half of the columns, or of one head the second column, is what rounding left.
template <int HEAD, u32 HEADS> struct FourValues {
    typedef FourDecode<HEAD, HEADS> D;

    // Of a group, tiles of 16 elements: rows g and g + 8 are elements 32 * (tile % 2) + 4g + tile / 2 and
    // the second behind it.
    float sums[D::GROUPS][4][4];
    float minimums[D::GROUPS][4];

    DEVICE FourValues() {
#pragma unroll
        for (u32 group = 0; group < D::GROUPS; ++group) {
            for (u32 i = 0; i < 4; ++i) {
                minimums[group][i] = 0.0f;
                for (u32 tile = 0; tile < 4; ++tile) sums[group][tile][i] = 0.0f;
            }
        }
    }

    // Two products as bf16, or what those leave.
    DEVICE static u32 part(float first, float second, bool rest) {
        const float first_rounded = float_of_bits(bits_of_float(first) & 0xffff0000u);
        const float second_rounded = float_of_bits(bits_of_float(second) & 0xffff0000u);
        return bf16_both(rest ? first - first_rounded : first_rounded,
                         rest ? second - second_rounded : second_rounded);
    }

    // Adds 16 positions, whose records are `records` and weights `weights`.
    DEVICE void add(const u8* records, const float (*weights)[SPLIT], u32 line) {
        const u32 g = lane_index() / 4;
        const u32 t = lane_index() % 4;
        const u32 head = HEADS == 1 ? 0 : g % HEADS;
        const bool used = HEADS != 1 || g < 2;
        const bool rest = HEADS == 1 ? g == 1 : HEADS == 4 && g >= 4;
        const u32 ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
        float weight[4];
        const u8* record[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 place = 2 * t + i % 2 + i / 2 * 8;
            record[i] = records + place * D::BYTES;
            weight[i] = used ? weights[head][line + place] : 0.0f;
        }
#pragma unroll
        for (u32 group = 0; group < D::GROUPS; ++group) {
            u32 word[4];
            float scaled[4];
            float least[4];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const RowRange both = D::range(record[i], group);
                word[i] = reinterpret_cast<const u32*>(record[i] + 32 * group)[g];
                scaled[i] = weight[i] * both.scale;
                least[i] = weight[i] * both.minimum;
            }
            u32 upper[2];
            u32 lower[2];
            for (u32 i = 0; i < 2; ++i) {
                lower[i] = bytes_of(word[2 * i], word[2 * i + 1], 0x5410);
                upper[i] = bytes_of(word[2 * i], word[2 * i + 1], 0x7632);
            }
#pragma unroll
            for (u32 pass = 0; pass < (HEADS == 8 ? 2 : 1); ++pass) {
                const bool left = rest || pass == 1;
                const u32 minimum[2] = {part(least[0], least[1], left), part(least[2], least[3], left)};
                multiply_16_8_16(minimums[group], ones, minimum);
                const u32 scale[2] = {part(scaled[0], scaled[1], left),
                                      part(scaled[2], scaled[3], left)};
#pragma unroll
                for (u32 tile = 0; tile < 4; ++tile) {
                    const u32 four[4] = {
                        nibbles_as_bf16(lower[0] >> 4 * tile),
                        nibbles_as_bf16(upper[0] >> 4 * tile),
                        nibbles_as_bf16(lower[1] >> 4 * tile),
                        nibbles_as_bf16(upper[1] >> 4 * tile),
                    };
                    multiply_16_8_16(sums[group][tile], four, scale);
                }
            }
        }
    }

    // The warp's values, `[HEADS][HEAD]`.
    DEVICE void put(float* to) const {
        const u32 g = lane_index() / 4;
        const u32 t = lane_index() % 4;
#pragma unroll
        for (u32 group = 0; group < D::GROUPS; ++group) {
#pragma unroll
            for (u32 tile = 0; tile < 4; ++tile) {
#pragma unroll
                for (u32 row = 0; row < 2; ++row) {
                    const u32 element = 64 * group + 32 * (tile % 2) + 4 * g + tile / 2 + 2 * row;
                    float both[2];
                    for (u32 i = 0; i < 2; ++i) {
                        both[i] = sums[group][tile][2 * row + i] + minimums[group][2 * row + i];
                        if (HEADS == 4) both[i] += SHUFFLE_XOR(both[i], 2);
                    }
                    if (HEADS == 1) {
                        if (t == 0) to[element] = both[0] + both[1];
                    } else if (2 * t < HEADS) {
                        for (u32 i = 0; i < 2; ++i) to[(2 * t + i) * HEAD + element] = both[i];
                    }
                }
            }
        }
    }
};

// A block for (unit, positions, HEADS heads of the group).
template <int HEAD, u32 HEADS>
DEVICE void attention_part_four(const Unit* units, const bf16* q, const void* k_fresh,
                                const void* v_fresh, const void* k_cache, const void* v_cache,
                                float* scratch, const Shape shape, float scale) {
    typedef FourDecode<HEAD, HEADS> D;
    SHARED(typename D::Shared, shared);
    const Unit unit = units[blockIdx.x];
    const u32 positions = unit.past + 1;
    const u32 begin = shape.first_seen(positions);
    const u32 block = begin / SPLIT + blockIdx.y;
    const u32 first = larger(begin, block * SPLIT);
    if (unit.rows == 0 || first >= positions) return;
    const u32 end = smaller(positions, (block + 1) * SPLIT);
    const u32 warp = threadIdx.x / 32;
    const u32 line = warp * D::POSITIONS;
    const u32 origin = block * SPLIT + line;
    u8* keys = shared->keys + line * D::BYTES;
    u8* values = shared->values + line * D::BYTES;
    D::start(keys, FourRows(k_fresh, k_cache, unit, shape), origin, first, end);
    copy_commit();
    D::start(values, FourRows(v_fresh, v_cache, unit, shape), origin, first, end);
    copy_commit();
    const u32 first_head = blockIdx.z * HEADS;
    const u32 count = smaller(HEADS, shape.group() - first_head);
    const D queries(q + shape.head_offset(unit, 0, first_head), count);

    const u32 g = lane_index() / 4;
    const u32 t = lane_index() % 4;
    float scores[D::TILES][4];
    float highest[2] = {minus_infinity(), minus_infinity()};
    copy_wait<1>();
    WARP_BARRIER();
#pragma unroll
    for (u32 tile = 0; tile < D::TILES; ++tile) {
        const u32 position = origin + 16 * tile;
        const bool there = position < end && position + 16 > first;
        if (there) queries.score(keys + 16 * tile * D::BYTES, scores[tile]);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 own = position + g + i / 2 * 8;
            const bool seen = there && own >= first && own < end;
            scores[tile][i] = seen ? scores[tile][i] * scale : minus_infinity();
            highest[i % 2] = fmaxf(highest[i % 2], scores[tile][i]);
        }
    }
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
        for (u32 tile = 0; tile < D::TILES; ++tile) {
#pragma unroll
            for (u32 row = 0; row < 2; ++row) {
                const float weight = exponential(scores[tile][2 * row + i] - highest[i]);
                total += weight;
                if (head < HEADS) shared->weights[head][line + 16 * tile + g + 8 * row] = weight;
            }
        }
        for (int lanes = 4; lanes < 32; lanes *= 2) total += SHUFFLE_XOR(total, lanes);
        if (g == 0) shared->totals[warp][head] = total;
    }
    copy_wait<0>();
    WARP_BARRIER();
    FourValues<HEAD, HEADS> sums;
#pragma unroll 1
    for (u32 tile = 0; tile < D::TILES; ++tile) {
        const u32 position = origin + 16 * tile;
        if (position >= end || position + 16 <= first) continue;
        sums.add(values + 16 * tile * D::BYTES, shared->weights, line + 16 * tile);
    }
    float* parts = reinterpret_cast<float*>(shared->keys);
    sums.put(parts + warp * HEADS * HEAD);
    BLOCK_BARRIER();
    const u64 stride = (u64)gridDim.y * (HEAD + 2);
    float* part = scratch + ((u64)blockIdx.x * shape.group() + first_head) * stride +
                  blockIdx.y * (HEAD + 2);
    for (u32 at = threadIdx.x; at < count * HEAD; at += blockDim.x) {
        float sum = parts[at];
        for (u32 other = 1; other < 4; ++other) sum += parts[other * HEADS * HEAD + at];
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

#define ATTENTION_PART_FOUR(name, HEAD, HEADS)                                                    \
    KERNEL(name, 128,                                                                             \
           (const Unit* units, const bf16* q, const void* k_fresh, const void* v_fresh,           \
            const void* k_cache, const void* v_cache, float* scratch, u32 heads, u32 kv_heads,    \
            u32 head_dim, u32 window, float scale)) {                                             \
        attention_part_four<HEAD, HEADS>(units, q, k_fresh, v_fresh, k_cache, v_cache, scratch,   \
                                         Shape{heads, kv_heads, head_dim, window}, scale);        \
    }

ATTENTION_PART_FOUR(attention_decode_four_1_64_bf16, 64, 1)
ATTENTION_PART_FOUR(attention_decode_four_4_64_bf16, 64, 4)
ATTENTION_PART_FOUR(attention_decode_four_8_64_bf16, 64, 8)
ATTENTION_PART_FOUR(attention_decode_four_1_128_bf16, 128, 1)
ATTENTION_PART_FOUR(attention_decode_four_4_128_bf16, 128, 4)
ATTENTION_PART_FOUR(attention_decode_four_8_128_bf16, 128, 8)
