// The tensor core's step, and loads of what it multiplies.
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

// Four matrices of 8 by 8 bf16 from shared memory: lane i says where row i % 8 of matrix i / 8 lies, on
// a boundary of 16 bytes. Lane 4g+t receives elements 2t, 2t+1 of row g of each.
DEVICE void load_matrices(const void* row, u32 (&to)[4]) {
    const u32 address = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

// As `load_matrices`, turned: lane 4g+t receives elements g of rows 2t and 2t+1.
DEVICE void load_matrices_turned(const void* row, u32 (&to)[4]) {
    const u32 address = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}
#endif
