// Places `row * top_k + j` of a routing by their experts, each expert's in ascending order; a block for
// each expert. `starts`, one more than there are experts, says where an expert's begin.
#pragma once

KERNEL(group_experts, 256, (const Routed* routed, u32* starts, u32* slots, u32 count)) {
    SHARED(u32, lower);
    u32* equal = lower + 256;
    const u32 expert = blockIdx.x;
    const u32 each = divided_up(count, 256);
    const u32 first = smaller(count, threadIdx.x * each);
    const u32 end = smaller(count, first + each);
    u32 lower_own = 0;
    u32 equal_own = 0;
    for (u32 slot = first; slot < end; ++slot) {
        lower_own += routed[slot].expert < expert ? 1 : 0;
        equal_own += routed[slot].expert == expert ? 1 : 0;
    }
    lower[threadIdx.x] = lower_own;
    equal[threadIdx.x] = equal_own;
    BLOCK_BARRIER();
    u32 start = 0;
    u32 before = 0;
    for (u32 i = 0; i < 256; ++i) {
        start += lower[i];
        before += i < threadIdx.x ? equal[i] : 0;
    }
    u32 at = start + before;
    for (u32 slot = first; slot < end; ++slot) {
        // The bound always holds; it keeps a fault in the sums from becoming a wild store.
        if (routed[slot].expert == expert && at < count) slots[at++] = slot;
    }
    if (threadIdx.x == 0) {
        starts[expert] = start;
        if (expert + 1 == gridDim.x) starts[gridDim.x] = count;
    }
}
