//! Flags of `brasa serve`. A flag that llama-server has too has its name.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

use super::{DefaultsArguments, DraftArguments, HubArguments, PoolingName, SetupArguments};
use crate::values::{self, Limit, positive};

/// `brasa serve`
///
/// Every option may also be given as BRASA_… in the environment, or in a TOML file: --cache-ram is BRASA_CACHE_RAM and
/// `cache-ram`. Options on the command line win over the environment, the environment wins over the file.
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct ServeArguments {
    /// Model: a GGUF file, or a folder with a checkpoint (may be repeated) [default: the built-in one]
    #[arg(short, long = "model", value_name = "PATH")]
    pub models: Vec<PathBuf>,
    /// Names of the first model, separated by commas [default: its file's name]
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    pub alias: Vec<String>,
    /// Labels that /v1/models shows as `tags` of every model, separated by commas; they change nothing
    #[arg(long, value_name = "TAG", value_delimiter = ',', hide_short_help = true)]
    pub tags: Vec<String>,
    /// Model of Hugging Face's hub, USER/REPO[:QUANT] (-hf)
    #[arg(long, value_name = "USER/REPO")]
    pub hf_repo: Option<String>,
    /// Folder whose models are loaded when they are asked for
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub models_dir: Option<PathBuf>,
    /// Answer requests for unknown models by the first one
    #[arg(long, hide_short_help = true)]
    pub any_model: bool,
    /// Load models of the folder only by POST /models/load, not for requests that name them
    #[arg(long, hide_short_help = true)]
    pub no_models_autoload: bool,
    /// Folder of adapters that POST /v1/load_lora_adapter may load
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath, hide_short_help = true)]
    pub lora_dir: Option<PathBuf>,
    /// Most models loaded at once; a further one replaces the one that has been idle longest
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = positive, hide_short_help = true)]
    pub models_max: usize,
    /// Unload a model after so many seconds without a request; 0 for never
    #[arg(long, value_name = "S", default_value_t = 0, hide_short_help = true)]
    pub sleep_idle_seconds: u64,
    /// Address or name to listen at, or several, separated by commas
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1", value_delimiter = ',', value_parser = values::host)]
    pub host: Vec<Hosts>,
    /// Port to listen at; 0 for a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub port: u16,
    /// Let other processes listen at the same address and port
    #[arg(long, hide_short_help = true)]
    pub reuse_port: bool,
    /// Path below which everything is served, such as /llm
    #[arg(long, value_name = "PATH", value_parser = values::prefix, hide_short_help = true)]
    pub api_prefix: Option<String>,
    /// Threads that read requests and write answers
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = http_threads, hide_short_help = true)]
    pub threads_http: usize,
    /// Seconds between two signs of life in a stream; -1 for none
    #[arg(long, value_name = "S", default_value = "30", value_parser = values::interval, allow_negative_numbers = true, hide_short_help = true)]
    pub sse_ping_interval: Interval,
    /// Keys, separated by commas; requests must send one of them (may be repeated)
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    pub api_key: Vec<String>,
    /// File with keys, one a line; lines that begin with # are comments
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Allow an address that others can reach although there is no key
    #[arg(long, hide_short_help = true)]
    pub allow_public_without_key: bool,
    /// Certificate of the server (PEM), to serve over TLS
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub ssl_cert_file: Option<PathBuf>,
    /// Key of the certificate (PEM)
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub ssl_key_file: Option<PathBuf>,
    /// Requests served at once (-np) [default: as many as memory holds]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub parallel: Option<usize>,
    /// Requests that may wait for a model; further ones get 503
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive, hide_short_help = true)]
    pub max_queue: usize,
    /// MiB of keys and values kept for later requests that begin alike (-cram)
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    pub cache_ram: u64,
    /// Tokens of an answer if a request sets no limit; -1 until the context is full
    #[arg(short = 'n', long = "predict", visible_alias = "n-predict", value_name = "N", default_value = "-1", value_parser = values::limit, allow_negative_numbers = true)]
    pub n: Limit,
    /// How embeddings are pooled; none gives the vector of each token, at /embedding alone [default: as the model
    /// says, else last]
    #[arg(long, value_enum, value_name = "WAY", hide_possible_values = false, hide_short_help = true)]
    pub pooling: Option<PoolingName>,
    /// Longest time for a request in seconds
    #[arg(long, value_name = "S", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..), hide_short_help = true)]
    pub timeout: u64,
    /// Longest silence of a client in a request in seconds (-to)
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..), hide_short_help = true)]
    pub client_timeout: u64,
    /// Seconds that running requests have to finish when the server is asked to end
    #[arg(long, value_name = "S", default_value_t = 6, hide_short_help = true)]
    pub shutdown_timeout: u64,
    /// Let requests choose their priority
    #[arg(long, hide_short_help = true)]
    pub allow_priority: bool,
    /// Requests a minute from one address; 0 for any number
    #[arg(long, value_name = "N", default_value_t = 0, hide_short_help = true)]
    pub rate_limit: u32,
    /// Most MiB of a request
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = measured_mib, hide_short_help = true)]
    pub max_body: usize,
    /// Most MiB of all requests together, those of up to 64 KiB not counted
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = positive, hide_short_help = true)]
    pub request_ram: usize,
    /// Most MiB of a file of sound that is transcribed
    #[arg(long, value_name = "MIB", default_value_t = 25, value_parser = measured_mib, hide_short_help = true)]
    pub max_audio: usize,
    /// Most seconds of a sound that is transcribed
    #[arg(long, value_name = "S", default_value_t = 7200, value_parser = clap::value_parser!(u64).range(1..=86_400), hide_short_help = true)]
    pub max_audio_seconds: u64,
    /// Most connections at once
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = positive, hide_short_help = true)]
    pub max_connections: usize,
    /// Host name, e.g. box.local, to be reached by without a key, besides addresses and localhost; * for any (may be repeated)
    #[arg(long, value_name = "NAME", value_delimiter = ',', hide_short_help = true)]
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may use the server, separated by commas, or * for all (may be repeated)
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', hide_short_help = true)]
    pub cors_origin: Vec<String>,
    /// Do not serve /slots, which shows requests without their texts
    #[arg(long, hide_short_help = true)]
    pub no_slots: bool,
    /// Folder for POST /slots/ID?action=save, restore and erase
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub slot_save_path: Option<PathBuf>,
    /// Serve no page at /
    #[arg(long, hide_short_help = true)]
    pub no_ui: bool,
    /// Write no access log to standard error
    #[arg(short, long)]
    pub quiet: bool,
    /// TOML file with options
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub hub: HubArguments,
    #[command(flatten)]
    pub drafts: DraftArguments,
    #[command(flatten)]
    pub setup: SetupArguments,
    /// Start with all adapters off; requests and POST /lora-adapters turn them on
    #[arg(long, hide_short_help = true)]
    pub lora_init_without_apply: bool,
    #[command(flatten)]
    pub defaults: DefaultsArguments,
}

/// The addresses of a host.
pub type Hosts = Vec<IpAddr>;

/// An interval in seconds; `None` for never.
pub type Interval = Option<u64>;

/// Reads a number of threads from 1 to 256.
fn http_threads(text: &str) -> Result<usize, String> {
    positive(text)
        .and_then(|threads| if threads > 256 { Err("expected at most 256".into()) } else { Ok(threads) })
}

/// Reads a number of MiB from 1 to 1024.
fn measured_mib(text: &str) -> Result<usize, String> {
    positive(text).and_then(|mib| if mib > 1024 { Err("expected at most 1024".into()) } else { Ok(mib) })
}
