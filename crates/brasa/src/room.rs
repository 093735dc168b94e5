//! Number of texts that a model serves at once on a device, and memory for their keys and values.

use brasa_engine::PageCosts;
use brasa_graph::device::{DeviceInfo, KvPool};

use crate::LoadOptions;

/// Positions of a usual text: prompt and answer together.
const USUAL_TEXT: usize = 2048;

/// Texts that a model serves at once: as many as the options say, or as many as the device's memory holds beside `weight_bytes` with
/// pages for a usual text each, at most as many as the device decodes well at once.
pub(crate) fn sequences(
    options: &LoadOptions,
    device: &DeviceInfo,
    weight_bytes: u64,
    context: usize,
    pool: &dyn KvPool,
) -> usize {
    let text_bytes = PageCosts::new(pool, options.prompt_rows(device)).bytes(USUAL_TEXT.min(context));
    options.max_sequences.unwrap_or_else(|| held(device, weight_bytes, options.cache_bytes, text_bytes))
}

/// Texts of `text_bytes` of keys and values that a device holds beside `weight_bytes`, within `cache_bytes` if that is set.
fn held(device: &DeviceInfo, weight_bytes: u64, cache_bytes: Option<u64>, text_bytes: u64) -> usize {
    let room_bytes = cache_bytes.or_else(|| device.memory_bytes.map(|bytes| cache_room(bytes, weight_bytes)));
    let fit = room_bytes.map_or(u64::MAX, |room_bytes| room_bytes / text_bytes.max(1));
    usize::try_from(fit).unwrap_or(usize::MAX).clamp(1, device.decode_rows.max(1))
}

/// Most bytes of keys and values if the options name none, on a device that holds `other_bytes` beside them.
///
/// Texts that wait in sessions hold pages too: there is room for as many of them as for the `sequences` running ones, as far as the
/// memory goes.
pub(crate) fn page_budget(
    device: &DeviceInfo,
    other_bytes: u64,
    sequences: usize,
    full_text_bytes: u64,
) -> u64 {
    let wanted = full_text_bytes.saturating_mul(sequences.saturating_mul(2) as u64);
    device.memory_bytes.map_or(wanted, |bytes| wanted.min(cache_room(bytes, other_bytes)))
}

/// Most bytes of keys and values on a device of `memory_bytes` beside `weight_bytes`.
pub(crate) fn cache_room(memory_bytes: u64, weight_bytes: u64) -> u64 {
    memory_bytes.saturating_sub(weight_bytes) / 4 * 3
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn device(memory_bytes: Option<u64>, decode_rows: usize) -> DeviceInfo {
        DeviceInfo {
            name: "fake".into(),
            description: String::new(),
            threads: 1,
            memory_bytes,
            prompt_rows: 512,
            decode_rows,
        }
    }

    /// A usual text of an 8B model: 2,048 positions, 32 layers, 8 heads of 128, keys and values in f16.
    const USUAL_8B: u64 = 2048 * 32 * 8 * 128 * 2 * 2;

    #[test]
    fn as_many_texts_as_memory_holds_and_the_device_decodes_well() {
        let cases = [
            // An H200 with an 8B model in F16, in Q4_K with 70B beside it, and GPUs with less memory.
            (Some(139 * GIB), 256, 15 * GIB, USUAL_8B, 256),
            (Some(139 * GIB), 256, 40 * GIB, 5 * USUAL_8B / 2, 118),
            (Some(24 * GIB), 256, 15 * GIB, USUAL_8B, 27),
            (Some(16 * GIB), 256, 15 * GIB, USUAL_8B, 3),
            // Weights that fill the memory, or more: a text has to run nevertheless.
            (Some(16 * GIB), 256, 16 * GIB, USUAL_8B, 1),
            (Some(8 * GIB), 256, 15 * GIB, USUAL_8B, 1),
            // CPUs.
            (Some(64 * GIB), 16, 15 * GIB, USUAL_8B, 16),
            (Some(8 * GIB), 16, 5 * GIB, USUAL_8B, 9),
            // A device that does not tell its memory, and a model without keys and values.
            (None, 16, 15 * GIB, USUAL_8B, 16),
            (Some(16 * GIB), 256, GIB, 0, 256),
        ];
        for (memory, most, weights, text, expected) in cases {
            let found = held(&device(memory, most), weights, None, text);
            assert_eq!(found, expected, "{memory:?} bytes, {weights} of weights, {text} a text");
        }
        assert_eq!(held(&device(Some(139 * GIB), 256), GIB, Some(4 * USUAL_8B), USUAL_8B), 4);
    }

    #[test]
    fn the_page_budget_follows_the_texts() {
        let gpu = device(Some(139 * GIB), 256);
        assert_eq!(page_budget(&gpu, 15 * GIB, 256, GIB), 93 * GIB, "three quarters of what is left");
        assert_eq!(page_budget(&gpu, 15 * GIB, 4, GIB), 8 * GIB, "twice the texts");
        assert_eq!(page_budget(&device(None, 16), 15 * GIB, 16, GIB), 32 * GIB);
        assert_eq!(page_budget(&gpu, 200 * GIB, 256, u64::MAX), 0);
    }
}
