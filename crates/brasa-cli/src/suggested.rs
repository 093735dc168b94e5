//! Values that shells suggest for options that also take other values.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};

/// Names of devices. `cuda:N` names one of several GPUs.
pub const DEVICES: &[&str] = &["auto", "cpu", "cuda"];

/// Names of instruction sets.
pub const INSTRUCTION_SETS: &[&str] =
    &["scalar", "avx2", "avxvnni", "avx512", "amx", "avx512bf16", "amx-bf16", "neon", "dotprod", "i8mm"];

/// Types of `brasa quantize`.
pub const TYPES: &[&str] = &[
    "F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1",
    "Q4_0", "IQ4_NL", "IQ4_XS", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "Q2_K_S",
];

/// A parser that accepts any text and suggests some values.
#[derive(Clone)]
pub struct Suggested(pub &'static [&'static str]);

impl TypedValueParser for Suggested {
    type Value = String;

    fn parse_ref(&self, command: &Command, argument: Option<&Arg>, value: &OsStr) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(|&name| PossibleValue::new(name))))
    }
}

#[cfg(test)]
mod tests {
    use brasa_convert::Recipe;

    use super::TYPES;

    #[test]
    fn types_are_those_of_quantize() {
        assert_eq!(TYPES.join(", "), Recipe::names());
    }
}
