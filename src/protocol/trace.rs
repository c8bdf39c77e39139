//! The trace id of a request ([W3C Trace Context]). Absent: spans of the proxy, and sampling; the headers go upstream unchanged.
//!
//! [W3C Trace Context]: https://www.w3.org/TR/trace-context/#traceparent-header

use std::fmt;

use http::{HeaderMap, HeaderName};

use super::headers;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Length of version, trace, parent and flags with the dashes between them: all of version 00, and the beginning of later versions.
const LEN: usize = 55;

/// The id of a trace, which is never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(u128);

impl TraceId {
    /// Reads the trace id from `traceparent`. Returns `None` if the header is absent, repeated or malformed.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        Self::parse(headers::only(headers, TRACEPARENT)?)
    }

    fn parse(traceparent: &str) -> Option<Self> {
        let (known, more) = traceparent.split_at_checked(LEN)?;
        let mut fields = known.split('-');
        let (version, trace, parent, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let may_have_more = version != "00" && more.starts_with('-');
        let lengths = [version.len(), trace.len(), parent.len(), flags.len()];
        if lengths != [2, 32, 16, 2] || version == "ff" || !(more.is_empty() || may_have_more) {
            return None;
        }
        hex(version)?;
        hex(flags)?;
        hex(parent).filter(|parent| *parent != 0)?;
        hex(trace).filter(|trace| *trace != 0).map(Self)
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
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
        assert!(bad.iter().all(|bad| TraceId::parse(bad).is_none()));
        assert_eq!(of(&[GOOD, GOOD]), None, "a repeated header is ambiguous");
        assert_eq!(of(&[]), None);
    }

    proptest! {
        #[test]
        fn no_text_panics_and_an_accepted_id_is_32_digits(text in ".{0,80}|[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}.{0,3}") {
            if let Some(trace) = TraceId::parse(&text) {
                prop_assert_eq!(&text[3..35], trace.to_string());
            }
        }
    }
}
