//! Export of spans: OTLP over HTTP, with messages in protobuf.
//!
//! The batch processor exports on its own thread, which has no runtime. So the requests are tasks
//! of the runtime of the export's start.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter as Otlp, WithExportConfig, WithHttpConfig};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use prost::Message;
use tokio::runtime::Handle;
use tokio_rustls::rustls::ClientConfig;
use tracing::{info, warn};

use super::error::Error;
use super::metrics::Metrics;
use crate::config::{self, UpstreamTls};
use crate::sync;
use crate::tls::{self, ClientFiles};

/// Limit for a request to the collector, and for its response.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest response of a collector that is read, in bytes.
const RESPONSE_MAX: usize = 64 * 1024;

/// Exporter that counts spans, and reports a collector that takes no spans.
#[derive(Debug)]
pub(super) struct Exporter {
    otlp: Otlp,
    endpoint: String,
    queued: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
    responses: Arc<Responses>,
    is_failing: AtomicBool,
}

/// Facts of the last responses. The exporter of the SDK does not pass them on.
#[derive(Debug, Default)]
struct Responses {
    /// Reason for the missing response to the last request, or `None` if it had one.
    failure: Mutex<Option<String>>,
    /// Spans of the last request that the collector has rejected.
    rejected: AtomicUsize,
}

impl Exporter {
    /// Creates the exporter. Its requests run on the runtime of the caller. `queued` counts the
    /// spans that wait.
    pub(super) fn new(config: &config::Otel, queued: Arc<AtomicUsize>, metrics: Arc<Metrics>) -> Result<Self, Error> {
        let headers = config.headers.iter().cloned().collect();
        let responses = Arc::<Responses>::default();
        let builder = Otlp::builder()
            .with_http()
            .with_http_client(Sender::new(config, responses.clone())?)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(config.endpoint.traces())
            .with_timeout(TIMEOUT)
            .with_headers(headers);
        let otlp = builder.build().map_err(|error| Error::Exporter(error.to_string()))?;
        let endpoint = config.endpoint.to_string();
        Ok(Self { otlp, endpoint, queued, metrics, responses, is_failing: AtomicBool::new(false) })
    }

    fn note(&self, spans: usize, result: &OTelSdkResult) {
        self.queued.fetch_sub(spans, Ordering::Relaxed);
        let rejected = self.responses.rejected.swap(0, Ordering::Relaxed).min(spans);
        let failed = if result.is_ok() { rejected } else { spans };
        self.metrics.observe_batch(spans - failed, failed);
        let was_failing = self.is_failing.swap(failed > 0, Ordering::Relaxed);
        match result {
            Err(error) if !was_failing => {
                let reason = sync::lock(&self.responses.failure).take();
                warn!(
                    collector = self.endpoint,
                    %error,
                    reason,
                    "the collector takes no spans: they are dropped until it does"
                );
            }
            Ok(()) if failed > 0 && !was_failing => {
                warn!(collector = self.endpoint, spans = failed, "the collector rejects spans");
            }
            Ok(()) if failed == 0 && was_failing => info!(collector = self.endpoint, "the collector takes spans again"),
            Ok(()) | Err(_) => {}
        }
    }
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let result = self.otlp.export(batch).await;
        self.note(spans, &result);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.otlp.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.otlp.set_resource(resource);
    }
}

/// Returns the TLS configuration for the collector. A collector without TLS needs no authorities.
///
/// # Errors
/// If the authorities cannot be used.
pub(super) fn tls_config(config: &config::Otel) -> Result<ClientConfig, tls::Error> {
    if !config.endpoint.is_https() {
        return tls::trusting_none().map(Arc::unwrap_or_clone);
    }
    let files = ClientFiles::load(UpstreamTls { ca: config.ca.clone(), ..UpstreamTls::default() })?;
    let mut tls = (*files.current()).clone();
    // The connector sets them.
    tls.alpn_protocols.clear();
    Ok(tls)
}

/// Returns the number of spans that a collector has rejected, by the body of its response. A body
/// that cannot be decoded counts as no rejection.
fn rejected(body: &[u8]) -> usize {
    let response = ExportTraceServiceResponse::decode(body).unwrap_or_default();
    response.partial_success.map_or(0, |partial| usize::try_from(partial.rejected_spans).unwrap_or(0))
}

/// Returns an error with its causes.
fn in_words(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// HTTP client whose connections are on one runtime.
#[derive(Debug)]
struct Sender {
    runtime: Handle,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    responses: Arc<Responses>,
}

impl Sender {
    fn new(config: &config::Otel, responses: Arc<Responses>) -> Result<Self, Error> {
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls_config(config)?).https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Ok(Self { runtime: Handle::current(), client, responses })
    }

    fn send(&self, request: Request<Bytes>) -> impl Future<Output = Result<Response<Bytes>, HttpError>> + use<> {
        let response = self.client.request(request.map(Full::new));
        async move {
            let (head, body) = response.await?.into_parts();
            // The status alone decides: a body that is cut off or too long says nothing.
            let body = Limited::new(body, RESPONSE_MAX).collect().await.map(|body| body.to_bytes());
            Ok(Response::from_parts(head, body.unwrap_or_default()))
        }
    }
}

#[async_trait::async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sending = {
            let _runtime = self.runtime.enter();
            self.runtime.spawn(tokio::time::timeout(TIMEOUT, self.send(request)))
        };
        let result = sending.await?.unwrap_or_else(|_| Err("no response in time".into()));
        *sync::lock(&self.responses.failure) = result.as_ref().err().map(|error| in_words(&**error));
        let rejected = result.as_ref().map_or(0, |response| rejected(response.body()));
        self.responses.rejected.store(rejected, Ordering::Relaxed);
        result
    }
}
