//! What this processor can do, as values that prove it.
//!
//! A proof type can only be made by detection, so a kernel that takes one may use its instructions
//! without asking again. [`Isa`] is the choice made once per program: a width of vectors, and in its proof the
//! extensions that may be used.
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
//! | `avx512bf16`, `amx-bf16` | many rows times F16 and BF16 weights, and their attention, as products of bf16 |
//! | `amx-emulated`, `amx-bf16-emulated` | tiles in software, for tests |
//!
//! All but the last two lines compute the same products, bit for bit, and the strongest of them is the default.
//! Products of bf16 are rounded more coarsely than those of a few rows, so that a row's result depends on how many
//! others are in the step: they are only used where they are [asked for](Isa::with_bf16).

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
    /// The proof, where the CPU has the instructions; without extensions.
    pub fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Self { vnni: None })
    }

    /// The same with AVX-VNNI, where the CPU has it.
    pub fn with_vnni(self) -> Option<Self> {
        is_x86_feature_detected!("avxvnni").then_some(Self { vnni: Some(AvxVnni(())) })
    }

    /// Int8 dot products, where they may be used.
    pub const fn vnni(self) -> Option<AvxVnni> {
        self.vnni
    }
}

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    /// The proof, where the CPU has the instructions; without extensions.
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

    /// The same with products of bf16, where the CPU has them.
    pub fn with_bf16(self) -> Option<Self> {
        is_x86_feature_detected!("avx512bf16").then_some(Self { bf16: Some(Avx512Bf16(())), ..self })
    }

    /// The same without products of bf16.
    #[must_use]
    pub const fn without_bf16(self) -> Self {
        Self { bf16: None, ..self }
    }

    /// The same with products of tiles, where the CPU has them and the system lets this process use them.
    pub fn with_amx(self) -> Option<Self> {
        Some(Self { tiles: Some(Tiles::Amx(Amx::detect()?)), ..self })
    }

    /// The same with products of tiles in software: slow, for tests where there is no AMX.
    #[must_use]
    pub const fn with_emulated_tiles(self) -> Self {
        Self { tiles: Some(Tiles::Emulated), ..self }
    }

    /// Products of bf16, where they may be used.
    pub const fn bf16(self) -> Option<Avx512Bf16> {
        self.bf16
    }

    /// Products of tiles, where they may be used.
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
    /// The proof, where the CPU has the instructions and stores numbers as packed weights do.
    pub fn detect() -> Option<Self> {
        let has = cfg!(target_endian = "little") && std::arch::is_aarch64_feature_detected!("neon");
        has.then_some(Self(()))
    }

    /// The stronger proof, where the CPU also multiplies and adds four int8 at once (`sdot`).
    pub fn dotprod(self) -> Option<Dotprod> {
        std::arch::is_aarch64_feature_detected!("dotprod").then_some(Dotprod(self))
    }
}

#[cfg(target_arch = "aarch64")]
impl Dotprod {
    /// What this proof includes.
    pub const fn neon(self) -> Neon {
        self.0
    }

    /// The stronger proof, where the CPU also multiplies 2 × 8 by 8 × 2 int8 at once (`smmla`).
    pub fn i8mm(self) -> Option<I8mm> {
        std::arch::is_aarch64_feature_detected!("i8mm").then_some(I8mm(self))
    }
}

#[cfg(target_arch = "aarch64")]
impl I8mm {
    /// What this proof includes.
    pub const fn dotprod(self) -> Dotprod {
        self.0
    }

    /// What this proof includes.
    pub const fn neon(self) -> Neon {
        self.0.neon()
    }
}

/// The instruction set that a program's kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Every name, whether or not this machine has it.
    const NAMES: [&str; 12] = [
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

    /// Every instruction set that this machine has, weakest first; all multiply alike, and none in software.
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

    /// The same with tiles in software, where this machine has the vectors for what is done around them.
    pub fn with_emulated_tiles(self) -> Option<Self> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(proof) => Some(Self::Avx512(proof.with_emulated_tiles())),
            _ => None,
        }
    }

    /// The same that multiplies many rows as bf16 with F16 and BF16 weights, and in attention with keys and values, where
    /// this machine can.
    ///
    /// Two to ten times as fast, and within 1e-2 of f32. A row's result then depends on whether it is computed with
    /// many others or with few, which breaks the equality of a batch and its parts.
    pub fn with_bf16(self) -> Option<Self> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(proof) => proof.with_bf16().map(Self::Avx512),
            _ => None,
        }
    }

    /// True where many rows are multiplied in tiles.
    pub const fn has_tiles(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(proof) => proof.tiles().is_some(),
            _ => false,
        }
    }

    /// True where many rows may be rounded to bf16.
    pub const fn has_bf16(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(proof) => proof.bf16().is_some(),
            _ => false,
        }
    }

    /// The same that computes every row as if it were alone.
    #[must_use]
    pub const fn without_bf16(self) -> Self {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(proof) => Self::Avx512(proof.without_bf16()),
            other => other,
        }
    }

    /// The strongest of [`available`](Self::available), or the one that `BRASA_ISA` names.
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
        let choices = Self::choices();
        let emulated = choices.iter().filter_map(|isa| isa.with_emulated_tiles());
        let mut named = choices.iter().copied().chain(emulated).filter(|isa| isa.name() == name);
        named.next().ok_or_else(|| Error::IsaUnavailable {
            name: name.into(),
            available: choices.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", "),
        })
    }

    /// What [`available`](Self::available) lists, and which of that there is [with bf16](Self::with_bf16).
    pub fn choices() -> Vec<Self> {
        let mut choices = Self::available();
        let bf16: Vec<_> = choices.iter().filter_map(|isa| isa.with_bf16()).collect();
        choices.extend(bf16);
        choices
    }

    /// The name, as `BRASA_ISA` takes it.
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
