//! Which weights leave the way to activations.

use super::program::{EXPERTS, Instr, LINEAR, PAIRED, SLOT_BYTES, YIELDS};

/// A multiprocessor's share of a layer's weights for which memory is not waited, in bytes (`docs/performance/cuda.md`, runs 25 and 27).
const SMALL_SHARE: u64 = 18 * SLOT_BYTES as u64;

/// Says of which weights a slot less is on its way while activations are waited for: those of a byte and more, unless they are many. Shorter ones
/// wait for activations all the time, and with a slot less too few come in between.
pub(super) fn mark(instrs: &mut [Instr]) {
    let share = |instr: &Instr| {
        let tiles = u64::from(instr.tiles_each) + u64::from(instr.tiles_odd > 0);
        let pair = if instr.op == EXPERTS && instr.flags & PAIRED != 0 { 2 } else { 1 };
        pair * tiles * u64::from(instr.tile_bytes)
    };
    for instr in instrs.iter_mut().filter(|instr| matches!(instr.op, LINEAR | EXPERTS)) {
        // Bytes of 16 outputs and 64 inputs.
        if instr.tile_bytes >= instr.subs * 16 * 64 && share(instr) <= SMALL_SHARE {
            instr.flags |= YIELDS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::encode::EMPTY;
    use super::super::program::DRAW;
    use super::*;

    #[test]
    fn weights_yield_unless_they_are_many_or_short() {
        let layer = |bytes_of_share: u32, flags: u32| Instr {
            op: LINEAR,
            flags,
            tiles_each: 8,
            tile_bytes: bytes_of_share / 8,
            subs: 4,
            ..EMPTY
        };
        let yielding = |mut instrs: Vec<Instr>| {
            mark(&mut instrs);
            instrs.iter().map(|instr| instr.flags & YIELDS != 0).collect::<Vec<_>>()
        };
        let (small, large) = (layer(200 << 10, 0), layer(500 << 10, 0));
        let (head, short) = (layer(900 << 10, DRAW), layer(8 * 2048, 0));
        assert_eq!(yielding(vec![small, large, head, short]), [true, false, false, false]);
    }
}
