//! A small decoder as a graph.

pub use brasa_graph::testing::Decoder;
