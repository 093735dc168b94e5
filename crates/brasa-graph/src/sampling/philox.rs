//! Noise that is a pure function of seed, position and token id.

/// Philox4x32-10: four random words from a counter and a key.
///
/// Salmon, Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3".
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    for _ in 0..10 {
        let wide = |i: usize| u64::from(MULTIPLIERS[i]) * u64::from(counter[2 * i]);
        let (a, b) = (wide(0), wide(1));
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// Random words for the four tokens from `4·quad` on.
///
/// The counter is `[token/4, position, 0, 0]`, token *t* takes word `t mod 4`; the key is the seed, low word first.
pub(super) fn words(seed: u64, position: u32, quad: u32) -> [u32; 4] {
    philox4x32([quad, position, 0, 0], [seed as u32, (seed >> 32) as u32])
}

/// The random number in [0, 1) that decides whether XTC acts at `position`: 24 bits of the first word of Philox at
/// counter `[0, position, 1, 0]`. The noise of tokens uses other counters.
pub(super) fn xtc_chance(seed: u64, position: u32) -> f32 {
    let [word, ..] = philox4x32([0, position, 1, 0], [seed as u32, (seed >> 32) as u32]);
    (word >> 8) as f32 / 16_777_216.0
}

/// A standard Gumbel number from a random word: `−ln(−ln(1 − u))`, `u = (word + ½)/2³²`, in f32.
///
/// Small words give the large numbers, which win draws. So `u` is small for them, where floats are dense, and the inner logarithm
/// is computed as `log1p`.
pub(super) fn gumbel_of(word: u32) -> f32 {
    const BELOW_ONE: f32 = 1.0 - f32::EPSILON / 2.0;
    let u = ((word as f32 + 0.5) * (1.0 / 4_294_967_296.0)).min(BELOW_ONE);
    -(-(-u).ln_1p()).ln()
}

/// An upper bound of [`gumbel_of`] for the same word, without a logarithm: `−ln(1 − u) ≥ u ≥ 2^−(z+1)` for a word with *z*
/// leading zeros.
pub(super) fn gumbel_bound(word: u32) -> f32 {
    (word.leading_zeros() + 1) as f32 * std::f32::consts::LN_2 + 1e-3
}

/// The Gumbel noise of one token id at one position.
pub fn gumbel(seed: u64, position: u32, token: u32) -> f32 {
    gumbel_of(words(seed, position, token / 4)[token as usize % 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The authors' known answers (Random123, kat_vectors).
    #[test]
    fn philox_known_answers() {
        for (counter, key, expected) in [
            ([0; 4], [0; 2], [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]),
            (
                [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344],
                [0xA409_3822, 0x299F_31D0],
                [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1],
            ),
        ] {
            assert_eq!(philox4x32(counter, key), expected);
        }
    }

    #[test]
    fn gumbel_is_finite_and_bounded() {
        let edges = (0..32).flat_map(|bit| [1_u32 << bit, (1_u32 << bit) - 1, u32::MAX >> bit, !(1 << bit)]);
        let some = (0..100_000).flat_map(|i| words(3, 5, i));
        for word in edges.chain(some) {
            let g = gumbel_of(word);
            assert!(g.is_finite() && g <= gumbel_bound(word), "{word:#x}: {g}, bound {}", gumbel_bound(word));
        }
        assert!(gumbel_of(0) > 22.0 && gumbel_of(u32::MAX) < -2.8);
    }

    /// Mean γ, variance π²/6.
    #[test]
    fn gumbel_has_the_moments_of_its_distribution() {
        let draws: Vec<f64> = (0..400_000).map(|i| f64::from(gumbel(11, i / 1000, i % 1000))).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        assert!((mean - 0.577_215_66).abs() < 0.01, "{mean}");
        assert!((variance - 1.644_934).abs() < 0.02, "{variance}");
    }
}
