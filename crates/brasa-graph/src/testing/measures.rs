//! Checks that a device takes the memory that it tells beforehand.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_formats::StorageFormat;

use crate::Graph;
use crate::device::{Backend, Measure, Precision, ProgramLimits};

use super::{Decoder, Recurrent};

/// Checks [`Backend::measure`] against the bytes that uploaded weights and compiled programs take. The graphs are small
/// decoders: in several formats, with experts, with recurrent layers; each in both precisions.
///
/// # Panics
///
/// If the device takes more or fewer bytes than it measured, or refuses a graph.
pub fn check_measures(device: &dyn Backend) {
    let mut graphs = vec![Recurrent::small().graph(1)];
    for format in [StorageFormat::F32, StorageFormat::F16, StorageFormat::Q4_0, StorageFormat::Q4_K] {
        let small = Decoder { vocab: 300, hidden: 256, ..Decoder::small(format) };
        graphs.push(small.graph(2));
        graphs.push(Decoder { experts: Some((4, 2)), ..small }.graph(3));
    }
    for graph in graphs.into_iter().map(Arc::new) {
        for precision in [Precision::Fast, Precision::Reference] {
            check_measure(device, &graph, precision);
        }
    }
}

fn check_measure(device: &dyn Backend, graph: &Arc<Graph>, precision: Precision) {
    for max_rows in [1, 200] {
        let limits = ProgramLimits { max_rows, max_outs: max_rows, max_segments: 4 };
        let told = device.measure(graph, precision, limits.into()).expect("the device runs the graph");
        let weights = device.upload(graph, precision, &mut |_| ControlFlow::Continue(()));
        let weights = weights.expect("weights fit");
        let weight_bytes = weights.size_bytes();
        let program =
            device.compile(Arc::clone(graph), weights, limits.into()).expect("the device runs the graph");
        let taken = Measure { weight_bytes, arena_bytes: program.arena_bytes() };
        assert_eq!(told, taken, "{precision:?}, {max_rows} rows");
    }
}
