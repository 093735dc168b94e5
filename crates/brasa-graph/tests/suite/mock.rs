//! Chains on a device that answers late and fails: tokens are those of single steps, and what was drawn in vain leaves no
//! trace.

use std::cell::Cell;

use crate::chain::{Ask, Evens, PROMPTS, chain, lengths, prompts, stepwise};
use crate::small_model::{Device, VOCAB, small_model, tokens};
use brasa_graph::GroupId;
use brasa_graph::chain::Flow;
use brasa_graph::device::{Backend, DeviceError, KvType, LostPart};
use brasa_graph::step::{Outs, PAGE_POSITIONS, PageId, Segment, Step};
use brasa_graph::testing::{
    EncoderDecoder, MockBackend, Tolerance, check, compare, f32_weight, random_case, rewritten,
};

/// From a device that waits for every answer to one that hears none before its end.
const LATE: [usize; 4] = [0, 1, 3, 100];

fn device(late: usize) -> (MockBackend, Device) {
    let backend = MockBackend::new(late);
    let device = Device::on(&backend, small_model(), KvType::F16, 3);
    (backend, device)
}

/// The cache holds of the second text what steps would have left: the text goes on alike.
fn assert_goes_on(device: &mut Device, length: usize, history: &[u32]) {
    let [_, mut second, _]: [Segment; 3] = prompts(&mut Device::three(KvType::F16), 20).try_into().unwrap();
    second.first_index = length;
    second.set_tokens(&history[length..]);
    let step = Step { segments: vec![second] };
    let logits = device.program.run(&step, &mut *device.pool).unwrap().only().floats().to_vec();
    let fresh = Device::new(KvType::F16).run(&[(1, history)]);
    assert_eq!(logits, fresh[fresh.len() - VOCAB..]);
}

/// The others have the token of the step that ends the chain, and as many more as the device drew before it knew.
/// Runs a check on mocks that answer at once and late.
fn on_device(_name: &str, check: fn(&dyn Backend)) {
    for late in LATE {
        check(&MockBackend::new(late));
    }
}

brasa_graph::device_contract!(on_device);

#[test]
fn a_late_end_shows_the_others_what_was_drawn() {
    for late in LATE {
        let (_, mut device) = device(late);
        let segments = prompts(&mut device, 20);
        let answer = |row, count| if row == 0 && count == 4 { Flow::StopAll } else { Flow::Continue };
        let shown = chain(segments, &mut device, &mut Ask::tokens(20), answer).unwrap();
        let others = (4 + late).min(20);
        assert_eq!(lengths(&shown.tokens), [4, others, others], "{late} late");
        assert_eq!(shown.finish.lengths, [4 + 3, 250 + others - 1, others], "{late} late");
        for (row, tokens) in shown.tokens.iter().enumerate() {
            assert_eq!(tokens, &stepwise(row, tokens.len()), "row {row}, {late} late");
        }
    }
}

#[test]
fn a_step_that_fails_ends_the_chain_and_the_program() {
    for late in LATE {
        for successes in 0..5 {
            let (backend, mut device) = device(late);
            let segments = prompts(&mut device, 20);
            // What the chain begins from: the second prompt is cached already.
            let mut cached = segments[1].clone();
            cached.outs = Outs::None;
            device.program.run(&Step { segments: vec![cached] }, &mut *device.pool).unwrap();
            let seen = Cell::new([0; 3]);
            let answer = |row: usize, count| {
                let mut all = seen.get();
                all[row] = count;
                seen.set(all);
                Flow::Continue
            };
            backend.fail_after(successes);
            let error = chain(segments, &mut device, &mut Ask::tokens(20), answer).err().unwrap();
            assert!(matches!(error, DeviceError::Lost { part: LostPart::Program, .. }), "{error}");
            assert_eq!(seen.get(), [successes; 3], "{late} late: every token of a step that ran is seen");
            let again = prompts(&mut Device::three(KvType::F16), 20);
            let again = device.program.run(&Step { segments: again }, &mut *device.pool).map(|_| ());
            let is_lost = matches!(again, Err(DeviceError::Lost { part: LostPart::Program, .. }));
            assert!(is_lost, "a lost program stays lost");
            // Another program finds the cache as it was.
            let other = Device::on(&backend, small_model(), KvType::F16, 3);
            let mut device = Device { program: other.program, ..device };
            let history = [&tokens(PROMPTS[1], 1)[..], &stepwise(1, 3)].concat();
            assert_goes_on(&mut device, 250, &history);
        }
    }
}

#[test]
fn a_mask_is_asked_for_one_token() {
    let (_, mut device) = device(2);
    assert_eq!((device.program.max_chain(true), device.program.max_chain(false)), (1, 11));
    let segments = prompts(&mut device, 20);
    let mut ask = Ask { mask: Some(Evens::default()), ..Ask::tokens(1) };
    let shown = chain(segments.clone(), &mut device, &mut ask, |_, _| Flow::Continue).unwrap();
    assert_eq!(lengths(&shown.tokens), [1, 1, 1]);
    assert_eq!(ask.mask.unwrap().accepted, shown.tokens[0]);
    let mut ask = Ask { mask: Some(Evens::default()), ..Ask::tokens(2) };
    let refused = chain(segments, &mut device, &mut ask, |_, _| unreachable!("nothing runs"));
    assert_eq!(
        refused.err().unwrap().to_string(),
        "mock does not support a chain of 2 tokens with a mask in row 0"
    );
}

#[test]
fn a_copy_of_a_page_fails_when_told_to() {
    let (backend, mut device) = device(0);
    let (group, page) = (GroupId(0), PageId::from_index);
    device.pool.reserve(group, 2).unwrap();
    backend.fail_copy_after(1);
    let mut copy = || device.pool.copy_page(group, page(0), page(1), PAGE_POSITIONS);
    assert_eq!(copy(), Ok(()));
    assert!(matches!(copy(), Err(DeviceError::Lost { part: LostPart::Program, .. })));
    assert_eq!(copy(), Ok(()));
}

#[test]
#[should_panic(expected = "the sink panics")]
fn a_sink_that_panics_does_not_leave_the_device_waiting() {
    let (_, mut device) = device(0);
    let segments = prompts(&mut device, 20);
    let _ = chain(segments, &mut device, &mut Ask::tokens(20), |_, _| panic!("the sink panics"));
}

#[test]
fn steps_are_those_of_the_reference() {
    let backend = MockBackend::new(3);
    for seed in 0..6 {
        let case = random_case(seed, 12, &f32_weight);
        check(&backend, &case, Tolerance::EXACT);
        check(&backend, &rewritten(&case, seed), Tolerance::EXACT);
    }
    let (pair, lengths) = (EncoderDecoder::new(1), [3, 5]);
    let found = pair.run(&backend, KvType::F32, &lengths).unwrap();
    assert!(compare(&found, &pair.expected(&lengths)).within(Tolerance::F32));
}
