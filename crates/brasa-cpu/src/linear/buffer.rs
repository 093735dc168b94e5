//! Memory for repacked weights: aligned to cache lines, and on large pages where it is large, since a
//! decode step streams through all of it.

use memmap2::MmapMut;

use crate::Error;

/// From this size on memory is mapped on its own.
const MAPPED_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line([u8; 64]);

/// Zero-initialised bytes on a 64-byte boundary.
pub(super) enum Buffer {
    Small(Vec<Line>),
    Mapped(MmapMut),
}

impl Buffer {
    pub fn new(len_bytes: usize) -> Result<Self, Error> {
        if len_bytes < MAPPED_BYTES {
            return Ok(Self::Small(vec![Line([0; 64]); len_bytes.div_ceil(64)]));
        }
        let map = MmapMut::map_anon(len_bytes)
            .map_err(|error| Error::OutOfMemory { bytes: len_bytes, reason: error.to_string() })?;
        // Ordinary pages work as well, only slower.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self::Mapped(map))
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Small(lines) => bytemuck::cast_slice(lines),
            Self::Mapped(map) => map,
        }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Small(lines) => bytemuck::cast_slice_mut(lines),
            Self::Mapped(map) => map,
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes().len())
    }
}
