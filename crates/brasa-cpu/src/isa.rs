//! What this processor can do, as values that prove it.
//!
//! A proof type can only be made by detection, so a kernel that takes one may use its instructions
//! without asking again. [`Isa`] is the choice made once per program.

use crate::Error;

/// Environment variable that forces an instruction set, for tests and comparisons.
pub const ISA_VARIABLE: &str = "BRASA_ISA";

/// Proof that this CPU has AVX2, FMA and F16C; only [`Avx2::detect`] makes one.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

/// Proof that this CPU has AVX-512 F, BW, DQ, VL, VNNI and VBMI; only [`Avx512::detect`] makes one.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512(());

/// Proof that this CPU has what [`Avx512`] proves, and AVX-512 BF16.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512Bf16(Avx512);

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// The proof, where the CPU has the instructions.
    pub fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    /// The proof, where the CPU has the instructions.
    pub fn detect() -> Option<Self> {
        Avx2::detect()?;
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512vbmi");
        has.then_some(Self(()))
    }

    /// The stronger proof, where the CPU also multiplies bf16 pairs.
    pub fn bf16(self) -> Option<Avx512Bf16> {
        is_x86_feature_detected!("avx512bf16").then_some(Avx512Bf16(self))
    }
}

#[cfg(target_arch = "x86_64")]
impl Avx512Bf16 {
    /// What this proof includes.
    pub const fn avx512(self) -> Avx512 {
        self.0
    }
}

/// The instruction set that a program's kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust: every machine, and the oracle of the others.
    Scalar,
    /// 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// 512-bit vectors with int8 dot products.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Isa {
    /// Every name, weakest first, whether or not this machine has it.
    const NAMES: [&str; 3] = ["scalar", "avx2", "avx512"];

    /// Every instruction set that this machine has, weakest first.
    pub fn available() -> Vec<Self> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "nothing to add"))]
        let mut all = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(Avx2::detect().map(Self::Avx2));
            all.extend(Avx512::detect().map(Self::Avx512));
        }
        all
    }

    /// The strongest instruction set, or the one that `BRASA_ISA` names.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownIsa`] and [`Error::IsaUnavailable`], where the variable asks for what cannot be.
    pub fn detect() -> Result<Self, Error> {
        match std::env::var(ISA_VARIABLE) {
            Ok(name) if !name.is_empty() => Self::named(&name),
            _ => Ok(*Self::available().last().unwrap_or(&Self::Scalar)),
        }
    }

    /// The instruction set of this name.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownIsa`]: no such name; [`Error::IsaUnavailable`]: not on this machine.
    pub fn named(name: &str) -> Result<Self, Error> {
        if !Self::NAMES.contains(&name) {
            return Err(Error::UnknownIsa { name: name.into(), known: Self::NAMES.join(", ") });
        }
        let available = Self::available();
        available.iter().copied().find(|isa| isa.name() == name).ok_or_else(|| Error::IsaUnavailable {
            name: name.into(),
            available: available.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", "),
        })
    }

    /// The name, as `BRASA_ISA` takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_available_set_is_found_by_its_name() {
        for isa in Isa::available() {
            assert_eq!(Isa::named(isa.name()), Ok(isa));
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = Isa::named("mmx").unwrap_err().to_string();
        assert_eq!(error, "unknown instruction set `mmx`, expected one of scalar, avx2, avx512");
    }
}
