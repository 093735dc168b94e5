//! Identities that hold for any shape, between operations, and of the harness that checks devices.

use std::sync::Arc;

use brasa_graph::device::{
    Backend, DeviceError, DeviceInfo, KvPool, KvPoolSpec, KvType, OpTime, Precision, Program, ProgramLimits,
    ProgramSpec, WeightSet,
};
use brasa_graph::fuse::Pattern;
use brasa_graph::op::{Attention, Concat, KvSource, Mask, Matmul, Rope, RopeLayout, Transpose};
use brasa_graph::output::{OutputPlace, Outputs};
use brasa_graph::reference::{Array, ReferenceBackend, SegmentRows, apply};
use brasa_graph::step::Step;
use brasa_graph::testing::{
    Case, Random, Tolerance, check, check_pattern, compare, f32_weight, random_case, run_case,
};
use brasa_graph::{CacheSpec, Graph, Op, Sizes};

/// A cache that holds the whole prompt gives what the step's own keys and values give, bit for bit.
#[test]
fn attention_to_a_fresh_cache_is_causal_attention() {
    for (seed, window) in [(1, None), (2, Some(1)), (3, Some(40)), (4, Some(256))] {
        let mut case = Case::new("cache and step", seed, &f32_weight, |b| {
            let (q, k, v) = (b.rows(&[4, 8]), b.rows(&[2, 8]), b.rows(&[2, 8]));
            let cache = b.graph.cache(CacheSpec::new(2, 8, window));
            b.graph.cache_write(k, v, cache);
            let attention = |source| Attention { source, scale: 0.4, window, softcap: Some(4.0) };
            let cached = b.graph.attention(&[q], attention(KvSource::Cache(cache)));
            vec![cached, b.graph.attention(&[q, k, v], attention(KvSource::Step(Mask::Causal)))]
        });
        case.steps = vec![vec![(1, 300), (2, 3)]];
        let results = run_case(&ReferenceBackend, &case).unwrap();
        assert_eq!(results[0], results[1], "window {window:?}");
        // One row at a time: the same again.
        case.steps = (0..3).map(|_| vec![(1, 1)]).collect();
        let stepwise = run_case(&ReferenceBackend, &case).unwrap()[0].concat();
        case.steps = vec![vec![(1, 3)]];
        assert_eq!(stepwise, run_case(&ReferenceBackend, &case).unwrap()[0].concat());
    }
}

/// Rounded keys and values cost what their bits say.
#[test]
fn kv_types_are_as_exact_as_their_bits() {
    let case = |kv| {
        let mut case = Case::new("kv types", 5, &f32_weight, |b| {
            let (q, k, v) = (b.rows(&[4, 40]), b.rows(&[2, 40]), b.rows(&[2, 40]));
            let cache = b.graph.cache(CacheSpec::new(2, 40, None));
            b.graph.cache_write(k, v, cache);
            let source = KvSource::Cache(cache);
            vec![b.graph.attention(&[q], Attention { source, scale: 0.1, window: None, softcap: None })]
        });
        case.kv = kv;
        run_case(&ReferenceBackend, &case).unwrap()[0].concat()
    };
    let exact = case(KvType::F32);
    for (kv, least, most) in [(KvType::F16, 1e-5, 1e-3), (KvType::BF16, 1e-4, 1e-2), (KvType::Q8, 1e-4, 2e-2)]
    {
        let error = compare(&case(kv), &exact).relative_l2;
        assert!((least..most).contains(&error), "{kv:?}: {error:.2e}");
    }
}

/// Scores depend on distance alone: Su et al. 2021, equation 16.
#[test]
fn rotated_products_depend_on_the_distance() {
    let mut random = Random::new(3);
    for layout in [RopeLayout::Interleaved, RopeLayout::SplitHalf] {
        for rotary_dim in [2, 8, 16] {
            let rope = Op::from(Rope { layout, rotary_dim, magnitude: 1.0 });
            let frequencies: Vec<f32> = (0..rotary_dim / 2).map(|_| random.uniform() * 0.3).collect();
            let frequencies = Array::f32([rotary_dim / 2], frequencies);
            let (q, k) = (random.normals(16, 1.0), random.normals(16, 1.0));
            let x = Array::f32([2, 1, 16], [q, k].concat());
            let product = |p: u32| {
                let positions = Array::u32([2], vec![p + 7, p]);
                let segments = [SegmentRows::text(0..2, 0)];
                let y = apply(&rope, &[&x, &positions, &frequencies], &segments).unwrap().remove(0);
                let (q, k) = y.floats().split_at(16);
                q.iter().zip(k).map(|(q, k)| q * k).sum::<f32>()
            };
            assert!((product(0) - product(50)).abs() < 1e-4, "{layout:?} {rotary_dim}");
        }
    }
}

#[test]
fn transposition_commutes_as_it_should() {
    let mut random = Random::new(9);
    for (m, k, n) in [(1, 1, 1), (3, 17, 5), (16, 33, 2)] {
        let a = Array::f32([m, k], random.normals(m * k, 1.0));
        let b = Array::f32([k, n], random.normals(k * n, 1.0));
        let run = |op: Op, operands: &[&Array]| apply(&op, operands, &[]).unwrap().remove(0);
        let swap = || Op::from(Transpose { axes: vec![1, 0] });
        let (at, bt) = (run(swap(), &[&a]), run(swap(), &[&b]));
        assert_eq!(run(swap(), &[&at]), a);
        let product = |a: &Array, b: &Array, transpose_a, transpose_b| {
            run(Matmul { transpose_a, transpose_b }.into(), &[a, b])
        };
        let plain = product(&a, &b, false, false);
        assert_eq!(product(&at, &b, true, false), plain);
        assert_eq!(product(&a, &bt, false, true), plain);
        assert_eq!(product(&at, &bt, true, true), plain);
        assert_eq!(run(swap(), &[&product(&b, &a, true, true)]), plain);
    }
}

#[test]
fn concat_undoes_slices() {
    for seed in 0..20 {
        let case = Case::new("slices", seed, &f32_weight, |b| {
            let width = 2 + b.random.below(60);
            let cut = 1 + b.random.below(width - 1);
            let x = b.rows(&[width]);
            let (left, right) = (b.graph.slice(x, 0..cut), b.graph.slice(x, cut..width));
            vec![x, b.graph.apply(Concat { axis: 1 }, &[left, right])[0]]
        });
        let results = run_case(&ReferenceBackend, &case).unwrap();
        assert_eq!(results[0], results[1]);
    }
}

#[test]
fn the_reference_agrees_with_itself() {
    for &pattern in Pattern::ALL {
        let adjust = |case: &mut Case| case.kv = KvType::F16;
        check_pattern(&ReferenceBackend, pattern, 0..4, &f32_weight, Tolerance::EXACT, adjust);
    }
    for seed in 0..10 {
        check(&ReferenceBackend, &random_case(seed, 20, &f32_weight), Tolerance::EXACT);
    }
}

/// The reference with one element of every result changed.
struct Faulty(fn(&mut f32));

struct FaultyProgram {
    program: Box<dyn Program>,
    fault: fn(&mut f32),
    places: Vec<OutputPlace>,
    words: Vec<u32>,
}

impl Backend for Faulty {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: "faulty".into(), ..ReferenceBackend.info() }
    }

    fn weight_set(&self, precision: Precision) -> Arc<dyn WeightSet> {
        ReferenceBackend.weight_set(precision)
    }

    fn kv_pool(&self, spec: KvPoolSpec) -> Result<Box<dyn KvPool>, DeviceError> {
        ReferenceBackend.kv_pool(spec)
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        weights: Arc<dyn WeightSet>,
        spec: ProgramSpec,
    ) -> Result<Box<dyn Program>, DeviceError> {
        let places = OutputPlace::of(&graph);
        let program = ReferenceBackend.compile(graph, weights, spec)?;
        Ok(Box::new(FaultyProgram { program, fault: self.0, places, words: Vec::new() }))
    }
}

impl Program for FaultyProgram {
    fn limits(&self) -> ProgramLimits {
        self.program.limits()
    }

    fn arena_bytes(&self) -> u64 {
        self.program.arena_bytes()
    }

    fn run(&mut self, step: &Step, pool: &mut dyn KvPool) -> Result<Outputs<'_>, DeviceError> {
        let mut values = self.program.run(step, pool)?.only().floats().to_vec();
        (self.fault)(&mut values[3]);
        self.words = values.into_iter().map(f32::to_bits).collect();
        self.places[0].resolve(&Sizes::of(step), 0);
        Ok(Outputs::new(&self.places, &self.words))
    }

    fn profile(&mut self, step: &Step, pool: &mut dyn KvPool) -> Result<Vec<OpTime>, DeviceError> {
        self.program.profile(step, pool)
    }
}

#[test]
#[should_panic(expected = "norm_linear on faulty, seed 7: ")]
fn a_wrong_element_is_found() {
    let adjust = |_: &mut Case| {};
    check_pattern(&Faulty(|x| *x += 100.0), Pattern::NormLinear, 7..8, &f32_weight, Tolerance::INT8, adjust);
}

#[test]
#[should_panic(expected = "worst at element 3: found NaN")]
fn a_nan_is_found() {
    let adjust = |_: &mut Case| {};
    check_pattern(
        &Faulty(|x| *x = f32::NAN),
        Pattern::LinearResidual,
        7..8,
        &f32_weight,
        Tolerance::INT8,
        adjust,
    );
}
