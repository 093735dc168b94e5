//! Every test of the engine again, on a device that draws on a thread of its own and hears answers late; and devices that
//! fail.

use brasa_engine::{EngineError, TokenStream};
use brasa_graph::device::{KvType, LostPart};
use brasa_graph::testing::MockBackend;

use super::{DEVICE, engine, engine_of, ids, limit, prompt, start, while_held};

macro_rules! again {
    ($($test:ident),+ $(,)?) => {
        $(#[test]
        fn $test() {
            DEVICE.set(Box::new(MockBackend::new(3)));
            super::$test();
        })+

        const AGAIN: usize = [$(stringify!($test)),+].len();
    };
}

again! {
    random_banks_give_everyone_the_text_that_it_has_alone,
    an_adapter_is_sealed_when_its_last_request_has_ended,
    the_default_scope_follows_its_mixture,
    a_text_that_left_and_came_back_goes_on,
    a_busy_session_is_not_read_or_replaced,
    states_that_cannot_be_are_refused,
    a_request_waits_for_pages_that_are_being_read,
    a_text_that_is_forgotten_is_computed_anew,
    chunked_prefill_equals_whole,
    sequences_together_equal_each_alone,
    chained_equals_stepwise,
    a_continued_session_equals_a_fresh_run,
    one_seed_gives_one_text,
    a_full_context_is_an_error_or_the_chosen_policy,
    a_sliding_context_moves_its_keys_where_it_can,
    a_session_that_slid_is_resumed_as_fresh,
    a_cached_prefix_equals_a_fresh_run,
    a_prefix_is_found_to_the_token,
    an_engine_tells_what_it_does,
    prefixes_fit_their_budget_and_give_way,
    a_mask_decides_which_tokens_come,
    logits_are_read_beside_running_generations,
    hidden_states_are_read_beside_running_generations,
    hidden_states_that_cannot_be_had_are_their_readers_error,
    a_mask_that_fails_ends_its_request_and_no_other,
    stop_ids_and_strings_end_the_text_before_them,
    the_last_fragment_holds_the_text_that_was_held_back,
    a_reader_hears_how_far_a_prompt_has_come,
    a_stream_can_be_polled,
    a_reader_who_is_behind_pauses_its_generation_alone,
    a_paused_generation_gives_its_pages_to_running_ones,
    dropping_or_cancelling_a_stream_frees_its_place,
    a_deadline_ends_a_stream_with_an_error,
    a_deadline_ends_a_reader_who_never_reads,
    mixtures_that_no_request_has_give_way,
    a_stop_string_found_late_leaves_nothing_behind_it,
    a_stop_string_ends_the_work_for_a_reader_who_never_reads,
    one_task_serves_many_streams,
    a_decoder_that_fails_closes_the_engine,
    a_busy_session_refuses_a_second_request,
    idle_sessions_give_way_to_running_requests,
    pages_fit_a_budget_of_bytes,
    the_youngest_request_waits_when_pages_run_out,
    a_request_that_alone_does_not_fit_fails,
    more_sequences_than_rows_wait_for_a_place,
    scopes_share_nothing,
    a_sequence_keeps_its_id,
    bad_requests_are_refused_at_once,
    random_schedules_give_everyone_the_text_that_it_has_alone,
    random_conversations_resume_as_if_never_interrupted,
    higher_priorities_are_served_first,
    a_prompt_that_is_being_computed_is_computed_once,
    drafts_leave_the_text_as_it_is,
    drafts_end_where_the_text_ends,
    drafts_fit_the_context,
    forced_tokens_come_in_one_step,
    a_draft_model_leaves_the_text_as_it_is,
    a_draft_model_that_agrees_saves_steps,
    a_draft_model_follows_its_text,
    texts_outlive_their_draft_model,
    a_full_queue_refuses_requests_until_one_is_served,
}

#[test]
fn every_test_is_run_again() {
    let files = [
        include_str!("adapters.rs"),
        include_str!("contexts.rs"),
        include_str!("draft_models.rs"),
        include_str!("pages.rs"),
        include_str!("schedules.rs"),
        include_str!("snapshots.rs"),
        include_str!("speculation.rs"),
        include_str!("streams.rs"),
        include_str!("texts.rs"),
    ];
    let tests = files.iter().flat_map(|file| file.lines()).filter(|&line| line == "#[test]").count();
    assert_eq!(AGAIN, tests);
}

/// The tokens of a stream, and the error that ended it.
fn read(stream: TokenStream) -> (Vec<u32>, Option<EngineError>) {
    let mut tokens = Vec::new();
    for fragment in stream {
        match fragment {
            Ok(fragment) => tokens.extend(fragment.token.map(|token| token.id)),
            Err(error) => return (tokens, Some(error)),
        }
    }
    (tokens, None)
}

/// Two requests run and one waits when a step fails: all three hear of it, after tokens that were right.
#[test]
fn a_device_that_fails_ends_every_stream() {
    let expected: Vec<Vec<u32>> = (0..3)
        .map(|seed| ids(&mut start(&engine(1024, 64, 2), prompt(20 + 50 * seed, seed), &limit(40), None)))
        .collect();
    for late in [0, 2, 100] {
        for steps in [0, 1, 2, 3, 7, 12, 30] {
            let device = MockBackend::new(late);
            DEVICE.set(Box::new(device.clone()));
            let engine = engine(1024, 64, 2);
            device.fail_after(steps);
            let streams: Vec<TokenStream> =
                (0..3).map(|seed| start(&engine, prompt(20 + 50 * seed, seed), &limit(40), None)).collect();
            for (stream, expected) in streams.into_iter().zip(&expected) {
                let (tokens, error) = read(stream);
                let lost = error.as_ref().and_then(EngineError::lost) == Some(LostPart::Program);
                assert!(lost, "{late} late, {steps} steps: {error:?} after {} tokens", tokens.len());
                assert_eq!(tokens, expected[..tokens.len()], "{late} late, {steps} steps");
            }
            // The engine goes on to answer, with the same reason.
            let (tokens, error) = read(start(&engine, prompt(9, 1), &limit(3), None));
            assert!(tokens.is_empty() && matches!(error, Some(EngineError::Device(_))), "{error:?}");
        }
    }
}

/// A session that goes back into a page which it shares with a kept prefix needs a copy of the page.
#[test]
fn a_page_that_cannot_be_copied_ends_its_request_alone() {
    let (text, beside) = (prompt(600, 1), prompt(40, 2));
    let parting = [&text[..300], &prompt(30, 9)].concat();
    let new = || engine_of(&[None], KvType::F32, 1024, 64, 2, 1 << 20);
    let expected = [&parting, &beside].map(|text| ids(&mut start(&new(), text.clone(), &limit(60), None)));
    let device = MockBackend::new(3);
    DEVICE.set(Box::new(device.clone()));
    let engine = new();
    let session = engine.open_session();
    assert_eq!(start(&engine, text, &limit(60), Some(session)).count(), 60);
    for fails in [true, false] {
        if fails {
            device.fail_copy_after(0);
        }
        let mut both = None;
        while_held(&engine, || {
            let beside = start(&engine, beside.clone(), &limit(60), None);
            both = Some((beside, start(&engine, parting.clone(), &limit(60), Some(session))));
        });
        let (mut other, parted) = both.unwrap();
        let (tokens, error) = read(parted);
        if fails {
            let lost = error.as_ref().and_then(EngineError::lost) == Some(LostPart::Program);
            assert!(tokens.is_empty() && lost, "{error:?}");
        } else {
            assert_eq!((tokens, error), (expected[0].clone(), None));
        }
        assert_eq!(ids(&mut other), expected[1], "the request beside it goes on");
    }
}
