//! The file types that llama.cpp named: the main storage format of each, and its mix.

use std::fmt;

use brasa_formats::StorageFormat;

use crate::ConvertError;

/// A type of quantised file: a storage format, or a mix of several. Names and mixes are llama.cpp's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
#[expect(missing_docs, reason = "the names say it")]
#[non_exhaustive]
pub enum Recipe {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q2_K,
    Q2_K_S,
    Q3_K_S,
    Q3_K_M,
    Q3_K_L,
    Q4_K_S,
    Q4_K_M,
    Q5_K_S,
    Q5_K_M,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
}

impl Recipe {
    /// Every recipe, largest files first.
    pub const ALL: [Self; 20] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q6_K,
        Self::Q5_K_M,
        Self::Q5_K_S,
        Self::Q5_1,
        Self::Q5_0,
        Self::Q4_K_M,
        Self::Q4_K_S,
        Self::Q4_1,
        Self::Q4_0,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::Q3_K_L,
        Self::Q3_K_M,
        Self::Q3_K_S,
        Self::Q2_K,
        Self::Q2_K_S,
    ];

    /// The recipe of this name, in any case. `Q3_K`, `Q4_K` and `Q5_K` mean their `_M` mixes.
    ///
    /// # Errors
    ///
    /// [`ConvertError::UnknownRecipe`], listing all names.
    pub fn parse(name: &str) -> Result<Self, ConvertError> {
        let upper = name.to_uppercase();
        let upper = match upper.as_str() {
            "Q3_K" | "Q4_K" | "Q5_K" => format!("{upper}_M"),
            _ => upper,
        };
        let found = Self::ALL.into_iter().find(|recipe| recipe.to_string() == upper);
        found.ok_or_else(|| ConvertError::UnknownRecipe { name: name.to_owned(), known: Self::names() })
    }

    /// The names of all recipes, separated by commas.
    pub fn names() -> String {
        Self::ALL.map(|recipe| recipe.to_string()).join(", ")
    }

    /// The storage format of most tensors.
    pub const fn main_format(self) -> StorageFormat {
        match self {
            Self::F32 => StorageFormat::F32,
            Self::F16 => StorageFormat::F16,
            Self::BF16 => StorageFormat::BF16,
            Self::Q8_0 => StorageFormat::Q8_0,
            Self::Q4_0 => StorageFormat::Q4_0,
            Self::Q4_1 => StorageFormat::Q4_1,
            Self::Q5_0 => StorageFormat::Q5_0,
            Self::Q5_1 => StorageFormat::Q5_1,
            Self::Q2_K | Self::Q2_K_S => StorageFormat::Q2_K,
            Self::Q3_K_S | Self::Q3_K_M | Self::Q3_K_L => StorageFormat::Q3_K,
            Self::Q4_K_S | Self::Q4_K_M => StorageFormat::Q4_K,
            Self::Q5_K_S | Self::Q5_K_M => StorageFormat::Q5_K,
            Self::Q6_K => StorageFormat::Q6_K,
            Self::IQ4_NL => StorageFormat::IQ4_NL,
            Self::IQ4_XS => StorageFormat::IQ4_XS,
        }
    }

    /// The value of `general.file_type`.
    pub const fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q8_0 => 7,
            Self::Q5_0 => 8,
            Self::Q5_1 => 9,
            Self::Q2_K => 10,
            Self::Q3_K_S => 11,
            Self::Q3_K_M => 12,
            Self::Q3_K_L => 13,
            Self::Q4_K_S => 14,
            Self::Q4_K_M => 15,
            Self::Q5_K_S => 16,
            Self::Q5_K_M => 17,
            Self::Q6_K => 18,
            Self::Q2_K_S => 21,
            Self::IQ4_NL => 25,
            Self::IQ4_XS => 30,
            Self::BF16 => 32,
        }
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_any_case() {
        for recipe in Recipe::ALL {
            assert_eq!(Recipe::parse(&recipe.to_string().to_lowercase()).unwrap(), recipe);
        }
        assert_eq!(Recipe::parse("q4_k").unwrap(), Recipe::Q4_K_M);
        let message = Recipe::parse("Q9").unwrap_err().to_string();
        assert!(message.contains("unknown type Q9") && message.contains("IQ4_XS"), "{message}");
    }
}
