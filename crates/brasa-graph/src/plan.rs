//! The memory plan: the place of every value of a schedule.
//!
//! All temporaries share one arena, laid out once for the largest step. A value owns its bytes from the item that makes it to the
//! last item that reads it or a view of it. Afterwards other values reuse the bytes. An item's results never share bytes with its
//! operands. Views and values inside fused items have no bytes of their own.

use std::ops::Range;

use crate::arena::{Demand, lay_out};
use crate::{Graph, Input, Item, Schedule, Sizes, ValueId, ValueKind, WeightId};

/// Alignment of everything in an arena: a cache line, and a full vector register.
pub const ALIGNMENT_BYTES: usize = 64;

/// The memory plan: a place for every value of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    places: Vec<Option<Place>>,
    scratch: Vec<Range<usize>>,
    arena_bytes: usize,
}

/// Place of a value: element *i* of row *r* is element `r · row_stride + start + i` of its buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The buffer that holds the value.
    pub buffer: Buffer,
    /// Elements from the start of the buffer's row to the value's first.
    pub start: usize,
    /// Elements from one row to the next.
    pub row_stride: usize,
}

/// The memory that holds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// The program's arena.
    Arena {
        /// Offset of the buffer's first element in the arena, in bytes; a multiple of [`ALIGNMENT_BYTES`].
        offset_bytes: usize,
    },
    /// An input buffer that the step supplies.
    Input(Input),
    /// A weight, or elements of its rows.
    Weight(WeightId),
}

impl Plan {
    /// Lays out `schedule` for steps of at most `sizes`.
    pub fn new(graph: &Graph, schedule: &Schedule, sizes: &Sizes) -> Self {
        Self::with_scratch(graph, schedule, sizes, |_| 0)
    }

    /// Like [`new`](Self::new), but each item also has `scratch_bytes(item)` bytes of scratch memory while it runs.
    pub fn with_scratch(
        graph: &Graph,
        schedule: &Schedule,
        sizes: &Sizes,
        scratch_bytes: impl Fn(&Item) -> usize,
    ) -> Self {
        let mut demands: Vec<Demand> = Vec::new();
        let mut owner_demand = vec![None; graph.values().len()];
        for (id, (value, lifetime)) in graph.values().iter().zip(lifetimes(graph, schedule)).enumerate() {
            let Some(items) = lifetime else { continue };
            let elements = value.shape.resolve(sizes).into_iter().fold(1, usize::saturating_mul);
            owner_demand[id] = Some(demands.len());
            demands.push(Demand { items, size_bytes: elements.saturating_mul(value.dtype.size_bytes()) });
        }
        let first_scratch = demands.len();
        for (number, item) in schedule.items().iter().enumerate() {
            demands.push(Demand { items: (number, number), size_bytes: scratch_bytes(item) });
        }
        let (offsets, arena_bytes) = lay_out(&demands, ALIGNMENT_BYTES);
        let place = |id: usize| {
            let view = graph.view(ValueId(id as u32));
            let buffer = match graph.value(view.root).kind {
                ValueKind::Input(input) => Buffer::Input(input),
                ValueKind::Weight(weight) => Buffer::Weight(weight),
                ValueKind::Temporary(_) => {
                    Buffer::Arena { offset_bytes: offsets[owner_demand[view.root.0 as usize]?] }
                }
                ValueKind::Removed => return None,
            };
            Some(Place { buffer, start: view.elements.start, row_stride: view.row_stride })
        };
        let scratch = demands.iter().zip(&offsets).skip(first_scratch);
        Self {
            places: (0..graph.values().len()).map(place).collect(),
            scratch: scratch
                .map(|(demand, &offset)| offset..offset.saturating_add(demand.size_bytes))
                .collect(),
            arena_bytes,
        }
    }

    /// Place of `value`; `None` for a value that disappears inside a fused item or that a rewrite removed.
    pub fn place(&self, value: ValueId) -> Option<&Place> {
        self.places[value.0 as usize].as_ref()
    }

    /// Bytes of the arena that the schedule's item `number` may use while it runs.
    pub fn scratch(&self, number: usize) -> Range<usize> {
        self.scratch[number].clone()
    }

    /// Bytes of the arena.
    pub fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }
}

/// The first and last item that need each value's own bytes; `None` for views, inputs, weights and values inside fused items.
fn lifetimes(graph: &Graph, schedule: &Schedule) -> Vec<Option<(usize, usize)>> {
    let mut lifetimes: Vec<Option<(usize, usize)>> = vec![None; graph.values().len()];
    let owns = |value: ValueId| {
        matches!(graph.value(value).kind, ValueKind::Temporary(_)) && graph.view(value).root == value
    };
    for (number, item) in schedule.items().iter().enumerate() {
        let (made, read) = match item {
            Item::Single(node) => (&graph.node(*node).outputs, &graph.node(*node).inputs),
            Item::Fused(fused) => (&fused.outputs, &fused.inputs),
        };
        for &value in made.iter().filter(|&&value| owns(value)) {
            lifetimes[value.0 as usize] = Some((number, number));
        }
        for &value in read {
            if let Some((_, last)) = &mut lifetimes[graph.view(value).root.0 as usize] {
                *last = number;
            }
        }
    }
    for &output in graph.outputs() {
        if let Some((_, last)) = &mut lifetimes[graph.view(output).root.0 as usize] {
            *last = schedule.items().len();
        }
    }
    lifetimes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::Weight;

    use super::*;
    use crate::device::{KvPoolSpec, KvType};
    use crate::fuse::Pattern;
    use crate::reference::{Array, Data, Env, ReferencePool, SegmentRows, decode_weight, evaluate};
    use crate::step::{Outs, Step};
    use crate::testing::{Case, Random, Sequences, f32_weight, random_case, rewritten};
    use crate::{DType, Sizes};

    /// A program over a real arena of 4-byte elements. Before an item reads anything, its results and its scratch are
    /// overwritten, so that any bytes shared at the wrong time show in the outputs.
    struct ArenaRun<'a> {
        graph: &'a Graph,
        schedule: &'a Schedule,
        plan: &'a Plan,
        arena: Vec<u32>,
        sizes: Sizes,
    }

    impl ArenaRun<'_> {
        fn indices(&self, value: ValueId) -> Option<Vec<usize>> {
            let place = self.plan.place(value).expect("values between items have a place");
            let Buffer::Arena { offset_bytes } = place.buffer else { return None };
            assert_eq!(offset_bytes % ALIGNMENT_BYTES, 0);
            let shape = self.graph.value(value).shape.resolve(&self.sizes);
            let width: usize = shape[1..].iter().product();
            let row = |r: usize| {
                let first = offset_bytes / 4 + r * place.row_stride + place.start;
                first..first + width
            };
            Some((0..shape[0]).flat_map(row).collect())
        }

        fn load(&self, value: ValueId, inputs: &[Option<Array>], weights: &[Arc<Array>]) -> Array {
            let Some(indices) = self.indices(value) else {
                let array = inputs[value.0 as usize].clone();
                return array.unwrap_or_else(|| match self.graph.value(value).kind {
                    ValueKind::Weight(weight) => Array::clone(&weights[weight.0 as usize]),
                    _ => panic!("{value} has no array"),
                });
            };
            let bits: Vec<u32> = indices.into_iter().map(|i| self.arena[i]).collect();
            let shape = self.graph.value(value).shape.resolve(&self.sizes);
            match self.graph.value(value).dtype {
                DType::U32 => Array::u32(shape, bits),
                _ => Array::f32(shape, bits.into_iter().map(f32::from_bits).collect()),
            }
        }

        fn store(&mut self, value: ValueId, array: &Array) {
            let bits: Vec<u32> = match &array.data {
                Data::Floats(data) => data.iter().map(|x| x.to_bits()).collect(),
                Data::U32(data) => data.clone(),
            };
            let indices = self.indices(value).expect("results lie in the arena");
            for (i, bits) in indices.into_iter().zip(bits) {
                self.arena[i] = bits;
            }
        }

        fn run(
            &mut self,
            step: &Step,
            inputs: &[Option<Array>],
            weights: &[Arc<Array>],
            pool: &mut ReferencePool,
        ) -> Vec<Array> {
            let segments = SegmentRows::of(step);
            let mut kv = pool.bind(self.graph, step);
            for (number, item) in self.schedule.items().iter().enumerate() {
                let (made, read) = match item {
                    Item::Single(node) => (&self.graph.node(*node).outputs, &self.graph.node(*node).inputs),
                    Item::Fused(fused) => (&fused.outputs, &fused.inputs),
                };
                if let Item::Single(node) = item
                    && self.graph.node(*node).op.is_view()
                {
                    continue;
                }
                let scratch = self.plan.scratch(number);
                self.arena[scratch.start / 4..scratch.end / 4].fill(u32::MAX);
                for &value in made {
                    for i in self.indices(value).expect("results lie in the arena") {
                        self.arena[i] = u32::MAX;
                    }
                }
                let mut local: Vec<Option<Array>> = vec![None; self.graph.values().len()];
                for &value in read {
                    local[value.0 as usize] = Some(self.load(value, inputs, weights));
                }
                for &node in item.nodes() {
                    let node = self.graph.node(node);
                    let operands: Vec<&Array> =
                        node.inputs.iter().map(|id| local[id.0 as usize].as_ref().unwrap()).collect();
                    let mut env = Env { sizes: self.sizes, segments: &segments, kv: &mut kv };
                    let results = node.op.reference(&operands, &mut env).unwrap();
                    for (&output, result) in node.outputs.iter().zip(results) {
                        local[output.0 as usize] = Some(result);
                    }
                }
                for &value in made {
                    let result = local[value.0 as usize].take().unwrap();
                    self.store(value, &result);
                }
            }
            self.graph.outputs().iter().map(|&output| self.load(output, inputs, weights)).collect()
        }
    }

    fn check_in_arena(case: &Case, patterns: &[Pattern], limits: Sizes, scratch_bytes: usize) -> Plan {
        let graph = &case.graph;
        let schedule = Schedule::new(graph, patterns);
        let plan = Plan::with_scratch(graph, &schedule, &limits, |_| scratch_bytes);
        let decoded = |weight: &Arc<Weight>| Arc::new(decode_weight(weight).unwrap());
        let weights: Vec<Arc<Array>> = graph.weights().iter().map(decoded).collect();
        let spec = || KvPoolSpec::of(graph, KvType::F32);
        let (mut pool, mut plain_pool) = (ReferencePool::new(spec()), ReferencePool::new(spec()));
        let (mut sequences, mut plain) = (Sequences::new(&pool), Sequences::new(&plain_pool));
        let mut random = Random::new(case.seed);
        let mut arena = vec![0; plan.arena_bytes().div_ceil(4)];
        for segments in &case.steps {
            let (mut step, mut plain_step) = (Step::default(), Step::default());
            for &(id, rows) in segments {
                let tokens: Vec<u32> = (0..rows).map(|_| random.below(97) as u32).collect();
                step.segments.push(sequences.extend(&mut pool, id, &tokens, Outs::All).unwrap());
                plain_step.segments.push(plain.extend(&mut plain_pool, id, &tokens, Outs::All).unwrap());
            }
            let inputs = crate::reference::input_arrays(graph, &step);
            let sizes = Sizes::of(&step);
            let mut run = ArenaRun { graph, schedule: &schedule, plan: &plan, arena, sizes };
            let found = run.run(&step, &inputs, &weights, &mut pool);
            arena = run.arena;
            let expected = evaluate(graph, &weights, &plain_step, &mut plain_pool).unwrap();
            assert_eq!(found, expected, "{}, seed {}", case.name, case.seed);
        }
        plan
    }

    const LIMITS: Sizes = Sizes { rows: 7, outs: 7, segments: 2 };

    #[test]
    fn random_graphs_compute_the_same_in_an_arena() {
        for seed in 0..120 {
            let case = random_case(seed, 4 + seed as usize % 30, &f32_weight);
            check_in_arena(&case, &[], LIMITS, 0);
            check_in_arena(&case, Pattern::ALL, LIMITS, seed as usize % 3 * 100);
        }
    }

    #[test]
    fn rewritten_graphs_compute_the_same_in_an_arena() {
        for seed in 0..60 {
            let case = rewritten(&random_case(seed, 4 + seed as usize % 30, &f32_weight), seed);
            check_in_arena(&case, &[], LIMITS, 0);
            check_in_arena(&case, Pattern::ALL, LIMITS, 0);
        }
    }

    /// The plan by brute force: at every item, everything needed then or later lies apart.
    #[test]
    fn live_values_never_share_bytes() {
        for seed in 200..320 {
            let case = random_case(seed, 4 + seed as usize % 50, &f32_weight);
            let graph = &case.graph;
            let schedule = Schedule::new(graph, if seed % 2 == 0 { &[] } else { Pattern::ALL });
            let plan = Plan::new(graph, &schedule, &LIMITS);
            assert_eq!(plan, Plan::new(graph, &schedule, &LIMITS), "deterministic");
            let range = |value: ValueId| match plan.place(value)?.buffer {
                Buffer::Arena { offset_bytes } => {
                    let root = graph.value(graph.view(value).root);
                    let elements: usize = root.shape.resolve(&LIMITS).into_iter().product();
                    Some(offset_bytes..offset_bytes + elements * root.dtype.size_bytes())
                }
                _ => None,
            };
            let items = schedule.items();
            for number in 0..items.len() {
                let mut live: Vec<Range<usize>> = Vec::new();
                let made_by = |item: &Item| match item {
                    Item::Single(node) => graph.node(*node).outputs.clone(),
                    Item::Fused(fused) => fused.outputs.clone(),
                };
                let made: Vec<ValueId> = items[..=number].iter().flat_map(made_by).collect();
                let reads = |item: &Item, value: ValueId| {
                    item.nodes().iter().any(|&node| graph.node(node).inputs.contains(&value))
                };
                for &value in &made {
                    let later = items[number..].iter().any(|item| reads(item, value));
                    if later || graph.outputs().contains(&value) || made_by(&items[number]).contains(&value) {
                        live.extend(range(value));
                    }
                }
                live.sort_by_key(|range| (range.start, range.end));
                live.dedup();
                assert!(
                    live.windows(2).all(|pair| pair[0].end <= pair[1].start),
                    "seed {seed}, item {number}"
                );
                assert!(live.iter().all(|range| range.end <= plan.arena_bytes()));
            }
        }
    }

    #[test]
    fn a_chain_needs_two_buffers() {
        let case = Case::new("chain", 1, &f32_weight, |b| {
            let mut x = b.rows(&[64]);
            for _ in 0..20 {
                x = b.graph.scale(x, 0.9);
            }
            vec![x]
        });
        let plan = check_in_arena(&case, &[], LIMITS, 0);
        assert_eq!(plan.arena_bytes(), 2 * 7 * 64 * 4);
    }

    #[test]
    fn values_inside_fused_items_need_no_memory() {
        let case = Case::new("norm, linear", 1, &f32_weight, |b| {
            let x = b.rows(&[64]);
            let w = b.weight("w", &[32, 64]);
            let x = b.graph.rms_norm_unscaled(x, 1e-5);
            vec![b.graph.linear(x, w)]
        });
        let plan = check_in_arena(&case, Pattern::ALL, LIMITS, 0);
        assert_eq!(plan.arena_bytes(), 7 * 4 * (64 + 32));
        let apart = check_in_arena(&case, &[], LIMITS, 0);
        assert_eq!(apart.arena_bytes(), 7 * 4 * (64 + 64));
    }

    #[test]
    fn absurd_limits_do_not_overflow() {
        let case = random_case(3, 20, &f32_weight);
        let limits = Sizes { rows: usize::MAX / 2, outs: 1, segments: 1 };
        let plan = Plan::new(&case.graph, &Schedule::new(&case.graph, &[]), &limits);
        assert_eq!(plan.arena_bytes(), usize::MAX);
    }
}
