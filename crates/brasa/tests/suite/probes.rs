//! Probes tell what the model computes, and change nothing.

use brasa::{Error, GenerateOptions, LoadOptions, Model, ProbeEvent, ProbeKind, Probes, RequestOptions};
use brasa_golden::folder;

fn model(name: &str) -> Model {
    Model::load(folder(name), &LoadOptions { deterministic: true, ..LoadOptions::default() }).unwrap()
}

/// Ids of a greedy answer, and the events that the probes tell of it.
fn watched(model: &Model, prompt: &[u32], probes: &Probes) -> (Vec<u32>, Vec<ProbeEvent>) {
    let mut options = GenerateOptions { max_tokens: Some(9), ignore_eos: true, ..GenerateOptions::default() };
    probes.ask(&mut options);
    let (mut watch, mut ids, mut events) = (probes.watch(model), Vec::new(), Vec::new());
    for fragment in model.generate_ids(prompt.to_vec(), &options).unwrap() {
        let fragment = fragment.unwrap();
        watch.see(&fragment, |event| events.push(event));
        ids.extend(fragment.token.map(|token| token.id));
    }
    let text = [prompt, &ids[..]].concat();
    probes.look(model, &text, &RequestOptions::DEFAULT, |event| events.push(event)).unwrap();
    (ids, events)
}

#[test]
fn a_generation_is_told_token_by_token() {
    let model = model("tiny-llama");
    let prompt = [1, 300, 301, 302];
    let (plain, none) = watched(&model, &prompt, &Probes::of([]));
    assert!(none.is_empty());
    let kinds = ProbeKind::ALL.into_iter().filter(|kind| !kind.is_inside());
    let (ids, events) = watched(&model, &prompt, &Probes { top: 2, ..Probes::of(kinds.clone()) });
    assert_eq!(ids, plain);
    for kind in kinds {
        assert_eq!(events.iter().filter(|event| event.kind() == kind).count(), 9, "{kind}");
    }
    // The logits that each token was drawn from, read again.
    let text = [&prompt[..], &ids[..]].concat();
    let mut rows: Vec<Vec<f64>> = Vec::new();
    model
        .score(&text, &RequestOptions::DEFAULT, |row| rows.push(row.iter().map(|&z| f64::from(z)).collect()))
        .unwrap();
    let logprobs = |token: usize| {
        let row = &rows[prompt.len() - 1 + token];
        let sum: f64 = row.iter().map(|z| z.exp()).sum();
        row.iter().map(|z| z - sum.ln()).collect::<Vec<f64>>()
    };
    for event in &events {
        match event {
            ProbeEvent::Token { token, id, .. } => assert_eq!(ids[*token], *id),
            ProbeEvent::Logprob { token, logprob } => {
                let expected = logprobs(*token)[ids[*token] as usize];
                assert!((f64::from(*logprob) - expected).abs() < 1e-4, "{logprob} {expected}");
            }
            ProbeEvent::Entropy { token, nats } => {
                let expected: f64 = logprobs(*token).iter().map(|log| -log.exp() * log).sum();
                assert!((f64::from(*nats) - expected).abs() < 1e-3, "{nats} {expected}");
            }
            ProbeEvent::Top { token, top } => {
                assert_eq!((top.len(), top[0].0), (2, ids[*token]));
            }
            ProbeEvent::Cache { bytes, most_bytes, .. } => assert!(bytes <= most_bytes),
            ProbeEvent::Memory { resident_bytes, peak_bytes, .. } => assert!(resident_bytes <= peak_bytes),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_inside_is_told_layer_by_layer() {
    let model = model("tiny-qwen3moe");
    let prompt = [5, 6, 7];
    let probes = Probes {
        layers: vec![0, 1],
        ..Probes::of(ProbeKind::ALL.into_iter().filter(|kind| kind.is_inside()))
    };
    let (ids, events) = watched(&model, &prompt, &probes);
    let tokens = prompt.len() + ids.len();
    let count = |kind| events.iter().filter(|event| event.kind() == kind).count();
    assert_eq!(count(ProbeKind::Residual), 2 * tokens);
    assert_eq!(count(ProbeKind::Coherence), tokens);
    assert_eq!(count(ProbeKind::Router), 2 * tokens);
    assert_eq!(count(ProbeKind::Heads), 2 * tokens * model.info().num_heads.unwrap());
    for event in &events {
        if let ProbeEvent::Head { position, most, weight, .. } = event {
            assert!(most <= position && *weight > 0.0, "{event:?}");
        }
        let json = event.to_json();
        assert_eq!(json["probe"], event.kind().name());
        assert!(json["layer"].is_u64() && json["position"].is_u64(), "{json}");
    }
    let beyond = Probes { layers: vec![99], ..probes };
    assert!(matches!(beyond.look(&model, &prompt, &RequestOptions::DEFAULT, |_| ()), Err(Error::Options(_))));
}

#[test]
fn kinds_have_names() {
    for kind in ProbeKind::ALL {
        assert_eq!(kind.name().parse::<ProbeKind>().unwrap(), kind);
    }
    let unknown = "entrophy".parse::<ProbeKind>().unwrap_err().to_string();
    assert!(unknown.contains("`entrophy`") && unknown.contains("entropy, top"), "{unknown}");
}
