//! Memory for repacked weights.
//!
//! A decode step streams through every weight once. On ordinary pages the address translation of that stream
//! alone costs a third of the bandwidth, so weights lie one behind the other in large regions that the system
//! backs with large pages, aligned to cache lines.
#![expect(unsafe_code, reason = "disjoint parts of one region are filled and read independently")]

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::MmapMut;

use super::layout::LANES;
use crate::shared::SharedSlice;
use crate::{Error, Team};

/// The size of a region is a multiple of this: a few large pages.
const REGION_BYTES: usize = 16 << 20;
/// The size of a region for one weight is a multiple of this: no large page, of which a small weight would take all.
const OWN_REGION_BYTES: usize = 4096;
const ALIGNMENT: usize = 64;
/// Strips that a packing thread takes at a time: a few dozen microseconds of work.
const TAKEN_STRIPS: usize = 8;

/// Packs weights, with the threads of a team, into regions that they share.
///
/// A region lives as long as the last weight in it; use one packer for weights that live and die together.
#[derive(Debug)]
pub struct Packer<'a> {
    team: &'a Team,
    /// The size of a region is a multiple of this.
    region_bytes: usize,
    region: Mutex<Option<Region>>,
    /// True if buffers are empty and nothing is packed.
    measures: bool,
}

/// A region and how much of it is taken.
#[derive(Debug)]
struct Region {
    memory: Arc<Memory>,
    taken_bytes: usize,
}

/// A mapping that is only reached through [`Buffer`]s.
#[derive(Debug)]
struct Memory {
    start: *mut u8,
    len_bytes: usize,
    /// Keeps the memory mapped.
    _map: MmapMut,
}

// SAFETY: the pointer is to memory that the mapping owns; access goes through disjoint buffers.
unsafe impl Send for Memory {}
// SAFETY: access through a shared reference only reads.
unsafe impl Sync for Memory {}

/// Zero-initialised bytes on a 64-byte boundary, the only way to its part of a region.
pub(super) struct Buffer {
    memory: Arc<Memory>,
    offset_bytes: usize,
    len_bytes: usize,
}

impl<'a> Packer<'a> {
    /// Packs with the threads of `team`.
    pub fn new(team: &'a Team) -> Self {
        Self { team, region_bytes: REGION_BYTES, region: Mutex::new(None), measures: false }
    }

    /// A packer that only measures: its weights report the sizes and classes that packing would give, and hold no bytes.
    pub fn measuring(team: &'a Team) -> Self {
        Self { region_bytes: OWN_REGION_BYTES, measures: true, ..Self::new(team) }
    }

    /// Packs a single weight, without spare memory.
    pub fn of_one_weight(team: &'a Team) -> Self {
        Self { region_bytes: OWN_REGION_BYTES, ..Self::new(team) }
    }

    /// The next bytes of the current region, or of a fresh one if they do not fit.
    fn buffer(&self, len_bytes: usize) -> Result<Buffer, Error> {
        let taken = len_bytes.next_multiple_of(ALIGNMENT);
        let mut region = self.region.lock().unwrap_or_else(PoisonError::into_inner);
        let fits =
            region.as_ref().is_some_and(|region| region.memory.len_bytes - region.taken_bytes >= taken);
        if !fits {
            *region = Some(Region {
                memory: Arc::new(Memory::new(taken.max(1).next_multiple_of(self.region_bytes))?),
                taken_bytes: 0,
            });
        }
        let Some(region) = region.as_mut() else { unreachable!("a region was just made") };
        let offset_bytes = region.taken_bytes;
        region.taken_bytes += taken;
        Ok(Buffer { memory: Arc::clone(&region.memory), offset_bytes, len_bytes })
    }

    /// Packs all strips of `n` outputs with all threads. `pack` gets the rows of a strip and its bytes, which are zero.
    pub(super) fn strips(
        &self,
        n: usize,
        strip_bytes: usize,
        pack: impl Fn(Range<usize>, &mut [u8]) + Sync,
    ) -> Result<Buffer, Error> {
        let strips = n.div_ceil(LANES);
        if self.measures {
            return self.buffer(0);
        }
        let mut buffer = self.buffer(strips * strip_bytes)?;
        let bytes = SharedSlice::new(buffer.bytes_mut());
        let threads = self.team.threads();
        let shares: Vec<Range<usize>> =
            (0..threads).map(|thread| Team::split(strips, 1, threads, thread)).collect();
        let taken: Vec<AtomicUsize> = shares.iter().map(|share| AtomicUsize::new(share.start)).collect();
        self.team.run(|thread, _| {
            // Its own share first, so that memory lies near the thread that will read it; then what others have left, since
            // one of them may share its processor with the tokenizer, which is made meanwhile.
            for victim in (0..threads).map(|step| (thread + step) % threads) {
                loop {
                    let first = taken[victim].fetch_add(TAKEN_STRIPS, Ordering::Relaxed);
                    let end = shares[victim].end.min(first + TAKEN_STRIPS);
                    if first >= end {
                        break;
                    }
                    for strip in first..end {
                        // SAFETY: every strip is taken once.
                        let bytes = unsafe { bytes.get_mut(strip * strip_bytes..(strip + 1) * strip_bytes) };
                        pack(strip * LANES..n.min((strip + 1) * LANES), bytes);
                    }
                }
            }
        })?;
        Ok(buffer)
    }
}

impl Memory {
    fn new(len_bytes: usize) -> Result<Self, Error> {
        let mut map = MmapMut::map_anon(len_bytes)
            .map_err(|error| Error::OutOfMemory { bytes: len_bytes, reason: error.to_string() })?;
        // Ordinary pages work as well, only slower.
        #[cfg(target_os = "linux")]
        if len_bytes >= REGION_BYTES {
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Self { start: map.as_mut_ptr(), len_bytes, _map: map })
    }
}

impl Buffer {
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: this buffer's part of the region is mapped, initialised, and no other buffer's.
        unsafe { std::slice::from_raw_parts(self.memory.start.add(self.offset_bytes), self.len_bytes) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: this buffer's part of the region is mapped, no other buffer's, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start.add(self.offset_bytes), self.len_bytes) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_disjoint_aligned_and_zero() {
        let team = Team::new(1).unwrap();
        let packer = Packer::new(&team);
        let mut buffers: Vec<_> = [1, 64, 0, 65, REGION_BYTES, 7, REGION_BYTES - 64, 64]
            .map(|len| packer.buffer(len).unwrap())
            .into();
        drop(packer);
        for (index, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.bytes().iter().all(|byte| *byte == 0));
            assert_eq!(buffer.bytes().as_ptr().addr() % ALIGNMENT, 0);
            buffer.bytes_mut().fill(index as u8 + 1);
        }
        for (index, buffer) in buffers.iter().enumerate() {
            assert!(buffer.bytes().iter().all(|byte| *byte == index as u8 + 1));
        }
    }
}
