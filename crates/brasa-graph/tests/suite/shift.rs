//! Moving cached keys: which graphs allow it, and that a moved text goes on as one whose queries moved instead.

use crate::small_model::{Device, small_model, tokens};
use brasa_graph::device::KvType;
use brasa_graph::op::{Attention, KvSource, Mask, Rope, RopeLayout, Unary, UnaryGradient};
use brasa_graph::shift::key_rotations;
use brasa_graph::step::{Outs, PageId, Segment, Step};
use brasa_graph::testing::{Random, Tolerance, compare, f32_weight, weight};
use brasa_graph::{Builder, CacheId, CacheSpec, Graph, Input, ValueId};

const ROPE: Rope = Rope { layout: RopeLayout::Interleaved, rotary_dim: 4, magnitude: 1.5 };
const READ: Attention =
    Attention { source: KvSource::Cache(CacheId(0)), scale: 1.0, window: None, softcap: None };

/// Turned queries and keys of `[1, 4]`; `finish` writes and reads the cache.
struct Parts {
    b: Builder,
    x: ValueId,
    q: ValueId,
    k: ValueId,
    positions: ValueId,
}

fn graph(finish: impl FnOnce(&mut Parts) -> ValueId) -> Graph {
    let mut b = Builder::new();
    let mut random = Random::new(1);
    let (ids, positions) = (b.input(Input::TokenIds), b.input(Input::Positions));
    let table = b.weight(Ok(f32_weight(&mut random, "table", &[9, 4])));
    let frequencies = b.weight(Ok(weight("frequencies", &[2], &[1.0, 0.01])));
    let x = b.embed(ids, table);
    let x = b.reshape(x, &[1, 4]);
    let (q, k) = (b.rope(x, positions, frequencies, ROPE), b.rope(x, positions, frequencies, ROPE));
    b.cache(CacheSpec::new(1, 4, None));
    let mut parts = Parts { b, x, q, k, positions };
    let y = finish(&mut parts);
    parts.b.finish(&[y]).unwrap()
}

#[test]
fn rotations_of_cached_keys_are_found() {
    let rotations = key_rotations(&small_model()).unwrap();
    assert_eq!(rotations.len(), 2);
    for rotation in rotations {
        let rotation = rotation.unwrap();
        assert_eq!((rotation.layout, rotation.rotary_dim), (RopeLayout::SplitHalf, 8));
    }
    let without_positions = graph(|p| {
        p.b.cache_write(p.x, p.x, CacheId(0));
        p.b.attention(&[p.x], READ)
    });
    assert_eq!(key_rotations(&without_positions), Ok(vec![None]));
}

#[test]
fn graphs_that_forbid_it_are_refused_by_name() {
    let refused = |finish: &dyn Fn(&mut Parts) -> ValueId| key_rotations(&graph(finish)).unwrap_err();
    let learned = refused(&|p| {
        let table = p.b.weight(Ok(weight("learned", &[64, 4], &[0.5; 256])));
        let learned = p.b.embed(p.positions, table);
        let learned = p.b.reshape(learned, &[1, 4]);
        let x = p.b.add(p.x, learned);
        p.b.cache_write(x, x, CacheId(0));
        p.b.attention(&[p.x], READ)
    });
    assert!(learned.starts_with("a context shift where positions are read by embed"), "{learned}");
    let normed = refused(&|p| {
        let k = p.b.rms_norm_unscaled(p.k, 1e-5);
        p.b.cache_write(k, p.x, CacheId(0));
        p.b.attention(&[p.q], READ)
    });
    assert!(normed.starts_with("a context shift where rms_norm reads turned values"), "{normed}");
    let valued = refused(&|p| {
        p.b.cache_write(p.k, p.k, CacheId(0));
        p.b.attention(&[p.q], READ)
    });
    assert!(valued.starts_with("a context shift where cache_write reads turned values"), "{valued}");
    let within = refused(&|p| {
        let source = KvSource::Step(Mask::Causal);
        p.b.attention(&[p.q, p.k, p.x], Attention { source, ..READ })
    });
    assert!(within.starts_with("a context shift where attention reads turned values"), "{within}");
    let parts = refused(&|p| {
        let k = p.b.concat(p.x, p.k, 2);
        let latent = p.b.cache(CacheSpec::latent(8, 4, None));
        p.b.cache_write_keys(k, latent);
        p.b.attention(&[p.q], READ)
    });
    assert!(parts.starts_with("a context shift where concat reads turned values"), "{parts}");
    let latent = refused(&|p| {
        let latent = p.b.cache(CacheSpec::latent(4, 2, None));
        p.b.cache_write_keys(p.k, latent);
        p.b.attention(&[p.q], Attention { source: KvSource::Cache(latent), ..READ })
    });
    assert_eq!(latent, "a context shift of cache 1, whose turned keys hold its values");
    let unturned = refused(&|p| {
        p.b.cache_write(p.x, p.x, CacheId(0));
        p.b.attention(&[p.q], READ)
    });
    assert_eq!(unturned, "queries and keys of cache 0 are turned in different ways");
    let unknown = refused(&|p| {
        p.b.cache_write(p.k, p.x, CacheId(0));
        let y = p.b.attention(&[p.q], READ);
        p.b.apply(UnaryGradient { function: Unary::Silu }, &[y, y])[0]
    });
    assert!(unknown.starts_with("a context shift where unary_gradient is computed"), "{unknown}");
}

/// 600 rows, of which the first page is forgotten: their queries go on at 600 with keys where they are, or at 344 with
/// keys moved.
#[test]
fn moved_keys_meet_queries_as_before() {
    for (dtype, tolerance) in [(KvType::F32, Tolerance(2e-5)), (KvType::F16, Tolerance::F16)] {
        let (text, more) = (tokens(600, 1), tokens(5, 2));
        let go_on = |moved: bool| {
            let mut device = Device::new(dtype);
            device.run(&[(1, &text)]);
            let mut segment: Segment =
                device.sequences.extend(&mut *device.pool, 1, &more, Outs::All).unwrap();
            for table in &mut segment.pages {
                table.remove(0);
            }
            segment.first_index = 600 - 256;
            if moved {
                let pages: Vec<Vec<PageId>> =
                    segment.pages.iter().map(|table| table.iter().flatten().copied().collect()).collect();
                device.program.check_shift(&*device.pool).unwrap();
                device.program.shift(&mut *device.pool, &pages, -256).unwrap();
            } else {
                segment.positions = Some((600..605).collect());
            }
            let step = Step { segments: vec![segment] };
            device.program.run(&step, &mut *device.pool).unwrap().only().floats().to_vec()
        };
        let (moved, expected) = (go_on(true), go_on(false));
        let comparison = compare(&moved, &expected);
        assert!(comparison.within(tolerance), "{dtype:?}: {comparison}");
    }
}

#[test]
fn what_cannot_move_is_refused_and_stays() {
    for (dtype, name) in [(KvType::BF16, "bf16"), (KvType::Q8, "q8")] {
        let mut device = Device::new(dtype);
        let error = device.program.shift(&mut *device.pool, &[Vec::new(), Vec::new()], -256).unwrap_err();
        let expected = format!(
            "reference does not support a context shift of {name} keys, which would be rounded twice"
        );
        assert_eq!(error.to_string(), expected);
        assert_eq!(device.program.check_shift(&*device.pool).unwrap_err(), error);
    }
    let mut device = Device::new(KvType::F32);
    device.run(&[(1, &tokens(300, 1))]);
    let page = PageId::from_index;
    let mut refuse =
        |pages: &[Vec<PageId>]| device.program.shift(&mut *device.pool, pages, -256).unwrap_err().to_string();
    assert_eq!(
        refuse(&[vec![page(1), page(1)], Vec::new()]),
        "step cannot run: a context shift of page 1 of 2, cache group 0, expected each once"
    );
    assert_eq!(
        refuse(&[Vec::new(), vec![page(7)]]),
        "step cannot run: a context shift of page 7 of 2, cache group 1, expected each once"
    );
    assert_eq!(
        refuse(&[Vec::new()]),
        "step cannot run: a context shift of 1 lists of pages, expected one for each of 2 cache groups"
    );
}
