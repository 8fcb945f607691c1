//! Experts in shared memory, and calls that each compute a portion of them.

use kernels::{Element, ExpertWeight, Kernels, LinearOut, RoutedLinear, SharedExperts};
use model::quantized_format::WeightFormat;

use crate::common::{bits, poison};

/// Number of portions, of which the last is often empty.
const PORTIONS: usize = 3;

/// Calls `see` with the experts of each portion.
fn for_each<T: Element>(experts: &RoutedLinear<'_, T>, mut see: impl FnMut(RoutedLinear<'_, T>)) {
    for portion in (0..PORTIONS).rev() {
        let included: Vec<bool> = (0..experts.routing.experts)
            .map(|expert| (expert * 7 / 3 % PORTIONS) == portion)
            .collect();
        see(RoutedLinear { included: Some(&included), ..*experts });
    }
}

/// Returns the bits of `Kernels::expert_linear`.
pub fn linear<T: Element>(kernels: &Kernels, experts: &RoutedLinear<'_, T>, x: &[T]) -> Vec<u32> {
    let mut out = poison::<f32>(experts.routing.routed.len() * experts.n);
    for_each(experts, |portion| {
        kernels.expert_linear(&portion, x, LinearOut::StoreF32(&mut out));
    });
    bits(&out)
}

/// Returns the bits of `hidden` after `Kernels::expert_down`.
pub fn down<T: Element>(
    kernels: &Kernels,
    experts: &RoutedLinear<'_, T>,
    x: &[T],
    mut hidden: Vec<f32>,
) -> Vec<u32> {
    let mut outputs = poison::<f32>(experts.routing.routed.len() * experts.n);
    for_each(experts, |portion| kernels.expert_products(&portion, x, &mut outputs));
    kernels.combine_experts(&experts.routing, experts.n, &outputs, &mut hidden);
    bits(&hidden)
}

/// Returns the weights of experts at places in some memory.
pub fn shared<T: Element>(format: WeightFormat, memory: &[T]) -> ExpertWeight<'_, T> {
    let (first, len_bytes) = (memory.as_ptr().cast(), size_of_val(memory));
    // SAFETY: needed to make it. The memory is borrowed for as long.
    ExpertWeight::Shared(unsafe { SharedExperts::new(format, first, len_bytes) })
}
