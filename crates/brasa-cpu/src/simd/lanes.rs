//! The operations on sixteen lanes that every instruction set has, and functions made of them.
#![allow(clippy::excessive_precision, reason = "constants as published")]

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// A proof that this processor has some vector instructions, and operations made of them.
pub(crate) trait Simd: Copy {
    /// A vector of sixteen f32.
    type V: Copy;
    /// Number of vectors that fit in registers as sums at the same time.
    const ACCUMULATORS: usize;

    /// A vector with `value` in every lane.
    fn splat(self, value: f32) -> Self::V;
    /// Loads sixteen f32.
    fn load(self, from: &[f32; LANES]) -> Self::V;
    /// Stores sixteen f32.
    fn store(self, v: Self::V, to: &mut [f32; LANES]);
    /// Loads sixteen IEEE halves, given as their bits.
    fn load_f16(self, from: &[u16; LANES]) -> Self::V;
    /// Loads sixteen bf16, given as their bits.
    fn load_bf16(self, from: &[u16; LANES]) -> Self::V;
    /// Loads sixteen int8.
    fn load_i8(self, from: &[i8; LANES]) -> Self::V;
    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a − b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a > b ? a : b`: `b` if either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a < b ? a : b`: `b` if either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b + c`, rounded once if the processor has fused multiply–add.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a < b ? x : y` in each lane.
    fn less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// Rounds to the nearest integer, ties to even. Magnitudes must be below 2²².
    fn round(self, v: Self::V) -> Self::V;
    /// `2^v` for integers in −126..=127.
    fn exp2_integer(self, v: Self::V) -> Self::V;

    /// Makes columns of rows.
    #[inline(always)]
    fn transpose(self, from: &[&[f32; LANES]; LANES], to: &mut [[f32; LANES]; LANES]) {
        for (row, from) in from.iter().enumerate() {
            for (to, &x) in to.iter_mut().zip(*from) {
                to[row] = x;
            }
        }
    }

    /// The sum of all lanes, in one fixed order.
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(v, &mut lanes);
        for width in [8, 4, 2, 1] {
            for lane in 0..width {
                lanes[lane] += lanes[lane + width];
            }
        }
        lanes[0]
    }

    /// The largest lane; lanes must not be NaN.
    #[inline(always)]
    fn largest(self, v: Self::V) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(v, &mut lanes);
        for width in [8, 4, 2, 1] {
            for lane in 0..width {
                let (a, b) = (lanes[lane], lanes[lane + width]);
                lanes[lane] = if a > b { a } else { b };
            }
        }
        lanes[0]
    }

    /// `e^v`, within 2 ulp; 0 below −86.5, infinite above 88.72.
    #[inline(always)]
    fn exp(self, v: Self::V) -> Self::V {
        let x = self.min(self.splat(89.0), self.max(self.splat(-86.5), v));
        let (p, n) = self.exp_parts(x);
        // 2^n in two factors, since n may be 128.
        let half = self.exp2_integer(self.sub(n, self.splat(1.0)));
        let y = self.mul(self.mul(p, half), self.splat(2.0));
        self.less(v, self.splat(-86.5), self.splat(0.0), y)
    }

    /// `e^v` with the bits of [`exp`](Self::exp), for lanes of at most 1, such as the weights of a softmax.
    #[inline(always)]
    fn exp_to_one(self, v: Self::V) -> Self::V {
        let (p, n) = self.exp_parts(self.max(self.splat(-86.5), v));
        self.less(v, self.splat(-86.5), self.splat(0.0), self.mul(p, self.exp2_integer(n)))
    }

    /// Returns p and integers n with `e^x = p · 2^n`, as in Cephes' expf (Moshier 1989).
    #[inline(always)]
    fn exp_parts(self, x: Self::V) -> (Self::V, Self::V) {
        let n = self.round(self.mul(x, self.splat(std::f32::consts::LOG2_E)));
        let r = self.mul_add(n, self.splat(-0.693_359_4), x);
        let r = self.mul_add(n, self.splat(2.121_944_4e-4), r);
        let mut p = self.splat(1.987_569_1e-4);
        for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5] {
            p = self.mul_add(p, r, self.splat(c));
        }
        (self.mul_add(p, self.mul(r, r), self.add(r, self.splat(1.0))), n)
    }

    /// `tanh v`, within 3 ulp.
    #[inline(always)]
    fn tanh(self, v: Self::V) -> Self::V {
        let zero = self.splat(0.0);
        let one = self.splat(1.0);
        let magnitude = self.less(v, zero, self.sub(zero, v), v);
        // Small: Cephes' tanhf polynomial.
        let z = self.mul(v, v);
        let mut p = self.splat(-5.704_988_7e-3);
        for c in [2.063_908_9e-2, -5.373_971_6e-2, 0.133_314_42, -0.333_332_8] {
            p = self.mul_add(p, z, self.splat(c));
        }
        let small = self.mul_add(self.mul(p, z), v, v);
        // Large: (1 − t) / (1 + t), t = e^(−2|v|).
        let t = self.exp(self.mul(magnitude, self.splat(-2.0)));
        let large = self.div(self.sub(one, t), self.add(one, t));
        let large = self.less(v, zero, self.sub(zero, large), large);
        self.less(magnitude, self.splat(0.625), small, large)
    }

    /// `1 / (1 + e^−v)`.
    #[inline(always)]
    fn sigmoid(self, v: Self::V) -> Self::V {
        let one = self.splat(1.0);
        self.div(one, self.add(one, self.exp(self.sub(self.splat(0.0), v))))
    }

    /// `v / (1 + e^−v)`.
    #[inline(always)]
    fn silu(self, v: Self::V) -> Self::V {
        self.div(v, self.add(self.splat(1.0), self.exp(self.sub(self.splat(0.0), v))))
    }

    /// `v/2 · (1 + tanh(√(2/π)·(v + 0.044715·v³)))`, computed as `v · sigmoid(2·…)`, which keeps its precision as tanh nears −1.
    #[inline(always)]
    fn gelu_tanh(self, v: Self::V) -> Self::V {
        let cube = self.mul(self.mul(v, v), self.mul(v, self.splat(0.044_715)));
        let inner = self.mul(self.add(v, cube), self.splat(-2.0 * 0.797_884_6));
        self.div(v, self.add(self.splat(1.0), self.exp(inner)))
    }

    /// `v/2 · (1 + erf(v/√2))`. Erfc is a Chebyshev fit to 1.2e-7 relative (Press et al., Numerical Recipes).
    #[inline(always)]
    fn gelu_erf(self, v: Self::V) -> Self::V {
        let (zero, one) = (self.splat(0.0), self.splat(1.0));
        let x = self.mul(v, self.splat(std::f32::consts::FRAC_1_SQRT_2));
        let z = self.less(x, zero, self.sub(zero, x), x);
        let t = self.div(one, self.mul_add(z, self.splat(0.5), one));
        let mut p = self.splat(0.170_872_77);
        for c in [
            -0.822_152_23,
            1.488_515_87,
            -1.135_203_98,
            0.278_868_07,
            -0.186_288_06,
            0.096_784_18,
            0.374_091_96,
            1.000_023_68,
            -1.265_512_23,
        ] {
            p = self.mul_add(p, t, self.splat(c));
        }
        // Erfc of a magnitude is at most 1.
        let erfc = self.mul(t, self.exp_to_one(self.sub(p, self.mul(z, z))));
        // 1 + erf(x) = erfc(−x).
        let sum = self.less(x, zero, erfc, self.sub(self.splat(2.0), erfc));
        self.mul(self.mul(v, self.splat(0.5)), sum)
    }
}

/// The value of an IEEE half, without branches.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let rest = u32::from(bits & 0x7fff) << 13;
    // Exponents are rebased by a multiplication, which is right for subnormals too; infinities and NaN keep all bits set.
    let value = f32::from_bits(rest) * f32::from_bits(0x7780_0000);
    let special = if rest >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    f32::from_bits(value.to_bits() | special | sign)
}
