//! The reference device as an engine sees it: steps, segments, pages, refusals.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::small_model::{Device, VOCAB, small_model, tokens};
use brasa_formats::StorageFormat;
use brasa_graph::DraftTree;
use brasa_graph::device::{Backend, DeviceError, KvType, Precision};
use brasa_graph::reference::{ReferenceBackend, decode_weight};
use brasa_graph::step::{Outs, Step};
use brasa_graph::testing::{Decoder, check_behind_texts, check_company};

fn on_device(_name: &str, check: fn(&dyn Backend)) {
    check(&ReferenceBackend);
}

brasa_graph::device_contract!(on_device);

#[test]
fn chunked_equals_whole_bitwise() {
    for dtype in [KvType::F32, KvType::F16, KvType::BF16, KvType::Q8] {
        let prompt = tokens(530, 1);
        let whole = Device::new(dtype).run(&[(1, &prompt)]);
        let mut device = Device::new(dtype);
        let mut chunked = Vec::new();
        for chunk in [&prompt[..1], &prompt[1..257], &prompt[257..300], &prompt[300..]] {
            chunked.extend(device.run(&[(1, chunk)]));
        }
        assert_eq!(whole, chunked, "{dtype:?}");
    }
}

#[test]
fn two_sequences_in_one_step_equal_each_alone_bitwise() {
    let (a, b) = (tokens(40, 2), tokens(9, 3));
    let mut both = Device::new(KvType::F16);
    let mut together = [both.run(&[(1, &a[..30]), (2, &b[..3])]), both.run(&[(2, &b[3..]), (1, &a[30..])])];
    let mut alone = Device::new(KvType::F16);
    let (a0, b0) = (alone.run(&[(1, &a[..30])]), alone.run(&[(2, &b[..3])]));
    let (b1, a1) = (alone.run(&[(2, &b[3..])]), alone.run(&[(1, &a[30..])]));
    assert_eq!(together[0], [a0, b0].concat());
    assert_eq!(together[1].split_off(0), [b1, a1].concat());
}

fn tree(parents: &[Option<u32>]) -> Arc<DraftTree> {
    Arc::new(DraftTree::new(parents).unwrap())
}

/// Bit for bit: the same keys in the same order. Rows 0..20 are committed; then two drafts, of which the first
/// branches, and a chain so long that the window leaves committed rows behind.
#[test]
fn rows_of_a_draft_tree_equal_their_branch_as_plain_text() {
    let parents =
        [None, Some(0), Some(0), None, Some(2), Some(1), Some(4), Some(6), Some(7), Some(8), Some(3)];
    let (committed, drafts) = (tokens(20, 8), tokens(parents.len(), 9));
    let mut device = Device::new(KvType::F16);
    device.run(&[(1, &committed)]);
    let mut segment = device.sequences.extend(&mut *device.pool, 1, &drafts, Outs::All).unwrap();
    segment.tree = Some(tree(&parents));
    assert_eq!((segment.position(3), segment.position(9)), (20, 26));
    let found = device.program.run(&Step { segments: vec![segment] }, &mut *device.pool).unwrap().only();
    let found: Vec<Vec<f32>> = (0..parents.len()).map(|row| found.row(row).to_vec()).collect();
    for (row, found) in found.iter().enumerate() {
        let path = std::iter::successors(Some(row), |&row| parents[row].map(|row: u32| row as usize));
        let mut branch: Vec<u32> = path.map(|row| drafts[row]).collect();
        branch.reverse();
        let plain = Device::new(KvType::F16).run(&[(1, &[&committed[..], &branch].concat())]);
        assert_eq!(found, &plain[plain.len() - VOCAB..], "row {row}");
    }
}

/// The table's own rows, given, are what looking them up gives; other rows are something else, and only there.
#[test]
fn embeddings_stand_for_looked_up_rows() {
    let graph = small_model();
    let table = decode_weight(&graph.weights()[0]).unwrap();
    let width = table.width();
    let prompt = tokens(6, 5);
    let expected = Device::new(KvType::F32).run(&[(1, &prompt), (2, &prompt[..2])]);
    let given: Vec<f32> =
        prompt.iter().flat_map(|&id| &table.floats()[id as usize * width..][..width]).copied().collect();
    let run = |given: Vec<f32>| {
        let mut device = Device::new(KvType::F32);
        // Ids that are no longer looked up.
        let mut segment = device.sequences.extend(&mut *device.pool, 1, &[0; 6], Outs::All).unwrap();
        segment.embeddings = Some(given.into());
        let beside = device.sequences.extend(&mut *device.pool, 2, &prompt[..2], Outs::All).unwrap();
        let step = Step { segments: vec![segment, beside] };
        device.program.run(&step, &mut *device.pool).unwrap().only().floats().to_vec()
    };
    assert_eq!(run(given.clone()), expected);
    let mut changed = given;
    changed[3 * width] += 1.0;
    let found = run(changed);
    let same: Vec<bool> =
        found.chunks(VOCAB).zip(expected.chunks(VOCAB)).map(|(found, expected)| found == expected).collect();
    assert_eq!(same, [true, true, true, false, false, false, true, true]);
}

#[test]
fn outs_select_rows() {
    let prompt = tokens(6, 5);
    let mut device = Device::new(KvType::F32);
    let all = device.run(&[(1, &prompt)]);
    let mut step = Step::default();
    for (id, outs) in [(2, Outs::Last), (3, Outs::None)] {
        step.segments.push(device.sequences.extend(&mut *device.pool, id, &prompt, outs).unwrap());
    }
    let output = device.program.run(&step, &mut *device.pool).unwrap().only();
    assert_eq!((output.width(), output.floats()), (VOCAB, &all[5 * VOCAB..]));
}

#[test]
fn bad_steps_are_refused() {
    let mut device = Device::new(KvType::F32);
    let good = device.sequences.extend(&mut *device.pool, 1, &tokens(3, 6), Outs::Last).unwrap();
    let mut refuse = |segments: Vec<_>| match device.program.run(&Step { segments }, &mut *device.pool) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("a bad step ran"),
    };
    let with = |change: &dyn Fn(&mut brasa_graph::step::Segment)| {
        let mut segment = good.clone();
        change(&mut segment);
        vec![segment]
    };
    for (segments, expected) in [
        (with(&|s| s.tokens[1] = 31), "segment 0, row 1: token 31, expected below 31"),
        (with(&|s| s.set_tokens(&[])), "segment 0 has no rows"),
        (
            with(&|s| s.embeddings = Some(vec![0.5; 71].into())),
            "71 elements of embeddings, expected 3 rows of 24",
        ),
        (
            with(&|s| s.embeddings = Some(vec![f32::NAN; 72].into())),
            "segment 0, row 0: its embedding holds NaN",
        ),
        (with(&|s| s.positions = Some(vec![0])), "segment 0 has 1 positions for 3 rows"),
        (
            with(&|s| s.pages.truncate(1)),
            "segment 0 has 1 block tables, expected one for each of 2 cache groups",
        ),
        (with(&|s| s.pages[1][0] = None), "segment 0, cache group 1: no page for indices 0..256"),
        (with(&|s| s.first_index = 255), "segment 0, cache group 0: no page for indices 256..512"),
        (with(&|s| s.set_tokens(&[0; 601])), "step has 601 rows, at most 600 fit"),
        (vec![good.clone(); 3], "step has 3 sequences, at most 2 fit"),
        (vec![good.clone(); 2], "segments 0 and 1 write the same slots of page 0, cache group 0"),
    ] {
        let message = refuse(segments);
        assert!(message.ends_with(expected), "{message:?}, expected {expected:?}");
    }
    assert_eq!(device.program.run(&Step::default(), &mut *device.pool).unwrap().only().rows(), 0);
}

#[test]
fn uploads_report_progress_and_can_be_cancelled() {
    let graph = small_model();
    let mut seen = Vec::new();
    ReferenceBackend
        .upload(&graph, Precision::Fast, &mut |progress| {
            seen.push((progress.done_bytes, progress.total_bytes));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(seen.len(), graph.weights().len());
    assert!(seen.is_sorted());
    assert_eq!(seen.last().map(|&(done, total)| done == total), Some(true));
    let cancelled = ReferenceBackend.upload(&graph, Precision::Fast, &mut |_| ControlFlow::Break(()));
    assert!(matches!(cancelled, Err(DeviceError::Cancelled)));
}

#[test]
fn profile_names_operations_and_weights() {
    let mut device = Device::new(KvType::F32);
    let segment = device.sequences.extend(&mut *device.pool, 1, &[1, 2], Outs::Last).unwrap();
    let times = device.program.profile(&Step { segments: vec![segment] }, &mut *device.pool).unwrap();
    assert_eq!(times.len(), small_model().nodes().len());
    assert!(times.iter().any(|time| time.label == "linear qkv" && time.flops == 2 * 2 * 40 * 24));
}

#[test]
fn what_is_no_number_stays_with_its_own_text() {
    let decoder = Decoder {
        hidden: 32,
        heads: 2,
        kv_heads: 1,
        head_dim: 16,
        feed_forward: 32,
        windows: vec![None],
        ..Decoder::small(StorageFormat::F16)
    };
    for kv in [KvType::F16, KvType::Q8] {
        check_behind_texts(&ReferenceBackend, &decoder, Precision::Reference, kv);
        let mixture = Decoder { experts: Some((5, 2)), ..decoder.clone() };
        check_company(&ReferenceBackend, &mixture, Precision::Reference, kv);
    }
}

#[test]
fn recurrent_states_are_kept_resumed_and_moved() {
    brasa_graph::testing::check_states(&ReferenceBackend, brasa_graph::device::Precision::Reference);
}

#[test]
fn a_latent_decoder_computes_each_row_as_if_alone() {
    brasa_graph::testing::check_latent(&ReferenceBackend, brasa_graph::device::Precision::Reference);
}

#[test]
fn a_recurrent_decoder_of_whole_texts_has_the_values_of_the_kept_one() {
    use brasa_graph::pass::attend_to_rows;
    use brasa_graph::testing::{Recurrent, Running, Tolerance, compare, tokens};
    let graph = std::sync::Arc::new(Recurrent::small().graph(2));
    let rows = std::sync::Arc::new(attend_to_rows(&graph).unwrap());
    assert!(rows.state_layout().is_empty() && rows.cache_groups().is_empty());
    let run = |graph| {
        let mut running = Running::new(&ReferenceBackend, graph, Precision::Reference, KvType::F32);
        running.step(&[(1, &tokens(9, 1)), (2, &tokens(20, 2)), (3, &tokens(1, 3))])
    };
    let comparison = compare(&run(&rows), &run(&graph));
    assert!(comparison.within(Tolerance(1e-5)), "{comparison}");
}
