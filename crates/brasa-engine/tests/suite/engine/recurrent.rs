//! Tests of the engine again, with a model that has recurrent layers, on the mock and on the reference: a text goes on only where
//! states are kept, and its tokens are the same as ever.

use brasa_graph::reference::ReferenceBackend;
use brasa_graph::testing::MockBackend;

use brasa_engine::{ContextPolicy, GenerateOptions};
use brasa_graph::device::KvType;

use super::small_model::RECURRENT;
use super::{DEVICE, Engine, SessionId, engine_of, ids, limit, page_bytes, prompt, start};

macro_rules! again {
    ($($test:ident),+ $(,)?) => {
        $(#[test]
        fn $test() {
            RECURRENT.set(true);
            DEVICE.set(Box::new(MockBackend::new(3)));
            super::$test();
            DEVICE.set(Box::new(ReferenceBackend));
            super::$test();
        })+
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
    chunked_prefill_equals_whole,
    sequences_together_equal_each_alone,
    chained_equals_stepwise,
    a_continued_session_equals_a_fresh_run,
    one_seed_gives_one_text,
    a_full_context_is_an_error_or_the_chosen_policy,
    a_session_that_slid_is_resumed_as_fresh,
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
    drafts_leave_the_text_as_it_is,
    drafts_end_where_the_text_ends,
    forced_tokens_come_in_one_step,
    a_draft_model_leaves_the_text_as_it_is,
    a_draft_model_that_agrees_saves_steps,
    a_draft_model_follows_its_text,
    texts_outlive_their_draft_model,
    a_full_queue_refuses_requests_until_one_is_served,
}

/// The text that follows `text`, equal to that of a fresh engine, and the number of tokens that came from the cache.
fn cached(engine: &Engine, fresh: &Engine, text: &[u32], session: Option<SessionId>) -> usize {
    let mut stream = start(engine, text.to_vec(), &limit(20), session);
    assert_eq!(ids(&mut stream), ids(&mut start(fresh, text.to_vec(), &limit(20), None)));
    stream.metrics().cached_tokens
}

#[test]
fn texts_are_resumed_where_states_are_kept() {
    RECURRENT.set(true);
    for device in [0, 3] {
        DEVICE.set(Box::new(MockBackend::new(device)));
        for windows in [&[None][..], &[None, Some(256)]] {
            let engine = engine_of(windows, KvType::F32, 2048, 300, 3, 1 << 20);
            let fresh = engine_of(windows, KvType::F32, 2048, 300, 3, 0);
            let text = prompt(1000, 1);
            let answer = ids(&mut start(&engine, text.clone(), &limit(20), None));
            // An equal prompt, without its last token; one that parts within a page, from the last whole page on; one that
            // goes on behind the answer, whose last token was never computed.
            assert_eq!(cached(&engine, &fresh, &text, None), 999);
            assert_eq!(cached(&engine, &fresh, &[&text[..900], &prompt(150, 9)].concat(), None), 768);
            assert_eq!(cached(&engine, &fresh, &[&text[..], &answer, &prompt(200, 8)].concat(), None), 1019);
            // One that parts within the answer goes on behind the prompt, and one within the first page begins anew.
            assert_eq!(
                cached(&engine, &fresh, &[&text[..], &answer[..5], &prompt(20, 7)].concat(), None),
                999
            );
            assert_eq!(cached(&engine, &fresh, &[&text[..200], &prompt(20, 7)].concat(), None), 0);
            // A session does the same without kept prefixes.
            let alone = engine_of(windows, KvType::F32, 2048, 300, 3, 0);
            let session = Some(alone.open_session());
            assert_eq!(cached(&alone, &fresh, &text, session), 0);
            assert_eq!(
                cached(&alone, &fresh, &[&text[..], &answer[..5], &prompt(20, 7)].concat(), session),
                999
            );
        }
    }
}

#[test]
fn states_of_kept_texts_fit_their_budget() {
    RECURRENT.set(true);
    DEVICE.set(Box::new(ReferenceBackend));
    let fresh = engine_of(&[None], KvType::F32, 1024, 512, 1, 0);
    // Half of the bytes for eight pages of keys and values, which is enough for all states.
    let engine = engine_of(&[None], KvType::F32, 1024, 512, 1, 16 * page_bytes());
    for round in 0..2 {
        for seed in 0..2 {
            assert_eq!(cached(&engine, &fresh, &prompt(600, seed), None), [0, 599][round]);
        }
    }
    // Room for two states and, in the other half, for no page of keys and values: nothing is kept.
    let engine = engine_of(&[None], KvType::F32, 1024, 512, 1, 1024);
    assert_eq!(
        [cached(&engine, &fresh, &prompt(600, 1), None), cached(&engine, &fresh, &prompt(600, 1), None)],
        [0; 2]
    );
    assert_eq!(engine.stats().prefix_bytes_used, 0);
}

/// A context that slides drops the older half exactly, and what stays is computed anew: its states knew the dropped tokens.
#[test]
fn a_context_that_slides_is_computed_anew() {
    RECURRENT.set(true);
    DEVICE.set(Box::new(MockBackend::new(3)));
    let slide = GenerateOptions { context_policy: ContextPolicy::Slide { keep: 8 }, ..limit(60) };
    let engine = engine_of(&[None], KvType::F32, 1024, 512, 2, 0);
    let text = ids(&mut start(&engine, prompt(1000, 0), &slide, None));
    let whole = [&prompt(1000, 0), &text[..25]].concat();
    let shortened = [&whole[..8], &whole[8 + 509..]].concat();
    assert_eq!(ids(&mut start(&engine, shortened, &limit(35), None)), text[25..]);
}
