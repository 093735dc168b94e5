//! The threads on which requests are worked on.
//!
//! Two threads answer all connections, and nothing that a request can make long runs there. Handlers of requests with a body
//! run on threads of their own, as many as there are processors; what takes longer, such as reading a long body, rendering a
//! template or compiling a grammar, runs on further threads, in lanes: so many at once of each kind, the others wait. Threads of work
//! that may take seconds have a lower priority than those that answer.

use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use brasa::grammar::Stop;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::http::connection::Hold;
use crate::http::error::{ApiError, Result};
use crate::state::App;

/// Time that a request has behind its deadline to send the error itself.
const GRACE: Duration = Duration::from_secs(1);

/// Most threads of handlers, and of a lane.
const MOST_THREADS: usize = 16;

/// Processors that this process may use.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// The threads of handlers.
///
/// # Errors
///
/// The system's, if it refuses a thread.
pub(crate) fn handlers() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(processors().clamp(2, MOST_THREADS))
        .thread_name("brasa-handler")
        .enable_all()
        .build()
}

/// A kind of work that blocks its thread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lane {
    /// Work that is soon done: templates and tokens of usual texts.
    Texts,
    /// Reading bodies, and writing answers, that are long.
    LongTexts,
    /// Grammars, which may take seconds.
    Grammars,
    /// Work that waits for a disk or an engine, and needs no processor.
    Waits,
}

/// The niceness of threads for long work beyond that of the process. Higher, and a schema would wait too long beside an engine that
/// takes all processors.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 5;

impl Lane {
    /// True if the work may take seconds of a processor.
    fn is_long(self) -> bool {
        matches!(self, Self::LongTexts | Self::Grammars)
    }

    fn places(self) -> &'static Semaphore {
        static TEXTS: LazyLock<Semaphore> =
            LazyLock::new(|| Semaphore::new((2 * processors()).clamp(4, MOST_THREADS)));
        static LONG_TEXTS: LazyLock<Semaphore> =
            LazyLock::new(|| Semaphore::new((processors() / 2).clamp(1, MOST_THREADS)));
        static GRAMMARS: LazyLock<Semaphore> =
            LazyLock::new(|| Semaphore::new((processors() / 2).clamp(2, MOST_THREADS)));
        static WAITS: Semaphore = Semaphore::const_new(64);
        match self {
            Self::Waits => &WAITS,
            Self::Texts => &TEXTS,
            Self::LongTexts => &LONG_TEXTS,
            Self::Grammars => &GRAMMARS,
        }
    }
}

/// Runs work that blocks on a thread where that does no harm, once there is a place for it in its lane. Grammars of the work are given up
/// if this future is dropped: its client has gone, its time is over, or the server ends.
///
/// # Errors
///
/// The work's error; a panic of the work is an internal error of this request alone.
pub(crate) async fn blocking<T: Send + 'static>(
    lane: Lane,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let place = lane.places().acquire().await;
    let stop = Stop::default();
    let _unwanted = Unwanted(stop.clone());
    let work = move || {
        // The place is free when the work has ended, not when its client has gone.
        let _place = place;
        stop.during(work)
    };
    let work = match behind().filter(|_| lane.is_long()) {
        Some(behind) => behind.spawn_blocking(work),
        None => tokio::task::spawn_blocking(work),
    };
    work.await.map_err(ApiError::from)?
}

/// Gives up grammars that are no longer awaited.
struct Unwanted(Stop);

impl Drop for Unwanted {
    fn drop(&mut self) {
        self.0.give();
    }
}

/// The threads of long work, which other threads of the process go before; `None` if the system gives none.
fn behind() -> Option<&'static Runtime> {
    // Nothing but its threads for blocking work is used.
    static BEHIND: LazyLock<Option<Runtime>> = LazyLock::new(|| {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.thread_name("brasa-behind").on_thread_start(lower_priority).build().ok()
    });
    BEHIND.as_ref()
}

/// Has the other threads of the process go first. Only Linux knows priorities of threads that a program may lower without further
/// rights; elsewhere nothing changes.
fn lower_priority() {
    // A thread that may not be nicer works as it is.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(NICENESS);
}

tokio::task_local! {
    static SCOPE: Scope;
}

/// The frame of a request, for the tasks that work on it.
#[derive(Clone)]
pub(crate) struct Scope {
    pub app: App,
    /// The threads that answer.
    pub answering: Handle,
    /// The end of the time that the request has.
    pub deadline: Instant,
    /// The connection of the request.
    pub connection: Hold,
}

impl Scope {
    /// The scope of the request that the current task works on.
    pub fn current() -> Option<Self> {
        SCOPE.try_with(Clone::clone).ok()
    }

    /// Waits until the request has to end: its time is over, or the server's.
    pub async fn ended(&self) -> ApiError {
        tokio::select! {
            () = tokio::time::sleep_until(self.deadline + GRACE) => ApiError::timeout(),
            () = self.app.lifecycle.cut_off() => ApiError::unavailable("shutting_down", "the server is shutting down"),
        }
    }

    /// Runs a task of the request on the threads that answer.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.answering.spawn(SCOPE.scope(self.clone(), task))
    }
}

/// Runs the handlers of requests with a body on their own threads, and ends those whose time is over.
pub(crate) async fn run(State(app): State<App>, request: Request, next: Next) -> Response {
    let has_body = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let (Some(handlers), true) = (app.handlers.get(), has_body) else { return next.run(request).await };
    let connection = request.extensions().get::<Hold>().cloned().unwrap_or_default();
    let now = Instant::now();
    let deadline =
        now.checked_add(app.options.request_timeout).unwrap_or(now + Duration::from_hours(24 * 365));
    let scope = Scope { app: app.clone(), answering: Handle::current(), deadline, connection };
    let task = Task(handlers.spawn(SCOPE.scope(scope.clone(), next.run(request))));
    tokio::select! {
        answer = task => answer.unwrap_or_else(|error| ApiError::from(error).into_response()),
        error = scope.ended() => error.into_response(),
    }
}

/// A task that is aborted when its handle is dropped.
struct Task<T>(JoinHandle<T>);

impl<T> Future for Task<T> {
    type Output = Result<T, tokio::task::JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
