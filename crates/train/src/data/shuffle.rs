//! Random numbers that data order is made of: the same everywhere and for ever, since checkpoints rely on them.

/// The `index`-th output of splitmix64 (Steele, Lea & Flood, OOPSLA 2014) from `seed`.
pub(super) fn random(seed: u64, index: u64) -> u64 {
    let state = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number below `n` from one that is random in 64 bits.
pub(super) fn below(random: u64, n: u64) -> u64 {
    ((u128::from(random) * u128::from(n)) >> 64) as u64
}

/// `0..n` in random order (Fisher & Yates).
pub(super) fn permutation(seed: u64, n: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n).collect();
    for i in (1..n as usize).rev() {
        order.swap(i, below(random(seed, i as u64), i as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_values() {
        assert_eq!([random(0, 0), random(0, 1)], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }

    /// The order is part of what a checkpoint means.
    #[test]
    fn permutations_stay() {
        assert!(permutation(1, 0).is_empty());
        assert_eq!(permutation(1, 1), [0]);
        let mut order = permutation(1, 1000);
        assert_ne!(order, permutation(2, 1000));
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1000));
    }
}
