//! The upstream's URL. Input: its text.
//!
//! An accepted URL names a host, can be requested, is displayed without its query, and displayed
//! and parsed again is the same.

use http::Uri;
use mcp_resume::config::UpstreamUrl;

/// Runs one input.
pub(crate) fn run(bytes: &[u8]) {
    // Up to the first byte that is no UTF-8.
    let text = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let Ok(url) = text.parse::<UpstreamUrl>() else {
        return;
    };
    let authority = url.authority();
    assert!(!authority.host().is_empty() && !authority.as_str().contains('@'));
    let port = authority.port_u16().map_or(String::new(), |_| format!(":{}", authority.port().unwrap().as_str()));
    assert_eq!(authority.as_str(), format!("{}{port}", authority.host()));
    assert!(authority.port_u16() != Some(0) && !port.contains('+'));

    let path = url.endpoint_path();
    assert!(path.starts_with('/') && !path.contains(['?', '#']));
    let without_slash = path.strip_suffix('/').unwrap_or(path);
    assert!(url.is_endpoint(path) && url.is_endpoint(&format!("{without_slash}/")));
    // Of two final slashes the first is part of the path; the root has no other form.
    assert!(path == "/" || url.is_endpoint(without_slash) != without_slash.ends_with('/'));
    assert!(!url.is_endpoint(&format!("{path}x")));

    let query = url.query().map_or(String::new(), |query| format!("?{query}"));
    let target: Uri = format!("http://{authority}{path}{query}").parse().expect("it can be asked for");
    assert_eq!((target.path(), target.query()), (path, url.query()));

    let origin = url.origin();
    let own_port = format!(":{}", url.default_port());
    assert!(!origin.bytes().any(|byte| byte.is_ascii_uppercase()) && !origin.ends_with(&own_port));
    let shown = url.to_string();
    assert_eq!(shown, format!("{origin}{path}"));
    assert!(format!("{url:?}") == if url.query().is_some() { format!("{shown}?…") } else { shown.clone() });
    let again: UpstreamUrl = shown.parse().expect("what is shown is a URL");
    assert_eq!((again.origin(), again.endpoint_path(), again.query()), (origin, path, None));
}
