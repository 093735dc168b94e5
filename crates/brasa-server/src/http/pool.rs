//! The threads that process requests.
//!
//! A few threads serve all connections, and no work that a request can make long runs there. Handlers of requests with a body run
//! on threads of their own, as many as there are processors. Longer work, such as reading a long body, rendering a template or
//! compiling a grammar, runs on further threads, in lanes: each lane has a limit of work at once, and the rest waits. Threads for
//! work that may take seconds have a lower priority than threads that answer.

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

/// Time after its deadline in which a request may still send the error itself.
const GRACE: Duration = Duration::from_secs(1);

/// Most threads of handlers, and of a lane.
const MOST_THREADS: usize = 16;

/// Number of processors that this process may use.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// The threads of handlers.
///
/// # Errors
///
/// The system's error if it provides no thread.
pub(crate) fn handlers() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(processors().clamp(2, MOST_THREADS))
        .thread_name("brasa-handler")
        .enable_all()
        .build()
}

/// A kind of blocking work, with a limit of how much runs at once.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lane {
    /// Short work: templates and tokens of usual texts.
    Texts,
    /// Reading and writing of long bodies and answers.
    LongTexts,
    /// Compiling grammars, which may take seconds.
    Grammars,
    /// Work that waits for a disk or an engine and needs no processor.
    Waits,
}

/// The niceness of threads for long work beyond that of the process. With a higher value, a schema would take too long while an
/// engine uses all processors.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 5;

impl Lane {
    /// True if the work may use a processor for seconds.
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

/// Runs blocking work on another thread, once its lane has room. If this future is dropped (the client has gone, the time is
/// over, or the server ends), compilations of grammars within the work are given up.
///
/// # Errors
///
/// The error of the work. A panic of the work is an internal error of this request alone.
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

/// Stops the compilation of grammars when dropped.
struct Unwanted(Stop);

impl Drop for Unwanted {
    fn drop(&mut self) {
        self.0.give();
    }
}

/// The threads for long work, with lower priority; `None` if the system provides none.
fn behind() -> Option<&'static Runtime> {
    // Nothing but its threads for blocking work is used.
    static BEHIND: LazyLock<Option<Runtime>> = LazyLock::new(|| {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.thread_name("brasa-behind").on_thread_start(lower_priority).build().ok()
    });
    BEHIND.as_ref()
}

/// Lowers the priority of the calling thread. Only Linux lets a program do this for one thread without further rights; has no
/// effect elsewhere.
fn lower_priority() {
    // A thread that may not be nicer works as it is.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(NICENESS);
}

tokio::task_local! {
    static SCOPE: Scope;
}

/// The context of a request, for the tasks that work on it.
#[derive(Clone)]
pub(crate) struct Scope {
    pub app: App,
    /// The threads that serve connections.
    pub answering: Handle,
    /// The deadline of the request.
    pub deadline: Instant,
    /// The connection of the request.
    pub connection: Hold,
}

impl Scope {
    /// The scope of the request of the current task.
    pub fn current() -> Option<Self> {
        SCOPE.try_with(Clone::clone).ok()
    }

    /// Waits until the request must end, because its time is over or the server shuts down.
    pub async fn ended(&self) -> ApiError {
        tokio::select! {
            () = tokio::time::sleep_until(self.deadline + GRACE) => ApiError::timeout(),
            () = self.app.lifecycle.cut_off() => ApiError::unavailable("shutting_down", "the server is shutting down"),
        }
    }

    /// Spawns a task of the request on the threads that serve connections.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.answering.spawn(SCOPE.scope(self.clone(), task))
    }
}

/// Runs handlers of requests with a body on the handlers' threads, and ends requests whose time is over.
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
