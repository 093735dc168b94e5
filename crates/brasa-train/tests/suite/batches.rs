//! Documents into steps.

use brasa_graph::step::{GivenValues, Outs};
use brasa_train::Random;
use brasa_train::data::{Batches, Document, Place, Span, pack};

/// A document of which the tokens from `from` on are learned.
fn document(len: u32, from: u32, weight: f32) -> Document {
    let spans = [Span { tokens: from..len, weight }].into();
    Document { tokens: (0..len).map(|i| len * 100 + i).collect(), spans }
}

#[test]
fn the_longest_go_first_each_into_the_fullest_step_with_room() {
    let steps = pack(&[4, 9, 6, 3, 2, 5, 1], &[0, 1, 2, 3, 4, 5, 6], 10, 64);
    // 9 | 6 | 5 beside no step | 4 beside 6 | 3 beside 5 | 2 beside 5+3 | 1 beside 9
    assert_eq!(steps, [vec![1, 6], vec![2, 0], vec![5, 3, 4]]);
    assert_eq!(pack(&[1, 1, 1, 1, 1], &[4, 3, 2, 1, 0], 10, 2), [vec![4, 3], vec![2, 1], vec![0]]);
    assert_eq!(pack(&[], &[], 10, 2), Vec::<Vec<u32>>::new());
}

#[test]
fn every_document_is_in_one_step_and_steps_are_full() {
    let mut random = Random::new(3, 0);
    let rows: Vec<usize> = (0..5000).map(|_| 1 + random.below(200) as usize).collect();
    let mut order: Vec<u32> = (0..5000).collect();
    random.shuffle(&mut order);
    let steps = pack(&rows, &order, 300, 40);
    let mut seen: Vec<u32> = steps.concat();
    seen.sort_unstable();
    assert_eq!(seen, (0..5000).collect::<Vec<_>>());
    let filled = |step: &Vec<u32>| step.iter().map(|&at| rows[at as usize]).sum::<usize>();
    assert!(steps.iter().all(|step| filled(step) <= 300 && step.len() <= 40));
    let least = rows.iter().sum::<usize>().div_ceil(300);
    assert!(steps.len() <= least + 1, "{} steps, {least} at least", steps.len());
}

#[test]
fn a_step_has_a_segment_for_each_document_and_outputs_before_learned_tokens() {
    let mut weighted = document(5, 2, 0.5);
    weighted.spans = [Span { tokens: 1..2, weight: 0.5 }, Span { tokens: 3..4, weight: 2.0 }].into();
    let batches = Batches::new(vec![document(4, 2, 1.0), weighted], 16, 8, None);
    assert_eq!((batches.rows(&[0, 1]), batches.learned(&[0, 1])), (3 + 3, 2 + 2));
    assert!((batches.weight(&[0, 1]) - 4.5).abs() < 1e-12);
    let step = batches.step(&[0, 1], |_| 0.5);
    let [first, second] = &step.segments[..] else { panic!("two segments") };
    assert_eq!((&first.tokens[..], first.rows), (&[400, 401, 402][..], 3));
    assert_eq!(first.outs, Outs::Rows([1, 2].into()));
    let given = vec![GivenValues::U32([402, 403].into()), GivenValues::F32([0.5, 0.5].into())];
    assert_eq!(first.given, given);
    // The last token follows nothing that is learned.
    assert_eq!((&second.tokens[..], &second.outs), (&[500, 501, 502][..], &Outs::Rows([0, 2].into())));
    let given = vec![GivenValues::U32([501, 503].into()), GivenValues::F32([0.25, 1.0].into())];
    assert_eq!(second.given, given);
}

fn documents() -> Vec<Document> {
    (0..50).map(|i| document(2 + i % 7, 1, 1.0)).collect()
}

#[test]
fn epochs_differ_a_seed_repeats_them_and_any_place_can_be_gone_to() {
    let mut batches = Batches::new(documents(), 20, 64, Some(5));
    let steps = batches.steps_per_epoch();
    let all: Vec<(Place, Vec<u32>)> =
        (0..3 * steps).map(|_| (batches.place(), batches.next_documents())).collect();
    let epoch =
        |number: usize| all[number * steps..(number + 1) * steps].iter().map(|(_, step)| step.clone());
    assert_ne!(epoch(0).collect::<Vec<_>>(), epoch(1).collect::<Vec<_>>());
    for number in 0..3 {
        let mut seen: Vec<u32> = epoch(number).flatten().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..50).collect::<Vec<_>>(), "epoch {number}");
    }
    let mut again = Batches::new(documents(), 20, 64, Some(5));
    for at in [steps * 2 + 1, 3, steps] {
        again.go_to(all[at].0);
        for (place, step) in &all[at..] {
            assert_eq!(&again.next_documents(), step, "{place:?}");
        }
    }
    let mut other = Batches::new(documents(), 20, 64, Some(6));
    assert_ne!(other.next_documents(), all[0].1);
}

#[test]
fn without_a_seed_every_epoch_has_one_order() {
    let mut batches = Batches::new(documents(), 20, 64, None);
    let steps = batches.steps_per_epoch();
    let mut epoch = || (0..steps).map(|_| batches.next_documents()).collect::<Vec<_>>();
    assert_eq!(epoch(), epoch());
}

#[test]
fn the_documents_of_a_pair_are_in_one_step_in_every_order() {
    for (max_rows, max_documents, seed) in [(20, 8, Some(3)), (30, 3, None), (14, 1, Some(9))] {
        let mut batches = Batches::of_pairs(documents(), max_rows, max_documents, seed);
        assert!(batches.has_pairs());
        for _ in 0..2 {
            let mut seen = Vec::new();
            for step in batches.epoch() {
                assert!(batches.rows(step) <= max_rows && step.len() <= max_documents.max(2));
                let (pairs, rest) = step.as_chunks::<2>();
                assert!(
                    rest.is_empty()
                        && pairs.iter().all(|[first, second]| first % 2 == 0 && *second == first + 1)
                );
                seen.extend_from_slice(step);
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..50).collect::<Vec<_>>());
            batches.go_to(Place { epoch: batches.place().epoch + 1, step: 0 });
        }
    }
    let single = Batches::new(documents(), 20, 8, None);
    assert!(
        !single.has_pairs()
            && single.fingerprint() != Batches::of_pairs(documents(), 20, 8, None).fingerprint()
    );
}
