//! From a plan to instructions: addresses, tiles for each multiprocessor, and how far back every operand was written.

use brasa_graph::step::PAGE_POSITIONS;

use super::dealing::{self, Dealer};
use super::plan::{
    Buffer, End, Gate, Plan, PlannedAttention, PlannedLinear, PlannedMixture, PlannedNorm, PlannedOp, Rows,
};
use super::program::{
    ATTENTION, CHOOSE, COMBINE, DRAW, EMBED, EXPERTS, GELU_TANH, INTERLEAVED, Instr, LINEAR, LOGITS, NORM,
    OF_CHOSEN, PAIRED, RESIDUAL, ROUTE, SLOT_BYTES,
};
use super::{QUAD_BYTES, yielding};

/// Outputs of a tile.
const TILE_OUTPUTS: u32 = 16;
/// Bytes of an element of keys and values.
const KV_BYTES: usize = 2;

/// Rows of a weight in fragment order, in one format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tiles {
    pub address: u64,
    /// The format's number in `layout.cuh`.
    pub format: u32,
    /// Rows that are stored: gate and up rows count apart.
    pub rows: u32,
    pub inputs: u32,
    /// Groups of 64 inputs of a tile.
    pub subs: u32,
    /// Bytes of a unit, and groups of 64 inputs in it.
    pub unit_bytes: u32,
    pub unit_subs: u32,
    /// The power of two that elements are multiplied with.
    pub factor: f32,
    /// A power of two that brings the weights into the range of f16.
    pub raise: f32,
}

/// Addresses on the device of the weights, values and caches that a plan names.
pub(super) trait Places {
    /// The tiles of `rows`, in order of their rows; `None` if the device keeps them in another way.
    fn tiles(&self, rows: &Rows) -> Option<Vec<Tiles>>;
    /// A weight that is stored as dense f32: its address, its rows and their length; `None` for one that is not.
    fn floats(&self, weight: usize) -> Option<(u64, u32, u32)>;
    /// The address of a weight, decoded to f32.
    fn decoded(&self, weight: usize) -> Option<u64>;
    /// The address of a buffer.
    fn buffer(&self, buffer: Buffer) -> u64;
    /// The address of the logits.
    fn logits(&self) -> u64;
}

/// The instructions of `plan` for a device of `multiprocessors`; `None` if a weight is kept in a way that the interpreter does
/// not read.
pub(super) fn encode(plan: &Plan, places: &dyn Places, multiprocessors: u32) -> Option<Vec<Instr>> {
    let mut encoder = Encoder {
        places,
        dealer: Dealer::new(multiprocessors, attending(plan)),
        instrs: Vec::new(),
        written: [0; super::plan::BUFFERS],
    };
    for op in &plan.ops {
        match op {
            &PlannedOp::Embed { table, scale } => encoder.embed(table, scale)?,
            PlannedOp::Linear(linear) => {
                let floats = match (linear.end, &linear.weight) {
                    (End::Routed, &Rows::Whole(weight)) => places.floats(weight),
                    _ => None,
                };
                match floats {
                    Some(weight) => encoder.route(linear, weight)?,
                    None => encoder.linear(linear)?,
                }
            }
            PlannedOp::Mixture(mixture) => encoder.mixture(mixture)?,
            PlannedOp::Attention(attention) => encoder.attention(attention)?,
        }
    }
    let mut instrs = encoder.instrs;
    yielding::mark(&mut instrs);
    Some(instrs)
}

struct Encoder<'a> {
    places: &'a dyn Places,
    dealer: Dealer,
    instrs: Vec<Instr>,
    /// The instruction with whose number each buffer was written.
    written: [usize; super::plan::BUFFERS],
}

/// Multiprocessors that attend to few positions: the first of the device, one for each key head.
fn attending(plan: &Plan) -> u32 {
    let heads = plan.ops.iter().filter_map(|op| match op {
        PlannedOp::Attention(attention) => Some(attention.cache.kv_heads as u32),
        _ => None,
    });
    heads.max().unwrap_or(0)
}

impl Encoder<'_> {
    fn embed(&mut self, table: usize, scale: Option<f32>) -> Option<()> {
        let tiles = self.places.tiles(&Rows::Whole(table))?;
        let &[tiles] = &tiles[..] else { return None };
        self.written[Buffer::Hidden as usize] = self.instrs.len();
        self.instrs.push(Instr {
            op: EMBED,
            format: tiles.format,
            weights: tiles.address,
            y: self.places.buffer(Buffer::Hidden),
            subs: tiles.subs,
            inputs: tiles.inputs,
            outputs: tiles.inputs,
            scale: tiles.factor * scale.unwrap_or(1.0),
            ..EMPTY
        });
        Some(())
    }

    fn linear(&mut self, linear: &PlannedLinear) -> Option<()> {
        let parts = self.places.tiles(&linear.weight)?;
        let (to, flags, softcap) = match linear.end {
            End::Projected => (Some(Buffer::Projected), 0, None),
            End::Routed => (Some(Buffer::Routed), 0, None),
            End::Residual => (Some(Buffer::Hidden), RESIDUAL, None),
            End::Gated(gate) => {
                let activation = if gate == Gate::GeluTanh { GELU_TANH } else { 0 };
                (Some(Buffer::Gated), PAIRED | activation, None)
            }
            End::Logits { softcap } => (None, DRAW | LOGITS, softcap),
        };
        // Each multiprocessor leaves one candidate a token.
        let one_part = parts.len() == 1 || to.is_some();
        (one_part && !parts.is_empty()).then_some(())?;
        let last = self.instrs.len() + parts.len() - 1;
        let outputs_per_row = if flags & PAIRED != 0 { 2 } else { 1 };
        let beside_attention = linear.x == Buffer::Attended || to == Some(Buffer::Projected);
        let stacks: Vec<dealing::Stack> = parts.iter().map(stack).collect();
        let deals = self.dealer.deal(&stacks, beside_attention);
        let mut first_output = 0_u32;
        for ((tiles, stack), deal) in parts.into_iter().zip(stacks).zip(deals) {
            let number = self.instrs.len();
            let outputs = tiles.rows / outputs_per_row;
            let y = match to {
                Some(to) => self.places.buffer(to) + quads(first_output)?,
                None => self.places.logits() + u64::from(first_output) * 4,
            };
            let (norm, norm_weight, eps) = self.norm(linear.norm)?;
            let bias = match linear.bias {
                Some(bias) => self.places.decoded(bias)? + u64::from(first_output) * 4,
                None => 0,
            };
            let residual = flags & RESIDUAL != 0;
            self.instrs.push(Instr {
                op: LINEAR,
                format: tiles.format,
                flags: flags | norm,
                rotation: deal.rotation,
                tiles_each: deal.each,
                tiles_odd: deal.odd,
                tile_bytes: stack.tile_bytes,
                piece_bytes: SLOT_BYTES / tiles.unit_bytes * tiles.unit_bytes,
                weights: tiles.address,
                x: self.places.buffer(linear.x),
                y,
                residual: if residual { y } else { 0 },
                norm_weight,
                bias,
                subs: tiles.subs,
                inputs: tiles.inputs,
                outputs,
                x_back: self.back(number, linear.x),
                scale: tiles.factor / tiles.raise,
                eps,
                softcap: softcap.unwrap_or(0.0),
                residual_back: if residual { self.back(number, Buffer::Hidden) } else { 0 },
                y_ahead: (last - number) as u32,
                raise: tiles.raise,
                ..EMPTY
            });
            first_output += outputs;
        }
        if let Some(to) = to {
            self.written[to as usize] = last;
        }
        Some(())
    }

    /// The logits of a router with a weight of dense f32.
    fn route(&mut self, linear: &PlannedLinear, weight: (u64, u32, u32)) -> Option<()> {
        let number = self.instrs.len();
        let (address, rows, inputs) = weight;
        let (norm, norm_weight, eps) = self.norm(linear.norm)?;
        self.instrs.push(Instr {
            op: ROUTE,
            flags: norm,
            weights: address,
            x: self.places.buffer(linear.x),
            y: self.places.buffer(Buffer::Routed),
            norm_weight,
            inputs,
            outputs: rows,
            x_back: self.back(number, linear.x),
            eps,
            ..EMPTY
        });
        self.written[Buffer::Routed as usize] = number;
        Some(())
    }

    /// The choice of experts, their gates and ups, and what follows those as one layer, whose inputs are those of all chosen experts.
    fn mixture(&mut self, mixture: &PlannedMixture) -> Option<()> {
        let one = |weight: usize| match self.places.tiles(&Rows::Whole(weight))?[..] {
            [tiles] => Some(tiles),
            _ => None,
        };
        let (gate, up, down) = (one(mixture.gate)?, one(mixture.up)?, one(mixture.down)?);
        let (experts, chosen) = (mixture.experts as u32, mixture.chosen as u32);
        let width = down.inputs;
        let of_expert = |tiles: &Tiles| tiles.rows / experts / TILE_OUTPUTS;
        let whole = |tiles: &Tiles| tiles.rows == of_expert(tiles) * experts * TILE_OUTPUTS;
        let fits = [gate, up, down].iter().all(whole)
            && (gate.format, gate.subs, gate.raise) == (up.format, up.subs, up.raise)
            && gate.rows == up.rows
            && of_expert(&gate) * TILE_OUTPUTS == width
            && down.subs * 64 == width;
        fits.then_some(())?;
        let number = self.instrs.len();
        let tile_bytes = |tiles: &Tiles| tiles.subs / tiles.unit_subs * tiles.unit_bytes;
        let piece_bytes = |tiles: &Tiles| SLOT_BYTES / tiles.unit_bytes * tiles.unit_bytes;
        // Pairs of tiles first, then tiles.
        let counts = [chosen * of_expert(&gate), of_expert(&down)];
        let deals = counts.map(|count| self.dealer.among_all(count));
        let (norm, norm_weight, eps) = self.norm(Some(mixture.norm))?;
        let [hidden, gated, routed] =
            [Buffer::Hidden, Buffer::Gated, Buffer::Routed].map(|buffer| self.places.buffer(buffer));
        self.instrs.push(Instr {
            op: CHOOSE,
            flags: OF_CHOSEN,
            rotation: deals[0].rotation,
            tiles_each: deals[0].each,
            tiles_odd: deals[0].odd,
            heads: deals[1].each,
            kv_heads: deals[1].odd,
            head_dim: deals[1].rotation,
            x: routed,
            x_back: self.back(number, Buffer::Routed),
            inputs: experts,
            scale: 1.0,
            chosen,
            ..EMPTY
        });
        let activation = if mixture.activation == Gate::GeluTanh { GELU_TANH } else { 0 };
        self.instrs.push(Instr {
            op: EXPERTS,
            format: gate.format,
            flags: norm | PAIRED | activation,
            rotation: deals[0].rotation,
            tiles_each: deals[0].each,
            tiles_odd: deals[0].odd,
            tile_bytes: tile_bytes(&gate),
            piece_bytes: piece_bytes(&gate),
            weights: gate.address,
            q_norm: up.address,
            x: hidden,
            y: gated,
            norm_weight,
            subs: gate.subs,
            inputs: gate.inputs,
            outputs: chosen * width,
            x_back: self.back(number + 1, Buffer::Hidden),
            scale: gate.factor / gate.raise,
            attention_scale: up.factor / gate.factor,
            eps,
            raise: gate.raise,
            heads: width,
            expert_tiles: of_expert(&gate),
            chosen,
            ..EMPTY
        });
        self.written[Buffer::Gated as usize] = number + 1;
        self.instrs.push(Instr {
            op: EXPERTS,
            format: down.format,
            flags: RESIDUAL,
            rotation: deals[1].rotation,
            tiles_each: deals[1].each,
            tiles_odd: deals[1].odd,
            tile_bytes: chosen * tile_bytes(&down),
            piece_bytes: piece_bytes(&down),
            weights: down.address,
            x: gated,
            y: hidden,
            residual: hidden,
            subs: chosen * down.subs,
            inputs: chosen * width,
            outputs: of_expert(&down) * TILE_OUTPUTS,
            x_back: 1,
            scale: down.factor / down.raise,
            residual_back: self.back(number + 2, Buffer::Hidden),
            raise: down.raise,
            heads: tile_bytes(&down),
            expert_tiles: of_expert(&down),
            chosen,
            ..EMPTY
        });
        self.written[Buffer::Hidden as usize] = number + 2;
        Some(())
    }

    fn attention(&mut self, attention: &PlannedAttention) -> Option<()> {
        let PlannedAttention { queries, keys, heads, cache, place, .. } = *attention;
        // A multiprocessor attends to one KV head.
        (cache.kv_heads as u32 <= self.dealer.multiprocessors()).then_some(())?;
        let weight = |weight: Option<usize>| weight.map_or(Some(0), |weight| self.places.decoded(weight));
        let side_bytes = (cache.kv_heads * PAGE_POSITIONS * cache.key_dim * KV_BYTES) as u64;
        let number = self.instrs.len();
        let mut instr = Instr {
            op: ATTENTION,
            flags: if attention.interleaved { INTERLEAVED } else { 0 },
            x: self.places.buffer(Buffer::Projected) + quads(queries as u32)?,
            y: self.places.buffer(Buffer::Attended),
            x_back: self.back(number, Buffer::Projected),
            scale: attention.magnitude,
            eps: attention.eps,
            softcap: attention.softcap.unwrap_or(0.0),
            attention_scale: attention.scale,
            heads: heads as u32,
            kv_heads: cache.kv_heads as u32,
            head_dim: cache.key_dim as u32,
            rotary_dim: attention.rotary_dim as u32,
            window: attention.window.unwrap_or(0) as u32,
            table: attention.group as u32,
            kv_offset: (keys - queries) as u32,
            q_norm: weight(attention.q_norm)?,
            k_norm: weight(attention.k_norm)?,
            keys_offset: 2 * side_bytes * place as u64,
            values_offset: 2 * side_bytes * place as u64 + side_bytes,
            ..EMPTY
        };
        self.instrs.push(instr);
        instr.op = COMBINE;
        self.instrs.push(instr);
        // What attention finishes by itself has the number of what merges pages.
        self.written[Buffer::Attended as usize] = number + 1;
        Some(())
    }

    /// The flag, the weight and the epsilon of a norm.
    fn norm(&self, norm: Option<PlannedNorm>) -> Option<(u32, u64, f32)> {
        let Some(PlannedNorm { weight, eps }) = norm else { return Some((0, 0, 0.0)) };
        let weight = weight.map_or(Some(0), |weight| self.places.decoded(weight))?;
        Some((NORM, weight, eps))
    }

    /// Instructions from the writer of a buffer to instruction `number`.
    fn back(&self, number: usize, buffer: Buffer) -> u32 {
        (number - self.written[buffer as usize]) as u32
    }
}

/// How many tiles a weight has, and their bytes.
fn stack(tiles: &Tiles) -> dealing::Stack {
    dealing::Stack {
        count: tiles.rows.div_ceil(TILE_OUTPUTS),
        tile_bytes: tiles.subs / tiles.unit_subs * tiles.unit_bytes,
    }
}

/// Bytes of this number of values; `None` if the last are part of a quad.
fn quads(values: u32) -> Option<u64> {
    values.is_multiple_of(4).then_some(u64::from(values / 4) * QUAD_BYTES as u64)
}

/// An instruction of zeros.
pub(super) const EMPTY: Instr = Instr {
    op: 0,
    format: 0,
    flags: 0,
    rotation: 0,
    tiles_each: 0,
    tiles_odd: 0,
    tile_bytes: 0,
    piece_bytes: 0,
    weights: 0,
    x: 0,
    y: 0,
    residual: 0,
    norm_weight: 0,
    bias: 0,
    subs: 0,
    inputs: 0,
    outputs: 0,
    x_back: 0,
    scale: 0.0,
    eps: 0.0,
    softcap: 0.0,
    attention_scale: 0.0,
    residual_back: 0,
    heads: 0,
    kv_heads: 0,
    head_dim: 0,
    rotary_dim: 0,
    window: 0,
    table: 0,
    kv_offset: 0,
    q_norm: 0,
    k_norm: 0,
    keys_offset: 0,
    values_offset: 0,
    y_ahead: 0,
    raise: 0.0,
    expert_tiles: 0,
    chosen: 0,
};

#[cfg(test)]
mod tests {
    use brasa_formats::StorageFormat;
    use brasa_graph::testing::Decoder;

    use super::super::program::YIELDS;
    use super::*;

    /// Every weight is one stretch of F16 tiles at its number times a million; buffers are at their numbers.
    struct Fake {
        shapes: Vec<(u32, u32)>,
        /// Stacked projections in two formats, cut after this number of rows.
        cut: Option<u32>,
    }

    impl Places for Fake {
        fn tiles(&self, rows: &Rows) -> Option<Vec<Tiles>> {
            let number = match rows {
                Rows::Whole(number) => *number,
                Rows::Paired(gate, _) => gate.weight,
            };
            let (rows, inputs) = self.shapes[number];
            let subs = inputs.div_ceil(64);
            let whole = Tiles {
                address: number as u64 * 1_000_000,
                format: 0,
                rows,
                inputs,
                subs,
                unit_bytes: 2048,
                unit_subs: 1,
                factor: 1.0,
                raise: 4.0,
            };
            match self.cut {
                Some(cut) if rows == 768 => Some(vec![
                    Tiles { rows: cut, ..whole },
                    Tiles {
                        address: whole.address + 500_000,
                        format: 1,
                        rows: rows - cut,
                        unit_bytes: 1088,
                        ..whole
                    },
                ]),
                _ => Some(vec![whole]),
            }
        }

        fn floats(&self, weight: usize) -> Option<(u64, u32, u32)> {
            // Routers, as checkpoints have them.
            let (rows, inputs) = self.shapes[weight];
            (rows == 6).then_some((weight as u64 * 1_000_000, rows, inputs))
        }

        fn decoded(&self, weight: usize) -> Option<u64> {
            Some(weight as u64 * 1000)
        }

        fn buffer(&self, buffer: Buffer) -> u64 {
            (buffer as u64 + 1) << 32
        }

        fn logits(&self) -> u64 {
            9 << 32
        }
    }

    fn encoded(cut: Option<u32>, multiprocessors: u32) -> Vec<Instr> {
        let decoder =
            Decoder { head_dim: 64, windows: vec![None, Some(300)], ..Decoder::small(StorageFormat::F16) };
        encoded_of(&decoder, cut, multiprocessors)
    }

    fn encoded_of(decoder: &Decoder, cut: Option<u32>, multiprocessors: u32) -> Vec<Instr> {
        let graph = decoder.graph(1);
        let shapes =
            graph.weights().iter().map(|weight| (weight.rows() as u32, weight.row_len() as u32)).collect();
        encode(&Plan::of(&graph).expect("a plan"), &Fake { shapes, cut }, multiprocessors)
            .expect("instructions")
    }

    #[test]
    fn instructions_know_their_writers_and_their_tiles() {
        let instrs = encoded(None, 7);
        let brief: Vec<_> =
            instrs.iter().map(|i| (i.op, i.flags & !YIELDS, i.x_back, i.residual_back, i.outputs)).collect();
        let layer = [
            (LINEAR, NORM, 1, 0, 768),
            (ATTENTION, 0, 1, 0, 0),
            (COMBINE, 0, 1, 0, 0),
            (LINEAR, RESIDUAL, 1, 4, 256),
            (LINEAR, NORM | PAIRED, 1, 0, 512),
            (LINEAR, RESIDUAL, 1, 2, 256),
        ];
        let mut expected = vec![(EMBED, 0, 0, 0, 256)];
        expected.extend(layer);
        expected.extend(layer);
        expected.push((LINEAR, NORM | DRAW | LOGITS, 1, 0, 150));
        assert_eq!(brief, expected);
        // 48, 16, 64, 16, 48, 16, 64, 16 and 10 tiles on 7 multiprocessors, of which the first two attend.
        let tiles: Vec<_> = instrs
            .iter()
            .filter(|i| i.op == LINEAR)
            .map(|i| (i.tiles_each, i.tiles_odd, i.rotation))
            .collect();
        let expected = [
            (6, 6, 0),
            (2, 2, 5),
            (9, 1, 3),
            (2, 2, 2),
            (6, 6, 0),
            (2, 2, 5),
            (9, 1, 3),
            (2, 2, 2),
            (1, 3, 0),
        ];
        assert_eq!(tiles, expected);
        let (qkv, attention) = (&instrs[1], &instrs[8]);
        assert_eq!((qkv.subs, qkv.tile_bytes, qkv.piece_bytes, qkv.y_ahead), (4, 8192, 16_384, 0));
        assert_eq!((attention.table, attention.window, attention.kv_offset), (1, 300, 512));
        assert_eq!((attention.keys_offset, attention.values_offset), (0, 2 * 256 * 64 * 2));
        assert_eq!(instrs[13].y, 9 << 32);
    }

    #[test]
    fn a_mixture_is_a_router_a_choice_and_two_layers() {
        let decoder = Decoder {
            head_dim: 64,
            experts: Some((6, 3)),
            feed_forward: 128,
            ..Decoder::small(StorageFormat::F16)
        };
        let instrs = encoded_of(&decoder, None, 7);
        let [router, choice, gates, down, next, ..] = &instrs[5..] else {
            panic!("{} instructions", instrs.len())
        };
        assert_eq!((router.op, router.flags, router.outputs, router.x_back), (ROUTE, NORM, 6, 1));
        assert_eq!((choice.op, choice.flags, choice.inputs, choice.chosen), (CHOOSE, OF_CHOSEN, 6, 3));
        assert_eq!((choice.x, choice.x_back), (router.y, 1));
        // Three experts of 8 pairs of tiles, and 16 tiles with the inputs of all three, on 7 multiprocessors.
        let dealt = |i: &Instr| (i.tiles_each, i.tiles_odd, i.rotation);
        assert_eq!((dealt(gates), dealt(down)), ((3, 3, choice.rotation), (2, 2, choice.head_dim)));
        assert_eq!(dealt(choice), dealt(gates));
        assert_eq!((choice.heads, choice.kv_heads), (2, 2));
        assert_eq!((gates.op, gates.flags), (EXPERTS, NORM | PAIRED | YIELDS));
        assert_eq!((gates.heads, gates.expert_tiles), (128, 8));
        assert_eq!((gates.x_back, gates.tile_bytes, gates.outputs), (3, 4 * 2048, 384));
        assert_eq!((down.op, down.flags), (EXPERTS, RESIDUAL | YIELDS));
        assert_eq!((down.heads, down.expert_tiles), (2 * 2048, 16));
        assert_eq!((down.subs, down.inputs, down.tile_bytes), (6, 384, 6 * 2048));
        assert_eq!((down.x, down.x_back, down.residual_back), (gates.y, 1, 4));
        assert_eq!((next.op, next.x_back), (LINEAR, 1));
    }

    #[test]
    fn parts_in_several_formats_are_one_value() {
        let instrs = encoded(Some(640), 7);
        let [q, v, attention, ..] = &instrs[1..] else { panic!("{} instructions", instrs.len()) };
        assert_eq!((q.outputs, q.y_ahead, q.x_back, q.format), (640, 1, 1, 0));
        assert_eq!((v.outputs, v.y_ahead, v.x_back, v.format), (128, 0, 2, 1));
        assert_eq!(v.y, q.y + 640 * 4);
        assert_eq!((attention.op, attention.x_back), (ATTENTION, 1));
        assert_eq!(instrs[5].residual_back, 5);
    }
}
