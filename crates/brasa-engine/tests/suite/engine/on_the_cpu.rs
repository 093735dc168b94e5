//! Tests about pages and draws again, on the CPU device: contexts that slide, prefixes that are shared, sessions and requests
//! that give way, budgets, masks, stops.

use brasa_cpu::{CpuBackend, CpuOptions};

use super::DEVICE;

macro_rules! again {
    ($($test:ident),+ $(,)?) => {
        $(#[test]
        fn $test() {
            for threads in [1, 2] {
                let options = CpuOptions { threads: Some(threads), deterministic: true, ..CpuOptions::default() };
                DEVICE.set(Box::new(CpuBackend::new(options).unwrap()));
                super::$test();
            }
        })+
    };
}

again! {
    random_banks_give_everyone_the_text_that_it_has_alone,
    the_default_scope_follows_its_mixture,
    random_schedules_give_everyone_the_text_that_it_has_alone,
    random_conversations_resume_as_if_never_interrupted,
    a_text_that_left_and_came_back_goes_on,
    a_sliding_context_moves_its_keys_where_it_can,
    a_session_that_slid_is_resumed_as_fresh,
    a_cached_prefix_equals_a_fresh_run,
    a_prefix_is_found_to_the_token,
    prefixes_fit_their_budget_and_give_way,
    idle_sessions_give_way_to_running_requests,
    a_paused_generation_gives_its_pages_to_running_ones,
    pages_fit_a_budget_of_bytes,
    the_youngest_request_waits_when_pages_run_out,
    logits_are_read_beside_running_generations,
    hidden_states_are_read_beside_running_generations,
    hidden_states_that_cannot_be_had_are_their_readers_error,
    a_mask_decides_which_tokens_come,
    drafts_leave_the_text_as_it_is,
    drafts_fit_the_context,
    forced_tokens_come_in_one_step,
    a_draft_model_leaves_the_text_as_it_is,
    a_draft_model_follows_its_text,
    stop_ids_and_strings_end_the_text_before_them,
}
