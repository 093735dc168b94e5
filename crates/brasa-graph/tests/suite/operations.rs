//! Operations on values small enough to check by hand.

use brasa_graph::op::{
    Argmax, Attention, Binary, Broadcast, CacheWrite, Cast, ClampedUnit, Concat, CrossEntropy, Embed, Fold,
    Gather, Gating, GroupScore, Groups, HeadLinear, IndexAdd, KvSource, LayerNorm, LinearTransposed, Mask,
    MeanPool, Narrow, Pick, Place, Reduce, ReduceFn, Reshape, RmsNorm, Rope, RopeLayout, RouterTopK,
    SelectRows, Slice, Softmax, Transpose, Unary, Unfold, Where,
};
use brasa_graph::reference::{Array, SegmentRows, apply};
use brasa_graph::{CacheId, DType, Op, Shape};

fn f(shape: &[usize], data: &[f32]) -> Array {
    Array::f32(shape, data.to_vec())
}

fn u(shape: &[usize], data: &[u32]) -> Array {
    Array::u32(shape, data.to_vec())
}

/// One segment of all rows.
fn whole(rows: usize) -> Vec<SegmentRows> {
    vec![SegmentRows::text(0..rows, 0)]
}

#[track_caller]
fn check(op: impl Into<Op>, operands: &[&Array], expected: &[Array]) {
    assert_eq!(apply(&op.into(), operands, &whole(operands[0].outer())).unwrap(), expected);
}

#[test]
fn lookups() {
    let table = f(&[3, 2], &[0., 1., 10., 11., 20., 21.]);
    check(Embed, &[&u(&[2], &[2, 0]), &table], &[f(&[2, 2], &[20., 21., 0., 1.])]);
    check(Gather, &[&f(&[3], &[5., 6., 7.]), &u(&[2, 2], &[2, 2, 0, 1])], &[f(&[2, 2], &[7., 7., 5., 6.])]);
    check(SelectRows, &[&table, &u(&[1], &[1])], &[f(&[1, 2], &[10., 11.])]);
    check(SelectRows, &[&u(&[2, 1], &[8, 9]), &u(&[2], &[1, 1])], &[u(&[2, 1], &[9, 9])]);
    check(
        IndexAdd,
        &[&f(&[2, 2], &[1., 2., 3., 4.]), &u(&[3], &[1, 1, 0]), &f(&[3, 2], &[1., 1., 10., 10., 100., 100.])],
        &[f(&[2, 2], &[101., 102., 14., 15.])],
    );
}

#[test]
fn transposes_of_lookups() {
    let x = f(&[2, 3], &[0., 1., 2., 10., 11., 12.]);
    check(Pick, &[&x, &u(&[2, 2], &[2, 0, 1, 1])], &[f(&[2, 2], &[2., 0., 11., 11.])]);
    check(Pick, &[&x, &u(&[2], &[2, 0])], &[f(&[2], &[2., 10.])]);
    let placed = f(&[2, 3], &[0., 5., 0., 0., 0., 15.]);
    check(
        Place { width: 3 },
        &[&f(&[2, 2], &[2., 3., 7., 8.]), &u(&[2, 2], &[1, 1, 2, 2])],
        std::slice::from_ref(&placed),
    );
    let part = Narrow { axis: 1, start: 1.into(), len: 2.into() };
    check(part, &[&x], &[f(&[2, 2], &[1., 2., 11., 12.])]);
    // Two taps, one row apart, of two rows behind a row of zeros: the row of zeros takes what it gave.
    let unfold = Unfold { taps: 2, stride: 1, padding: 1 };
    check(Fold { unfold }, &[&f(&[2, 2], &[1., 2., 3., 4.])], &[f(&[2, 1], &[5., 4.])]);
}

#[test]
fn numbers_outside_their_table_are_errors() {
    let table = f(&[3, 2], &[0.; 6]);
    for (op, operands) in [
        (Op::from(Embed), [u(&[1], &[3]), table.clone()]),
        (Op::from(SelectRows), [table.clone(), u(&[1], &[3])]),
        (Op::from(Gather), [f(&[3], &[0.; 3]), u(&[1, 1], &[3])]),
        (Op::from(CrossEntropy), [f(&[1, 3], &[0.; 3]), u(&[1], &[3])]),
        (Op::from(Pick), [f(&[1, 3], &[0.; 3]), u(&[1], &[3])]),
        (Op::from(Place { width: 3 }), [f(&[1], &[0.]), u(&[1], &[3])]),
    ] {
        let error = apply(&op, &[&operands[0], &operands[1]], &whole(1)).unwrap_err();
        assert_eq!(error, "number 3, expected below 3", "{}", op.name());
    }
    let write = CacheWrite { cache: CacheId(0) };
    assert!(apply(&write.into(), &[&table, &table], &whole(1)).is_err());
}

#[test]
fn elementwise() {
    let x = f(&[4], &[-2., -0.5, 0., 3.]);
    check(Unary::Scale(2.0), &[&x], &[f(&[4], &[-4., -1., 0., 6.])]);
    check(Unary::Clamp { low: -1.0, high: 1.0 }, &[&x], &[f(&[4], &[-1., -0.5, 0., 1.])]);
    check(Unary::Rsqrt, &[&f(&[2], &[4., 0.25])], &[f(&[2], &[0.5, 2.])]);
    check(Unary::Sigmoid, &[&f(&[2], &[0., 1000.])], &[f(&[2], &[0.5, 1.])]);
    check(Unary::Silu, &[&f(&[3], &[0., 1000., -1000.])], &[f(&[3], &[0., 1000., -0.])]);
    let (a, b) = (f(&[2, 3], &[1., 2., 3., 4., 5., 6.]), f(&[3], &[10., 20., 30.]));
    check(Binary::Add, &[&a, &b], &[f(&[2, 3], &[11., 22., 33., 14., 25., 36.])]);
    check(Binary::Sub, &[&a, &f(&[2, 1], &[1., 4.])], &[f(&[2, 3], &[0., 1., 2., 0., 1., 2.])]);
    check(Binary::Mul, &[&a, &f(&[1], &[2.])], &[f(&[2, 3], &[2., 4., 6., 8., 10., 12.])]);
    check(Binary::Div, &[&a, &a], &[f(&[2, 3], &[1.; 6])]);
    check(Binary::Maximum, &[&a, &f(&[3], &[3., 3., 3.])], &[f(&[2, 3], &[3., 3., 3., 4., 5., 6.])]);
    check(Where, &[&u(&[3], &[1, 0, 7]), &b, &f(&[3], &[1., 2., 3.])], &[f(&[3], &[10., 2., 30.])]);
}

#[test]
fn every_head_has_a_matrix_of_its_own() {
    let x = f(&[2, 2, 3], &[1., 2., 3., 4., 5., 6., 0., 1., 0., 1., 0., 0.]);
    let w = f(&[2, 2, 3], &[1., 0., 0., 0., 1., 1., 10., 0., 0., 0., 0., 100.]);
    check(HeadLinear, &[&x, &w], &[f(&[2, 2, 2], &[1., 5., 40., 600., 0., 1., 10., 0.])]);
}

#[test]
fn norms() {
    // Mean square (9 + 16)/2 − with eps 12.5 the root is exactly 5.
    check(
        RmsNorm { eps: 12.5 },
        &[&f(&[1, 2], &[3., 4.]), &f(&[2], &[5., 10.])],
        &[f(&[1, 2], &[5.0 * (3.0 * 0.2), 4.0 * (10.0 * 0.2)])],
    );
    check(RmsNorm { eps: 0.0 }, &[&f(&[2, 1], &[-7., 2.])], &[f(&[2, 1], &[-1., 1.])]);
    check(
        LayerNorm { eps: 0.0 },
        &[&f(&[1, 4], &[1., 1., 3., 3.]), &f(&[4], &[1., 2., 3., 4.]), &f(&[4], &[0., 0., 0., 10.])],
        &[f(&[1, 4], &[-1., -2., 3., 14.])],
    );
}

#[test]
fn reductions() {
    let x = f(&[2, 3], &[1., 5., 3., 4., 0., 8.]);
    let reduce = |function, axis| Reduce { function, axis };
    check(reduce(ReduceFn::Sum, 1), &[&x], &[f(&[2], &[9., 12.])]);
    check(reduce(ReduceFn::Sum, 0), &[&x], &[f(&[3], &[5., 5., 11.])]);
    check(reduce(ReduceFn::Mean, 1), &[&x], &[f(&[2], &[3., 4.])]);
    check(reduce(ReduceFn::Max, 0), &[&x], &[f(&[3], &[4., 5., 8.])]);
    check(reduce(ReduceFn::Sum, 0), &[&f(&[3], &[1., 2., 3.])], &[f(&[1], &[6.])]);
    check(reduce(ReduceFn::LogSumExp, 1), &[&f(&[1, 1], &[7.])], &[f(&[1], &[7.])]);
    check(Softmax, &[&f(&[2, 2], &[0., 0., 1000., -1000.])], &[f(&[2, 2], &[0.5, 0.5, 1., 0.])]);
    // Ties go to the lowest, and what is no number never wins.
    check(Argmax, &[&f(&[2, 3], &[1., 3., 3., f32::NAN, -5., -6.])], &[u(&[2], &[1, 1])]);
}

#[test]
fn router_breaks_ties_by_the_lowest_expert() {
    let router = |k, gating| RouterTopK { k, gating };
    let logits = f(&[1, 4], &[2., 5., 5., 2.]);
    let half = f(&[1, 2], &[0.5, 0.5]);
    check(router(2, Gating::SOFTMAX_CHOSEN), &[&logits], &[u(&[1, 2], &[1, 2]), half]);
    let thirds = f(&[1, 3], &[0.25; 3]);
    check(router(3, Gating::SOFTMAX_ALL), &[&f(&[1, 4], &[1.; 4])], &[u(&[1, 3], &[0, 1, 2]), thirds]);
}

#[test]
fn groups_break_ties_by_the_lowest_group() {
    let grouped = |kept, score, k| {
        let groups = Some(Groups { count: 3, kept, score });
        RouterTopK { k, gating: Gating { groups, ..Gating::SIGMOID } }
    };
    let half = |k| f(&[1, k], &vec![0.5; k]);
    // All alike: the first group, then its experts in order.
    let even = f(&[1, 6], &[0.; 6]);
    check(grouped(1, GroupScore::TopTwo, 2), &[&even], &[u(&[1, 2], &[0, 1]), half(2)]);
    check(grouped(2, GroupScore::Max, 3), &[&even], &[u(&[1, 3], &[0, 1, 2]), half(3)]);
    // The bias decides for the last group, and leaves the weights alone.
    let bias = f(&[6], &[0., 0., 0., 0., 1., 2.]);
    check(grouped(1, GroupScore::Max, 2), &[&even, &bias], &[u(&[1, 2], &[5, 4]), half(2)]);
    // One large score outweighs two fair ones by its maximum, not by the sum.
    let bias = f(&[6], &[0., 0., 0.7, 0.7, 1.0, 0.]);
    check(grouped(1, GroupScore::Max, 1), &[&even, &bias], &[u(&[1, 1], &[4]), half(1)]);
    check(grouped(1, GroupScore::TopTwo, 1), &[&even, &bias], &[u(&[1, 1], &[2]), half(1)]);
    // A NaN is behind every number, but an expert of a kept group all the same.
    let odd = f(&[1, 6], &[f32::NAN, 1., 0., 0., 0., 0.]);
    let nan = RouterTopK { k: 2, ..grouped(1, GroupScore::Max, 2) }.choose(odd.floats(), None);
    assert_eq!(nan.iter().map(|chosen| chosen.0).collect::<Vec<_>>(), [1, 0]);
    assert!(nan.iter().all(|chosen| chosen.1.is_nan()));
}

#[test]
fn weights_are_normalised_and_scaled() {
    let gating = Gating { norm_eps: Some(1e-6), scale: 2.5, ..Gating::SIGMOID };
    let logits = f(&[1, 3], &[0., 0., -1.]);
    let each = 0.5 / (1.0 + 1e-6) * 2.5;
    check(RouterTopK { k: 2, gating }, &[&logits], &[u(&[1, 2], &[0, 1]), f(&[1, 2], &[each; 2])]);
    // Sums that vanish: ε decides.
    let low = f(&[1, 2], &[-200., -200.]);
    check(RouterTopK { k: 2, gating }, &[&low], &[u(&[1, 2], &[0, 1]), f(&[1, 2], &[0.; 2])]);
}

#[test]
fn a_clamped_unit_keeps_what_is_no_number() {
    let unit = ClampedUnit { alpha: 1.0, limit: 2.0 };
    let gate = f(&[5], &[f32::NAN, 1., 9., 2., 0.]);
    let up = f(&[5], &[1., f32::NAN, 9., 2., -9.]);
    let found = apply(&unit.into(), &[&gate, &up], &[]).unwrap().remove(0);
    let found = found.floats();
    assert!(found[0].is_nan() && found[1].is_nan());
    assert_eq!(found[2].to_bits(), found[3].to_bits(), "both are clamped to the limit");
    assert!(found[4].abs() < 1e-30);
}

#[test]
fn rotations() {
    let quarter = f(&[1], &[std::f32::consts::FRAC_PI_2]);
    let x = f(&[2, 1, 3], &[1., 0., 9., 0., 1., 9.]);
    let rope = |layout, magnitude| Rope { layout, rotary_dim: 2, magnitude };
    for layout in [RopeLayout::Interleaved, RopeLayout::SplitHalf] {
        let y = apply(&rope(layout, 2.0).into(), &[&x, &u(&[2], &[1, 2]), &quarter], &whole(2)).unwrap();
        let expected = [0., 2., 9., 0., -2., 9.];
        assert!(y[0].floats().iter().zip(expected).all(|(y, e)| (y - e).abs() < 1e-6), "{y:?}");
    }
}

#[test]
fn views_and_copies() {
    let x = f(&[2, 4], &[0., 1., 2., 3., 4., 5., 6., 7.]);
    check(Slice { start: 1, end: 3 }, &[&x], &[f(&[2, 2], &[1., 2., 5., 6.])]);
    check(Reshape { inner: vec![2, 2] }, &[&x], &[x.reshaped([2, 2, 2])]);
    check(Transpose { axes: vec![1, 0] }, &[&x], &[f(&[4, 2], &[0., 4., 1., 5., 2., 6., 3., 7.])]);
    check(
        Transpose { axes: vec![1, 2, 0] },
        &[&x.reshaped([2, 2, 2])],
        &[f(&[2, 2, 2], &[0., 4., 1., 5., 2., 6., 3., 7.])],
    );
    check(
        Broadcast { shape: Shape::new([2_usize, 2, 2]) },
        &[&f(&[2, 1], &[1., 2.])],
        &[f(&[2, 2, 2], &[1., 1., 2., 2., 1., 1., 2., 2.])],
    );
    let y = f(&[2, 1], &[8., 9.]);
    check(Concat { axis: 1 }, &[&x, &y], &[f(&[2, 5], &[0., 1., 2., 3., 8., 4., 5., 6., 7., 9.])]);
    check(Concat { axis: 0 }, &[&y, &y], &[f(&[4, 1], &[8., 9., 8., 9.])]);
}

#[test]
fn casts_round_to_even() {
    let cast = |dtype| Cast { dtype };
    check(cast(DType::U32), &[&f(&[5], &[0.5, 1.5, 2.5, -3., 1e20])], &[u(&[5], &[0, 2, 2, 0, u32::MAX])]);
    check(cast(DType::F32), &[&u(&[2], &[3, 16_777_217])], &[f(&[2], &[3., 16_777_216.])]);
    check(cast(DType::BF16), &[&f(&[2], &[1.003_906_3, 1.011_718_8])], &[f(&[2], &[1.0, 1.015_625])]);
    check(cast(DType::F16), &[&f(&[2], &[1.000_488_3, 1e6])], &[f(&[2], &[1.0, f32::INFINITY])]);
}

#[test]
fn segments_stay_apart() {
    let segments = [SegmentRows::text(0..2, 0), SegmentRows::text(2..4, 7)];
    let x = f(&[4, 1], &[1., 2., 10., 20.]);
    let run = |op: Op, operands: &[&Array]| apply(&op, operands, &segments).unwrap().remove(0);
    assert_eq!(run(MeanPool.into(), &[&x]), f(&[2, 1], &[1.5, 15.]));
    let unfold = |stride| Op::from(Unfold { taps: 3, stride, padding: 1 });
    let expected = [0., 1., 2., 1., 2., 0., 0., 10., 20., 10., 20., 0.];
    assert_eq!(run(unfold(1), &[&x]), f(&[4, 3], &expected));
    // Two rows for each of the step's, halved again.
    let twice = f(&[8, 1], &[1., 2., 3., 4., 10., 20., 30., 40.]);
    let expected = [0., 1., 2., 2., 3., 4., 0., 10., 20., 20., 30., 40.];
    assert_eq!(run(unfold(2), &[&twice]), f(&[4, 3], &expected));
    let attention = |mask, window| {
        Op::from(Attention { source: KvSource::Step(mask), scale: 0.0, window, softcap: None })
    };
    // With a scale of zero every visible row counts the same.
    let heads = x.reshaped([4, 1, 1]);
    let attend = |mask, window| run(attention(mask, window), &[&heads, &heads, &heads]).floats().to_vec();
    assert_eq!(attend(Mask::Causal, None), [1., 1.5, 10., 15.]);
    assert_eq!(attend(Mask::Causal, Some(1)), [1., 2., 10., 20.]);
    assert_eq!(attend(Mask::Bidirectional, None), [1.5, 1.5, 15., 15.]);
    assert_eq!(attend(Mask::Bidirectional, Some(1)), [1., 2., 10., 20.]);
    assert_eq!(attend(Mask::Bidirectional, Some(2)), [1.5, 1.5, 15., 15.]);
    // One head's slope is 2⁻⁸; a neighbour weighs e^−2⁻⁸ against 1.
    let far = (-1.0_f64 / 256.0).exp();
    let mix = |own: f64, other: f64| (own + far * other) / (1.0 + far);
    let expected = [mix(1., 2.), mix(2., 1.), mix(10., 20.), mix(20., 10.)];
    for (found, expected) in attend(Mask::Alibi, None).iter().zip(expected) {
        assert!((f64::from(*found) - expected).abs() < 1e-6, "{found}, expected {expected}");
    }
}

/// The slopes that the paper lists for 8 heads, and those of 12, which take half of the sequence of 16.
#[test]
fn slopes_of_alibi() {
    let slopes = |heads| (0..heads).map(|head| brasa_graph::op::alibi_slope(heads, head)).collect::<Vec<_>>();
    let powers = |exponents: &[f64]| exponents.iter().map(|x| (-x).exp2() as f32).collect::<Vec<_>>();
    assert_eq!(slopes(8), powers(&[1., 2., 3., 4., 5., 6., 7., 8.]));
    assert_eq!(slopes(12), powers(&[1., 2., 3., 4., 5., 6., 7., 8., 0.5, 1.5, 2.5, 3.5]));
    assert_eq!(slopes(1), powers(&[8.]));
}

#[test]
fn transposed_linear_is_the_adjoint() {
    let mut random = brasa_graph::testing::Random::new(8);
    for (rows, outputs, inputs) in [(1, 1, 1), (3, 17, 33), (2, 64, 5)] {
        let w = f(&[outputs, inputs], &random.normals(outputs * inputs, 1.0));
        let x = f(&[rows, inputs], &random.normals(rows * inputs, 1.0));
        let y = f(&[rows, outputs], &random.normals(rows * outputs, 1.0));
        let wx = apply(&brasa_graph::op::Linear.into(), &[&x, &w], &whole(rows)).unwrap();
        let wy = apply(&LinearTransposed.into(), &[&y, &w], &whole(rows)).unwrap();
        let dot =
            |a: &Array, b: &Array| -> f32 { a.floats().iter().zip(b.floats()).map(|(a, b)| a * b).sum() };
        assert!((dot(&wx[0], &y) - dot(&wy[0], &x)).abs() < 1e-3);
    }
}
