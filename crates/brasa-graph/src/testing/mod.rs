//! Tools that tests of devices, models and engines share: random numbers, weights, steps, sequences, and the checks of
//! a device against the reference.
//!
//! Nothing here is used outside tests, but it is public so that every crate tests against the same things:
//!
//! - [`check`] runs a [`Case`] (a graph and the steps to run through it) on a device and on the reference;
//! - [`OPERATIONS`] makes a case of each operation on random shapes;
//! - [`check_derivatives`] checks a graph's derivatives against dual numbers, differences and each other;
//! - [`WIDE_ATTENTION`] makes cases of attention with sinks and with values of another width than keys,
//!   [`WIDE_ATTENTION_DERIVATIVES`] cases of its derivatives;
//! - [`DERIVATIVE_OPERATIONS`] makes a case of each operation that only derivatives use, [`SECOND_DERIVATIVE_OPERATIONS`] those
//!   of operations that only second derivatives use; [`loss_of`] makes graphs of training, [`outputs_on`] runs them;
//! - [`pattern_case`] makes a case of each fused operation on random shapes;
//! - [`check_absurd`] runs random graphs with NaN and infinities through steps that are wrong in some way,
//!   [`check_absurd_shapes`] compiles values of absurd sizes;
//! - [`random_case`] makes a random graph, [`rewritten`] an equal one by random rewrites;
//! - [`random_adapter`] makes low-rank adapters, [`merged`] a graph with their products in its weights;
//! - [`check_bank`] mixes texts of a bank's adapters in steps;
//! - [`Decoder`] describes a small decoder with random weights, [`Running`] runs it step by step;
//! - [`MockBackend`] is a device that draws on a thread of its own, applies answers late, and fails on request;
//! - [`EncoderDecoder`] is a pair of graphs around a memory, with the answer;
//! - [`HeadLayer`] is a linear layer of heads, which [`check_heads`] runs in every storage format;
//! - [`check_shared_weights`] has two graphs share an upload, and reads and writes weights;
//! - [`check_inputs_and_outputs`] brings inputs that a graph declares and reads several outputs;
//! - [`check_chains`], [`check_chains_of`] and [`check_chains_of_states`] compare chains with single steps; [`check_failed_steps`] has steps fail in the
//!   middle;
//!   [`check_lookups`] brings numbers beyond the tables in which they are looked up;
//! - [`check_refusals`] brings what a device refuses, from bad steps to foreign weights;
//! - [`DraftTreeCase`] is a random tree of drafts, [`ShiftCase`] a text that loses a page;
//! - [`check_embeddings`] brings rows in place of token ids;
//! - [`Recurrent`] describes a small decoder with recurrent layers, [`check_states`] has a device keep, resume and move
//!   its states;
//! - [`device_contract!`](crate::device_contract) makes a test of each check that every device has to pass;
//! - [`check_measures`] compares the memory that a device tells beforehand with the memory that it takes;
//! - [`Latent`] describes a small decoder with latent attention, sinks and a mixture with a sigmoid router, which
//!   [`check_latent`] runs; [`check_texts`] and [`check_same_bits`] compute a text of any graph in several ways;
//! - [`check_pages`] and [`check_moves`] copy, read and write pages, and move texts from pool to pool;
//! - [`check_routers`], [`check_company`] and [`check_behind_texts`] bring NaN and infinities, which must stay with their own rows and texts;

mod absurd;
mod attention_operations;
mod bank_run;
mod banks;
mod case;
mod chains;
mod compare;
mod contract;
mod decoder;
mod derivative_operations;
mod derivatives;
mod draft_trees;
mod embeddings;
mod failed_steps;
mod foreign;
mod heads;
mod inputs_outputs;
mod latent;
mod lookups;
mod low_rank;
mod measures;
mod memory;
mod mixtures;
mod mock;
mod mock_pool;
mod not_numbers;
mod operations;
mod pages;
mod patterns;
mod random;
mod random_graph;
mod recurrent;
mod refusals;
mod running;
mod same_bits;
mod sequences;
mod shared_weights;
mod shifts;
mod tensors;
mod training;

pub use absurd::{check_absurd, check_absurd_shapes};
pub use attention_operations::{
    WIDE_ATTENTION, WIDE_ATTENTION_DERIVATIVES, WIDE_ATTENTION_SECOND_DERIVATIVES,
};
pub use bank_run::{BankRun, times_over_layers};
pub use banks::{check_bank, check_bank_is_near};
pub use case::{Case, CaseBuilder, MakeWeight, check, f32_weight, run_case};
pub use chains::{check_chains, check_chains_of, check_chains_of_states};
pub use compare::{Comparison, Tolerance, compare};
pub use decoder::Decoder;
pub use derivative_operations::{DERIVATIVE_OPERATIONS, SECOND_DERIVATIVE_OPERATIONS};
pub use derivatives::{check_derivatives, check_near, evaluate_with, normals, varying_weights};
pub use draft_trees::{DraftTreeCase, check_attention_in_trees, check_tree_of_one_branch};
pub use embeddings::{check_embeddings, check_other_lookups};
pub use failed_steps::check_failed_steps;
pub use heads::{Company, HeadLayer, check_heads};
pub use inputs_outputs::check_inputs_and_outputs;
pub use latent::{Latent, LatentLayer};
pub use lookups::check_lookups;
pub use low_rank::{adapter_of_projections, merged, random_adapter, stored_as};
pub use measures::check_measures;
pub use memory::EncoderDecoder;
pub use mock::MockBackend;
pub use not_numbers::{check_behind_texts, check_company, check_routers, with_broken_token};
pub use operations::{ALIBI, OPERATIONS, OperationCase, RECURRENCES};
pub use pages::{check_moves, check_pages};
pub use patterns::{check_pattern, pattern_case};
pub use random::Random;
pub use random_graph::{random_case, rewritten};
pub use recurrent::{Recurrent, check_states};
pub use refusals::check_refusals;
pub use running::{Running, assert_same_bits, tokens};
pub use same_bits::{check_latent, check_same_bits, check_texts};
pub use sequences::Sequences;
pub use shared_weights::check_shared_weights;
pub use shifts::{ShiftCase, check_shift_of_few_bits, check_shift_of_one_layer};
pub use tensors::{Noise, formats, tensor as random_tensor};
pub use training::{learner, loss_of, outputs_on, pooled_encoder, row_network, training_step, with_adapters};

use draft_trees::check_tree_of_one_branch_in;

use brasa_formats::{Bytes, Payload, StorageFormat, Tensor};

use crate::{Weight, WeightPart};

/// An f32 tensor of `shape`.
///
/// # Panics
///
/// If the number of `values` is not the product of `shape`.
pub fn tensor(name: &str, shape: &[usize], values: &[f32]) -> Tensor {
    assert_eq!(shape.iter().product::<usize>(), values.len(), "{name} {shape:?}");
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    Tensor {
        name: name.into(),
        shape: shape.to_vec(),
        format: StorageFormat::F32,
        payload: Payload::Blocks(Bytes::from(bytes)),
    }
}

/// A weight stored as f32.
///
/// # Panics
///
/// If the number of `values` is not the product of `shape`.
pub fn weight(name: &str, shape: &[usize], values: &[f32]) -> Weight {
    Weight::new(name, shape, vec![WeightPart::whole(tensor(name, shape, values))]).expect("one whole part")
}
