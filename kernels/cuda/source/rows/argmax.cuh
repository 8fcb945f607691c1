// The largest logit of a row, the lowest index on ties, no token if it is not finite; a block for each
// row.
#pragma once

// A logit and its place; place `nowhere` is behind all others.
struct Candidate {
    float logit;
    u32 place;
};

DEVICE Candidate better(Candidate a, Candidate b) {
    // NaN is neither larger nor equal, so it never wins.
    const bool take = b.logit > a.logit || (b.logit == a.logit && b.place < a.place);
    return take ? b : a;
}

KERNEL(argmax, 256, (const float* logits, u32* tokens, u32 vocab)) {
    SHARED(Candidate, parts);
    const u32 nowhere = 0xffffffffu;
    const float* row = logits + (u64)blockIdx.x * vocab;
    Candidate best = {minus_infinity(), nowhere};
    for (u32 i = threadIdx.x; i < vocab; i += blockDim.x) best = better(best, {row[i], i});
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        const float logit = SHUFFLE_XOR(best.logit, lanes);
        const u32 place = SHUFFLE_XOR(best.place, lanes);
        best = better(best, {logit, place});
    }
    if (lane_index() == 0) parts[threadIdx.x / 32] = best;
    BLOCK_BARRIER();
    if (threadIdx.x > 0) return;
    for (u32 warp = 1; warp < blockDim.x / 32; ++warp) best = better(best, parts[warp]);
    // Of no number, and of an infinite one, the exponent is all ones.
    const bool finite = (bits_of_float(best.logit) & 0x7f800000u) != 0x7f800000u;
    tokens[blockIdx.x] = finite ? best.place : nowhere;
}
