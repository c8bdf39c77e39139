//! Answers of something else than the server, on a way through networks of others: the web page of
//! a portal or an edge, a certificate that is not trusted, a proxy that opens no tunnel.
//!
//! They become errors in words, so that no layer above takes them for the server's: a page ends no
//! session and no credential. Absent: redirects ([`super::redirects`]), gateways without a server,
//! and the decision whether a request is sent again.

use std::error::Error;
use std::io;

use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{Method, Response, StatusCode};

use super::own_error::own_error;
use super::proxy;
use super::request::Template;
use super::response_body::ResponseBody;
use crate::channel;
use crate::protocol::error::{Details, ErrorCode, Failure};
use crate::protocol::headers::names;
use crate::tls;

/// Media types of web pages.
const PAGES: [&str; 2] = ["text/html", "application/xhtml+xml"];

/// The way to the server is refused, and will be at each attempt. The text has the cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::upstream) struct WayRefused(String);

impl WayRefused {
    /// Returns the refusal that has caused the error of a connection, or `None` for another cause.
    pub(super) fn cause_of<'a>(mut causes: impl Iterator<Item = &'a (dyn Error + 'static)>) -> Option<Self> {
        causes.find_map(|cause| {
            let error = cause.downcast_ref::<io::Error>()?;
            let refused = error.get_ref().and_then(|error| error.downcast_ref::<proxy::Refused>());
            match refused {
                Some(refused) if refused.0.is_client_error() => Some(Self(refused.to_string())),
                Some(_) => None,
                None => tls::refusal(error).map(Self),
            }
        })
    }

    /// Returns the error about the requests of `template`.
    pub(super) fn response_to(&self, template: &Template) -> Response<ResponseBody> {
        let failure = Failure::before_run(ErrorCode::WayRefused);
        own_error(template, failure, || Details::of_text(&self.0))
    }
}

/// Returns the response to `template`, or the error in place of a web page.
pub(super) fn without_page(template: &Template, response: Box<Response<ResponseBody>>) -> Box<Response<ResponseBody>> {
    if !is_page(template, &response) {
        return response;
    }
    let status = response.status().as_u16();
    let failure = Failure { http_status: Some(status), ..Failure::after_send(ErrorCode::NotTheServer) };
    let text = format!("status {status}");
    let mut error = own_error(template, failure, || Details::of_text(&text));
    error.extensions_mut().insert(channel::Cause(format!("status {status}, a web page")));
    Box::new(error)
}

/// Returns true for a web page in place of the server's response.
fn is_page(template: &Template, response: &Response<ResponseBody>) -> bool {
    let content_type = response.headers().get(CONTENT_TYPE).map(|value| value.as_bytes());
    let has_type = |page: &&str| {
        let essence = content_type.and_then(|value| value.split(|byte| *byte == b';').next());
        essence.is_some_and(|essence| essence.trim_ascii().eq_ignore_ascii_case(page.as_bytes()))
    };
    if !PAGES.iter().any(has_type) {
        return false;
    }
    match response.status() {
        // A server's own refusal, which has a challenge.
        StatusCode::UNAUTHORIZED => !response.headers().contains_key(WWW_AUTHENTICATE),
        // A gateway without a server, for which requests without effects wait.
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => false,
        // Many servers without a standalone stream say so by a page.
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => {
            *template.method() == Method::POST || template.lines().get(&names::LAST_EVENT_ID).is_some()
        }
        _ => *template.method() != Method::DELETE,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, HeaderValue};

    use super::*;

    fn is_page_of(method: Method, status: u16, headers: &[(http::HeaderName, &'static str)]) -> bool {
        let template = Template::plain(method, &HeaderMap::new(), Bytes::new());
        let mut response = Response::new(ResponseBody::whole(Bytes::new()));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        let headers = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
        response.headers_mut().extend(headers);
        is_page(&template, &response)
    }

    #[test]
    fn pages_are_told_from_answers_of_the_server() {
        let html = (CONTENT_TYPE, "Text/HTML; charset=utf-8");
        for status in [200, 302, 401, 403, 404, 429, 500, 511, 524] {
            assert!(is_page_of(Method::POST, status, std::slice::from_ref(&html)), "{status}");
        }
        for status in [502, 503, 504] {
            assert!(!is_page_of(Method::POST, status, std::slice::from_ref(&html)), "{status}");
        }
        assert!(!is_page_of(Method::POST, 401, &[html.clone(), (WWW_AUTHENTICATE, "Bearer")]));
        assert!(!is_page_of(Method::GET, 404, std::slice::from_ref(&html)));
        assert!(is_page_of(Method::GET, 200, &[html]));
        for other in ["application/json", "text/event-stream", "text/plain", "text/htmlx"] {
            assert!(!is_page_of(Method::POST, 200, &[(CONTENT_TYPE, other)]), "{other}");
        }
        assert!(!is_page_of(Method::POST, 500, &[]));
    }
}
