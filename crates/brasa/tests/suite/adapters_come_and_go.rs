//! Adapters that are loaded beside a running model, exchanged and unloaded.

use std::path::Path;
use std::time::{Duration, Instant};

use brasa::engine::{ReadRequest, ReadValue};
use brasa::{
    AdapterSource, CacheScope, GenerateOptions, LoadOptions, Model, Precision, RequestOptions, TokenStream,
};
use brasa_golden::folder;
use brasa_graph::testing::{Tolerance, compare};

use super::adapters::{Scratch, adapter, options, write_adapter};

fn prompt() -> Vec<u32> {
    (0..300).map(|x| 100 + x * x % 300).collect()
}

/// Starts a text with adapter `id`, or with what requests have that choose none.
fn start(model: &Model, id: Option<usize>, tokens: usize) -> TokenStream {
    let adapter = id.map_or(0, |id| model.adapter_scope(&[(id, 1.0)]).unwrap());
    start_in(model, adapter, tokens)
}

fn start_in(model: &Model, adapter: u64, tokens: usize) -> TokenStream {
    let cache_scope = CacheScope { adapter, ..CacheScope::default() };
    // The text is still on its way while the test does something.
    let request = RequestOptions { cache_scope, run_ahead: 4, ..RequestOptions::DEFAULT };
    let options =
        GenerateOptions { max_tokens: Some(tokens), ignore_eos: true, request, ..GenerateOptions::default() };
    model.generate_ids(prompt(), &options).unwrap()
}

fn ids(stream: &mut TokenStream) -> Vec<u32> {
    stream.by_ref().filter_map(|fragment| fragment.unwrap().token).map(|token| token.id).collect()
}

fn logits(model: &Model, adapter: u64) -> Vec<f32> {
    let cache_scope = CacheScope { adapter, ..CacheScope::default() };
    let options = RequestOptions { cache_scope, ..RequestOptions::DEFAULT };
    let request = ReadRequest { tokens: prompt(), value: ReadValue::Logits, first: 0, options };
    model.engine().read(request).unwrap().flat_map(Result::unwrap).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn loaded(base: &Path, precision: Precision) -> Model {
    let options = LoadOptions { prefix_bytes: Some(64 << 20), chunk: Some(16), ..options(precision) };
    Model::load(base, &options).unwrap()
}

fn alone(base: &Path, source: &AdapterSource, precision: Precision) -> Model {
    let adapters = vec![source.clone()];
    Model::load(base, &LoadOptions { adapters, chunk: Some(16), ..options(precision) }).unwrap()
}

/// Texts that run while adapters come are, bit for bit, those of a model to which none come; and those of an adapter are the same
/// whichever others there are, and within bounds of a model with this adapter alone.
#[test]
fn adapters_come_beside_running_texts() {
    for (name, precision) in [
        ("tiny-llama", Precision::Reference),
        ("tiny-llama", Precision::Fast),
        ("tiny-qwen2", Precision::Fast),
        ("tiny-qwen3moe", Precision::Reference),
    ] {
        let (scratch, base) = (Scratch::new(&format!("come-{name}-{precision:?}")), folder(name));
        let sources = [adapter(&scratch, &base, 1), adapter(&scratch, &base, 2)];
        let model = loaded(&base, precision);
        let (plain, base_text) = (logits(&model, 0), ids(&mut start(&model, None, 120)));
        let mut running = start(&model, None, 120);
        let mut begun = ids_of(&mut running, 10);
        let first = model.load_adapter(&sources[0]).unwrap();
        assert_eq!((first.id, &*first.name, first.is_default), (0, "adapter-1", false));
        begun.extend(ids_of(&mut running, 10));
        let scope = model.adapter_scope(&[(0, 1.0)]).unwrap();
        let adapted = logits(&model, scope);
        let mut of_first = start(&model, Some(0), 120);
        let mut first_text = ids_of(&mut of_first, 10);
        let second = model.load_adapter(&sources[1]).unwrap();
        assert_eq!((second.id, model.adapters().len()), (1, 2));
        begun.extend(ids(&mut running));
        first_text.extend(ids(&mut of_first));
        assert_eq!(begun, base_text, "{name}: a text without adapters");
        assert_eq!(bits(&logits(&model, 0)), bits(&plain), "{name}: the base");
        assert_eq!(bits(&logits(&model, scope)), bits(&adapted), "{name}: one adapter beside another");
        assert_eq!(
            ids(&mut start(&model, Some(0), 120)),
            first_text,
            "{name}: an adapter alone and beside another"
        );
        for (source, scales) in sources.iter().zip([[(0, 1.0)], [(1, 1.0)]]) {
            let found = logits(&model, model.adapter_scope(&scales).unwrap());
            let expected = logits(&alone(&base, source, precision), 0);
            let bound = if precision == Precision::Reference { Tolerance(1e-5) } else { Tolerance(1e-3) };
            let comparison = compare(&found, &expected);
            assert!(comparison.within(bound), "{name} {precision:?}: {comparison}");
            assert!(compare(&found, &plain).relative_l2 > 0.05, "{name}: the adapter does something");
        }
    }
}

fn ids_of(stream: &mut TokenStream, count: usize) -> Vec<u32> {
    stream.by_ref().take(count).filter_map(|fragment| fragment.unwrap().token).map(|token| token.id).collect()
}

/// A name that is loaded again: who runs keeps the old adapter, who comes has the new one and none of its cached beginnings.
#[test]
fn an_exchanged_adapter_serves_new_requests() {
    let (scratch, base) = (Scratch::new("exchanged"), folder("tiny-llama"));
    let precision = Precision::Reference;
    let [old, new] = [1, 2].map(|seed| alone(&base, &adapter(&scratch, &base, seed), precision));
    let [old, new] = [old, new].map(|model| ids(&mut start(&model, None, 100)));
    let source = write_adapter(&scratch, &base, 1, "bard");
    let model = loaded(&base, precision);
    let info = model.load_adapter(&source).unwrap();
    assert_eq!(ids(&mut start(&model, Some(info.id), 100)), old);
    let mut running = start(&model, Some(info.id), 100);
    let mut begun = ids_of(&mut running, 5);
    assert!(running.metrics().cached_tokens > 200, "its beginning was cached");
    let named_before = model.adapter_scope(&[(info.id, 1.0)]).unwrap();

    write_adapter(&scratch, &base, 2, "bard");
    let again = model.load_adapter(&source).unwrap();
    assert_eq!((again.id, model.adapters().len()), (info.id, 1));
    let mut fresh = start(&model, Some(info.id), 100);
    assert_eq!(ids(&mut fresh), new);
    assert!(fresh.metrics().cached_tokens <= 1, "the old adapter's keys are not the new one's");
    // Who had chosen the old one just before still gets it, for the old one is in use.
    assert_eq!(ids(&mut start_in(&model, named_before, 100)), old);
    begun.extend(ids(&mut running));
    assert_eq!(begun, old);
    // The content decides: the first file again finds the first texts.
    write_adapter(&scratch, &base, 1, "bard");
    model.load_adapter(&source).unwrap();
    assert_eq!(ids(&mut start(&model, Some(info.id), 100)), old);
}

/// An adapter of the beginning is exchanged and unloaded too, and requests that choose none follow.
#[test]
fn defaults_are_exchanged_and_unloaded() {
    let (scratch, base) = (Scratch::new("defaults"), folder("tiny-llama"));
    let precision = Precision::Reference;
    let [old, new] = [1, 2].map(|seed| adapter(&scratch, &base, seed));
    let [old_text, new_text] =
        [&old, &new].map(|source| ids(&mut start(&alone(&base, source, precision), None, 40)));
    let plain = ids(&mut start(&loaded(&base, precision), None, 40));
    let options = LoadOptions {
        adapters: vec![old],
        adapters_by_request: true,
        prefix_bytes: Some(64 << 20),
        chunk: Some(16),
        ..options(precision)
    };
    let model = Model::load(&base, &options).unwrap();
    assert_eq!(ids(&mut start(&model, None, 40)), old_text);
    let info = model.load_adapter_as("adapter-1", &new).unwrap();
    assert!(info.is_default && info.id == 0);
    assert_eq!(ids(&mut start(&model, None, 40)), new_text);
    let mut running = start(&model, None, 40);
    let mut begun = ids_of(&mut running, 3);
    model.unload_adapter(0).unwrap();
    assert_eq!(ids(&mut start(&model, None, 40)), plain);
    begun.extend(ids(&mut running));
    assert_eq!(begun, new_text);
}

/// An unloaded adapter cannot be chosen, and is gone when its last request has ended.
#[test]
fn an_unloaded_adapter_leaves_when_its_requests_have_ended() {
    let (scratch, base) = (Scratch::new("unloaded"), folder("tiny-llama"));
    let model = loaded(&base, Precision::Reference);
    let source = adapter(&scratch, &base, 1);
    let expected = ids(&mut start(&alone(&base, &source, Precision::Reference), None, 200));
    let info = model.load_adapter(&source).unwrap();
    let scope = model.adapter_scope(&[(info.id, 1.0)]).unwrap();
    let mut running = start_in(&model, scope, 200);
    let mut text = ids_of(&mut running, 5);
    assert_eq!(model.unload_adapter(info.id).unwrap(), info);
    assert!(model.adapters().is_empty());
    let refused = model.adapter_scope(&[(info.id, 1.0)]).unwrap_err();
    assert_eq!(refused.to_string(), "adapter 0 is not loaded");
    assert_eq!(model.unload_adapter(info.id).unwrap_err().to_string(), "adapter 0 is not loaded");
    // Longer than anybody waits who has only named it.
    std::thread::sleep(Duration::from_millis(2600));
    text.extend(ids(&mut running));
    assert_eq!(text, expected);
    let (begun, cache_scope) = (Instant::now(), CacheScope { adapter: scope, ..CacheScope::default() });
    let request = GenerateOptions {
        max_tokens: Some(1),
        request: RequestOptions { cache_scope, ..RequestOptions::DEFAULT },
        ..GenerateOptions::default()
    };
    let refused = loop {
        match model.generate_ids(prompt(), &request) {
            Err(refused) => break refused,
            Ok(stream) => stream.for_each(drop),
        }
        assert!(begun.elapsed().as_secs() < 60, "it never leaves");
        std::thread::sleep(Duration::from_millis(500));
    };
    assert!(refused.to_string().ends_with("is not known"), "{refused}");
    // The numbers of those that left are not given again.
    assert_eq!(model.load_adapter(&source).unwrap().id, 1);
    assert_eq!(ids(&mut start(&model, Some(1), 200)), text);
}

/// An adapter that loading a model refuses is refused in the same words while the model runs, and the model goes on.
#[test]
fn what_does_not_fit_is_refused_as_at_the_beginning() {
    let (scratch, base) = (Scratch::new("misfits"), folder("tiny-qwen2"));
    let model = loaded(&base, Precision::Fast);
    let before = ids(&mut start(&model, None, 20));
    let gguf = folder("random-adapters").join("llama31/adapter.gguf");
    let foreign = adapter(&scratch, &folder("tiny-llama"), 1);
    for source in [
        AdapterSource::new(&gguf),
        AdapterSource { path: gguf, scale: f32::NAN },
        AdapterSource::new(folder("nothing")),
        foreign,
    ] {
        let adapters = vec![source.clone()];
        let options = LoadOptions { adapters, adapters_by_request: true, ..options(Precision::Fast) };
        let expected = Model::load(&base, &options).map(drop).unwrap_err().to_string();
        assert_eq!(model.load_adapter(&source).unwrap_err().to_string(), expected);
    }
    let good = adapter(&scratch, &base, 1);
    for name in ["", "a:b", "a/b", "a\nb", &"x".repeat(300)] {
        let refused = model.load_adapter_as(name, &good).unwrap_err().to_string();
        assert!(refused.contains("is no name of an adapter"), "{refused}");
    }
    assert!(model.adapters().is_empty());
    assert_eq!(ids(&mut start(&model, None, 20)), before);
    let for_all = alone(&base, &good, Precision::Fast);
    let refused = for_all.load_adapter(&good).unwrap_err().to_string();
    assert!(refused.contains("adapters that apply to all its texts"), "{refused}");
}
