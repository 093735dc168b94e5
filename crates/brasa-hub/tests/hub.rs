//! Downloads from a stand-in server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use brasa_hub::{Fetched, Hub, HubError, Wanted};
use sha1::{Digest, Sha1};
use sha2::Sha256;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The stand-in's misbehaviour besides serving its files.
#[derive(Default)]
struct Behaviour {
    /// Bytes of a body before the connection breaks, for each answer to come.
    breaks: Vec<usize>,
    /// The status of every answer about the repository.
    status: Option<u16>,
    /// Files are elsewhere: answers redirect.
    redirects: bool,
    /// Answers ignore the range that was asked for.
    whole: bool,
    /// The list of files, in place of the true one.
    listing: Option<String>,
    /// Heads of the requests so far.
    requests: Vec<String>,
}

/// A server on this machine, with the files of the repository `me/model`.
struct Server {
    address: String,
    behaviour: Arc<Mutex<Behaviour>>,
}

fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(value.into(), 16).unwrap();
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn git_blob(content: &[u8]) -> String {
    let mut hasher = Sha1::new();
    hasher.update(format!("blob {}\0", content.len()));
    hasher.update(content);
    hex(&hasher.finalize())
}

impl Server {
    fn start(files: &[(&str, &[u8])]) -> Self {
        let files: BTreeMap<String, Vec<u8>> =
            files.iter().map(|(name, content)| ((*name).to_owned(), content.to_vec())).collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let behaviour = Arc::new(Mutex::new(Behaviour::default()));
        let shared = Arc::clone(&behaviour);
        thread::spawn(move || {
            for stream in listener.incoming() {
                // A client that breaks off is no fault of the server.
                let _ = answer(&stream.unwrap(), &files, &shared);
            }
        });
        Self { address, behaviour }
    }

    fn set(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.behaviour.lock().unwrap());
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.behaviour.lock().unwrap().requests)
    }

    /// A hub with an empty cache.
    fn hub(&self, name: &str) -> Hub {
        let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("hub-{name}"));
        let _ = std::fs::remove_dir_all(&cache);
        let pause = Duration::from_millis(1);
        Hub { endpoint: self.address.clone(), cache, token: Some("secret".into()), offline: false, pause }
    }
}

fn listing(files: &BTreeMap<String, Vec<u8>>) -> String {
    let entry = |(name, content): (&String, &Vec<u8>)| {
        let (blob, size) = (git_blob(content), content.len());
        let large = format!(r#", "lfs": {{"sha256": "{}", "size": {size}}}"#, hex(&Sha256::digest(content)));
        let large = if name.contains(".json") { String::new() } else { large };
        format!(r#"{{"rfilename": "{name}", "size": {size}, "blobId": "{blob}"{large}}}"#)
    };
    let entries: Vec<_> = files.iter().map(entry).collect();
    format!(r#"{{"sha": "{COMMIT}", "siblings": [{}]}}"#, entries.join(", "))
}

fn answer(
    stream: &TcpStream,
    files: &BTreeMap<String, Vec<u8>>,
    shared: &Mutex<Behaviour>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let mut behaviour = shared.lock().unwrap();
    behaviour.requests.push(head.clone());
    let path = head.split(' ').nth(1).unwrap().to_owned();
    let mut out = stream;
    let mut reply = |status: &str, headers: &str, size: usize, body: &[u8]| {
        out.write_all(
            format!("HTTP/1.1 {status}\r\nContent-Length: {size}\r\nConnection: close\r\n{headers}\r\n")
                .as_bytes(),
        )?;
        out.write_all(body)?;
        out.flush()
    };
    if let Some(status) = behaviour.status {
        return reply(&format!("{status} No"), "", 0, b"");
    }
    if path == "/api/models/me/model/revision/main?blobs=true" {
        let text = behaviour.listing.clone().unwrap_or_else(|| listing(files));
        return reply("200 OK", "", text.len(), text.as_bytes());
    }
    let name = path.strip_prefix(&format!("/me/model/resolve/{COMMIT}/")).map(str::to_owned);
    if let Some(name) = &name
        && behaviour.redirects
    {
        return reply("302 Found", &format!("Location: /elsewhere/{name}\r\n"), 0, b"");
    }
    let name = name.or_else(|| path.strip_prefix("/elsewhere/").map(str::to_owned));
    let Some(content) = name.and_then(|name| files.get(&name)) else {
        return reply("404 Not Found", "", 0, b"");
    };
    let wanted = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
    let start: usize =
        wanted.filter(|_| !behaviour.whole).map_or(0, |range| range.trim_end_matches('-').parse().unwrap());
    let body = &content[start..];
    let sent =
        if behaviour.breaks.is_empty() { body.len() } else { behaviour.breaks.remove(0).min(body.len()) };
    if start == 0 {
        reply("200 OK", "", body.len(), &body[..sent])
    } else {
        let range = format!("Content-Range: bytes {start}-{}/{}\r\n", content.len() - 1, content.len());
        reply("206 Partial Content", &range, body.len(), &body[..sent])
    }
}

fn fetch(hub: &Hub, wanted: &str) -> Result<Fetched, HubError> {
    hub.fetch(&Wanted::parse(wanted).unwrap(), &mut |_| ControlFlow::Continue(()))
}

fn fails(hub: &Hub, wanted: &str) -> String {
    fetch(hub, wanted).unwrap_err().to_string()
}

/// Names of the files below the cache that are neither links nor whole contents.
fn incomplete(hub: &Hub) -> Vec<PathBuf> {
    let blobs = hub.cache.join("models--me--model/blobs");
    let entries = std::fs::read_dir(blobs).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "incomplete")).collect()
}

fn content(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn a_file_is_downloaded_once_into_the_usual_cache() {
    let (model, other) = (content(1, 5000), content(2, 10));
    let server = Server::start(&[("m-Q4_K_M.gguf", &model), ("m-Q8_0.gguf", &other)]);
    let hub = server.hub("once");
    let mut last = 0;
    let fetched = hub
        .fetch(&Wanted::parse("me/model").unwrap(), &mut |at| {
            assert_eq!((at.file, at.total_bytes), ("m-Q4_K_M.gguf", 5000));
            last = at.done_bytes;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(last, 5000);
    let folder = hub.cache.join("models--me--model");
    assert_eq!(fetched.path, folder.join("snapshots").join(COMMIT).join("m-Q4_K_M.gguf"));
    assert_eq!(std::fs::read(&fetched.path).unwrap(), model);
    assert_eq!(std::fs::read_to_string(folder.join("refs/main")).unwrap(), COMMIT);
    #[cfg(unix)]
    assert_eq!(
        std::fs::read_link(&fetched.path).unwrap(),
        Path::new("../../blobs").join(hex(&Sha256::digest(&model)))
    );
    assert_eq!(server.requests().len(), 2);
    assert_eq!(fetch(&hub, "me/model").unwrap().path, fetched.path);
    assert_eq!(server.requests().len(), 1, "the file is there; only the list is asked for");
    assert_eq!(std::fs::read(fetch(&hub, "me/model:q8_0").unwrap().path).unwrap(), other);
    let error = fails(&hub, "me/model:Q5_K_M");
    assert_eq!(error, "me/model: no GGUF file of type Q5_K_M; there are\n  m-Q4_K_M.gguf\n  m-Q8_0.gguf");
}

#[test]
fn a_broken_download_goes_on_where_it_ended() {
    let model = content(3, 40_000);
    let server = Server::start(&[("m.gguf", &model)]);
    let hub = server.hub("resume");
    server.set(|behaviour| behaviour.breaks = vec![10_000, 0, 20_000]);
    assert_eq!(std::fs::read(fetch(&hub, "me/model").unwrap().path).unwrap(), model);
    let ranges: Vec<_> = server
        .requests()
        .iter()
        .filter_map(|head| {
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("range: ").map(str::to_owned))
        })
        .collect();
    assert_eq!(ranges, ["bytes=10000-", "bytes=10000-", "bytes=30000-"]);

    // A download that was interrupted goes on in the next run; the model cannot be opened before.
    let hub = server.hub("interrupted");
    let stopped = hub.fetch(&Wanted::parse("me/model").unwrap(), &mut |at| {
        if at.done_bytes > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped, Err(HubError::Interrupted)));
    let part = incomplete(&hub).remove(0);
    std::fs::OpenOptions::new().write(true).open(&part).unwrap().set_len(15_000).unwrap();
    assert!(matches!(
        fetch(&Hub { offline: true, ..hub.clone() }, "me/model"),
        Err(HubError::NotCached { .. })
    ));
    server.requests();
    assert_eq!(std::fs::read(fetch(&hub, "me/model").unwrap().path).unwrap(), model);
    assert!(server.requests()[1].to_ascii_lowercase().contains("range: bytes=15000-"));
    assert!(incomplete(&hub).is_empty());

    // A server that knows no ranges sends the file again.
    let hub = server.hub("whole");
    server.set(|behaviour| (behaviour.breaks, behaviour.whole) = (vec![10_000], true));
    assert_eq!(std::fs::read(fetch(&hub, "me/model").unwrap().path).unwrap(), model);

    // A connection that breaks at once again and again is given up; what is there stays.
    let hub = server.hub("broken");
    server.set(|behaviour| (behaviour.breaks, behaviour.whole) = (vec![7, 0, 0, 0, 0, 0, 0], false));
    let error = fails(&hub, "me/model");
    assert!(error.starts_with("m.gguf: the connection broke after 7 of 40000 bytes: "), "{error}");
    assert_eq!(std::fs::metadata(&incomplete(&hub)[0]).unwrap().len(), 7);
}

#[test]
fn another_content_is_thrown_away() {
    let model = content(4, 3000);
    let server = Server::start(&[("m.gguf", &model), ("config.json", b"{}")]);
    let hub = server.hub("hash");
    let files = BTreeMap::from([("m.gguf".to_owned(), content(5, 3000))]);
    server.set(|behaviour| behaviour.listing = Some(listing(&files)));
    let error = fails(&hub, "me/model");
    assert!(
        error.starts_with("m.gguf: SHA-256 is ") && error.ends_with("the download was thrown away"),
        "{error}"
    );
    assert!(incomplete(&hub).is_empty());
    assert!(fetch(&Hub { offline: true, ..hub.clone() }, "me/model").is_err());
    // Larger than announced.
    let files = BTreeMap::from([("m.gguf".to_owned(), content(4, 2000))]);
    server.set(|behaviour| behaviour.listing = Some(listing(&files)));
    let error = fails(&hub, "me/model");
    assert!(error.contains("the size is larger, expected 2000 bytes"), "{error}");
    // A small file is checked by git's hash.
    let files =
        BTreeMap::from([("m.safetensors".to_owned(), vec![]), ("config.json".to_owned(), b"[]".to_vec())]);
    server.set(|behaviour| behaviour.listing = Some(listing(&files)));
    let error = fails(&hub, "me/model");
    assert!(error.starts_with("config.json: git's SHA-1 is "), "{error}");
}

#[test]
fn refusals_are_explained() {
    let server = Server::start(&[]);
    let hub = server.hub("refused");
    for (status, words) in [
        (401, "the token is not valid"),
        (403, "accept the licence at"),
        (404, "there is no such repository"),
        (429, "too many requests"),
        (503, "the server has a problem"),
        (418, "the server refuses"),
    ] {
        server.set(|behaviour| behaviour.status = Some(status));
        let error = fails(&hub, "me/model");
        assert!(error.starts_with(&format!("me/model: {status}: ")) && error.contains(words), "{error}");
    }
    server.set(|behaviour| behaviour.status = Some(401));
    let error = fails(&Hub { token: None, ..hub.clone() }, "me/model");
    assert!(
        error.contains("no such repository, or one that needs a token") && error.contains("HF_TOKEN"),
        "{error}"
    );
    server.set(|behaviour| behaviour.status = None);
    assert!(fails(&hub, "me/model").starts_with("me/model: no model"));
    for listing in ["", "{}", "<html>", r#"{"sha": "../../x", "siblings": []}"#] {
        server.set(|behaviour| behaviour.listing = Some(listing.to_owned()));
        let error = fails(&hub, "me/model");
        assert!(error.contains("the server's answer is not understood"), "{error}");
    }
}

#[test]
fn redirects_are_followed_without_the_token() {
    let model = content(6, 100);
    let server = Server::start(&[("a b/m.gguf", &model), ("m.gguf", &model)]);
    let hub = server.hub("redirect");
    server.set(|behaviour| behaviour.redirects = true);
    let mut wanted = Wanted::parse("me/model").unwrap();
    wanted.file = Some("m.gguf".into());
    let fetched = hub.fetch(&wanted, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(std::fs::read(fetched.path).unwrap(), model);
    let requests = server.requests();
    let has_token = |head: &String| head.contains("Bearer secret");
    assert_eq!(requests.iter().map(has_token).collect::<Vec<_>>(), [true, true, false]);
}

#[test]
fn without_a_network_the_cache_serves() {
    let model = content(7, 100);
    let server = Server::start(&[("m.gguf", &model)]);
    let hub = server.hub("offline");
    let offline = Hub { offline: true, ..hub.clone() };
    let error = fails(&offline, "me/model");
    assert!(error.starts_with("me/model: not in ") && error.contains("HF_HUB_OFFLINE"), "{error}");
    let path = fetch(&hub, "me/model").unwrap().path;
    server.requests();
    let fetched = fetch(&offline, "me/model").unwrap();
    assert_eq!((fetched.path, fetched.unreachable), (path.clone(), None));
    assert!(server.requests().is_empty(), "nothing is asked offline");
    assert!(fails(&offline, "me/model:Q8_0").contains("m.gguf"));
    // A server that is gone is named; the cache serves all the same.
    let gone = Hub { endpoint: "http://127.0.0.1:1".into(), ..hub.clone() };
    let fetched = fetch(&gone, "me/model").unwrap();
    assert_eq!(fetched.path, path);
    assert!(fetched.unreachable.unwrap().contains("127.0.0.1:1"));
    assert!(matches!(fetch(&gone, "you/model"), Err(HubError::Unreachable { .. })));
}

#[test]
fn all_parts_and_whole_checkpoints_are_fetched() {
    let (first, second) = (content(8, 300), content(9, 200));
    let server =
        Server::start(&[("Q4_K_M/m-00001-of-00002.gguf", &first), ("Q4_K_M/m-00002-of-00002.gguf", &second)]);
    let path = fetch(&server.hub("split"), "me/model").unwrap().path;
    assert!(path.ends_with("Q4_K_M/m-00001-of-00002.gguf"));
    assert_eq!(std::fs::read(&path).unwrap(), first);
    assert_eq!(std::fs::read(path.with_file_name("m-00002-of-00002.gguf")).unwrap(), second);

    let server = Server::start(&[
        ("config.json", b"{}"),
        ("tokenizer.json", b"{\"a\": 1}"),
        ("model.safetensors", &first),
        ("pytorch_model.bin", &second),
        ("original/model.safetensors", &second),
    ]);
    let hub = server.hub("folder");
    let path = fetch(&hub, "me/model").unwrap().path;
    let mut names: Vec<_> = std::fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(fetch(&Hub { offline: true, ..hub }, "me/model").unwrap().path, path);
}

#[test]
fn no_path_leaves_the_cache() {
    let model = content(10, 50);
    let server = Server::start(&[("m.gguf", &model)]);
    let outside = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("hub-outside");
    let _ = std::fs::remove_dir_all(&outside);
    std::fs::create_dir_all(&outside).unwrap();
    // Names and hashes of the server.
    let hub = server.hub("names");
    let (hash, large) = (git_blob(b""), hex(&Sha256::digest(b"")));
    for (name, blob) in [
        ("../../../hub-outside/m.gguf", hash.as_str()),
        ("/m.gguf", &hash),
        ("m.gguf", "../../../../hub-outside/x"),
    ] {
        let lfs = if name == "m.gguf" { blob } else { &large };
        let text = format!(
            r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "{name}", "size": 0, "blobId": "{blob}", "lfs": {{"sha256": "{lfs}", "size": 0}}}}]}}"#
        );
        server.set(|behaviour| behaviour.listing = Some(text));
        assert!(fails(&hub, "me/model").starts_with("me/model: no model"), "{name}");
    }
    server.set(|behaviour| behaviour.listing = None);
    // Links in the cache.
    #[cfg(unix)]
    for folder in [
        "models--me--model",
        "models--me--model/blobs",
        "models--me--model/snapshots",
        "models--me--model/refs",
    ] {
        let hub = server.hub("links");
        let link = hub.cache.join(folder);
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(&outside, &link).unwrap();
        assert!(matches!(fetch(&hub, "me/model"), Err(HubError::OutsideCache { .. })), "{folder}");
    }
    #[cfg(unix)]
    {
        // A link in the place of a part is removed, not written through; one in the place of a content is not believed.
        let hub = server.hub("part");
        let blob = hub.cache.join("models--me--model/blobs").join(hex(&Sha256::digest(&model)));
        std::fs::create_dir_all(blob.parent().unwrap()).unwrap();
        std::fs::write(outside.join("victim"), content(11, 50)).unwrap();
        std::os::unix::fs::symlink(outside.join("victim"), blob.with_added_extension("incomplete")).unwrap();
        std::os::unix::fs::symlink(outside.join("victim"), &blob).unwrap();
        assert_eq!(std::fs::read(fetch(&hub, "me/model").unwrap().path).unwrap(), model);
        assert_eq!(std::fs::read(outside.join("victim")).unwrap(), content(11, 50));
    }
    let left: Vec<_> = std::fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "victim"), "{left:?}");
}
