//! Token masks: a bit for each token, the lowest first.

pub(crate) fn is_set(mask: &[u32], token: u32) -> bool {
    mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

pub(crate) fn clear(mask: &mut [u32], token: u32) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        *word &= !(1 << (token % 32));
    }
}

pub(crate) fn set(mask: &mut [u32], token: u32) {
    if let Some(word) = mask.get_mut(token as usize / 32) {
        *word |= 1 << (token % 32);
    }
}

/// Returns the tokens whose bits are set, in ascending order.
pub(crate) fn tokens(mask: &[u32]) -> impl Iterator<Item = u32> {
    mask.iter().zip(0..).flat_map(|(word, index)| {
        let first = index * 32;
        std::iter::successors(Some(*word), |left| Some(left & left.wrapping_sub(1)))
            .take_while(|left| *left != 0)
            .map(move |left| first + left.trailing_zeros())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_tokens() {
        let mut mask = [0; 3];
        for token in [0, 31, 32, 95, 64] {
            set(&mut mask, token);
        }
        clear(&mut mask, 64);
        assert_eq!(tokens(&mask).collect::<Vec<_>>(), [0, 31, 32, 95]);
        assert!(is_set(&mask, 31) && !is_set(&mask, 64) && !is_set(&mask, 96));
    }
}
