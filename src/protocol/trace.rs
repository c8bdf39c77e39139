//! Trace context of a request ([W3C Trace Context]), as its headers name it or the `_meta` of its
//! message ([SEP-414]). Absent: the spans of the proxy, and sampling (`otel`).
//!
//! [W3C Trace Context]: https://www.w3.org/TR/trace-context/#traceparent-header
//! [SEP-414]: https://modelcontextprotocol.io/seps/414-request-meta

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{headers, jsonrpc};

/// Header, and member of `_meta`, that names the trace context of a request.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Header with what vendors say of the trace that `traceparent` names.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// Length of version, trace, parent and flags with the dashes between them: all of version 00, and
/// the beginning of later versions.
const LEN: usize = 55;
/// Flag of a trace that is recorded.
const SAMPLED: u8 = 1;

/// The ID of a trace, which is never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(u128);

/// The ID of a span, which is never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(u64);

/// A span in its trace, as the parent of further ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: TraceId,
    /// The span.
    pub span: SpanId,
    /// True if the trace is recorded.
    pub is_sampled: bool,
}

/// Trace contexts that a request names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTrace {
    /// Parent of the spans of the request.
    pub parent: Option<TraceContext>,
    /// Context in another trace, which the header names where the message names the parent.
    pub beside: Option<TraceContext>,
}

impl TraceId {
    /// Makes an ID of random bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes).max(1))
    }

    /// Returns the 16 bytes of the ID.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// Reads the trace ID from `traceparent`. Returns `None` if the header is absent, repeated or
    /// malformed.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        TraceContext::from_headers(headers).map(|context| context.trace)
    }
}

impl SpanId {
    /// Makes an ID of random bytes.
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(u64::from_be_bytes(bytes).max(1))
    }

    /// Returns the eight bytes of the ID.
    pub fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

impl TraceContext {
    /// Reads the header. Returns `None` if it is absent, repeated or malformed.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        Self::parse(headers::only(headers, TRACEPARENT)?)
    }

    /// Reads the `_meta` of a message. Returns `None` if the message names no trace, or is an
    /// array.
    pub fn from_message(message: &[u8]) -> Option<Self> {
        let quoted = jsonrpc::member(message, &["params", "_meta", "traceparent"])?;
        Self::parse(quoted.strip_prefix('"')?.strip_suffix('"')?)
    }

    fn parse(traceparent: &str) -> Option<Self> {
        let (known, more) = traceparent.split_at_checked(LEN)?;
        let mut fields = known.split('-');
        let (version, trace, span, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let may_have_more = version != "00" && more.starts_with('-');
        let lengths = [version.len(), trace.len(), span.len(), flags.len()];
        if lengths != [2, 32, 16, 2] || version == "ff" || !(more.is_empty() || may_have_more) {
            return None;
        }
        hex(version)?;
        let is_sampled = hex(flags)? & u128::from(SAMPLED) != 0;
        let span = u64::try_from(hex(span)?).ok().filter(|span| *span != 0).map(SpanId)?;
        let trace = hex(trace).filter(|trace| *trace != 0).map(TraceId)?;
        Some(Self { trace, span, is_sampled })
    }

    /// Returns the header that names this span.
    pub fn to_header(self) -> HeaderValue {
        HeaderValue::try_from(self.to_string()).expect("digits and dashes")
    }
}

impl RequestTrace {
    /// Reads the trace contexts that a request names. The message says where its sender was. A
    /// header of the same trace is nearer: the HTTP client of the sender wrote it. A header of
    /// another trace comes from a hop between, and is beside.
    pub fn of(headers: &HeaderMap, message: &[u8]) -> Self {
        match (TraceContext::from_headers(headers), TraceContext::from_message(message)) {
            (Some(header), Some(message)) if header.trace != message.trace => {
                Self { parent: Some(message), beside: Some(header) }
            }
            (header, message) => Self { parent: header.or(message), beside: None },
        }
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The form of the header, in version 00.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = if self.is_sampled { SAMPLED } else { 0 };
        write!(f, "00-{}-{:016x}-{flags:02x}", self.trace, self.span.0)
    }
}

/// Records hold the form of the header.
impl Serialize for TraceContext {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TraceContext {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom("not a traceparent"))
    }
}

/// Parses hexadecimal digits in lower case, the only form that the specification allows.
fn hex(text: &str) -> Option<u128> {
    let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_hex { u128::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn of(values: &[&str]) -> Option<String> {
        let values = values.iter().map(|value| (TRACEPARENT, HeaderValue::from_str(value).unwrap()));
        TraceId::from_headers(&values.collect()).map(|trace| trace.to_string())
    }

    #[test]
    fn a_trace_is_known_by_its_32_digits() {
        let trace = "0af7651916cd43dd8448eb211c80319c".to_owned();
        let later = GOOD.replacen("00", "cc", 1);
        for good in [GOOD, &later, &format!("{later}-what-comes-later")] {
            assert_eq!(of(&[good]).as_ref(), Some(&trace), "{good}");
        }
    }

    #[test]
    fn malformed_traces_are_none() {
        let with = |range: std::ops::Range<usize>, other: &str| {
            let mut bad = GOOD.to_owned();
            bad.replace_range(range, other);
            bad
        };
        let bad = [
            String::new(),
            with(0..2, "ff"),
            with(0..2, "0G"),
            with(3..35, &"0".repeat(32)),
            with(3..35, &"A".repeat(32)),
            with(3..35, &format!("+{}", "1".repeat(31))),
            with(36..52, &"0".repeat(16)),
            with(36..52, "b7ad6b716920333x"),
            with(53..55, "0x"),
            with(2..3, "_"),
            with(52..53, "_"),
            with(54..55, ""),
            format!("{GOOD}-more"),
            format!("{GOOD}0"),
            format!("{}0", GOOD.replacen("00", "cc", 1)),
            with(0..3, "é-"),
        ];
        for bad in bad.iter().filter(|bad| bad.is_ascii()) {
            assert_eq!(of(&[bad]), None, "{bad}");
        }
        assert!(bad.iter().all(|bad| TraceContext::parse(bad).is_none()));
        assert_eq!(of(&[GOOD, GOOD]), None, "a repeated header is ambiguous");
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn the_message_names_the_parent_where_the_header_is_of_another_trace() {
        let near = GOOD.replace("b7ad6b7169203331", "00f067aa0ba902b7");
        let other = GOOD.replace("0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736");
        let named = |header: Option<&str>, meta: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(header) = header {
                headers.insert(TRACEPARENT, HeaderValue::from_str(header).unwrap());
            }
            let meta = meta.map_or("{}".to_owned(), |meta| format!(r#"{{"traceparent":"{meta}"}}"#));
            let message = format!(r#"{{"id":1,"method":"ping","params":{{"_meta":{meta}}}}}"#);
            let RequestTrace { parent, beside } = RequestTrace::of(&headers, message.as_bytes());
            [parent, beside].map(|context| context.map(|context| context.to_string()))
        };
        let is = |parent: &str, beside: Option<&str>| [Some(parent.to_owned()), beside.map(str::to_owned)];
        assert_eq!(named(None, None), [None, None]);
        assert_eq!(named(Some(GOOD), None), is(GOOD, None));
        assert_eq!(named(None, Some(GOOD)), is(GOOD, None));
        assert_eq!(named(Some(&near), Some(GOOD)), is(&near, None));
        assert_eq!(named(Some(&other), Some(GOOD)), is(GOOD, Some(&other)));
        assert_eq!(named(Some(GOOD), Some("00-1-2-3")), is(GOOD, None), "a malformed context is none");
    }

    #[test]
    fn records_hold_the_form_of_the_header() {
        let context = TraceContext::parse(GOOD).unwrap();
        let record = serde_json::to_string(&context).unwrap();
        assert_eq!(record, format!("\"{GOOD}\""));
        assert_eq!(serde_json::from_str::<TraceContext>(&record).unwrap(), context);
        assert!(serde_json::from_str::<TraceContext>("\"00\"").is_err());
        let unsampled = TraceContext { is_sampled: false, ..context };
        assert_eq!(unsampled.to_header(), GOOD.replace("-01", "-00"));
    }

    proptest! {
        #[test]
        fn no_text_panics_and_an_accepted_id_is_32_digits(text in ".{0,80}|[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}.{0,3}") {
            if let Some(context) = TraceContext::parse(&text) {
                prop_assert_eq!(&text[3..35], context.trace.to_string());
                let written = context.to_string();
                prop_assert_eq!(&text[3..52], &written[3..52]);
                prop_assert_eq!(TraceContext::parse(&written), Some(context));
            }
        }
    }
}
