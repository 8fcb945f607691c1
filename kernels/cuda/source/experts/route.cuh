// The router of a mixture of experts: the `top_k` experts of each row and their weights, a warp for each
// row. Of equal logits the lower expert's goes first; NaN counts as minus infinity.
#pragma once

// An expert of a row, and what its output is multiplied by.
struct Routed {
    u32 expert;
    float weight;
};

DEVICE float lowest_if_nan(float logit) { return logit == logit ? logit : minus_infinity(); }

// The best of a row's logits that come behind `last`.
DEVICE Candidate best_behind(const float* row, u32 experts, Candidate last, bool is_first) {
    Candidate best = {minus_infinity(), 0xffffffffu};
    for (u32 i = lane_index(); i < experts; i += 32) {
        const Candidate own = {lowest_if_nan(row[i]), i};
        const bool behind =
            own.logit < last.logit || (own.logit == last.logit && own.place > last.place);
        if (is_first || behind) best = better(best, own);
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        const float logit = SHUFFLE_XOR(best.logit, lanes);
        const u32 place = SHUFFLE_XOR(best.place, lanes);
        best = better(best, {logit, place});
    }
    return best;
}

// `scoring`: 0 is softmax over all experts, 1 the same divided by the sum of those that are chosen, 2
// softmax over those that are chosen. At most 32 are. Every weight is multiplied by `factor`.
KERNEL(route, 256,
       (const float* logits, Routed* routed, u32 rows, u32 experts, u32 top_k, u32 scoring,
        float factor)) {
    const u32 index = blockIdx.x * 8 + threadIdx.x / 32;
    if (index >= rows) return;
    const float* row = logits + (u64)index * experts;
    // Lane j keeps what was chosen in turn j.
    Candidate own = {minus_infinity(), 0xffffffffu};
    Candidate last = own;
    float most = 0.0f;
    for (u32 turn = 0; turn < top_k; ++turn) {
        last = best_behind(row, experts, last, turn == 0);
        if (turn == 0) most = last.logit;
        if (turn == lane_index()) own = last;
    }
    const bool is_chosen = lane_index() < top_k;
    float weight = is_chosen ? exponential(own.logit - most) : 0.0f;
    const float chosen = team_sum<32>(weight);
    float all = 0.0f;
    for (u32 i = lane_index(); i < experts; i += 32) {
        all += exponential(lowest_if_nan(row[i]) - most);
    }
    all = team_sum<32>(all);
    weight /= scoring == 2 ? chosen : all;
    if (scoring == 1) weight /= team_sum<32>(weight);
    // As many as are chosen with lower experts come before it.
    u32 before = 0;
    for (u32 lanes = 1; lanes < 32; ++lanes) {
        const u32 other = SHUFFLE_XOR(own.place, lanes);
        before += other < own.place ? 1 : 0;
    }
    if (is_chosen) routed[(u64)index * top_k + before] = {own.place, weight * factor};
}
