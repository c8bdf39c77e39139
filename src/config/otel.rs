//! The section `[otel]`: traces of calls for an OpenTelemetry collector.

use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::str::FromStr;

use http::uri::{Authority, Scheme};
use http::{HeaderName, HeaderValue, Uri};

use super::read::Reader;
use super::value::{file, non_empty};

/// Path for traces, below the URL of a collector.
const TRACES: &str = "/v1/traces";
/// Headers that the export sets itself.
const OWN_HEADERS: [&str; 5] = ["host", "content-length", "content-type", "transfer-encoding", "connection"];
/// Section of the configuration.
const SECTION: &str = "otel";

/// Export of traces.
#[derive(Clone, PartialEq, Eq)]
pub struct Otel {
    /// The collector.
    pub endpoint: CollectorUrl,
    /// Headers of each request to it.
    pub headers: Vec<(String, String)>,
    /// Authorities that sign its certificate, or `None` for the system's.
    pub ca: Option<PathBuf>,
    /// Name of the service in traces; never empty.
    pub service_name: String,
    /// Share of the traces that begin at the proxy and are recorded, in percent.
    pub sample_percent: u8,
}

/// Masked: headers hold credentials.
impl fmt::Debug for Otel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Otel").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// URL of a collector, below which OTLP over HTTP has its paths.
#[derive(Clone, PartialEq, Eq)]
pub struct CollectorUrl(Uri);

/// A text is no URL of a collector. The message quotes nothing of it: it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be the base URL of a collector's OTLP over HTTP without a query, such as http://127.0.0.1:4318")]
pub struct InvalidCollector;

impl CollectorUrl {
    /// Returns true if the collector uses TLS.
    pub fn is_https(&self) -> bool {
        self.0.scheme() == Some(&Scheme::HTTPS)
    }

    /// Returns the URL for traces, which may have been given whole.
    pub fn traces(&self) -> String {
        let url = self.to_string();
        if url.ends_with(TRACES) { url } else { url + TRACES }
    }
}

impl FromStr for CollectorUrl {
    type Err = InvalidCollector;

    fn from_str(text: &str) -> Result<Self, InvalidCollector> {
        let url: Uri = text.parse().map_err(|_| InvalidCollector)?;
        let is_http = url.scheme().is_some_and(|scheme| *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS);
        let is_place = |authority: &Authority| {
            let port = authority.as_str().rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
            let has_port = port.is_none_or(|port| port.parse::<NonZeroU16>().is_ok());
            has_port && !authority.host().is_empty() && !authority.as_str().contains('@')
        };
        let has_more = url.query().is_some() || text.contains('#');
        if is_http && url.authority().is_some_and(is_place) && !has_more {
            Ok(Self(url))
        } else {
            Err(InvalidCollector)
        }
    }
}

/// The URL without a slash at its end.
impl fmt::Display for CollectorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        f.write_str(text.trim_end_matches('/'))
    }
}

impl fmt::Debug for CollectorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A header for requests to the collector.
struct Header(String, String);

/// A text is no header. The message quotes nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be NAME=VALUE, a header of HTTP that the proxy does not set itself, and its value")]
struct InvalidHeader;

impl FromStr for Header {
    type Err = InvalidHeader;

    fn from_str(text: &str) -> Result<Self, InvalidHeader> {
        let (name, value) = text.split_once('=').ok_or(InvalidHeader)?;
        let (name, value) = (name.trim(), value.trim());
        let is_own = HeaderName::from_str(name).is_ok_and(|name| !OWN_HEADERS.contains(&name.as_str()));
        let is_valid = is_own && HeaderValue::from_str(value).is_ok();
        if is_valid { Ok(Self(name.to_owned(), value.to_owned())) } else { Err(InvalidHeader) }
    }
}

/// Reads the section. Returns `None` without a collector.
pub(super) fn otel(reader: &mut Reader) -> Option<Otel> {
    let mut s = reader.section(SECTION);
    let endpoint = s.text("endpoint", |text| match text {
        "" => Ok(None),
        text => text.parse::<CollectorUrl>().map(Some).map_err(|error| error.to_string()),
    });
    let headers = s.json_list::<Header>("headers", 0).unwrap_or_default();
    let ca = s.text("ca", file).flatten();
    let names: HashSet<String> = headers.iter().map(|Header(name, _)| name.to_ascii_lowercase()).collect();
    let service_name = s.text("service_name", non_empty).flatten().unwrap_or_else(|| "mcp-resume".to_owned());
    let sample_percent = s.percent("sample_percent").unwrap_or(100);
    if names.len() < headers.len() {
        let text = "a header is named twice".to_owned();
        reader.conflict([(SECTION, "headers"), (SECTION, "headers")], text);
    }
    let endpoint = endpoint.flatten();
    if ca.is_some() && endpoint.as_ref().is_some_and(|endpoint| !endpoint.is_https()) {
        let text = "authorities are for an https:// collector, and otel.endpoint is none".to_owned();
        reader.conflict([(SECTION, "ca"), (SECTION, "endpoint")], text);
    }
    Some(Otel {
        endpoint: endpoint?,
        headers: headers.into_iter().map(|Header(name, value)| (name, value)).collect(),
        ca,
        service_name,
        sample_percent,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_for_traces_is_below_the_url() {
        let traces = |text: &str| text.parse::<CollectorUrl>().map(|url| url.traces());
        for (text, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
            ("https://gateway.example/otlp", "https://gateway.example/otlp/v1/traces"),
            ("http://[::1]:4318/v1/traces/", "http://[::1]:4318/v1/traces"),
            ("http://[::1]", "http://[::1]/v1/traces"),
        ] {
            assert_eq!(traces(text).as_deref(), Ok(expected));
        }
        for bad in [
            "collector:4318",
            "grpc://collector:4317",
            "http://",
            "http://u:p@collector",
            "http://c/?a=1",
            "http://c/#a",
            "http://c:99999",
            "http://:4318",
        ] {
            assert_eq!(traces(bad), Err(InvalidCollector), "{bad}");
        }
    }

    #[test]
    fn a_header_has_a_name_and_a_value() {
        for good in ["Authorization=Basic YTpi=", "x-scope-orgid = a"] {
            assert!(good.parse::<Header>().is_ok(), "{good}");
        }
        for bad in ["Authorization", "a b=c", "=c", "a=b\nc", "Host=c"] {
            assert!(bad.parse::<Header>().is_err(), "{bad}");
        }
    }
}
