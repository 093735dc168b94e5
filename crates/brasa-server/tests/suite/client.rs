//! A client of plain sockets, and the servers that it talks to.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use brasa::LoadOptions;
use brasa_server::{ModelData, ModelSource, Server, ServerError, ServerHandle, ServerOptions};
use serde_json::Value;

/// The id of the bundled model.
pub const MODEL: &str = "lexicon";

/// The folder of models of this repository.
pub fn models() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

/// The options of the shared server: small enough for a test machine.
pub fn options() -> ServerOptions {
    let path = models().join("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    let load = LoadOptions {
        device: Some("cpu".into()),
        context: Some(512),
        prefix_bytes: Some(64 << 20),
        threads: Some(1),
        // Tests compare texts of prompts that were cut in different ways. Bits of bf16 products depend on the cut.
        deterministic: true,
        ..LoadOptions::default()
    };
    ServerOptions {
        port: 0,
        models: vec![ModelSource { id: MODEL.into(), data: ModelData::Path(path) }],
        load,
        ..ServerOptions::default()
    }
}

/// A server on a thread of its own.
pub struct Running {
    pub address: SocketAddr,
    pub handle: ServerHandle,
    pub log: Arc<Mutex<Vec<String>>>,
    pub thread: Option<JoinHandle<Result<(), ServerError>>>,
}

impl Running {
    /// Starts a server and waits until it is ready.
    pub fn start(mut options: ServerOptions) -> Self {
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let lines = Arc::clone(&log);
        options.log = Arc::new(move |line| {
            let _ = lines.lock().map(|mut lines| lines.push(line.to_owned()));
            assert!(!line.contains("break_the_log"), "a fault that a test asked for");
        });
        let server = Server::bind(options).unwrap();
        let (address, handle) = (server.address(), server.handle());
        let thread = Some(std::thread::spawn(move || server.run()));
        let running = Self { address, handle, log, thread };
        until("the server is ready", || running.handle.is_ready());
        running
    }

    /// Ends the server and waits for its end.
    pub fn stop(mut self) {
        self.handle.shut_down();
        self.thread.take().unwrap().join().unwrap().unwrap();
    }

    /// Sends a request with a JSON body.
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[], body.to_string().as_bytes())
    }

    /// Sends a request without a body.
    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    /// Sends a request on a connection of its own.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.begin(method, path, headers, body);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Answer::parse(&bytes)
    }

    /// Sends a request and leaves the answer to be read.
    pub fn begin(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let headers: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{}content-length: {}\r\n\r\n",
            self.address,
            headers.concat(),
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        // A server that refuses a body may close the connection before it has all of it.
        let _ = stream.write_all(body);
        stream
    }

    /// The first line of the log that `fits`, waited for.
    pub fn logged(&self, fits: impl Fn(&Value) -> bool) -> Value {
        let mut found = None;
        until("a line of the log", || {
            let lines = self.log.lock().unwrap();
            found = lines.iter().map(|line| serde_json::from_str(line).unwrap()).find(&fits);
            found.is_some()
        });
        found.unwrap()
    }
}

/// The server that most tests share.
pub fn server() -> &'static Running {
    static SERVER: LazyLock<Running> = LazyLock::new(|| Running::start(options()));
    &SERVER
}

/// Waits until `condition` holds, for at most 20 seconds.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// Reads head and body, which may come in chunks.
    pub fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a whole head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_ascii_lowercase();
        let rest = &bytes[end + 4..];
        let body = if head.contains("transfer-encoding: chunked") { unchunked(rest) } else { rest.to_vec() };
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head, body: String::from_utf8(body).unwrap() }
    }

    /// The body as JSON; panics unless the status is `status`.
    pub fn json(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        serde_json::from_str(&self.body).unwrap()
    }

    /// Checks the form of an error and returns its type, parameter and code.
    pub fn error(&self, status: u16) -> (String, Option<String>, String) {
        let body = self.json(status);
        let error = &body["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
        let text = |key: &str| error[key].as_str().map(str::to_owned);
        (text("type").unwrap(), text("param"), text("code").unwrap())
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let start = format!("{name}: ");
        self.head.lines().find_map(|line| line.strip_prefix(&start))
    }

    /// The data of all events but the last, which has to be `[DONE]`.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.body);
        let mut data: Vec<&str> = self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.body);
        data.into_iter().map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    /// Names and data of all events.
    pub fn named_events(&self) -> Vec<(String, Value)> {
        assert_eq!(self.status, 200, "{}", self.body);
        let events = self.body.split("\n\n").filter_map(|event| {
            let (name, data) = event.trim().strip_prefix("event: ")?.split_once("\ndata: ")?;
            Some((name.to_owned(), serde_json::from_str(data).unwrap()))
        });
        events.collect()
    }
}

/// A body that came in chunks; a last one that was cut off is left out.
fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        if size == 0 || bytes.len() < end + 2 + size {
            break;
        }
        body.extend_from_slice(&bytes[end + 2..end + 2 + size]);
        bytes = bytes.get(end + 4 + size..).unwrap_or_default();
    }
    body
}
