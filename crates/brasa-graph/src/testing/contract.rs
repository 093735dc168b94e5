//! The tests that every device has to pass, in one list.

/// Makes a test of each check of the device contract. A new device's suite begins with it.
///
/// `$on_device` is the path of a function `fn(name: &str, check: fn(&dyn Backend))`. It calls `check` with the device, once or for
/// each of its kinds, or not at all where there is no such device or the check called `name` would take too long.
///
/// ```
/// use brasa_graph::device::Backend;
/// use brasa_graph::reference::ReferenceBackend;
///
/// fn on_reference(_name: &str, check: fn(&dyn Backend)) {
///     check(&ReferenceBackend);
/// }
///
/// brasa_graph::device_contract!(on_reference);
/// ```
#[macro_export]
macro_rules! device_contract {
    ($on_device:path) => {
        $crate::device_contract! { $on_device;
            bad_steps_and_foreign_things_are_refused: check_refusals,
            a_failed_step_leaves_no_trace: check_failed_steps,
            chains_give_the_tokens_of_their_steps: check_chains,
            chains_of_recurrent_states_give_the_tokens_of_their_steps: check_chains_of_states,
            graphs_share_the_upload_of_shared_weights: check_shared_weights,
            graphs_take_inputs_of_their_own_and_return_several_values: check_inputs_and_outputs,
            texts_go_on_from_pages_that_were_copied_or_moved: check_pages,
            numbers_beyond_their_table_are_bad_steps: check_lookups,
            other_lookups_and_factors_are_as_the_graph_says: check_other_lookups,
            attention_to_the_step_follows_the_tree: check_attention_in_trees,
            the_memory_that_is_told_is_taken: check_measures,
        }
    };
    ($on_device:path; $($name:ident: $check:ident,)*) => { $(
        #[test]
        fn $name() {
            $on_device(stringify!($check), $crate::testing::$check);
        }
    )* };
}
