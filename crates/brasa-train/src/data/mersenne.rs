//! Random orders of NumPy's legacy generator.

const WORDS: usize = 624;
const AHEAD: usize = 397;

/// The generator MT19937 (Matsumoto & Nishimura 1998), with the seeds and the permutations of `numpy.random`.
#[derive(Clone, Debug)]
pub(super) struct Mersenne {
    words: [u32; WORDS],
    next: usize,
}

impl Mersenne {
    /// The generator after `numpy.random.seed(seed)`.
    pub fn new(seed: u32) -> Self {
        let mut words = [seed; WORDS];
        for at in 1..WORDS {
            let before = words[at - 1];
            words[at] = 1_812_433_253_u32.wrapping_mul(before ^ (before >> 30)).wrapping_add(at as u32);
        }
        Self { words, next: WORDS }
    }

    fn bits(&mut self) -> u32 {
        if self.next == WORDS {
            for at in 0..WORDS {
                let joined = (self.words[at] & 1 << 31) | (self.words[(at + 1) % WORDS] & !(1 << 31));
                let twisted = (joined >> 1) ^ if joined & 1 == 1 { 0x9908_B0DF } else { 0 };
                self.words[at] = self.words[(at + AHEAD) % WORDS] ^ twisted;
            }
            self.next = 0;
        }
        let mut y = self.words[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9D2C_5680;
        y ^= (y << 15) & 0xEFC6_0000;
        y ^ (y >> 18)
    }

    /// A number from 0 to `most`, all equally likely. Draws bits until their lowest ones are at most `most`.
    fn up_to(&mut self, most: u32) -> u32 {
        let mask = u32::MAX.checked_shr(most.leading_zeros()).unwrap_or(0);
        loop {
            let drawn = self.bits() & mask;
            if drawn <= most {
                return drawn;
            }
        }
    }

    /// The result of `numpy.random.permutation(count)`.
    pub fn permutation(&mut self, count: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count as u32).collect();
        for last in (1..count).rev() {
            order.swap(last, self.up_to(last as u32) as usize);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are those of `numpy.random.seed(5)`, then `permutation(7)` and `permutation(3)`, and of seed 0 with `permutation(1300)`.
    #[test]
    fn permutations_are_those_of_numpy() {
        let mut random = Mersenne::new(5);
        assert_eq!(random.permutation(7), [6, 2, 4, 1, 0, 5, 3]);
        assert_eq!(random.permutation(3), [0, 1, 2]);
        assert_eq!((random.permutation(1), random.permutation(0)), (vec![0], vec![]));
        let long = Mersenne::new(0).permutation(1300);
        assert_eq!((&long[..4], &long[1296..]), (&[579, 1014, 759, 446][..], &[835, 1216, 559, 684][..]));
    }
}
