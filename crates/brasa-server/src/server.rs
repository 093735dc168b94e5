//! A server, from its start to its end.

use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::answer::generate;
use crate::http::auth::Keys;
use crate::http::budget::Budget;
use crate::http::connection::{Hold, TimedStream};
use crate::http::error::ServerError;
use crate::http::hosts::Hosts;
use crate::http::limits::{Peer, RateLimiter};
use crate::http::listen;
use crate::http::log_writer::LogWriter;
use crate::http::pool;
use crate::http::seen_once::SeenOnce;
use crate::metrics::Metrics;
use crate::models::adapters::Applied;
use crate::models::loaded::Loaded;
use crate::models::reaper;
use crate::models::registry::Names;
use crate::models::registry::Registry;
use crate::options::ServerOptions;
use crate::request::defaults;
use crate::router;
use crate::state::{App, AppState, Lifecycle};

/// Time in which connections may send their last bytes when the server ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// Pause after the system refused a connection, e.g. because there are no file descriptors left.
const AFTER_REFUSAL: Duration = Duration::from_millis(50);

/// Longest pause between two checks for idle models.
const IDLE_SEARCH: Duration = Duration::from_secs(30);

/// A server that is bound to its address and not running yet.
///
/// ```no_run
/// use brasa_server::{ModelData, ModelSource, Server, ServerOptions};
///
/// let model = ModelSource { id: "mine".into(), data: ModelData::Path("model.gguf".into()) };
/// let server = Server::bind(ServerOptions { models: vec![model], ..ServerOptions::default() })?;
/// println!("listening on {}", server.url());
/// server.run()?;
/// # Ok::<(), brasa_server::ServerError>(())
/// ```
pub struct Server {
    listeners: Vec<TcpListener>,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    app: App,
}

/// A handle to end a server from another thread.
#[derive(Clone)]
pub struct ServerHandle(App);

impl ServerHandle {
    /// Shuts the server down: running requests have [`ServerOptions::shutdown_timeout`] to finish, new ones get 503.
    pub fn shut_down(&self) {
        self.0.lifecycle.drain();
    }

    /// True once the models named at the start are loaded.
    pub fn is_ready(&self) -> bool {
        self.0.lifecycle.is_ready()
    }
}

impl Server {
    /// Binds the addresses and finds the models.
    ///
    /// # Errors
    ///
    /// [`ServerError::Options`] for an address other than loopback without a key, for an unusable certificate or key of TLS, or
    /// if there is no model; [`ServerError::Bind`].
    pub fn bind(mut options: ServerOptions) -> Result<Self, ServerError> {
        if !options.is_private() && options.api_keys.is_empty() && !options.allow_public_without_key {
            return Err(ServerError::Options(format!(
                "{} can be reached by others, and there is no key\nhint: --api-key sets a key, --allow-public-without-key does without",
                options.hosts().find(|host| !host.is_loopback()).unwrap_or(options.host)
            )));
        }
        if options.api_keys.iter().any(|key| key.trim().is_empty()) {
            return Err(ServerError::Options("a key is empty, so that anyone could use it".into()));
        }
        if let Some(folder) = options.slot_save_path.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(ServerError::Options(format!("{}: no folder for slots", folder.display())));
        }
        if let Some(folder) = options.lora_dir.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(ServerError::Options(format!("{}: no folder for adapters", folder.display())));
        }
        defaults::check_names(&options).map_err(ServerError::Options)?;
        check_prefix(&options.api_prefix).map_err(ServerError::Options)?;
        let tls =
            options.tls.as_ref().map(|files| brasa_tls::server(&files.certificates, &files.key)).transpose();
        let tls = tls.map_err(|error| ServerError::Options(error.to_string()))?;
        let registry = Registry::new(
            options.models.clone(),
            options.models_dir.as_deref(),
            options.load.clone(),
            options.max_loaded.max(options.models.len()),
            options.request_timeout,
        );
        let names = Names {
            any_model: options.any_model,
            offers_adapters: options.load.adapters_by_request || options.lora_dir.is_some(),
        };
        let registry = registry.map_err(|error| ServerError::Options(error.to_string()))?.with_names(names);
        let registry = registry.with(options.aliases.clone(), options.autoload);
        if registry.entries().is_empty() {
            return Err(ServerError::Options("there is no model to serve".into()));
        }
        let mut address = SocketAddr::new(options.host, options.port);
        let mut listeners = Vec::new();
        for host in options.hosts() {
            // A free port that the first address got is the port of all.
            let wanted = SocketAddr::new(host, address.port());
            let listener = listen::at(wanted, options.reuse_port)
                .map_err(|error| ServerError::Bind { address: wanted.to_string(), error })?;
            if listeners.is_empty() {
                address = listener
                    .local_addr()
                    .map_err(|error| ServerError::Bind { address: wanted.to_string(), error })?;
            }
            listeners.push(listener);
        }
        let log_writer = LogWriter::start(Arc::clone(&options.log))?;
        options.log = log_writer.log();
        let app = Arc::new(AppState {
            registry: Arc::new(registry),
            keys: Arc::new(Keys::new(&options.api_keys)),
            hosts: Arc::new(Hosts::new(&options)),
            metrics: Metrics::new(log_writer.dropped()),
            log_writer,
            budget: Budget::new(options.max_request_memory_bytes, reaper::tidy),
            handlers: OnceLock::new(),
            limiter: Arc::new(options.rate_limit_per_minute.map(RateLimiter::new)),
            unknown_fields: SeenOnce::default(),
            started: Instant::now(),
            lifecycle: Lifecycle::default(),
            adapters: Applied::default(),
            options,
        });
        Ok(Self { listeners, address, tls: tls.map(|config| Arc::new(config).into()), app })
    }

    /// The address that clients reach.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The server's URL.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{}", self.address, self.app.options.api_prefix)
    }

    /// A handle that can end the server.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle(Arc::clone(&self.app))
    }

    /// Serves until the handle ends the server and all requests have finished or run out of time.
    ///
    /// # Errors
    ///
    /// [`ServerError::Model`] if a model of the start cannot be loaded; [`ServerError::DeviceLost`] if a device was lost for good
    /// and no other model can be used; [`ServerError::System`].
    pub fn run(self) -> Result<(), ServerError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(self.app.options.http_threads.max(1))
            .thread_name("brasa-http")
            .enable_all()
            .build()?;
        let handlers = pool::handlers()?;
        let app = Arc::clone(&self.app);
        let _ = app.handlers.set(handlers.handle().clone());
        let result = runtime.block_on(serve(self.listeners, self.tls, self.app));
        // A model that is just being loaded must not hold up the end.
        runtime.shutdown_timeout(FAREWELL);
        handlers.shutdown_background();
        app.log_writer.flush();
        result
    }
}

async fn serve(listeners: Vec<TcpListener>, tls: Option<TlsAcceptor>, app: App) -> Result<(), ServerError> {
    let router = router::router(&app);
    let connections = Arc::new(Semaphore::new(app.options.max_connections.max(1)));
    let (close, closing) = watch::channel(());
    let mut accepting = tokio::task::JoinSet::new();
    for listener in listeners {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (app, connections) = (Arc::clone(&app), Arc::clone(&connections));
        let (router, closing, tls) = (router.clone(), closing.clone(), tls.clone());
        accepting.spawn(async move {
            loop {
                let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
                match listener.accept().await {
                    Ok((stream, peer)) => {
                        // Events are small, and each is wanted at once.
                        let _ = stream.set_nodelay(true);
                        let (router, app, closing) = (router.clone(), Arc::clone(&app), closing.clone());
                        let tls = tls.clone();
                        tokio::spawn(async move {
                            match tls {
                                None => connection(stream, peer, router, &app, closing).await,
                                Some(tls) => {
                                    let handshake = tls.accept(stream);
                                    let patience = app.options.client_timeout;
                                    // A client that breaks off, takes too long or speaks no TLS is no fault of the server.
                                    if let Ok(Ok(stream)) = timeout(patience, handshake).await {
                                        connection(stream, peer, router, &app, closing).await;
                                    }
                                }
                            }
                            drop(permit);
                        });
                    }
                    Err(_) => tokio::time::sleep(AFTER_REFUSAL).await,
                }
            }
        });
    }
    let result = tokio::select! {
        result = load_first_models(&app) => match result {
            Ok(()) => {
                app.lifecycle.set_ready();
                tokio::select! {
                    () = app.lifecycle.draining() => Ok(()),
                    () = unload_idle_models(&app) => Ok(()),
                    reason = app.registry.lost().reason() => Err(ServerError::DeviceLost(reason)),
                }
            }
            Err(error) => Err(error),
        },
        () = app.lifecycle.draining() => Ok(()),
    };
    if result.is_ok() && timeout(app.options.shutdown_timeout, app.lifecycle.idle()).await.is_err() {
        app.lifecycle.cut();
        let _ = timeout(FAREWELL, app.lifecycle.idle()).await;
    }
    accepting.abort_all();
    // Every connection sends what it has and ends; those that do not in time are cut off.
    drop(close);
    let all = app.options.max_connections.max(1) as u32;
    let _ = timeout(FAREWELL, connections.acquire_many(all)).await;
    result
}

/// Loads the models named at the start, in order.
async fn load_first_models(app: &App) -> Result<(), ServerError> {
    let count = app.options.models.len();
    for entry in app.registry.entries().iter().take(count) {
        let loaded = app
            .registry
            .load(entry)
            .await
            .map_err(|error| ServerError::Model { id: entry.source.id.clone(), error: error.message })?;
        (app.options.log)(&loaded.start_line().to_string());
        check_defaults(app, &loaded).await?;
        for warning in loaded.warnings() {
            let (warning, hint) = brasa::split_hint(warning);
            let line = serde_json::json!({"model": loaded.presence().id, "warning": warning, "hint": hint});
            (app.options.log)(&line.to_string());
        }
    }
    Ok(())
}

/// Fails if the defaults for requests are not valid for the model.
async fn check_defaults(app: &App, loaded: &Loaded) -> Result<(), ServerError> {
    if app.options.request_defaults.is_empty() {
        return Ok(());
    }
    let Loaded::Text(loaded) = loaded else { return Ok(()) };
    let (app, loaded) = (Arc::clone(app), Arc::clone(loaded));
    let checked = generate::blocking(move || defaults::check(&app, &loaded.model)).await;
    checked.map_err(|error| ServerError::Options(format!("a default of requests: {}", error.message)))
}

/// Fails with a message if the prefix is no path.
fn check_prefix(prefix: &str) -> Result<(), String> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._~/".contains(letter);
    let is_path = prefix.starts_with('/') && !prefix.ends_with('/') && !prefix.contains("//");
    if prefix.is_empty() || is_path && prefix.chars().all(is_plain) {
        return Ok(());
    }
    Err(format!("prefix `{prefix}`: expected a path such as /llm, without a slash at its end"))
}

/// Unloads idle models, for as long as the server runs; never returns.
async fn unload_idle_models(app: &App) {
    let Some(idle) = app.options.unload_idle_after else { return std::future::pending().await };
    let mut timer = tokio::time::interval((idle / 4).clamp(Duration::from_millis(100), IDLE_SEARCH));
    loop {
        timer.tick().await;
        app.registry.unload_idle(idle);
    }
}

/// Serves one connection to its end.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: SocketAddr,
    router: Router,
    app: &App,
    mut closing: watch::Receiver<()>,
) {
    let patience = app.options.client_timeout;
    let service = TowerToHyperService::new(router);
    let hold = Hold::default();
    let stream = TokioIo::new(TimedStream::new(stream, patience, hold.clone()));
    let cut = hold.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        request.extensions_mut().insert(hold.clone());
        service.call(request)
    });
    let mut builder = http1::Builder::new();
    // Without a timer the timeout would do nothing.
    builder.timer(TokioTimer::new()).header_read_timeout(patience);
    let mut connection = pin!(builder.serve_connection(stream, service));
    tokio::select! {
        // A client that breaks off is no fault of the server.
        _ = connection.as_mut() => {}
        // Dropping the connection closes it.
        () = cut.cut_off() => {}
        _ = closing.changed() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}
