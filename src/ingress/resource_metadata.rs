//! Metadata of the server as a protected resource, under the URL that clients type
//! (`listen.public_url`).
//!
//! Owned here: the paths at the proxy, and the operator's own document for a server that has none
//! (`listen.resource_metadata`). Absent: the server's metadata (`upstream`).

use std::fs;
use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Map, Value};

use super::components::Components;
use super::refusals;
use crate::body::{BoxBody, whole};
use crate::config::Listen;
use crate::protocol::protected_resource::MAX_DOCUMENT;
use crate::server::respond;
use crate::upstream::Forwarded;

/// The operator's document is not usable.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The file could not be read.
    #[error("listen.resource_metadata: {path} could not be read: {error}", path = .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Reason.
        error: io::Error,
    },
    /// The file has no JSON object, or too large a one.
    #[error("listen.resource_metadata: {path} must have a JSON object of at most 64 KiB, with authorization_servers", path = .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
    },
    /// The file describes another resource.
    #[error("listen.resource_metadata: {path} has the resource {resource}, which is not listen.public_url: leave the member out", path = .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Resource in the file.
        resource: String,
    },
}

/// Reads the operator's document, whose resource is the public URL. Returns `None` if there is
/// none.
///
/// # Errors
/// If the file cannot be read, or has no metadata of this resource.
pub fn read_document(listen: &Listen) -> Result<Option<Bytes>, DocumentError> {
    let (Some(path), Some(public)) = (&listen.resource_metadata, &listen.public_url) else { return Ok(None) };
    let path = path.clone();
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) => return Err(DocumentError::Unreadable { path, error }),
    };
    let members = serde_json::from_slice::<Map<String, Value>>(&text).ok();
    let Some(mut members) = members
        .filter(|members| text.len() <= MAX_DOCUMENT && members.get("authorization_servers").is_some_and(has_texts))
    else {
        return Err(DocumentError::Malformed { path });
    };
    match members.get("resource") {
        // Clients compare it with the URL that they were given.
        None => drop(members.insert("resource".to_owned(), public.as_str().into())),
        Some(Value::String(resource)) if public.is_named_by(resource) => {
            members.insert("resource".to_owned(), public.as_str().into());
        }
        Some(resource) => {
            let resource = resource.as_str().map_or_else(|| resource.to_string(), str::to_owned);
            return Err(DocumentError::Foreign { path, resource });
        }
    }
    Ok(serde_json::to_vec(&members).ok().map(Bytes::from))
}

fn has_texts(value: &Value) -> bool {
    value.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(Value::is_string))
}

/// Returns true for a request for the metadata, or a preflight of one.
pub(super) fn concerns(components: &Components, parts: &Parts) -> bool {
    matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS)
        && components.upstream.is_resource_metadata(parts.uri.path())
}

/// Responds with the operator's document, else with that of the server.
pub(super) async fn handle(components: &Components, parts: Parts, client: &Forwarded) -> Response<BoxBody> {
    let mut response = match &components.resource_document {
        Some(document) => {
            let mut response = respond::status(StatusCode::OK);
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert(CONTENT_LENGTH, document.len().into());
            // The document is public, and pages read it before they have a token.
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
            *response.body_mut() = whole(document.clone());
            response
        }
        None => match components.upstream.resource_metadata(&parts, client).await {
            Ok(response) => response.map(BodyExt::boxed_unsync),
            Err(failure) => return refusals::fail_forward(components, failure),
        },
    };
    if parts.method == Method::HEAD {
        *response.body_mut() = whole(Bytes::new());
    }
    response
}
