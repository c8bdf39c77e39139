//! The promise of a proxy to join a request that is sent again: the header `Mcp-Resume` of its
//! responses, and the headers of a client that relies on it.
//!
//! ```text
//! Mcp-Resume: 1; epoch=0badcafe; hold=600      response: the promise, for this caller
//! Idempotency-Key: …                           request: its key, the same in each repetition
//! Mcp-Resume-Hold: 600                         request: seconds that its call is kept without a reader
//! Mcp-Resume-Epoch: 0badcafe                   repetition: the epoch that promised
//! ```
//!
//! A request that is sent again with its key joins the first one within `hold` seconds, as long
//! as the epoch is the same. A proxy with another epoch refuses the repetition with 412: it
//! cannot know whether the first one ran. Unknown parameters are ignored, so that later versions
//! can add some.

use std::time::Duration;

use http::HeaderValue;

/// Version of the promise.
const VERSION: &str = "1";
/// Largest epoch, in bytes.
const EPOCH_MAX: usize = 64;

/// A promise to join requests that are sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Identifies the calls that the proxy knows. Visible ASCII, of meaning to its writer alone.
    pub epoch: String,
    /// Time after which a request is joined no more.
    pub hold: Duration,
}

impl Promise {
    /// Returns the value of the header `Mcp-Resume`.
    pub fn to_value(&self) -> Option<HeaderValue> {
        HeaderValue::try_from(format!("{VERSION}; epoch={}; hold={}", self.epoch, self.hold.as_secs())).ok()
    }

    /// Parses the header `Mcp-Resume`. Returns `None` for another version, and without an epoch or
    /// a time.
    pub fn parse(value: &HeaderValue) -> Option<Self> {
        let mut parts = value.to_str().ok()?.split(';').map(str::trim);
        if parts.next()? != VERSION {
            return None;
        }
        let (mut epoch, mut hold) = (None, None);
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name {
                "epoch" => epoch = Some(value).filter(|value| is_epoch(value)),
                "hold" => hold = seconds(value),
                _ => {}
            }
        }
        Some(Self { epoch: epoch?.to_owned(), hold: hold? })
    }
}

/// Parses the seconds of `Mcp-Resume-Hold`.
pub fn hold_of(value: &HeaderValue) -> Option<Duration> {
    seconds(value.to_str().ok()?.trim())
}

/// Returns the value of `Mcp-Resume-Hold` for this time.
pub fn hold_value(hold: Duration) -> HeaderValue {
    HeaderValue::from(hold.as_secs())
}

fn seconds(text: &str) -> Option<Duration> {
    let is_number = (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok().map(Duration::from_secs) } else { None }
}

fn is_epoch(text: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    (1..=EPOCH_MAX).contains(&text.len()) && text.bytes().all(is_known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Promise> {
        Promise::parse(&HeaderValue::from_str(text).expect("a value"))
    }

    #[test]
    fn a_promise_is_read_as_it_was_written() {
        let promise = Promise { epoch: "0badcafe".to_owned(), hold: Duration::from_secs(600) };
        let value = promise.to_value().expect("a value");
        assert_eq!(value, "1; epoch=0badcafe; hold=600");
        assert_eq!(Promise::parse(&value), Some(promise.clone()));
        assert_eq!(parse("1;hold=600 ; later=x; flag;epoch=0badcafe"), Some(promise));
    }

    #[test]
    fn other_texts_promise_nothing() {
        for text in [
            "",
            "1",
            "2; epoch=a; hold=1",
            "1; epoch=a",
            "1; hold=1",
            "1; epoch=; hold=1",
            "1; epoch=a b; hold=1",
            "1; epoch=a; hold=-1",
            "1; epoch=a; hold=1.5",
            "1; epoch=a; hold=12345678901234567890",
            "1, epoch=a; hold=1",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse(&format!("1; epoch={}; hold=1", "a".repeat(65))), None);
        assert_eq!(Promise { epoch: "a\nb".to_owned(), hold: Duration::ZERO }.to_value(), None);
    }

    #[test]
    fn a_hold_is_whole_seconds() {
        let hold = |text: &'static str| hold_of(&HeaderValue::from_static(text));
        assert_eq!(hold(" 60 "), Some(Duration::from_secs(60)));
        for text in ["", "-1", "1.5", "1e3", "60s"] {
            assert_eq!(hold(text), None, "{text}");
        }
        assert_eq!(hold_value(Duration::from_millis(1999)), "1");
    }
}
