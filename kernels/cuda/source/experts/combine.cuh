// The weighted sum over a row's experts, in ascending order from the first, added to the residual once;
// a block for 1024 columns of a row.
#pragma once

KERNEL(expert_combine, 256,
       (const Routed* routed, const float* parts, float* hidden, u32 top_k, u32 n)) {
    const u64 first = (u64)blockIdx.x * top_k;
    const u32 end = smaller(n, (blockIdx.y + 1) * 1024);
    for (u32 column = blockIdx.y * 1024 + threadIdx.x; column < end; column += blockDim.x) {
        float sum = routed[first].weight * parts[first * n + column];
        for (u32 j = 1; j < top_k; ++j) {
            sum += routed[first + j].weight * parts[(first + j) * n + column];
        }
        hidden[(u64)blockIdx.x * n + column] += sum;
    }
}
