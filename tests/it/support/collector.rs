//! Collector of OpenTelemetry: takes OTLP over HTTP, and keeps the spans.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use mcp_resume::config::{Config, Otel};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1;
use prost::Message;
use tokio::net::TcpListener;

use super::until;

/// A span as the collector got it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) name: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    /// Empty for none.
    pub(crate) parent: String,
    pub(crate) kind: v1::span::SpanKind,
    /// Trace and span of each link.
    pub(crate) links: Vec<(String, String)>,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) is_error: bool,
    pub(crate) began: u64,
    pub(crate) ended: u64,
    /// Attributes of the process that has sent it.
    pub(crate) resource: BTreeMap<String, String>,
}

impl Span {
    pub(crate) fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).unwrap_or_else(|| panic!("no {name}: {self:?}"))
    }
}

#[derive(Default)]
struct Shared {
    spans: Mutex<Vec<Span>>,
    /// Values of the header `authorization`.
    tokens: Mutex<Vec<String>>,
    /// Status of the responses; 0 for 200.
    status: AtomicU16,
}

/// A collector; it ends with the test's runtime.
pub(crate) struct Collector {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let addr = listener.local_addr().expect("its address");
        let shared = Arc::<Shared>::default();
        let of_connections = shared.clone();
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                let shared = of_connections.clone();
                let take = hyper::service::service_fn(move |request| take(shared.clone(), request));
                let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), take);
                tokio::spawn(async move { drop(serving.await) });
            }
        });
        Self { addr, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Makes a proxy send its spans here.
    pub(crate) fn gets_spans(&self) -> impl Fn(&mut Config) + use<> {
        let endpoint = self.url();
        move |config| config.otel = Some(Box::new(otel(&endpoint)))
    }

    /// Sets the status of the responses from now on.
    pub(crate) fn answer(&self, status: u16) {
        self.shared.status.store(status, Ordering::Relaxed);
    }

    /// Returns the spans so far.
    pub(crate) fn spans(&self) -> Vec<Span> {
        self.shared.spans.lock().unwrap().clone()
    }

    /// Returns the credentials of the requests so far.
    pub(crate) fn tokens(&self) -> Vec<String> {
        self.shared.tokens.lock().unwrap().clone()
    }

    /// Waits for as many spans of this name, and returns them in the order in which they began.
    /// Those of an `initialize` do not count.
    pub(crate) async fn wait_for<const COUNT: usize>(&self, name: &str) -> [Span; COUNT] {
        let found = || {
            let spans = self.spans();
            let is_opening = |span: &&Span| span.name == "initialize" || span.name.starts_with("notifications/");
            let openings: Vec<String> = spans.iter().filter(is_opening).map(|span| span.trace.clone()).collect();
            let counts = |span: &Span| span.name == name && !openings.contains(&span.trace);
            spans.into_iter().filter(counts).collect::<Vec<_>>()
        };
        until(&format!("{COUNT} spans {name:?}"), async || found().len() >= COUNT).await;
        let mut found = found();
        found.sort_by_key(|span| span.began);
        found.try_into().expect("no further one")
    }
}

/// Export to a collector at this URL.
pub(crate) fn otel(endpoint: &str) -> Otel {
    Otel {
        endpoint: endpoint.parse().expect("a URL"),
        headers: Vec::new(),
        ca: None,
        service_name: "mcp-resume".to_owned(),
        sample_percent: 100,
    }
}

async fn take(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    assert_eq!(request.uri().path(), "/v1/traces");
    assert_eq!(request.headers()["content-type"], "application/x-protobuf");
    if let Some(token) = request.headers().get("authorization") {
        shared.tokens.lock().unwrap().push(token.to_str().expect("text").to_owned());
    }
    let body = request.into_body().collect().await.expect("a body").to_bytes();
    let message = ExportTraceServiceRequest::decode(body).expect("a request to export");
    let status = shared.status.load(Ordering::Relaxed);
    if status == 0 {
        shared.spans.lock().unwrap().extend(spans_of(message));
    }
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    Ok(response)
}

fn spans_of(message: ExportTraceServiceRequest) -> Vec<Span> {
    let mut spans = Vec::new();
    for group in message.resource_spans {
        let resource = attributes(group.resource.map(|resource| resource.attributes).unwrap_or_default());
        for span in group.scope_spans.into_iter().flat_map(|group| group.spans) {
            spans.push(Span {
                kind: span.kind(),
                name: span.name,
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                links: span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect(),
                attributes: attributes(span.attributes),
                is_error: span.status.is_some_and(|status| status.code() == v1::status::StatusCode::Error),
                began: span.start_time_unix_nano,
                ended: span.end_time_unix_nano,
                resource: resource.clone(),
            });
        }
    }
    spans
}

fn attributes(pairs: Vec<KeyValue>) -> BTreeMap<String, String> {
    pairs.into_iter().map(|pair| (pair.key, text(pair.value))).collect()
}

fn text(value: Option<AnyValue>) -> String {
    match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(flag)) => flag.to_string(),
        value => panic!("{value:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String grows");
        text
    })
}
