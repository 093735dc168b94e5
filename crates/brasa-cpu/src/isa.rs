//! Instruction sets, as values that prove that this processor has them.
//!
//! A proof type can only be made by detection, so a kernel that takes one may use its instructions without asking
//! again. [`Isa`] is the choice made once per program: a width of vectors, and in its proof the extensions that may
//! be used.
//!
//! | name | what it adds |
//! |---|---|
//! | `scalar` | plain Rust |
//! | `avx2` | 256-bit vectors |
//! | `avxvnni` | int8 dot products in them |
//! | `avx512` | 512-bit vectors with int8 dot products |
//! | `amx` | many int8 rows as products of tiles |
//! | `neon` | 128-bit vectors |
//! | `dotprod` | int8 dot products in them |
//! | `i8mm` | int8 matrix products of many rows |
//! | `avx512bf16` | many rows times F16 and BF16 weights as products of bf16 |
//! | `amx-bf16` | many rows times any weights, and attention, as products of bf16 tiles |
//! | `amx-emulated`, `amx-bf16-emulated` | tiles in software, for tests |
//!
//! All sets above `avx512bf16` compute equal bits. Products of bf16 are rounded more coarsely than the products of a few rows,
//! so a row's result depends on the number of rows in its step. The [default](Isa::detect) is the strongest set, with bf16 if
//! that is much faster. A program whose results must not depend on a row's company runs [without](Isa::without_bf16).

#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

use crate::Error;
#[cfg(target_arch = "x86_64")]
use crate::tiles::{Amx, Tiles};

/// Environment variable that forces an instruction set, for tests and comparisons.
pub const ISA_VARIABLE: &str = "BRASA_ISA";

/// Proof that this CPU has AVX2, FMA and F16C; only [`Avx2::detect`] makes one.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2 {
    vnni: Option<AvxVnni>,
}

/// Proof that this CPU has int8 dot products in 256-bit vectors without AVX-512.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvxVnni(());

/// Proof that this CPU has AVX-512 F, BW, DQ, VL, VNNI and VBMI; only [`Avx512::detect`] makes one.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512 {
    bf16: Option<Avx512Bf16>,
    tiles: Option<Tiles>,
}

/// Proof that this CPU multiplies pairs of bf16 in 512-bit vectors.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512Bf16(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// The proof without extensions, if the CPU has the instructions.
    pub fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Self { vnni: None })
    }

    /// This proof with AVX-VNNI, if the CPU has it.
    pub fn with_vnni(self) -> Option<Self> {
        is_x86_feature_detected!("avxvnni").then_some(Self { vnni: Some(AvxVnni(())) })
    }

    /// The proof of int8 dot products, if they may be used.
    pub const fn vnni(self) -> Option<AvxVnni> {
        self.vnni
    }
}

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    /// The proof without extensions, if the CPU has the instructions.
    pub fn detect() -> Option<Self> {
        Avx2::detect()?;
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512vbmi");
        has.then_some(Self { bf16: None, tiles: None })
    }

    /// This proof with products of bf16, if the CPU has them.
    pub fn with_bf16(self) -> Option<Self> {
        is_x86_feature_detected!("avx512bf16").then_some(Self { bf16: Some(Avx512Bf16(())), ..self })
    }

    /// This proof without products of bf16.
    #[must_use]
    pub const fn without_bf16(self) -> Self {
        Self { bf16: None, ..self }
    }

    /// The proof for tiles beside these vectors, if the CPU has them and the system lets this process use them.
    pub fn with_amx(self) -> Option<Self> {
        Some(Self { tiles: Some(Tiles::Amx(Amx::detect()?)), ..self })
    }

    /// This proof with products of tiles in software: slow, for tests on machines without AMX.
    #[must_use]
    pub const fn with_emulated_tiles(self) -> Self {
        Self { tiles: Some(Tiles::Emulated), ..self }
    }

    /// The proof of products of bf16, if they may be used.
    pub const fn bf16(self) -> Option<Avx512Bf16> {
        self.bf16
    }

    /// The unit that multiplies tiles, if one may be used.
    pub const fn tiles(self) -> Option<Tiles> {
        self.tiles
    }
}

/// Proof that this CPU has NEON; only [`Neon::detect`] makes one.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neon(());

/// Proof that this CPU has NEON's int8 dot products; only [`Neon::dotprod`] makes one.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dotprod(Neon);

/// Proof that this CPU has NEON's int8 dot products and matrix products; only [`Dotprod::i8mm`] makes one.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct I8mm(Dotprod);

#[cfg(target_arch = "aarch64")]
impl Neon {
    /// The proof, if the CPU has the instructions and the byte order of packed weights.
    pub fn detect() -> Option<Self> {
        let has = cfg!(target_endian = "little") && std::arch::is_aarch64_feature_detected!("neon");
        has.then_some(Self(()))
    }

    /// The stronger proof, if the CPU also multiplies and adds four int8 at once (`sdot`).
    pub fn dotprod(self) -> Option<Dotprod> {
        std::arch::is_aarch64_feature_detected!("dotprod").then_some(Dotprod(self))
    }
}

#[cfg(target_arch = "aarch64")]
impl Dotprod {
    /// The proof of NEON that this proof includes.
    pub const fn neon(self) -> Neon {
        self.0
    }

    /// The stronger proof, if the CPU also multiplies 2 × 8 by 8 × 2 int8 at once (`smmla`).
    pub fn i8mm(self) -> Option<I8mm> {
        std::arch::is_aarch64_feature_detected!("i8mm").then_some(I8mm(self))
    }
}

#[cfg(target_arch = "aarch64")]
impl I8mm {
    /// The proof of dot products that this proof includes.
    pub const fn dotprod(self) -> Dotprod {
        self.0
    }

    /// The proof of NEON that this proof includes.
    pub const fn neon(self) -> Neon {
        self.0.neon()
    }
}

/// True if Intel made the processor.
pub(crate) fn is_intel() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        static INTEL: OnceLock<bool> = OnceLock::new();
        *INTEL.get_or_init(|| {
            let leaf = std::arch::x86_64::__cpuid(0);
            let name = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes);
            name.as_flattened() == b"GenuineIntel"
        })
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The instruction set that a program's kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust: every machine, and the oracle of the others.
    Scalar,
    /// 256-bit vectors, and the extensions that the proof holds.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// 512-bit vectors with int8 dot products, and the extensions that the proof holds.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// 128-bit vectors.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
    /// 128-bit vectors with int8 dot products.
    #[cfg(target_arch = "aarch64")]
    Dotprod(Dotprod),
    /// 128-bit vectors with int8 dot and matrix products.
    #[cfg(target_arch = "aarch64")]
    I8mm(I8mm),
}

impl Isa {
    /// Every name, of all architectures, whether or not this machine has it.
    pub const NAMES: [&str; 12] = [
        "scalar",
        "avx2",
        "avxvnni",
        "avx512",
        "amx",
        "avx512bf16",
        "amx-bf16",
        "amx-emulated",
        "amx-bf16-emulated",
        "neon",
        "dotprod",
        "i8mm",
    ];

    /// Every instruction set that this machine has, weakest first. All make equal products; none runs in software.
    pub fn available() -> Vec<Self> {
        #[cfg_attr(
            not(any(target_arch = "x86_64", target_arch = "aarch64")),
            expect(unused_mut, reason = "nothing to add")
        )]
        let mut all = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            let (avx2, avx512) = (Avx2::detect(), Avx512::detect());
            all.extend(avx2.map(Self::Avx2));
            all.extend(avx2.and_then(Avx2::with_vnni).map(Self::Avx2));
            all.extend(avx512.map(Self::Avx512));
            all.extend(avx512.and_then(Avx512::with_amx).map(Self::Avx512));
        }
        #[cfg(target_arch = "aarch64")]
        {
            let neon = Neon::detect();
            let dotprod = neon.and_then(Neon::dotprod);
            all.extend(neon.map(Self::Neon));
            all.extend(dotprod.map(Self::Dotprod));
            all.extend(dotprod.and_then(Dotprod::i8mm).map(Self::I8mm));
        }
        all
    }

    /// The instruction set with tiles in software; `None` if it lacks the vectors for the work around them.
    pub fn with_emulated_tiles(self) -> Option<Self> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(proof) => Some(Self::Avx512(proof.with_emulated_tiles())),
            _ => None,
        }
    }

    /// The instruction set with products of many rows as bf16, if this machine has them. They are used with F16 and BF16 weights,
    /// and on tiles with quantised weights too.
    ///
    /// Such products are two to ten times as fast, and within 1e-2 of f32. A row's result then depends on the number of rows
    /// in its step, so a batch no longer equals its parts.
    pub fn with_bf16(self) -> Option<Self> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(proof) => proof.with_bf16().map(Self::Avx512),
            _ => None,
        }
    }

    /// True if many rows are multiplied in tiles.
    pub const fn has_tiles(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(proof) => proof.tiles().is_some(),
            _ => false,
        }
    }

    /// True if many rows may be rounded to bf16.
    pub const fn has_bf16(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(proof) => proof.bf16().is_some(),
            _ => false,
        }
    }

    /// The instruction set without products of bf16: every row is computed as if it were alone.
    #[must_use]
    pub const fn without_bf16(self) -> Self {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(proof) => Self::Avx512(proof.without_bf16()),
            other => other,
        }
    }

    /// The instruction set that `BRASA_ISA` names, or else the strongest of [`available`](Self::available), [with
    /// bf16](Self::with_bf16) if that is much faster.
    ///
    /// Bf16 is much faster in tiles, and in the vectors of AMD. The vectors of Intel multiply bf16 more slowly than f32 (100
    /// against 141 GFLOP/s on a core of a Sapphire Rapids).
    ///
    /// # Errors
    ///
    /// [`Error::UnknownIsa`]: the variable names no instruction set; [`Error::IsaUnavailable`]: this machine lacks it.
    pub fn detect() -> Result<Self, Error> {
        match std::env::var(ISA_VARIABLE) {
            Ok(name) if !name.is_empty() => Self::named(&name),
            _ => {
                let exact = *Self::available().last().unwrap_or(&Self::Scalar);
                let rounding = exact.with_bf16().filter(|isa| isa.has_tiles() || !is_intel());
                Ok(rounding.unwrap_or(exact))
            }
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
        let choices = Self::choices();
        let emulated = choices.iter().filter_map(|isa| isa.with_emulated_tiles());
        let mut named = choices.iter().copied().chain(emulated).filter(|isa| isa.name() == name);
        named.next().ok_or_else(|| Error::IsaUnavailable {
            name: name.into(),
            available: choices.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", "),
        })
    }

    /// The instruction sets of [`available`](Self::available), then their variants [with bf16](Self::with_bf16).
    pub fn choices() -> Vec<Self> {
        let mut choices = Self::available();
        let bf16: Vec<_> = choices.iter().filter_map(|isa| isa.with_bf16()).collect();
        choices.extend(bf16);
        choices
    }

    /// The name that `BRASA_ISA` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(Avx2 { vnni: None }) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(Avx2 { vnni: Some(_) }) => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(Avx512 { tiles, bf16 }) => match (tiles, bf16) {
                (None, None) => "avx512",
                (None, Some(_)) => "avx512bf16",
                (Some(Tiles::Amx(_)), None) => "amx",
                (Some(Tiles::Amx(_)), Some(_)) => "amx-bf16",
                (Some(Tiles::Emulated), None) => "amx-emulated",
                (Some(Tiles::Emulated), Some(_)) => "amx-bf16-emulated",
            },
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => "neon",
            #[cfg(target_arch = "aarch64")]
            Self::Dotprod(_) => "dotprod",
            #[cfg(target_arch = "aarch64")]
            Self::I8mm(_) => "i8mm",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_can_be_put_in_and_taken_out() {
        for isa in Isa::available() {
            assert_eq!(isa.without_bf16(), isa, "{}", isa.name());
            if let Some(rounding) = isa.with_bf16() {
                assert_ne!(rounding, isa, "{}", isa.name());
                assert_eq!(rounding.without_bf16(), isa, "{}", isa.name());
            }
        }
    }

    #[test]
    fn every_available_set_is_found_by_its_name() {
        let choices = Isa::choices();
        let emulated = choices.iter().filter_map(|isa| isa.with_emulated_tiles());
        for isa in choices.iter().copied().chain(emulated) {
            assert_eq!(Isa::named(isa.name()).map(Isa::name), Ok(isa.name()));
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = Isa::named("mmx").unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown instruction set `mmx`, expected one of scalar, avx2, avxvnni, avx512, amx, avx512bf16, amx-bf16, \
             amx-emulated, amx-bf16-emulated, neon, dotprod, i8mm"
        );
    }
}
