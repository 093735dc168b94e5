//! Cases of mixtures of experts: gatings, biases, gated units, interleaved rows and shared experts.

use crate::op::{
    ClampedUnit, GatedUnit, Gating, GroupScore, Groups, PositionScale, RouterTopK, Scores, Unary,
};
use crate::{RowStride, ValueId, Weight, WeightPart};

use super::{CaseBuilder, OperationCase, Tolerance};

/// Cases of operations of mixtures of experts.
pub(super) const MIXTURES: [OperationCase; 5] = [
    OperationCase::new("gatings", Tolerance::F32, gatings),
    OperationCase::new("expert_biases", Tolerance::F32, biases_of_experts),
    OperationCase::new("gated_units", Tolerance(2e-5), gated_units),
    OperationCase::new("shared_expert", Tolerance::F32, shared_expert),
    OperationCase::new("position_scale", Tolerance::F32, position_scales),
];

/// The unit of gpt-oss.
const CLAMPED: ClampedUnit = ClampedUnit { alpha: 1.702, limit: 7.0 };

/// A random router of `experts` experts, with any gating that fits, and whether it has a selection bias.
pub(super) fn router(b: &mut CaseBuilder, experts: usize) -> (RouterTopK, bool) {
    let scores = [Scores::SoftmaxAll, Scores::SoftmaxChosen, Scores::Sigmoid][b.random.below(3)];
    let divisors: Vec<usize> = (1..=experts).filter(|count| experts.is_multiple_of(*count)).collect();
    let groups = (b.random.below(2) == 0).then(|| {
        let count = divisors[b.random.below(divisors.len())];
        let score =
            if count < experts && b.random.below(2) == 0 { GroupScore::TopTwo } else { GroupScore::Max };
        Groups { count, kept: 1 + b.random.below(count), score }
    });
    let norm_eps = [None, Some(1e-20), Some(1e-6)][b.random.below(3)];
    let scale = [1.0, 2.5][b.random.below(2)];
    let most = groups.map_or(experts, |Groups { count, kept, .. }| kept * (experts / count));
    let gating = Gating { scores, groups, norm_eps, scale };
    (RouterTopK { k: 1 + b.random.below(most), gating }, b.random.below(2) == 0)
}

/// The choice of a random router: experts, weights and `k`.
pub(super) fn choose(b: &mut CaseBuilder, logits: ValueId, experts: usize) -> (ValueId, ValueId, usize) {
    let (router, has_bias) = router(b, experts);
    let (chosen, weights) = if has_bias {
        let bias = b.bias("selection bias", experts);
        b.graph.router_topk_biased(logits, bias, router)
    } else {
        b.graph.router_topk(logits, router)
    };
    (chosen, weights, router.k)
}

/// A random unit.
pub(super) fn unit(b: &mut CaseBuilder) -> GatedUnit {
    // A low limit, which many elements reach.
    let low = ClampedUnit { alpha: 1.5, limit: 0.6 };
    let units = [
        GatedUnit::Silu,
        GatedUnit::GeluTanh,
        GatedUnit::GeluErf,
        GatedUnit::Clamped(CLAMPED),
        GatedUnit::Clamped(low),
    ];
    units[b.random.below(units.len())]
}

/// Biases `[X, N]` of experts.
pub(super) fn expert_bias(b: &mut CaseBuilder, experts: usize, outputs: usize) -> ValueId {
    let values = b.random.normals(experts * outputs, 0.3);
    b.graph.weight(Ok(super::weight("expert bias", &[experts, outputs], &values)))
}

/// Two weights of `shape` from one stored tensor: the even rows and the odd rows.
fn interleaved(b: &mut CaseBuilder, shape: &[usize]) -> [Weight; 2] {
    let mut both = shape.to_vec();
    both[shape.len() - 2] *= 2;
    let stored = b.stored("interleaved", &both);
    [0, 1].map(|first| {
        let parts: Vec<WeightPart> = stored
            .parts
            .iter()
            .map(|part| WeightPart::of_stride(part.tensor.clone(), RowStride { first, step: 2 }))
            .collect();
        Weight::new(["gate", "up"][first], shape, parts).expect("half of the rows")
    })
}

fn gatings(b: &mut CaseBuilder) -> Vec<ValueId> {
    let each = 2 + b.random.below(5);
    let experts = [each, 4 * each, 40 + 8 * each][b.random.below(3)];
    let logits = b.rows(&[experts]);
    let (chosen, weights, _) = choose(b, logits, experts);
    // Scores of many experts at once, as the largest models have them.
    let many = b.rows(&[256]);
    let groups = Groups { count: 8, kept: 4, score: GroupScore::TopTwo };
    let gating = Gating { groups: Some(groups), norm_eps: Some(1e-20), scale: 2.5, ..Gating::SIGMOID };
    let bias = b.bias("selection bias", 256);
    let (all_chosen, all_weights) = b.graph.router_topk_biased(many, bias, RouterTopK { k: 8, gating });
    vec![weights, chosen, all_weights, all_chosen]
}

fn biases_of_experts(b: &mut CaseBuilder) -> Vec<ValueId> {
    let (experts, n, k) = (2 + b.random.below(6), 1 + b.random.below(90), 1 + b.random.below(90));
    let (logits, x) = (b.rows(&[experts]), b.rows(&[k]));
    let (chosen, _, used) = choose(b, logits, experts);
    let own = b.rows(&[used, k]);
    let [gate, up] = interleaved(b, &[experts, n, k]).map(|weight| b.graph.weight(Ok(weight)));
    let bias = expert_bias(b, experts, n);
    vec![
        b.graph.expert_linear_biased(x, chosen, gate, bias),
        b.graph.expert_linear_biased(own, chosen, up, bias),
        b.graph.expert_linear(x, chosen, up),
    ]
}

fn gated_units(b: &mut CaseBuilder) -> Vec<ValueId> {
    let (k, f) = (1 + b.random.below(90), 1 + b.random.below(90));
    let (x, gate, up) = (b.rows(&[k]), b.rows(&[f]), b.rows(&[f]));
    let unit = unit(b);
    let of_rows = b.graph.gated_unit(gate, up, unit);
    // Gate and up of one layer, stored in turns.
    let [gates, ups] = interleaved(b, &[f, k]);
    let parts = [gates.parts, ups.parts].concat();
    let stacked = b.graph.weight(Weight::new("gate_up", &[2 * f, k], parts));
    let both = b.graph.linear(x, stacked);
    let [gate, up] = [0..f, f..2 * f].map(|half| b.graph.slice(both, half));
    let of_layer = b.graph.gated_unit(gate, up, GatedUnit::Clamped(CLAMPED));
    let [tall, wide] = [gate, up].map(|half| b.graph.scale(half, 4.0));
    let clamped = b.graph.gated_unit(tall, wide, GatedUnit::Clamped(CLAMPED));
    vec![of_rows, of_layer, clamped, b.graph.unary(x, Unary::SquaredRelu)]
}

/// Chosen experts without gated units, on rows of a narrower width, and a shared expert with a weight from its own
/// gate.
fn shared_expert(b: &mut CaseBuilder) -> Vec<ValueId> {
    let (experts, d, latent, f) = (4, 1 + b.random.below(60), 1 + b.random.below(30), 1 + b.random.below(60));
    let (logits, x) = (b.rows(&[experts]), b.rows(&[d]));
    let (chosen, weights, used) = choose(b, logits, experts);
    let (into, back) = (b.weight("into", &[latent, d]), b.weight("back", &[d, latent]));
    let (up, down) = (b.weight("up", &[experts, f, latent]), b.weight("down", &[experts, latent, f]));
    let narrow = b.graph.linear(x, into);
    let h = b.graph.expert_linear(narrow, chosen, up);
    let h = b.graph.unary(h, Unary::SquaredRelu);
    let y = b.graph.expert_linear(h, chosen, down);
    let weights = b.graph.reshape(weights, &[used, 1]);
    let y = b.graph.mul(y, weights);
    let y = b.graph.sum(y, 1);
    let routed = b.graph.linear(y, back);

    let (gate, up, down) =
        (b.weight("shared gate", &[f, d]), b.weight("shared up", &[f, d]), b.weight("shared down", &[d, f]));
    let (gate, up) = (b.graph.linear(x, gate), b.graph.linear(x, up));
    let h = b.graph.gated_unit(gate, up, GatedUnit::Silu);
    let shared = b.graph.linear(h, down);
    let w = b.weight("gate of the shared expert", &[1, d]);
    let share = b.graph.linear(x, w);
    let share = b.graph.unary(share, Unary::Sigmoid);
    let shared = b.graph.mul(shared, share);
    vec![b.graph.add(routed, shared)]
}

fn position_scales(b: &mut CaseBuilder) -> Vec<ValueId> {
    let (heads, d) = (1 + b.random.below(4), 1 + b.random.below(60));
    let (queries, rows, positions) = (b.rows(&[heads, d]), b.rows(&[d]), b.positions());
    let scale = |positions| PositionScale { beta: 0.1, positions };
    vec![
        b.graph.position_scale(queries, positions, scale(2)),
        b.graph.position_scale(rows, positions, PositionScale { beta: 0.7, positions: 1 }),
        b.graph.position_scale(rows, positions, scale(8192)),
    ]
}
