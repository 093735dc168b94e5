//! `brasa serve`: serves models over HTTP.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use brasa::{AdapterSource, LoadOptions};
use brasa_server::{ModelData, ModelSource, Server, ServerError, ServerOptions, TlsFiles};

use crate::args::{ServeArguments, SourceArguments};
use crate::failure::Failure;
use crate::{bundled, hub, input, interrupt, load, output};

/// Most bytes of keys and values whose memory is fetched ahead of requests.
const MOST_PREFAULTED_BYTES: u64 = 2 << 30;

/// An interval of pings that no stream reaches, for no pings.
const NEVER: Duration = Duration::from_hours(24 * 365);

/// Serves until Ctrl-C.
pub fn serve(arguments: &ServeArguments) -> Result<(), Failure> {
    let options = options(arguments)?;
    allow_many_connections(options.max_connections);
    let server = Server::bind(options)?;
    interrupt::shuts_down(server.handle());
    output::line(&format!("listening on {}", server.url()))?;
    server.run()?;
    Ok(())
}

/// The server's options from the command line's arguments.
fn options(arguments: &ServeArguments) -> Result<ServerOptions, Failure> {
    let prefix_bytes = arguments.cache_ram.saturating_mul(1 << 20);
    let load = LoadOptions {
        max_sequences: arguments.parallel,
        max_waiting: arguments.max_queue,
        prefix_bytes: Some(prefix_bytes),
        prefault_bytes: (prefix_bytes / 2).min(MOST_PREFAULTED_BYTES),
        speculation: load::speculation(&arguments.drafts)?,
        draft_model: draft_model(arguments)?,
        adapters: adapters(arguments)?,
        adapters_by_request: !arguments.setup.lora.is_empty(),
        ..load::options(&arguments.setup)?
    };
    let seconds = |seconds: u64| Duration::from_secs(seconds);
    let quiet = arguments.quiet;
    let mut hosts = arguments.host.iter().flatten().copied();
    Ok(ServerOptions {
        host: hosts.next().unwrap_or(IpAddr::from([127, 0, 0, 1])),
        more_hosts: hosts.collect(),
        port: arguments.port,
        reuse_port: arguments.reuse_port,
        api_prefix: arguments.api_prefix.clone().unwrap_or_default(),
        http_threads: arguments.threads_http,
        ping_every: arguments.sse_ping_interval.map_or(NEVER, seconds),
        api_keys: keys(arguments)?,
        allow_public_without_key: arguments.allow_public_without_key,
        tls: tls(arguments)?,
        models: models(arguments)?,
        models_dir: arguments.models_dir.clone(),
        any_model: arguments.any_model,
        autoload: !arguments.no_models_autoload,
        aliases: arguments.alias.iter().skip(1).cloned().collect(),
        tags: arguments.tags.clone(),
        lora_dir: arguments.lora_dir.clone(),
        max_loaded: arguments.models_max,
        unload_idle_after: (arguments.sleep_idle_seconds > 0).then(|| seconds(arguments.sleep_idle_seconds)),
        load,
        pooling: arguments.pooling.map(Into::into),
        request_timeout: seconds(arguments.timeout),
        default_max_tokens: arguments.n,
        request_defaults: arguments.defaults.fields()?,
        max_body_bytes: arguments.max_body << 20,
        max_audio_bytes: arguments.max_audio << 20,
        max_audio_duration: seconds(arguments.max_audio_seconds),
        max_connections: arguments.max_connections,
        client_timeout: seconds(arguments.client_timeout),
        rate_limit_per_minute: (arguments.rate_limit > 0).then_some(arguments.rate_limit),
        allowed_hosts: arguments.allowed_hosts.clone(),
        shutdown_timeout: seconds(arguments.shutdown_timeout),
        max_request_memory_bytes: arguments.request_ram.saturating_mul(1 << 20),
        cors_origins: arguments.cors_origin.clone(),
        allow_priority: arguments.allow_priority,
        slots: !arguments.no_slots,
        slot_save_path: arguments.slot_save_path.clone(),
        page: !arguments.no_ui,
        log: Arc::new(move |line| {
            if !quiet {
                output::note(line);
            }
        }),
        ..ServerOptions::default()
    })
}

/// The draft model for the only served model.
fn draft_model(arguments: &ServeArguments) -> Result<Option<PathBuf>, Failure> {
    let draft = arguments.drafts.model_draft.clone();
    if draft.is_some() && serves_several(arguments) {
        return Err(Failure::Usage(
            "--model-draft: a draft model guesses for one model alone, and several are served".into(),
        ));
    }
    Ok(draft)
}

/// The adapters of the only served model.
fn adapters(arguments: &ServeArguments) -> Result<Vec<AdapterSource>, Failure> {
    let mut adapters = arguments.setup.lora.clone();
    if arguments.lora_init_without_apply {
        for adapter in &mut adapters {
            adapter.scale = 0.0;
        }
    }
    if !adapters.is_empty() && serves_several(arguments) {
        return Err(Failure::Usage(
            "--lora: an adapter changes one model alone, and several are served".into(),
        ));
    }
    Ok(adapters)
}

fn serves_several(arguments: &ServeArguments) -> bool {
    let named = arguments.models.len() + usize::from(arguments.hf_repo.is_some());
    arguments.models_dir.is_some() || named > 1
}

/// The keys from the flags and from the file.
fn keys(arguments: &ServeArguments) -> Result<Vec<String>, Failure> {
    let mut keys = arguments.api_key.clone();
    if let Some(path) = &arguments.api_key_file {
        let text = input::text(path)?;
        let found = keys.len();
        keys.extend(
            text.lines()
                .map(str::trim)
                .filter(|line| !line.is_empty() && !line.starts_with('#'))
                .map(str::to_owned),
        );
        if keys.len() == found {
            return Err(Failure::Failed(format!("{}: no key in it", path.display())));
        }
    }
    Ok(keys)
}

/// The files for TLS; an error unless both or neither are given.
fn tls(arguments: &ServeArguments) -> Result<Option<TlsFiles>, Failure> {
    let missing = |given: &Path, other: &str| {
        Err(Failure::Usage(format!(
            "{}: TLS needs a certificate and its key, and {other} is missing",
            given.display()
        )))
    };
    match (&arguments.ssl_cert_file, &arguments.ssl_key_file) {
        (None, None) => Ok(None),
        (Some(certificates), Some(key)) => {
            Ok(Some(TlsFiles { certificates: certificates.clone(), key: key.clone() }))
        }
        (Some(certificates), None) => missing(certificates, "--ssl-key-file"),
        (None, Some(key)) => missing(key, "--ssl-cert-file"),
    }
}

/// The models to load at the start: the named ones, else the bundled one unless there is a folder.
fn models(arguments: &ServeArguments) -> Result<Vec<ModelSource>, Failure> {
    let mut paths: Vec<PathBuf> = Vec::new();
    let named = arguments.models.iter().map(|path| (Some(path.clone()), None));
    let repo = arguments.hf_repo.iter().map(|repo| (None, Some(repo.clone())));
    for (model, hf_repo) in named.chain(repo) {
        let mut source = SourceArguments { model, hf_repo, hub: arguments.hub.clone() };
        hub::resolve_below(&mut source, arguments.models_dir.as_deref())?;
        paths.extend(source.model);
    }
    let mut models: Vec<ModelSource> = paths
        .into_iter()
        .map(|path| ModelSource { id: ModelSource::name_of(&path), data: ModelData::Path(path) })
        .collect();
    if models.is_empty() && arguments.models_dir.is_none() {
        models.push(ModelSource { id: bundled::ID.into(), data: ModelData::Bytes(bundled::MODEL) });
    }
    if let (Some(alias), Some(first)) = (arguments.alias.first(), models.first_mut()) {
        first.id.clone_from(alias);
    }
    Ok(models)
}

/// Raises the process's limit of file descriptors to one for each connection, as far as the system allows.
fn allow_many_connections(connections: usize) {
    #[cfg(unix)]
    {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        // Models, logs and the runtime need some too.
        const OTHERS: u64 = 256;
        if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
            let wanted = (connections as u64 + OTHERS).min(hard);
            if wanted > soft {
                // A system that refuses serves fewer connections; the others wait.
                let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard);
            }
        }
    }
    #[cfg(not(unix))]
    let _ = connections;
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        match error {
            ServerError::Options(message) => Self::Usage(message),
            ServerError::DeviceLost(_) => Self::DeviceLost(error.to_string()),
            ServerError::Bind { error: ref cause, .. } if cause.kind() == std::io::ErrorKind::AddrInUse => {
                let hint = "another program listens there; --port names another port, 0 a free one";
                Self::Failed(format!("{error}\nhint: {hint}"))
            }
            other => Self::Failed(other.to_string()),
        }
    }
}
