use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// The most connections at a time.
const MOST: usize = 16;

/// Time limit of a connection; Prometheus reconnects.
const LIMIT: Duration = Duration::from_secs(60);

/// Time limit for a client's request.
const QUESTION_LIMIT: Duration = Duration::from_secs(5);

/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(2);

/// Answers `GET /metrics` with the result of `expose`, for as long as it is polled.
pub async fn serve<E, T>(listener: TcpListener, expose: E)
where
    E: Fn() -> T + Clone + Send + Sync + 'static,
    T: Future<Output = Result<String, fmt::Error>> + Send,
{
    let room = Arc::new(Semaphore::new(MOST));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((tcp, _)) => {
                let expose = expose.clone();
                tokio::spawn(async move {
                    // A client that has disconnected needs no answer.
                    let _ = timeout(LIMIT, converse(expose, tcp)).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!("metrics: cannot accept a connection: {error}");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn converse<E, T>(expose: E, tcp: TcpStream) -> hyper::Result<()>
where
    E: Fn() -> T + Clone + Send + Sync + 'static,
    T: Future<Output = Result<String, fmt::Error>> + Send,
{
    let answer = service_fn(move |request| {
        let expose = expose.clone();
        async move { Ok::<_, Infallible>(answer(expose, &request).await) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(QUESTION_LIMIT);
    server.serve_connection(TokioIo::new(tcp), answer).await
}

async fn answer<E, T>(expose: E, request: &Request<Incoming>) -> Response<String>
where
    E: Fn() -> T,
    T: Future<Output = Result<String, fmt::Error>>,
{
    let refused = |status: StatusCode, text: &str| {
        let mut response = Response::new(format!("{text}\n"));
        *response.status_mut() = status;
        response
    };
    if request.uri().path() != "/metrics" {
        return refused(StatusCode::NOT_FOUND, "the metrics are at /metrics");
    }
    if request.method() != Method::GET {
        return refused(StatusCode::METHOD_NOT_ALLOWED, "use GET to read the metrics");
    }
    let Ok(text) = expose().await else {
        return refused(StatusCode::INTERNAL_SERVER_ERROR, "cannot encode the metrics");
    };
    let mut response = Response::new(text);
    let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format));
    response
}
