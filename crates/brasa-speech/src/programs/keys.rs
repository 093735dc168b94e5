//! The keys of a window's memory, read out of its pages.

use brasa_graph::GroupId;
use brasa_graph::device::{KvPool, KvType};
use brasa_graph::page::PageLayout;
use brasa_graph::step::{PAGE_POSITIONS, PageId};
use half::f16;

use crate::Result;

/// Keys of all layers of a memory.
pub(super) struct Keys {
    /// `[caches, heads, positions, head_dim]`.
    values: Vec<f32>,
    heads: usize,
    /// Elements of a head's keys.
    head_elements: usize,
}

impl Keys {
    /// The keys of a head, `[positions, head_dim]`.
    pub fn head(&self, layer: usize, head: usize) -> &[f32] {
        let start = (layer * self.heads + head) * self.head_elements;
        &self.values[start..start + self.head_elements]
    }
}

/// Reads the keys of the first `positions` positions, of type f32 or f16.
pub(super) fn memory_keys(
    pool: &dyn KvPool,
    group: GroupId,
    pages: &[PageId],
    positions: usize,
) -> Result<Keys> {
    let layout = PageLayout::of(pool.spec(), group)?;
    let width = layout.key_dim;
    let head_elements = positions * width;
    let mut values = vec![0.0; layout.caches * layout.kv_heads * head_elements];
    let mut bytes = vec![0; layout.size_bytes()];
    for (number, &page) in pages.iter().enumerate() {
        pool.read_page(group, page, &mut bytes)?;
        let first = number * PAGE_POSITIONS;
        let count = positions.saturating_sub(first).min(PAGE_POSITIONS) * width;
        for block in 0..layout.caches * layout.kv_heads {
            let start = layout.keys_offset(block / layout.kv_heads, block % layout.kv_heads);
            let bytes = &bytes[start..start + layout.keys().size_bytes()];
            let start = block * head_elements + first * width;
            let to = &mut values[start..start + count];
            match layout.dtype {
                KvType::F32 => {
                    for (to, bytes) in to.iter_mut().zip(bytes.as_chunks::<4>().0) {
                        *to = f32::from_le_bytes(*bytes);
                    }
                }
                _ => {
                    for (to, bytes) in to.iter_mut().zip(bytes.as_chunks::<2>().0) {
                        *to = f16::from_le_bytes(*bytes).to_f32();
                    }
                }
            }
        }
    }
    Ok(Keys { values, heads: layout.kv_heads, head_elements })
}
