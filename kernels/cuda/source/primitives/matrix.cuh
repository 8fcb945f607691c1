// The tensor core's step: 16 columns by 8 rows by 16 inputs.
#pragma once

#ifdef __CUDA_ARCH__
// d += a * b. `a` is 16 by 16: lane 4g+t holds inputs 2t, 2t+1 of rows g and g+8, then inputs 2t+8,
// 2t+9 of both. `b` is 16 by 8: inputs 2t, 2t+1, then 2t+8, 2t+9, of column g. `d`: columns 2t, 2t+1 of
// row g, then of row g+8.
DEVICE void multiply_16_8_16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
