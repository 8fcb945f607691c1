//! Arithmetic of the product instructions: exact in integers; with bf16, f32 fused multiply-adds,
//! rounded to nearest even, with subnormal inputs and results treated as zero of their sign.

/// Returns `value`, or zero of its sign if it is subnormal.
#[inline(always)]
pub fn flushed(value: f32) -> f32 {
    let bits = value.to_bits();
    if bits & 0x7f80_0000 == 0 { f32::from_bits(bits & 0x8000_0000) } else { value }
}

/// Returns element 0 or 1 of a dword of two bf16.
#[inline(always)]
pub fn half_of(pair: u32, element: u32) -> f32 {
    flushed(f32::from_bits(if element == 0 { pair << 16 } else { pair & 0xffff_0000 }))
}

/// Returns `a * b + sum`.
#[inline(always)]
pub fn fused(a: f32, b: f32, sum: f32) -> f32 {
    flushed(a.mul_add(b, flushed(sum)))
}

/// Computes one lane of `vdpbf16ps`: the odd elements' product first.
#[inline(always)]
pub fn dot_pair(sum: f32, a: u32, b: u32) -> f32 {
    let odd = fused(half_of(a, 1), half_of(b, 1), sum);
    fused(half_of(a, 0), half_of(b, 0), odd)
}

/// Computes sixteen lanes of [`dot_pair`].
#[target_feature(enable = "avx2,fma")]
pub fn dot_pairs(sums: &mut [u32; 16], a: &[u32; 16], b: &[u32; 16]) {
    for lane in 0..16 {
        sums[lane] = dot_pair(f32::from_bits(sums[lane]), a[lane], b[lane]).to_bits();
    }
}

/// Computes one row of `tdpbsud`: signed bytes of `row`, a row of the first source, times unsigned
/// ones of `columns`.
pub fn dot_bytes_row(sums: &mut [u32; 16], row: &[u32], columns: &[[u32; 16]; 16]) {
    for (four, column) in row.iter().zip(columns) {
        for n in 0..16 {
            for (a, b) in four.to_le_bytes().into_iter().zip(column[n].to_le_bytes()) {
                let product = i32::from(a.cast_signed()) * i32::from(b);
                sums[n] = sums[n].wrapping_add(product.cast_unsigned());
            }
        }
    }
}

/// Computes one row of `tdpbf16ps`: `row` is a row of the first source and `columns` the second
/// source. Even and odd elements are summed separately over the whole row, added to each other,
/// then to the sum.
#[target_feature(enable = "avx2,fma")]
pub fn dot_row(sums: &mut [u32; 16], row: &[u32], columns: &[[u32; 16]; 16]) {
    let (mut even, mut odd) = ([0.0f32; 16], [0.0f32; 16]);
    for (pair, column) in row.iter().zip(columns) {
        for n in 0..16 {
            even[n] = fused(half_of(*pair, 0), half_of(column[n], 0), even[n]);
            odd[n] = fused(half_of(*pair, 1), half_of(column[n], 1), odd[n]);
        }
    }
    for n in 0..16 {
        let both = flushed(even[n] + odd[n]);
        sums[n] = flushed(flushed(f32::from_bits(sums[n])) + both).to_bits();
    }
}
