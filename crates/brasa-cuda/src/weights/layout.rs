//! Sizes of weights in fragment order, as `kernels/hopper/layout.cuh` defines them.

use brasa_formats::StorageFormat;

/// Outputs of a tile.
pub(crate) const TILE_OUTPUTS: usize = 16;
/// Inputs of a sub.
const SUB_INPUTS: usize = 64;

/// How a format lies in fragment order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragments {
    header_bytes: usize,
    sub_bytes: usize,
    unit_subs: usize,
}

impl Fragments {
    /// The layout of `format`; `None` for formats that stay as they are stored.
    pub(crate) fn of(format: StorageFormat) -> Option<Self> {
        let (header_bytes, sub_bytes, unit_subs) = match format {
            StorageFormat::F16 | StorageFormat::BF16 => (0, 2048, 1),
            StorageFormat::Q8_0 => (0, 1088, 1),
            StorageFormat::Q4_0 => (0, 576, 1),
            StorageFormat::Q4_K => (64, 576, 4),
            StorageFormat::Q6_K => (32, 832, 4),
            _ => return None,
        };
        Some(Self { header_bytes, sub_bytes, unit_subs })
    }

    /// Subs of a tile with rows of `row_len`.
    pub(crate) fn subs(self, row_len: usize) -> usize {
        row_len.div_ceil(SUB_INPUTS).next_multiple_of(self.unit_subs)
    }

    /// Bytes of a tile of `subs` subs.
    pub(crate) fn tile_bytes(self, subs: usize) -> usize {
        subs / self.unit_subs * (self.header_bytes + self.unit_subs * self.sub_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernels() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/hopper/layout.cuh");
        let header = std::fs::read_to_string(path).expect("the header");
        for format in StorageFormat::GGUF {
            let Some(Fragments { header_bytes, sub_bytes, unit_subs }) = Fragments::of(format) else {
                continue;
            };
            let line =
                header.lines().find(|line| line.contains(&format!("case {format}:"))).expect("its line");
            assert!(
                line.contains(&format!("return {{{header_bytes}, {sub_bytes}, {unit_subs}}};")),
                "{line}"
            );
        }
    }
}
