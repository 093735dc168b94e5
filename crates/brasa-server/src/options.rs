//! Options of a server.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use brasa::{LoadOptions, Pooling};
use serde_json::{Map, Value};

/// Options of a server. By default there are no models, and the address is on the loopback interface.
#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct ServerOptions {
    /// The address to listen at.
    pub host: IpAddr,
    /// Further addresses to listen at, at the same port.
    pub more_hosts: Vec<IpAddr>,
    /// The port to listen at; 0 for a free one.
    pub port: u16,
    /// Lets other processes listen at the same address and port, so that the system spreads connections among them. Unix only.
    pub reuse_port: bool,
    /// Path below which the server answers, such as `/llm`; empty for the root.
    pub api_prefix: String,
    /// Number of threads that read requests and write answers. Models have threads of their own.
    pub http_threads: usize,
    /// Keys, one of which every request must send; empty for no check.
    pub api_keys: Vec<String>,
    /// Allows an address other than loopback even though there is no key.
    pub allow_public_without_key: bool,
    /// Certificate and key to serve over TLS; `None` serves without.
    pub tls: Option<TlsFiles>,
    /// Models that are served, the default one first. They are loaded when the server starts.
    pub models: Vec<ModelSource>,
    /// Folder with further models. Each is loaded on its first request.
    pub models_dir: Option<PathBuf>,
    /// Makes an unknown model name stand for the first model. Otherwise it is refused if there are several models or adapters.
    pub any_model: bool,
    /// Folder from which clients may load adapters while the server runs; `None` refuses to load and unload.
    pub lora_dir: Option<PathBuf>,
    /// Loads models of the folder when a request names them; if false, only `POST /models/load` does.
    pub autoload: bool,
    /// Further names of the first model.
    pub aliases: Vec<String>,
    /// Tags of the models named at the start, shown in `/v1/models`. They have no other effect.
    pub tags: Vec<String>,
    /// Most models that are loaded at once. Loading a further one unloads the model that has been idle for the longest time.
    pub max_loaded: usize,
    /// Time without requests after which a model is unloaded; `None` for never.
    pub unload_idle_after: Option<Duration>,
    /// How models are loaded.
    pub load: LoadOptions,
    /// How embeddings are pooled; `None` for each model's own way.
    pub pooling: Option<Pooling>,
    /// Longest time that a request may take, from its head to the last byte of its answer.
    pub request_timeout: Duration,
    /// Most tokens of an answer if the request sets no limit; `None` for no limit but the context.
    pub default_max_tokens: Option<usize>,
    /// Defaults for fields of requests that generate text, by name: `temperature`, `top_k`, `top_p`, `min_p`, `seed`,
    /// `repeat_penalty`, `repeat_last_n`, `presence_penalty`, `frequency_penalty`, `logit_bias`, `samplers`, `stop`, `ignore_eos`,
    /// `grammar`, `json_schema`, `chat_template_kwargs` and `reasoning_effort`. A request's own field wins. A default grammar does
    /// not apply to requests with tools or an answer format.
    pub request_defaults: Map<String, Value>,
    /// Most bytes of a request's body.
    pub max_body_bytes: usize,
    /// Most bytes that all requests take together: their bodies, and the values parsed from them. Requests of up to 64 KiB are not
    /// counted.
    pub max_request_memory_bytes: usize,
    /// Most bytes of a sound file.
    pub max_audio_bytes: usize,
    /// Longest sound that is transcribed.
    pub max_audio_duration: Duration,
    /// Most connections at once.
    pub max_connections: usize,
    /// Longest time for the head of a request, for the pause between two parts of a body, and for a client that reads nothing. A body
    /// has this time, and a second more for each 64 KiB of it.
    pub client_timeout: Duration,
    /// Time for running requests to finish once the server is asked to end. Requests that take longer end with an error.
    pub shutdown_timeout: Duration,
    /// Time between two signs of life in a stream of events.
    pub ping_every: Duration,
    /// Time without a token after which a busy engine is checked. It has a twelfth of this time to answer.
    pub engine_silence: Duration,
    /// Most requests from one address in a minute; `None` for no limit.
    pub rate_limit_per_minute: Option<u32>,
    /// Host names that a server without a key and without TLS accepts, besides addresses and `localhost`; `*` for all.
    pub allowed_hosts: Vec<String>,
    /// Origins from which web pages may call the server in a browser; `*` for all. The server's own page is always allowed.
    pub cors_origins: Vec<String>,
    /// True if requests may set their `priority`, and so overtake others. If false, the field is refused.
    pub allow_priority: bool,
    /// True to serve `/slots`, which shows running requests without their text.
    pub slots: bool,
    /// Folder in which clients may save texts of slots; `None` refuses to save and restore.
    pub slot_save_path: Option<PathBuf>,
    /// True to serve, at `/`, the page with which people chat in a browser.
    pub page: bool,
    /// Receives each line of the access log, a JSON object without prompts. Called on a thread of its own, so it may block.
    pub log: Log,
}

/// Receives one line of a log at a time, without the line end.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

impl ServerOptions {
    /// Every address to listen at.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = IpAddr> + '_ {
        std::iter::once(self.host).chain(self.more_hosts.iter().copied())
    }

    /// True if only this machine can reach the server.
    pub(crate) fn is_private(&self) -> bool {
        self.hosts().all(|host| host.to_canonical().is_loopback())
    }
}

/// The files for serving over TLS, both in PEM format.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Path of the PEM file with the server's certificate, followed by the certificates of its issuers.
    pub certificates: PathBuf,
    /// Path of the PEM file with the private key of the certificate.
    pub key: PathBuf,
}

/// Name and data of a model to serve.
#[derive(Clone, Debug)]
pub struct ModelSource {
    /// Name of the model in requests.
    pub id: String,
    /// Data of the model: a path, or bytes.
    pub data: ModelData,
}

impl ModelSource {
    /// The name of the model at `path`: the file's name without its ending, or the folder's.
    pub fn name_of(path: &Path) -> String {
        let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
        name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
    }
}

/// The data of a model.
#[derive(Clone, Debug)]
pub enum ModelData {
    /// A file or a folder.
    Path(PathBuf),
    /// A GGUF file inside the program.
    Bytes(&'static [u8]),
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            host: IpAddr::from([127, 0, 0, 1]),
            more_hosts: Vec::new(),
            port: 8080,
            reuse_port: false,
            api_prefix: String::new(),
            http_threads: 2,
            api_keys: Vec::new(),
            allow_public_without_key: false,
            tls: None,
            models: Vec::new(),
            models_dir: None,
            any_model: false,
            lora_dir: None,
            autoload: true,
            aliases: Vec::new(),
            tags: Vec::new(),
            max_loaded: 4,
            unload_idle_after: None,
            load: LoadOptions { prefix_bytes: Some(2 << 30), max_waiting: 256, ..LoadOptions::default() },
            pooling: None,
            request_timeout: Duration::from_hours(1),
            default_max_tokens: None,
            request_defaults: Map::new(),
            max_body_bytes: 16 << 20,
            max_request_memory_bytes: 512 << 20,
            max_audio_bytes: 25 << 20,
            max_audio_duration: Duration::from_hours(2),
            max_connections: 4096,
            client_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(6),
            ping_every: Duration::from_secs(30),
            engine_silence: Duration::from_mins(1),
            rate_limit_per_minute: None,
            allowed_hosts: Vec::new(),
            cors_origins: Vec::new(),
            allow_priority: false,
            slots: true,
            slot_save_path: None,
            page: true,
            log: Arc::new(|_| {}),
        }
    }
}
