//! Mixtures of experts, as one operation on weights in tiles: rows by themselves and rows sorted by expert, in every stored format.

use std::sync::Arc;

use brasa_formats::StorageFormat;
use brasa_graph::device::{KvType, Precision};
use brasa_graph::op::{ClampedUnit, GatedUnit, Gating, GroupScore, Groups, RouterTopK};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::step::Step;
use brasa_graph::testing::{Noise, Running, Tolerance, compare, formats, random_tensor, weight};
use brasa_graph::{Builder, Graph, Input, ValueId, Weight, WeightPart};

use crate::device::{deterministic, device, full_or_few, in_full, is_emulated};

/// Rows of the tables that ids look up.
const TOKENS: usize = 97;

/// The sizes of a mixture.
#[expect(clippy::struct_excessive_bools, reason = "independent parts of a mixture")]
#[derive(Clone, Copy, Debug)]
struct Mixture {
    formats: [StorageFormat; 2],
    inputs: usize,
    hidden: usize,
    experts: usize,
    chosen: usize,
    /// How far the router prefers one expert: 0 for not at all.
    bias: f32,
    unit: GatedUnit,
    /// True for a router with scores that no softmax gives, and a selection bias.
    has_scores: bool,
    /// True for biases of gate, up and down.
    has_biases: bool,
    has_scales: bool,
    /// How often the result is added to the rows that the experts read: once, or not at all.
    has_residual: bool,
}

impl Mixture {
    fn of(format: StorageFormat) -> Self {
        Self {
            formats: [format; 2],
            inputs: 256,
            hidden: 256,
            experts: 5,
            chosen: 2,
            bias: 0.0,
            unit: GatedUnit::Silu,
            has_scores: false,
            has_biases: false,
            has_scales: false,
            has_residual: true,
        }
    }

    /// Experts of rows that ids look up, chosen by logits that ids look up too, so that every device chooses alike.
    fn graph(&self, seed: u64) -> Graph {
        let Self { formats, inputs, hidden, experts, chosen, bias, .. } = *self;
        let mut noise = Noise::new(seed);
        let mut b = Builder::new();
        let ids = b.input(Input::TokenIds);
        let mut looked_up = |b: &mut Builder, name: &str, width: usize, more: f32| {
            let mut values = noise.activations(TOKENS * width);
            values.iter_mut().step_by(width).for_each(|value| *value += more);
            let table = b.weight(Ok(weight(name, &[TOKENS, width], &values)));
            b.embed(ids, table)
        };
        let (x, logits) =
            (looked_up(&mut b, "rows", inputs, 0.0), looked_up(&mut b, "logits", experts, bias));
        let gating = if self.has_scales { Gating::SOFTMAX_ALL } else { Gating::SOFTMAX_CHOSEN };
        let (chosen_ids, mut shares) = if self.has_scores {
            let groups = experts.is_multiple_of(2).then_some(Groups {
                count: experts / 2,
                kept: chosen.min(experts / 2),
                score: GroupScore::TopTwo,
            });
            let gating = Gating { groups, norm_eps: Some(1e-6), scale: 1.5, ..Gating::SIGMOID };
            let bias: Vec<f32> = (0..experts).map(|i| (i % 5) as f32 / 8.0).collect();
            let bias = b.weight(Ok(weight("selection bias", &[experts], &bias)));
            b.router_topk_biased(logits, bias, RouterTopK { k: chosen, gating })
        } else {
            b.router_topk(logits, RouterTopK { k: chosen, gating })
        };
        if self.has_scales {
            let scales: Vec<f32> = (0..experts).map(|i| 0.5 + i as f32 / 4.0).collect();
            let table = b.weight(Ok(weight("scales", &[experts], &scales)));
            let scales = b.gather(table, chosen_ids);
            shares = b.mul(shares, scales);
            shares = b.scale(shares, 2.5);
        }
        let mut of_experts = |b: &mut Builder, name: &str, format, rows: usize, width: usize| -> ValueId {
            let tensor = random_tensor(format, experts * rows, width, &mut noise);
            b.weight(Weight::new(name, &[experts, rows, width], vec![WeightPart::whole(tensor)]))
        };
        let gate = of_experts(&mut b, "gate", formats[0], hidden, inputs);
        let up = of_experts(&mut b, "up", formats[0], hidden, inputs);
        let down = of_experts(&mut b, "down", formats[1], inputs, hidden);
        let layer = |b: &mut Builder, x, w, outputs: usize| {
            if !self.has_biases {
                return b.expert_linear(x, chosen_ids, w);
            }
            let values: Vec<f32> = (0..experts * outputs).map(|i| (i % 23) as f32 / 8.0 - 1.4).collect();
            let bias = b.weight(Ok(weight("bias", &[experts, outputs], &values)));
            b.expert_linear_biased(x, chosen_ids, w, bias)
        };
        let (gate, up) = (layer(&mut b, x, gate, hidden), layer(&mut b, x, up, hidden));
        let gated = b.gated_unit(gate, up, self.unit);
        let y = layer(&mut b, gated, down, inputs);
        let shares = b.reshape(shares, &[chosen, 1]);
        let y = b.mul(y, shares);
        let mut y = b.sum(y, 1);
        if self.has_residual {
            y = b.add(x, y);
        }
        b.finish(&[y]).unwrap()
    }
}

/// Compares a mixture with the reference, for each number of rows.
fn check(device: &brasa_cuda::CudaBackend, mixture: &Mixture, rows: &[usize], tolerance: Tolerance) {
    let graph = Arc::new(mixture.graph(29));
    let mut running = Running::new(device, &graph, Precision::Fast, KvType::F16);
    let mut reference = Running::new(&ReferenceBackend, &graph, Precision::Reference, KvType::F16);
    for &rows in rows {
        let ids: Vec<u32> = (0..rows as u32).map(|row| row * 7 % TOKENS as u32).collect();
        let run = |running: &mut Running| running.step(&[(rows as u64, &ids)]);
        let comparison = compare(&run(&mut running), &run(&mut reference));
        println!("{mixture:?}, {rows} rows: {comparison}");
        assert!(comparison.within(tolerance), "{mixture:?}, {rows} rows: {comparison}");
    }
}

/// True if the mixture is one operation.
fn is_one(device: &brasa_cuda::CudaBackend, mixture: &Mixture) -> bool {
    let graph = Arc::new(mixture.graph(29));
    let mut running = Running::new(device, &graph, Precision::Fast, KvType::F16);
    let segments = vec![running.segment(1, &[3])];
    let times = running.program.profile(&Step { segments }, &mut *running.pool).unwrap();
    let is_one = times.iter().any(|op| op.label == "experts gate");
    assert!(is_one || times.iter().any(|op| op.label == "expert_linear gate"), "{times:?}");
    is_one
}

#[test]
fn experts_of_every_format_agree_with_the_reference() {
    let Some(device) = device() else { return };
    let rows = full_or_few(device, &[1, 3, 15, 16, 33, 200, 700][..], &[2, 17][..]);
    for format in formats() {
        check(device, &Mixture::of(format), rows, Tolerance(3e-3));
    }
}

#[test]
fn experts_in_tiles_are_one_operation() {
    let Some(device) = device() else { return };
    for format in [StorageFormat::F16, StorageFormat::BF16, StorageFormat::Q4_K, StorageFormat::Q8_0] {
        assert!(is_one(device, &Mixture::of(format)), "{format}");
    }
    // Rows as they are stored, and outputs that share a tile with the next expert's.
    assert!(!is_one(device, &Mixture::of(StorageFormat::F32)));
    assert!(!is_one(device, &Mixture { hidden: 40, ..Mixture::of(StorageFormat::F16) }));
    let exact = deterministic().unwrap();
    assert!(!is_one(exact, &Mixture::of(StorageFormat::Q4_K)));
}

/// Experts with biases and clamped units, chosen by scores.
#[test]
fn experts_of_many_kinds_agree_with_the_reference() {
    let Some(device) = device() else { return };
    let clamped = GatedUnit::Clamped(ClampedUnit { alpha: 1.702, limit: 7.0 });
    let q8 = Mixture::of(StorageFormat::Q8_0);
    let mixtures = [
        Mixture { experts: 6, unit: clamped, has_scores: true, has_biases: true, ..q8 },
        Mixture { experts: 32, chosen: 4, inputs: 96, hidden: 96, unit: clamped, ..q8 },
        Mixture {
            unit: GatedUnit::GeluTanh,
            has_biases: true,
            has_scales: true,
            ..Mixture::of(StorageFormat::Q4_K)
        },
        Mixture { experts: 8, chosen: 3, has_scores: true, ..Mixture::of(StorageFormat::BF16) },
    ];
    let rows = full_or_few(device, &[1, 3, 16, 200][..], &[1, 17][..]);
    for mixture in &mixtures {
        assert!(is_one(device, mixture), "{mixture:?}");
        check(device, mixture, rows, Tolerance(3e-3));
    }
}

/// Widths that fill no panel, many experts, few and none left out, one that all rows choose, and what models put on top.
#[test]
fn experts_of_many_shapes_agree_with_the_reference() {
    let Some(device) = device() else { return };
    let all = in_full(device, "most shapes of mixtures");
    let (q8, q4) = (Mixture::of(StorageFormat::Q8_0), Mixture::of(StorageFormat::Q4_K));
    let mixtures = [
        Mixture { inputs: 96, hidden: 32, experts: 33, chosen: 4, has_scales: true, ..q8 },
        Mixture {
            inputs: 352,
            hidden: 176,
            unit: GatedUnit::GeluTanh,
            has_residual: false,
            ..Mixture::of(StorageFormat::F16)
        },
        Mixture { formats: [StorageFormat::Q4_K, StorageFormat::Q6_K], hidden: 512, bias: 30.0, ..q4 },
        Mixture { experts: 3, chosen: 3, bias: 30.0, unit: GatedUnit::GeluErf, ..q8 },
        Mixture { experts: 1, chosen: 1, inputs: 64, hidden: 64, ..q8 },
        Mixture { experts: 300, chosen: 8, inputs: 64, hidden: 32, bias: 30.0, has_scales: true, ..q8 },
    ];
    let rows = full_or_few(device, &[1, 2, 4, 16, 64, 129, 513, 700][..], &[3, 21][..]);
    for mixture in mixtures.iter().take(if all { mixtures.len() } else { 4 }) {
        check(device, mixture, rows, Tolerance(3e-3));
    }
    if !is_emulated(device) || all {
        // Many rows of one expert: all sizes of blocks.
        let large = Mixture { inputs: 512, hidden: 768, experts: 4, chosen: 1, bias: 4.0, ..q4 };
        check(device, &large, full_or_few(device, &[5, 40, 150, 700][..], &[150][..]), Tolerance(3e-3));
    }
}
