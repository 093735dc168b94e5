//! Random graphs and every fused operation, on every instruction set and number of threads, against the reference
//! interpreter.

use brasa_cpu::{CpuBackend, CpuOptions, Isa};
use brasa_graph::derivative::{Wrt, vjp};
use brasa_graph::device::KvType;
use brasa_graph::fuse::Pattern;
use brasa_graph::testing::{
    Case, Tolerance, check, check_pattern, f32_weight, random_case, rewritten, varying_weights,
};

fn device(threads: usize, isa: Isa, unfused: bool) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads: Some(threads), isa: Some(isa), unfused, ..CpuOptions::default() })
        .unwrap()
}

#[test]
fn random_graphs_agree_with_the_reference() {
    for isa in Isa::available() {
        for threads in [1, 2, 3] {
            let fused = device(threads, isa, false);
            let unfused = device(threads, isa, true);
            for seed in 0..12 {
                let seed = seed * 3 + threads as u64;
                let case = random_case(seed, 4 + seed as usize, &f32_weight);
                check(&fused, &case, Tolerance(5e-5));
                check(&unfused, &case, Tolerance(5e-5));
            }
        }
    }
}

#[test]
fn rewritten_graphs_agree_with_the_reference() {
    let device = device(2, Isa::detect().unwrap(), false);
    for seed in 0..24 {
        let case = rewritten(&random_case(seed, 4 + seed as usize, &f32_weight), seed);
        check(&device, &case, Tolerance(5e-5));
    }
}

#[test]
fn fused_operations_agree_with_their_definitions() {
    for isa in Isa::available() {
        for threads in [1, 3] {
            let device = device(threads, isa, false);
            for &pattern in Pattern::ALL {
                check_pattern(&device, pattern, 0..6, &f32_weight, Tolerance::F32, |_| {});
            }
        }
    }
}

#[test]
fn fused_operations_agree_in_every_kv_type() {
    let device = device(2, Isa::detect().unwrap(), false);
    for kv in [KvType::F16, KvType::BF16, KvType::Q8] {
        let pattern = Pattern::QkNormRopeCacheWrite;
        check_pattern(&device, pattern, 10..16, &f32_weight, Tolerance::F16, |case| case.kv = kv);
    }
}

/// Gradients that are made of operations with kernels run like any graph: sums over rows, scattered rows, outputs of constant
/// shape, and a gradient that is the cotangent itself.
#[test]
fn gradients_of_sums_and_products_agree_with_the_reference() {
    let device = device(2, Isa::detect().unwrap(), false);
    for seed in 0..4 {
        let mut case = Case::new("gradients", seed, &f32_weight, |b| {
            let (x, y) = (b.rows(&[24]), b.rows(&[24]));
            let (bias, scales) = (b.bias("bias", 24), b.scales("scales", 24));
            let sum = b.graph.add(x, bias);
            let product = b.graph.mul(sum, y);
            let scaled = b.graph.mul(product, scales);
            let softened = b.graph.softmax(scaled);
            let each = b.graph.sum(softened, 1);
            let shift = b.bias("shift", 1);
            let loss = b.graph.sum(scaled, 0);
            let loss = b.graph.sum(loss, 0);
            let total = b.graph.sum(each, 0);
            let loss = b.graph.add(loss, total);
            vec![b.graph.add(loss, shift)]
        });
        let gradient = vjp(&case.graph, &Wrt::new(varying_weights(&case.graph))).unwrap();
        assert!(gradient.gradients.iter().all(Option::is_some));
        case.graph = gradient.graph;
        check(&device, &case, Tolerance(5e-5));
    }
}
