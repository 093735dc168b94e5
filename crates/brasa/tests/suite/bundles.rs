//! State bundles: sessions go on bit for bit, and nothing but the bundle that was saved is taken for it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use brasa::sampling::{Distribution, Logprobs};
use brasa::{
    BundleError, Error, GenerateOptions, KvType, LoadOptions, Model, SamplingParams, StateBundle, TokenStream,
};
use brasa_fuzz::Fuzzer;
use brasa_golden::folder;
use serde_json::Value;

const LEXICON: &str = "lexicon-qwen3/lexicon-qwen3-Q6_K.gguf";
/// Names the bundle that the child of the killing test saves.
const CHILD: &str = "BRASA_TEST_BUNDLES_TO";

fn options() -> LoadOptions {
    let context = Some(1024);
    LoadOptions { context, threads: Some(1), deterministic: true, ..LoadOptions::default() }
}

fn model() -> Model {
    Model::load(folder(LEXICON), &options()).unwrap()
}

fn prompt(length: usize) -> Vec<u32> {
    (0..length).map(|index| (300 + (index * index * 7 + index * 31) % 3000) as u32).collect()
}

fn drawn(tokens: usize) -> GenerateOptions {
    let sampling = SamplingParams {
        temperature: 0.9,
        seed: 5,
        logprobs: Some(Logprobs { top: 0, of: Distribution::Raw }),
        ..SamplingParams::default()
    };
    GenerateOptions { sampling, max_tokens: Some(tokens), ignore_eos: true, ..GenerateOptions::default() }
}

/// Ids of a stream and the bits of their log-probabilities.
fn said(stream: TokenStream) -> Vec<(u32, u32)> {
    let tokens = stream.filter_map(|fragment| fragment.unwrap().token);
    tokens.map(|token| (token.id, token.logprob.unwrap().to_bits())).collect()
}

/// An empty folder of this process.
fn scratch(name: &str) -> PathBuf {
    let folder = env::temp_dir().join(format!("brasa-bundles-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A bundle of two sessions at `path`.
fn saved(model: &Model, path: &Path) -> StateBundle {
    let mut bundle = StateBundle::new(model);
    for (name, length) in [("ada", 270), ("Grace Hopper", 12)] {
        bundle.session(name).generate_ids(prompt(length), &drawn(8)).unwrap().for_each(drop);
    }
    let report = bundle.save(path).unwrap();
    let bytes = names(path.parent().unwrap()).into_iter().map(|name| path.with_file_name(name));
    assert_eq!(report.tokens, 277 + 19);
    assert_eq!(report.bytes, bytes.map(|file| fs::metadata(file).unwrap().len()).sum::<u64>());
    bundle
}

#[test]
fn sessions_go_on_as_if_they_had_never_been_saved() {
    let (here, there) = (model(), model());
    let folder = scratch("on");
    let path = folder.join("state.json");
    let mut bundle = saved(&here, &path);
    let mut loaded = StateBundle::load(&there, &path).unwrap();
    assert_eq!(loaded.sessions.keys().collect::<Vec<_>>(), ["Grace Hopper", "ada"]);
    for name in ["ada", "Grace Hopper"] {
        assert_eq!(loaded.session(name).options().unwrap().sampling, drawn(8).sampling);
        let mut text = bundle.session(name).tokens().unwrap();
        text.extend([77, 78]);
        let went_on = said(bundle.session(name).generate_ids(text.clone(), &drawn(20)).unwrap());
        let resumed = said(loaded.session(name).generate_ids(text, &drawn(20)).unwrap());
        assert_eq!(resumed, went_on, "{name}");
    }
    // A bundle that is saved again leaves none of the files before; a session of another model leaves all.
    loaded.sessions.remove("ada");
    loaded.save(&path).unwrap();
    assert_eq!(names(&folder), ["state.json", "state.json.3.session"]);
    let q8 = LoadOptions { kv_type: Some(KvType::Q8), ..options() };
    let stranger = Model::load(brasa_golden::folder(LEXICON), &q8).unwrap();
    loaded.sessions.insert("stranger".into(), stranger.session());
    let refused = loaded.save(&path).unwrap_err();
    assert!(matches!(refused, Error::Bundle { error: BundleError::ForeignSession { .. }, .. }), "{refused}");
    assert_eq!(names(&folder), ["state.json", "state.json.3.session"]);
    assert!(matches!(StateBundle::load(&stranger, &path).unwrap_err(),
        Error::Bundle { error: BundleError::Identity(error), .. } if error.to_string().contains("type of keys and values")));
    loaded.sessions.clear();
    loaded.session("");
    assert!(matches!(
        loaded.save(&path),
        Err(Error::Bundle { error: BundleError::Name { characters: 0, .. }, .. })
    ));
    fs::remove_dir_all(folder).unwrap();
}

/// Whatever is not as it was saved is named.
#[test]
fn another_bundle_is_refused_by_name() {
    let model = model();
    let folder = scratch("refused");
    let path = folder.join("state.json");
    saved(&model, &path);
    let text = fs::read_to_string(&path).unwrap();
    let refused = |text: &str| {
        fs::write(&path, text).unwrap();
        match StateBundle::load(&model, &path) {
            Err(Error::Bundle { error, .. }) => error,
            other => panic!("{other:?}"),
        }
    };
    let changed = |pointer: &str, value: Value| {
        let mut envelope: Value = serde_json::from_str(&text).unwrap();
        *envelope.pointer_mut(pointer).unwrap() = value;
        refused(&envelope.to_string())
    };
    assert!(matches!(changed("/kind", "go-mlx/state".into()), BundleError::Kind { .. }));
    assert!(matches!(changed("/version", 2.into()), BundleError::Version { .. }));
    for part in ["architecture", "weights", "configuration", "adapter", "tokenizer", "arithmetic"] {
        let error = changed(&format!("/identity/{part}"), "another".into());
        assert!(
            matches!(&error, BundleError::Identity(differs) if differs.to_string().contains(part)),
            "{error}"
        );
    }
    let long = "x".repeat(5000);
    for file in
        ["../state.json.1.session", "/etc/passwd", "a/b", "..", "", "C:x", "a\\b", "./x", long.as_str()]
    {
        let error = changed("/sessions/0/file", file.into());
        let is_named =
            matches!(error, BundleError::Outside { .. } | BundleError::Missing { .. } | BundleError::Io(_));
        assert!(is_named, "{file}: {error}");
    }
    assert!(matches!(changed("/sessions/0/file", "none.session".into()), BundleError::Missing { .. }));
    let other = changed("/sessions/0/file", "state.json.2.session".into());
    assert!(matches!(other, BundleError::Malformed { .. }), "{other}");
    assert!(matches!(changed("/sessions/1/sha256", "0".repeat(64).into()), BundleError::Changed { .. }));
    assert!(matches!(changed("/sessions/1/size_bytes", 5.into()), BundleError::Changed { .. }));
    assert!(matches!(
        changed("/sessions/1/tokens", 5.into()),
        BundleError::Contradicts { what: "tokens", .. }
    ));
    let hash = changed("/sessions/1/prompt_sha256", "0".repeat(64).into());
    assert!(matches!(hash, BundleError::Contradicts { what: "tokens", .. }), "{hash}");
    let seed = changed("/sessions/1/sampler/seed", 6.into());
    assert!(matches!(seed, BundleError::Contradicts { what: "sampler", .. }), "{seed}");
    assert!(matches!(refused("[1"), BundleError::Malformed { .. }));
    assert!(matches!(refused(&" ".repeat((4 << 20) + 1)), BundleError::Malformed { .. }));

    // A file that changed is named for that, whatever else is wrong with it.
    fs::write(&path, &text).unwrap();
    let file = folder.join("state.json.2.session");
    let whole = fs::read(&file).unwrap();
    for at in [0, 9, 40, whole.len() / 2, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&file, bytes).unwrap();
        assert!(matches!(refused(&text), BundleError::Changed { .. }), "{at}");
    }
    #[cfg(unix)]
    {
        fs::rename(&file, folder.join("moved")).unwrap();
        std::os::unix::fs::symlink("moved", &file).unwrap();
        assert!(matches!(refused(&text), BundleError::Outside { .. }));
    }
    fs::remove_dir_all(folder).unwrap();
}

/// Hostile envelopes end in an error or in the bundle.
#[test]
fn hostile_envelopes_are_refused() {
    let model = model();
    let folder = scratch("hostile");
    let path = folder.join("state.json");
    let mut bundle = StateBundle::new(&model);
    bundle.session("a").generate_ids(prompt(5), &drawn(1)).unwrap().for_each(drop);
    bundle.save(&path).unwrap();
    let text = fs::read(&path).unwrap();
    let outcome = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        match StateBundle::load(&model, &path) {
            Ok(bundle) => format!("{} sessions", bundle.sessions.len()),
            Err(error) => error.to_string(),
        }
    };
    let report = Fuzzer::new("bundle")
        .seed(&*text)
        .words(["null", "-1", "1e400", "[]", "{}", "../", "\"file\"", "18446744073709551615"])
        .runs(300)
        .run(outcome);
    assert!(report.outcomes > 10, "{report:?}");
    assert_eq!(outcome(&text), "1 sessions");
    fs::remove_dir_all(folder).unwrap();
}

/// Saves two bundles in turn, until it is killed: the child of the test below.
#[test]
fn saves_bundles_until_it_is_killed() {
    let Some(path) = env::var_os(CHILD) else { return };
    let model = model();
    let bundles = [5, 290].map(|length| {
        let mut bundle = StateBundle::new(&model);
        for name in ["a", "b"] {
            bundle.session(name).generate_ids(prompt(length), &drawn(2)).unwrap().for_each(drop);
        }
        bundle
    });
    loop {
        for bundle in &bundles {
            bundle.save(&path).unwrap();
        }
    }
}

/// A process that is killed while it saves leaves the bundle before or the bundle after, whole.
#[test]
fn a_killed_process_leaves_a_whole_bundle() {
    let model = model();
    let folder = scratch("killed");
    let path = folder.join("state.json");
    for delay_ms in [2, 11, 37] {
        let _ = fs::remove_file(&path);
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "bundles::saves_bundles_until_it_is_killed"])
            .env(CHILD, &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while !path.exists() {
            assert!(child.try_wait().unwrap().is_none(), "the child has ended");
            thread::sleep(Duration::from_millis(2));
        }
        thread::sleep(Duration::from_millis(delay_ms));
        // SIGKILL on Unix.
        child.kill().unwrap();
        child.wait().unwrap();
        let mut bundle = StateBundle::load(&model, &path).unwrap();
        let lengths = ["a", "b"].map(|name| bundle.session(name).tokens().unwrap().len());
        assert!([[6, 6], [291, 291]].contains(&lengths), "{lengths:?}");
        // What the killed process left half done is gone with the next bundle of that name.
        bundle.save(&path).unwrap();
        assert_eq!(names(&folder).len(), 3, "{:?}", names(&folder));
    }
    fs::remove_dir_all(folder).unwrap();
}
