//! Tests of families and configurations, with an allocator that counts what each thread holds.

#![recursion_limit = "256"]

mod absent_tensors;
mod adapters;
mod encoders;
mod families;
mod gradients;
mod graphs;
mod hostility;
mod published_configs;
mod random_families;
mod sampling;
mod speech;
mod trained;

use brasa_fuzz::MeteredAllocator;

#[global_allocator]
static ALLOCATOR: MeteredAllocator = MeteredAllocator;
