//! Memories: written once, seen whole, bounded.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_graph::device::{Backend, KvPoolSpec, KvType, Precision, ProgramLimits};
use brasa_graph::op::{Attention, KvSource};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::step::{Outs, Segment, Step};
use brasa_graph::testing::{EncoderDecoder, Sequences, Tolerance, compare, weight};
use brasa_graph::{Builder, CacheKind, CacheSpec, Graph, Input, print};

#[test]
fn every_row_sees_all_of_its_memory() {
    for (seed, lengths) in [(1, &[1, 300, 513][..]), (2, &[256]), (3, &[257, 2])] {
        let model = EncoderDecoder::new(seed);
        let expected = model.expected(lengths);
        for (kv, tolerance) in [(KvType::F32, Tolerance::F32), (KvType::F16, Tolerance::F16)] {
            let found = model.run(&ReferenceBackend, kv, lengths).unwrap();
            let comparison = compare(&found, &expected);
            assert!(comparison.within(tolerance), "{lengths:?}: {comparison}");
        }
    }
}

#[test]
fn memories_are_groups_of_their_own() {
    let groups = EncoderDecoder::new(1).decoder.cache_groups();
    let kinds: Vec<CacheKind> = groups.iter().map(|group| group.kind).collect();
    assert_eq!(kinds, [CacheKind::Text, CacheKind::Memory]);
    assert_eq!(groups[0].spec, groups[1].spec);
    let listing = print::graph(&EncoderDecoder::new(1).decoder);
    assert!(listing.contains("group 1: 2 × 20, memories 1"), "{listing}");
    assert!(listing.contains(") memory=1 scale=0.3"), "{listing}");
}

#[test]
fn steps_beyond_a_memory_are_refused() {
    let model = EncoderDecoder::new(1);
    let program = |graph: &Arc<Graph>| {
        let weights =
            ReferenceBackend.upload(graph, Precision::Fast, &mut |_| ControlFlow::Continue(())).unwrap();
        let limits = ProgramLimits { max_rows: 300, max_outs: 300, max_segments: 2 };
        ReferenceBackend.compile(Arc::clone(graph), weights, limits.with(KvType::F32)).unwrap()
    };
    let (mut encoder, mut decoder) = (program(&model.encoder), program(&model.decoder));
    let spec = KvPoolSpec::of(&model.decoder, KvType::F32);
    let mut pool = ReferenceBackend.kv_pool(spec).unwrap();
    let mut sequences = Sequences::new(&*pool);
    sequences.remember(1, 200);
    let good = sequences.extend(&mut *pool, 1, &[1, 2], Outs::All).unwrap();
    let encodes = |begin: usize, rows: usize| {
        Segment::text(good.sequence, begin, vec![0; rows], Outs::None, good.pages.clone())
    };
    let mut refuse = |of_encoder: bool, segments: Vec<Segment>| {
        let program = if of_encoder { &mut encoder } else { &mut decoder };
        let result = program.run(&Step { segments }, &mut *pool).map(|output| output.only().rows());
        result.unwrap_err().to_string()
    };
    let with = |rows: usize| vec![Segment { memory_rows: rows, ..good.clone() }];
    assert_eq!(
        refuse(false, with(0)),
        "step cannot run: segment 0 has no rows of memory, which the graph reads"
    );
    for rows in [257, usize::MAX] {
        assert_eq!(
            refuse(false, with(rows)),
            "step cannot run: segment 0, cache group 1: no page for indices 256..512"
        );
    }
    assert_eq!(
        refuse(true, vec![encodes(100, 200)]),
        "step cannot run: segment 0, cache group 1: no page for indices 256..512"
    );
    assert_eq!(
        refuse(true, vec![encodes(0, 20), encodes(19, 1)]),
        "step cannot run: segments 0 and 1 write the same slots of page 0, cache group 1"
    );
    // Two texts may read one memory.
    encoder.run(&Step { segments: vec![encodes(0, 200)] }, &mut *pool).unwrap();
    let mut other = sequences.extend(&mut *pool, 2, &[1, 2], Outs::All).unwrap();
    other.pages[1].clone_from(&good.pages[1]);
    other.memory_rows = 200;
    let step = Step { segments: vec![good.clone(), other] };
    let output = decoder.run(&step, &mut *pool).unwrap().only();
    assert_eq!((output.row(0), output.row(1)), (output.row(2), output.row(3)));
}

#[test]
fn a_memory_has_no_window() {
    let mut b = Builder::new();
    let ids = b.input(Input::TokenIds);
    let table = b.weight(Ok(weight("table", &[3, 4], &[0.0; 12])));
    let q = b.embed(ids, table);
    let q = b.reshape(q, &[1, 4]);
    b.cache(CacheSpec::new(1, 4, Some(3)));
    let memory = b.memory(1, 4);
    let attention =
        Attention { source: KvSource::Memory(memory), scale: 1.0, window: Some(3), softcap: None };
    let y = b.attention(&[q], attention);
    let error = b.finish(&[y]).unwrap_err().to_string();
    assert!(error.contains("a window over a memory"), "{error}");
}
