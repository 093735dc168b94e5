//! Adapters of projections that are stacked in one weight, and the choice of layers.

use brasa_graph::reference::ReferenceBackend;
use brasa_train::data::Batches;
use brasa_train::lora::{Lora, LoraOptions, Own, Pattern, Scaling, Targets};
use brasa_train::optimizer::{Rule, Schedule, Sgd, Shape};

use crate::setup::{adapter, documents, layers, model, trainer};

/// Adapters of some projections of a stack learn what they learn beside others that stay as they are.
#[test]
fn blocks_of_a_stack_are_learned_apart() {
    let model = model("llama31");
    let all = adapter(&layers(&model.graph, |_| true), Scaling::Rank);
    let some = Lora {
        pairs: all.pairs.iter().filter(|pair| pair.layer.name.ends_with("v_proj")).cloned().collect(),
        ..all.clone()
    };
    let silent = Lora {
        pairs: all
            .pairs
            .iter()
            .cloned()
            .map(|mut pair| {
                if !pair.layer.name.ends_with("v_proj") {
                    pair.b.fill(0.0);
                }
                pair
            })
            .collect(),
        ..all.clone()
    };
    let schedule = Schedule { shape: Shape::Constant, peak: 0.1, warm_up: 0, updates: 1, floor: 0.0 };
    let batches = Batches::new(documents("llama31"), 200, 8, None);
    let mut gradients = [&some, &silent].map(|lora| {
        let rule = Rule::Sgd(Sgd::default());
        let mut trainer = trainer(&ReferenceBackend, &model.graph, lora.clone(), rule, schedule, None);
        let (found, gradients) = trainer.gradients(&batches, &[vec![0, 1]]).expect("gradients");
        let loss = found.loss;
        (loss, gradients)
    });
    let (together, alone) = (gradients[1].1.clone(), std::mem::take(&mut gradients[0].1));
    assert!((gradients[0].0 - gradients[1].0).abs() < 1e-6);
    let of_v = all
        .pairs
        .iter()
        .zip(together.chunks_exact(2))
        .filter(|(pair, _)| pair.layer.name.ends_with("v_proj"));
    let of_v: Vec<&Vec<f32>> = of_v.flat_map(|(_, arrays)| arrays).collect();
    assert_eq!(of_v.len(), alone.len());
    for (together, alone) in of_v.into_iter().zip(&alone) {
        let difference = together.iter().zip(alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let largest = alone.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        assert!(difference <= 1e-5 * largest, "{difference} of {largest}");
    }
}

#[test]
fn targets_are_names_expressions_all_and_the_last_blocks() {
    let layers = layers(&model("llama31").graph, |_| true);
    let chosen = |targets: &str, last| {
        let targets = Targets::parse(targets, last).expect("targets");
        let options = LoraOptions { targets, ..LoraOptions::default() };
        let lora = Lora::new(&layers, &options).map_err(|error| error.to_string())?;
        Ok::<_, String>(lora.pairs.into_iter().map(|pair| pair.layer.name).collect::<Vec<_>>())
    };
    assert_eq!(chosen("all", None).map(|names| names.len()), Ok(14));
    let both = ["layers.0.self_attn.q_proj", "layers.0.self_attn.v_proj"].map(String::from);
    assert_eq!(chosen("q_proj, v_proj", None).map(|names| names[..2].to_vec()), Ok(both.to_vec()));
    assert_eq!(chosen("/layers\\.1.*(gate|up)_proj$/", None).map(|names| names.len()), Ok(2));
    assert_eq!(chosen("/[qk]_pro{1,2}j/", None).map(|names| names.len()), Ok(4));
    let last = ["layers.1.mlp.down_proj".to_owned()];
    assert_eq!(chosen("down_proj", Some(1)), Ok(last.to_vec()));
    assert_eq!(chosen("model.layers.1.mlp.down_proj", None), Ok(last.to_vec()));
    assert_eq!(
        chosen("q_proj,c_proj", None).expect_err("no such layer"),
        "no linear layer is named `c_proj`\nhint: the linear layers are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, \
         down_proj; names and /expressions/ are separated by commas"
    );
    assert!(
        chosen("layers.0.self_attn.q_proj", Some(1))
            .expect_err("none")
            .starts_with("no linear layer is learned\n")
    );
    assert!(
        chosen("all", Some(3)).expect_err("too many").starts_with("the last 3 blocks, the model has 2\n")
    );
    assert!(Targets::parse("/(/", None).expect_err("no expression").to_string().contains("\nhint: "));
    let own =
        |name: &str, rank, alpha| Own { pattern: Pattern::parse(name).expect("a pattern"), rank, alpha };
    let of = |own| Lora::new(&layers, &LoraOptions { own, ..LoraOptions::default() });
    let several =
        [own("layers.1.self_attn.q_proj", Some(2), None), own("/q_proj|down/", Some(4), Some(20.0))];
    let lora = of(several.to_vec()).expect("an adapter");
    let found = |name: &str| {
        let pair = lora.pairs.iter().find(|pair| pair.layer.name == name).expect("a pair");
        assert_eq!(pair.a.len(), pair.rank * pair.layer.inputs);
        (pair.rank, pair.scale)
    };
    assert_eq!(found("layers.0.self_attn.q_proj"), (4, 5.0));
    assert_eq!(found("layers.1.self_attn.q_proj"), (2, 10.0));
    assert_eq!(found("layers.1.mlp.down_proj"), (4, 5.0));
    assert_eq!(found("layers.1.mlp.up_proj"), (8, 2.0));
    let unnamed = of(vec![own("c_proj", Some(2), None)]).expect_err("no such layer").to_string();
    assert!(unnamed.starts_with("no adapted layer is named `c_proj`\nhint: "), "{unnamed}");
    for (rank, alpha, what) in
        [(0, 8.0, "rank 0\n"), (4, f32::NAN, "alpha NaN\n"), (999, 8.0, "rank 999 for ")]
    {
        let options = LoraOptions { rank, alpha, ..LoraOptions::default() };
        let error = Lora::new(&layers, &options).expect_err(what).to_string();
        assert!(error.starts_with(what) && error.contains("\nhint: "), "{error}");
    }
}

#[test]
fn a_new_adapter_changes_nothing_and_its_seed_repeats_it() {
    let layers = layers(&model("llama31").graph, |_| true);
    let new = |seed| Lora::new(&layers, &LoraOptions { seed, ..LoraOptions::default() }).expect("an adapter");
    let (first, other) = (new(1), new(2));
    assert_eq!(first, new(1));
    assert_ne!(first, other);
    for pair in &first.pairs {
        let bound = 1.0 / (pair.layer.inputs as f32).sqrt();
        assert!(pair.b.iter().all(|&x| x == 0.0) && pair.a.iter().all(|x| x.abs() <= bound));
        let mean_square = pair.a.iter().map(|x| x * x).sum::<f32>() / pair.a.len() as f32;
        assert!((mean_square * 3.0 / bound.powi(2) - 1.0).abs() < 0.3, "{mean_square}");
    }
}
