//! Shape inference: what each operation accepts, and the words in which it refuses.

use brasa_graph::op::{
    Argmax, Attention, Binary, Broadcast, CacheWrite, Cast, ClampedUnit, Concat, CrossEntropy, Embed,
    ExpertLinear, Gather, Gating, GroupScore, Groups, HeadLinear, IndexAdd, KvSource, LayerNorm, Linear,
    LinearTransposed, Mask, Matmul, MeanPool, PositionScale, Reduce, ReduceFn, Reshape, RmsNorm, Rope,
    RopeLayout, RouterTopK, SelectRows, Slice, Softmax, Transpose, Unary, Unfold, Where,
};
use brasa_graph::testing::weight;
use brasa_graph::{
    Builder, CacheId, CacheSpec, DType, Dim, Input, NodeId, Op, Shape, Symbol, Value, ValueKind, ValueWidth,
    WeightId,
};

const CACHES: &[CacheSpec] = &[CacheSpec::new(2, 8, None), CacheSpec::new(2, 8, Some(4))];
/// Caches of values of another width than keys, and within them.
const WIDE: &[CacheSpec] = &[
    CacheSpec { kv_heads: 2, key_dim: 8, value: ValueWidth::Own(5), window: None },
    CacheSpec::latent(12, 8, None),
];

/// A temporary, `[rows, inner…]`.
fn rows(inner: &[usize]) -> Value {
    temporary(DType::F32, Shape::rows(Dim::ROWS, inner))
}

fn numbers(inner: &[usize]) -> Value {
    temporary(DType::U32, Shape::rows(Dim::ROWS, inner))
}

fn temporary(dtype: DType, shape: Shape) -> Value {
    Value { dtype, shape, kind: ValueKind::Temporary(NodeId(0)) }
}

fn constant(dims: &[usize]) -> Value {
    let shape = Shape::new(dims.iter().copied());
    Value { dtype: DType::F32, shape, kind: ValueKind::Weight(WeightId(0)) }
}

/// The results' types, as printed, or the refusal.
fn infer(op: impl Into<Op>, operands: &[Value]) -> String {
    infer_with(CACHES, op, operands)
}

fn infer_with(caches: &[CacheSpec], op: impl Into<Op>, operands: &[Value]) -> String {
    match op.into().infer(&operands.iter().collect::<Vec<_>>(), caches) {
        Ok(types) => {
            let printed = types.into_iter().map(|(dtype, shape)| format!("{dtype}{shape}"));
            printed.collect::<Vec<_>>().join(", ")
        }
        Err(what) => what,
    }
}

fn rope(rotary_dim: usize) -> Rope {
    Rope { layout: RopeLayout::SplitHalf, rotary_dim, magnitude: 1.0 }
}

fn attention(source: KvSource, window: Option<usize>) -> Attention {
    Attention { source, scale: 1.0, window, softcap: None }
}

#[test]
fn results_have_the_documented_types() {
    let cache = CacheId(0);
    let experts = RouterTopK { k: 2, gating: Gating::SOFTMAX_ALL };
    for (found, expected) in [
        (infer(Embed, &[numbers(&[]), constant(&[9, 4])]), "f32[rows, 4]"),
        (infer(Gather, &[constant(&[9]), numbers(&[2])]), "f32[rows, 2]"),
        (
            infer(SelectRows, &[rows(&[4, 5]), temporary(DType::U32, Shape(vec![Dim::OUTS]))]),
            "f32[outs, 4, 5]",
        ),
        (infer(Linear, &[rows(&[4]), constant(&[7, 4])]), "f32[rows, 7]"),
        (infer(Linear, &[rows(&[2, 4]), constant(&[7, 4])]), "f32[rows, 2, 7]"),
        (infer(LinearTransposed, &[rows(&[7]), constant(&[7, 4])]), "f32[rows, 4]"),
        (infer(ExpertLinear, &[rows(&[4]), numbers(&[2]), constant(&[3, 7, 4])]), "f32[rows, 2, 7]"),
        (infer(ExpertLinear, &[rows(&[2, 4]), numbers(&[2]), constant(&[3, 7, 4])]), "f32[rows, 2, 7]"),
        (infer(HeadLinear, &[rows(&[3, 4]), constant(&[3, 7, 4])]), "f32[rows, 3, 7]"),
        (infer(experts, &[rows(&[3])]), "u32[rows, 2], f32[rows, 2]"),
        (infer(Matmul { transpose_a: true, transpose_b: false }, &[rows(&[4]), rows(&[5])]), "f32[4, 5]"),
        (infer(RmsNorm { eps: 0.0 }, &[rows(&[2, 4]), constant(&[4])]), "f32[rows, 2, 4]"),
        (infer(LayerNorm { eps: 0.0 }, &[rows(&[4]), constant(&[4]), constant(&[4])]), "f32[rows, 4]"),
        (infer(Unary::Exp, &[rows(&[4])]), "f32[rows, 4]"),
        (infer(Binary::Mul, &[rows(&[2, 4]), rows(&[2, 1])]), "f32[rows, 2, 4]"),
        (infer(Binary::Add, &[rows(&[4]), constant(&[4])]), "f32[rows, 4]"),
        (infer(Where, &[numbers(&[4]), rows(&[4]), rows(&[4])]), "f32[rows, 4]"),
        (infer(rope(8), &[rows(&[3, 16]), numbers(&[]), constant(&[4])]), "f32[rows, 3, 16]"),
        (infer(CacheWrite { cache }, &[rows(&[2, 8]), rows(&[2, 8])]), ""),
        (infer(attention(KvSource::Cache(cache), None), &[rows(&[6, 8])]), "f32[rows, 6, 8]"),
        (
            infer(
                attention(KvSource::Step(Mask::Causal), None),
                &[rows(&[6, 8]), rows(&[3, 8]), rows(&[3, 8])],
            ),
            "f32[rows, 6, 8]",
        ),
        (infer(Softmax, &[rows(&[4])]), "f32[rows, 4]"),
        (infer(Reduce { function: ReduceFn::Sum, axis: 1 }, &[rows(&[2, 4])]), "f32[rows, 4]"),
        (infer(Reduce { function: ReduceFn::Mean, axis: 0 }, &[rows(&[])]), "f32[1]"),
        (infer(Argmax, &[rows(&[4])]), "u32[rows]"),
        (infer(CrossEntropy, &[rows(&[4]), numbers(&[])]), "f32[rows]"),
        (infer(Concat { axis: 1 }, &[rows(&[4]), rows(&[5])]), "f32[rows, 9]"),
        (infer(Concat { axis: 0 }, &[rows(&[4]), rows(&[4])]), "f32[2·rows, 4]"),
        (infer(Slice { start: 1, end: 3 }, &[rows(&[4])]), "f32[rows, 2]"),
        (infer(Reshape { inner: vec![2, 2] }, &[rows(&[4])]), "f32[rows, 2, 2]"),
        (infer(Transpose { axes: vec![1, 0] }, &[rows(&[4])]), "f32[4, rows]"),
        (infer(Broadcast { shape: Shape::rows(Dim::ROWS, &[4]) }, &[constant(&[4])]), "f32[rows, 4]"),
        (infer(Cast { dtype: DType::BF16 }, &[rows(&[4])]), "bf16[rows, 4]"),
        (infer(IndexAdd, &[constant(&[9, 4]), numbers(&[]), rows(&[4])]), "f32[9, 4]"),
        (infer(Unfold { taps: 3, stride: 1, padding: 1 }, &[rows(&[4])]), "f32[rows, 12]"),
        (infer(MeanPool, &[rows(&[4])]), "f32[segments, 4]"),
    ] {
        assert_eq!(found, expected);
    }
    let halves = Dim { factor: 2, symbol: Some(Symbol::Rows) };
    let x = temporary(DType::F32, Shape::rows(halves, &[4]));
    assert_eq!(infer(Unfold { taps: 3, stride: 2, padding: 1 }, &[x]), "f32[rows, 12]");
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let cache = CacheId(0);
    let k = |k| RouterTopK { k, gating: Gating::SOFTMAX_ALL };
    let grouped = |k, count, kept, score| {
        let groups = Some(Groups { count, kept, score });
        RouterTopK { k, gating: Gating { groups, ..Gating::SIGMOID } }
    };
    for (found, expected) in [
        (infer(Linear, &[rows(&[4])]), "1 operands, expected 2"),
        (infer(Linear, &[rows(&[4]), constant(&[7, 5])]), "w must be [N, K] for x [.., K]"),
        (infer(Linear, &[numbers(&[4]), constant(&[7, 4])]), "floats expected"),
        (infer(Linear, &[rows(&[4]), rows(&[4])]), "f32[rows, 4] is not constant"),
        (infer(LinearTransposed, &[rows(&[4]), constant(&[7, 4])]), "w must be [N, K] for y [.., N]"),
        (infer(Embed, &[rows(&[]), constant(&[9, 4])]), "ids must be u32 [R]"),
        (infer(Embed, &[numbers(&[]), constant(&[9])]), "table must be [V, D]"),
        (infer(Gather, &[constant(&[9, 1]), numbers(&[2])]), "table must be [X]"),
        (infer(Gather, &[constant(&[9]), rows(&[2])]), "indices must be u32"),
        (infer(SelectRows, &[rows(&[4]), rows(&[])]), "rows must be u32 [O]"),
        (
            infer(ExpertLinear, &[rows(&[5]), numbers(&[2]), constant(&[3, 7, 4])]),
            "w must be [X, N, K] for x [.., K]",
        ),
        (infer(ExpertLinear, &[rows(&[4]), rows(&[2]), constant(&[3, 7, 4])]), "experts must be u32 [R, k]"),
        (
            infer(ExpertLinear, &[rows(&[3, 4]), numbers(&[2]), constant(&[3, 7, 4])]),
            "x must be [R, K] or [R, k, K]",
        ),
        (infer(HeadLinear, &[rows(&[12]), constant(&[3, 7, 4])]), "x must be [R, H, K]"),
        (infer(HeadLinear, &[rows(&[2, 4]), constant(&[3, 7, 4])]), "w must be [H, N, K] for x [R, H, K]"),
        (infer(HeadLinear, &[rows(&[3, 4]), constant(&[3, 4, 7])]), "w must be [H, N, K] for x [R, H, K]"),
        (infer(HeadLinear, &[rows(&[3, 4]), rows(&[7, 4])]), "f32[rows, 7, 4] is not constant"),
        (infer(k(4), &[rows(&[3])]), "k = 4 of 3 experts"),
        (infer(k(0), &[rows(&[3])]), "k = 0 of 3 experts"),
        (infer(k(1), &[rows(&[2, 3])]), "logits must be [R, X]"),
        (infer(k(1), &[rows(&[3]), constant(&[4])]), "the selection bias must be [3]"),
        (infer(grouped(1, 5, 2, GroupScore::Max), &[rows(&[12])]), "12 experts in 5 groups"),
        (
            infer(grouped(7, 4, 2, GroupScore::Max), &[rows(&[12])]),
            "k = 7 of the experts of 2 of 4 groups of 3",
        ),
        (infer(grouped(1, 12, 2, GroupScore::TopTwo), &[rows(&[12])]), "the two best of groups of 1"),
        (
            infer(ExpertLinear, &[rows(&[4]), numbers(&[2]), constant(&[3, 7, 4]), constant(&[7])]),
            "bias must be [X, N] for w [X, N, K]",
        ),
        (infer(ClampedUnit { alpha: 1.7, limit: 7.0 }, &[rows(&[3]), rows(&[4])]), "shapes differ"),
        (
            infer(ClampedUnit { alpha: 1.7, limit: 0.0 }, &[rows(&[3]), rows(&[3])]),
            "α = 1.7 with the limit 0",
        ),
        (
            infer(PositionScale { beta: 0.1, positions: 0 }, &[rows(&[3]), numbers(&[])]),
            "β = 0.1 and steps of 0 positions",
        ),
        (
            infer(PositionScale { beta: 0.1, positions: 8 }, &[rows(&[3]), rows(&[])]),
            "positions must be u32 [R]",
        ),
        (
            infer(Matmul { transpose_a: false, transpose_b: false }, &[rows(&[4]), rows(&[5])]),
            "inner dimensions 4 and rows differ",
        ),
        (
            infer(Matmul { transpose_a: false, transpose_b: false }, &[rows(&[]), rows(&[5])]),
            "both must be matrices",
        ),
        (infer(RmsNorm { eps: 0.0 }, &[rows(&[4]), constant(&[5])]), "weight must be [4]"),
        (infer(RmsNorm { eps: 0.0 }, &[rows(&[4]), constant(&[4]), constant(&[4])]), "2 weights, at most 1"),
        (infer(RmsNorm { eps: 0.0 }, &[]), "no operand"),
        (infer(Unary::Exp, &[numbers(&[4])]), "floats expected"),
        (infer(Binary::Add, &[rows(&[4]), rows(&[5])]), "the second does not broadcast to the first"),
        (infer(Binary::Add, &[rows(&[1]), rows(&[5])]), "the second does not broadcast to the first"),
        (infer(Where, &[rows(&[4]), rows(&[4]), rows(&[5])]), "shapes differ"),
        (infer(rope(8), &[rows(&[16]), numbers(&[]), constant(&[4])]), "x must be [R, H, E]"),
        (infer(rope(8), &[rows(&[3, 16]), rows(&[]), constant(&[4])]), "positions must be u32 [R]"),
        (
            infer(rope(18), &[rows(&[3, 16]), numbers(&[]), constant(&[9])]),
            "rotary dimension 18 of heads [rows, 3, 16]",
        ),
        (
            infer(rope(7), &[rows(&[3, 16]), numbers(&[]), constant(&[3])]),
            "rotary dimension 7 of heads [rows, 3, 16]",
        ),
        (infer(rope(8), &[rows(&[3, 16]), numbers(&[]), constant(&[8])]), "expected 4 frequencies"),
        (infer(CacheWrite { cache }, &[rows(&[2, 8]), rows(&[16])]), "expected [R, 2, 8]"),
        (infer(CacheWrite { cache: CacheId(2) }, &[rows(&[2, 8]), rows(&[2, 8])]), "no cache 2 among 2"),
        (
            infer(attention(KvSource::Cache(cache), None), &[rows(&[3, 8])]),
            "q must be [R, H, 8], H a multiple of 2",
        ),
        (infer(attention(KvSource::Cache(cache), Some(0)), &[rows(&[2, 8])]), "a window of 0 sees nothing"),
        (
            infer(attention(KvSource::Cache(CacheId(1)), None), &[rows(&[2, 8])]),
            "window None over a cache that keeps Some(4)",
        ),
        (
            infer(attention(KvSource::Cache(CacheId(1)), Some(5)), &[rows(&[2, 8])]),
            "window Some(5) over a cache that keeps Some(4)",
        ),
        (
            infer(
                attention(KvSource::Step(Mask::Causal), None),
                &[rows(&[2, 8]), rows(&[2, 8]), rows(&[1, 8])],
            ),
            "k and v differ",
        ),
        (
            infer(attention(KvSource::Step(Mask::Causal), None), &[rows(&[2, 8]), rows(&[8]), rows(&[8])]),
            "k must be [R, G, E], and v [R, G, V]",
        ),
        (infer(Reduce { function: ReduceFn::Max, axis: 2 }, &[rows(&[4])]), "no axis 2"),
        (infer(Argmax, &[rows(&[2, 4])]), "x must be [R, D]"),
        (infer(CrossEntropy, &[rows(&[4]), rows(&[])]), "targets must be u32 [R]"),
        (infer(Concat { axis: 1 }, &[rows(&[4]), rows(&[2, 2])]), "ranks differ"),
        (infer(Concat { axis: 0 }, &[rows(&[4]), constant(&[3, 4])]), "rows and 3 do not add up"),
        (infer(Concat { axis: 0 }, &[rows(&[4]), rows(&[5])]), "axis 1 differs"),
        (infer(Slice { start: 3, end: 5 }, &[rows(&[4])]), "no range 3..5"),
        (infer(Slice { start: 2, end: 2 }, &[rows(&[4])]), "no range 2..2"),
        (infer(Slice { start: 0, end: 2 }, &[rows(&[2, 4])]), "x must be [R, D]"),
        (infer(Reshape { inner: vec![3] }, &[rows(&[4])]), "rows do not rearrange to [3]"),
        (infer(Transpose { axes: vec![0, 0] }, &[rows(&[4])]), "[0, 0] is no order of the axes"),
        (
            infer(Broadcast { shape: Shape::rows(Dim::ROWS, &[4]) }, &[constant(&[3])]),
            "does not repeat to [rows, 4]",
        ),
        (infer(IndexAdd, &[constant(&[9, 4]), numbers(&[]), rows(&[5])]), "rows differ in width"),
        (
            infer(Unfold { taps: 3, stride: 2, padding: 1 }, &[rows(&[4])]),
            "outer dimension rows, expected a multiple of the stride 2",
        ),
        (infer(Unfold { taps: 0, stride: 1, padding: 1 }, &[rows(&[4])]), "0 taps"),
        (infer(MeanPool, &[rows(&[2, 4])]), "x must be [R, D]"),
    ] {
        assert_eq!(found, expected);
    }
}

#[test]
fn builder_reports_the_first_mistake_with_its_operands() {
    let mut g = Builder::new();
    let ids = g.input(Input::TokenIds);
    let table = g.weight(Ok(weight("embed", &[3, 2], &[0.0; 6])));
    let h = g.embed(ids, table);
    let w = g.weight(Ok(weight("w", &[5, 4], &[0.0; 20])));
    let y = g.linear(h, w);
    let z = g.embed(y, y);
    assert_eq!(
        g.finish(&[z]).unwrap_err().to_string(),
        "linear: w must be [N, K] for x [.., K], operands f32[rows, 2], f32[5, 4]"
    );
}

/// Whatever is put together, the answer is a type or a refusal, never a panic.
#[test]
fn nothing_makes_inference_panic() {
    let mut random = brasa_graph::testing::Random::new(1);
    let sizes = [0, 1, 2, 3, 4, 8, 16, 1 << 33, usize::MAX / 2, usize::MAX];
    let pick = |random: &mut brasa_graph::testing::Random| sizes[random.below(sizes.len())];
    let mut accepted = 0;
    for _ in 0..200_000 {
        let dim = |random: &mut brasa_graph::testing::Random| Dim {
            factor: pick(random),
            symbol: [None, None, Some(Symbol::Rows), Some(Symbol::Outs)][random.below(4)],
        };
        let shape = |random: &mut brasa_graph::testing::Random| {
            Shape((0..random.below(4)).map(|_| dim(random)).collect())
        };
        let value = |random: &mut brasa_graph::testing::Random| {
            let dtype = [DType::F32, DType::F32, DType::U32, DType::F16][random.below(4)];
            temporary(dtype, shape(random))
        };
        let operands: Vec<Value> = (0..random.below(4)).map(|_| value(&mut random)).collect();
        let cache = CacheId(random.below(3) as u32);
        let source = if random.below(2) == 0 { KvSource::Cache(cache) } else { KvSource::Step(Mask::Causal) };
        let (a, b) = (pick(&mut random), pick(&mut random));
        let ops: [Op; 25] = [
            Embed.into(),
            Gather.into(),
            SelectRows.into(),
            Linear.into(),
            LinearTransposed.into(),
            ExpertLinear.into(),
            HeadLinear.into(),
            RouterTopK { k: a, gating: Gating::SOFTMAX_ALL }.into(),
            Matmul { transpose_a: a > 2, transpose_b: b > 2 }.into(),
            RmsNorm { eps: 0.0 }.into(),
            LayerNorm { eps: 0.0 }.into(),
            Binary::Add.into(),
            rope(a).into(),
            CacheWrite { cache }.into(),
            attention(source, Some(a)).into(),
            Reduce { function: ReduceFn::Sum, axis: a }.into(),
            Argmax.into(),
            CrossEntropy.into(),
            Concat { axis: a }.into(),
            Slice { start: a, end: b }.into(),
            Reshape { inner: vec![a, b] }.into(),
            Transpose { axes: vec![a, b] }.into(),
            Broadcast { shape: shape(&mut random) }.into(),
            IndexAdd.into(),
            Unfold { taps: b, stride: a, padding: b }.into(),
        ];
        let op = &ops[random.below(ops.len())];
        accepted += usize::from(op.infer(&operands.iter().collect::<Vec<_>>(), CACHES).is_ok());
    }
    assert!(accepted > 1000, "{accepted}");
}

/// Results are as wide as values, and caches take what they store.
#[test]
fn attention_of_other_widths_has_the_documented_types() {
    let [own, latent] = [CacheId(0), CacheId(1)];
    let wide = |op: Op, operands: &[Value]| infer_with(WIDE, op, operands);
    let attend = |cache| Op::from(attention(KvSource::Cache(cache), None));
    let to_step = || Op::from(attention(KvSource::Step(Mask::Causal), None));
    let (q, k, v) = (|| rows(&[4, 8]), || rows(&[2, 8]), || rows(&[2, 5]));
    for (found, expected) in [
        (wide(CacheWrite { cache: own }.into(), &[k(), v()]), ""),
        (wide(CacheWrite { cache: own }.into(), &[k(), k()]), "expected [R, 2, 5]"),
        (wide(CacheWrite { cache: own }.into(), &[k()]), "1 operands, expected 2"),
        (wide(CacheWrite { cache: latent }.into(), &[rows(&[1, 12])]), ""),
        (
            wide(CacheWrite { cache: latent }.into(), &[rows(&[1, 12]), rows(&[1, 8])]),
            "2 operands, expected 1",
        ),
        (wide(attend(own), &[q()]), "f32[rows, 4, 5]"),
        (wide(attend(own), &[q(), constant(&[4])]), "f32[rows, 4, 5]"),
        (wide(attend(own), &[q(), constant(&[3])]), "sinks [3], expected [4]"),
        (wide(attend(latent), &[rows(&[20, 12])]), "f32[rows, 20, 8]"),
        (wide(attend(latent), &[rows(&[20, 8])]), "q must be [R, H, 12], H a multiple of 1"),
        (wide(to_step(), &[q(), k(), v()]), "f32[rows, 4, 5]"),
        (wide(to_step(), &[q(), k(), v(), constant(&[4])]), "f32[rows, 4, 5]"),
        (wide(to_step(), &[q(), k(), v(), rows(&[4])]), "sinks [rows, 4], expected [4]"),
    ] {
        assert_eq!(found, expected);
    }
    let mut b = Builder::new();
    b.cache(CacheSpec::latent(4, 5, None));
    assert_eq!(b.finish(&[]).unwrap_err().to_string(), "values of the first 5 elements of keys of 4");
}
