//! Discovery of a server's era: the requests of the proxy, and the era that the response shows.

use serde_json::{Value, json};

use crate::headers::{Era, ProtocolVersion};
use crate::jsonrpc::{self, code, error_code};

/// The first revision without sessions.
pub const REVISION: &str = "2026-07-28";
/// Member of `_meta` with the revision of a request.
pub const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// Member of `_meta` with name and version of the client.
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
/// Member of `_meta` with the capabilities of the client.
pub const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// Returns a `server/discover` at this revision, with the client's facts as members of `_meta`.
/// Without facts the proxy itself is the client.
pub fn discover(id: Value, revision: &str, client: Option<Value>, capabilities: Option<Value>) -> String {
    request(id, "server/discover", revision, client, capabilities)
}

/// Returns a `ping` of the proxy at [`REVISION`], which has no such method. A bare one would show a
/// client of an older revision: TypeScript's SDK then refuses all later requests of this revision
/// on the connection.
pub fn ping(id: Value) -> String {
    request(id, "ping", REVISION, None, None)
}

fn request(id: Value, method: &str, revision: &str, client: Option<Value>, capabilities: Option<Value>) -> String {
    let client = client.unwrap_or_else(|| json!({ "name": "mcp-resume", "version": env!("CARGO_PKG_VERSION") }));
    let capabilities = capabilities.unwrap_or_else(|| json!({}));
    let meta = json!({ VERSION: revision, CLIENT_INFO: client, CAPABILITIES: capabilities });
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": { "_meta": meta } }).to_string()
}

/// Returns the era that a response to `server/discover` shows. A server speaks the revisions that
/// it names. A result has to name them ([`DiscoverResult`]): a server that answers every method
/// with a result knows none. Any other error, or silence, shows a server that does not know the
/// method.
///
/// [`DiscoverResult`]: https://modelcontextprotocol.io/specification/2026-07-28/schema#discoverresult
pub fn era_of(response: Option<&[u8]>) -> Era {
    let Some(response) = response else { return Era::Legacy };
    // The code of the error is one of the later revisions, with or without a list.
    let (path, unlisted): (&[&str], Era) = match error_code(response) {
        Some(code::UNSUPPORTED_VERSION) => (&["error", "data", "supported"], Era::Modern),
        None if jsonrpc::error_in(response).is_none() => (&["result", "supportedVersions"], Era::Legacy),
        Some(_) | None => return Era::Legacy,
    };
    let listed = jsonrpc::member(response, path).and_then(|list| serde_json::from_str::<Vec<String>>(list).ok());
    // A date before that of the era is a draft of an older revision: TypeScript's SDK lists one.
    let is_older = |version: &ProtocolVersion| version.is_at_least("") && !version.is_at_least(REVISION);
    let is_modern = |text: &String| {
        ProtocolVersion::parse(text).is_some_and(|version| version.era() == Era::Modern && !is_older(&version))
    };
    match listed {
        Some(listed) if listed.iter().any(is_modern) => Era::Modern,
        Some(_) => Era::Legacy,
        None => unlisted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_response_to_discover_tells_the_era() {
        for (response, era) in [
            (r#"{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2026-07-28"]}}"#, Era::Modern),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, Era::Legacy),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tools":{}}}}"#, Era::Legacy),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":"2026-07-28"}}"#, Era::Legacy),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":[]}}"#, Era::Legacy),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2025-11-25"]}}"#, Era::Legacy),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2025-11-25","2024-10-07"]}}"#, Era::Legacy),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2024-10-07","2026-07-28"]}}"#, Era::Modern),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2024-10-07","draft"]}}"#, Era::Modern),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2026-07-28"]},"error":null}"#, Era::Modern),
            (
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"","data":{"supported":["2027-01-01"]}}}"#,
                Era::Modern,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"","data":{"supported":["2025-11-25"]}}}"#,
                Era::Legacy,
            ),
            (r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":""}}"#, Era::Modern),
            (r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":""}}"#, Era::Legacy),
            (r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":""}}"#, Era::Legacy),
            (r#"{"jsonrpc":"2.0","id":1,"error":{}}"#, Era::Legacy),
        ] {
            assert_eq!(era_of(Some(response.as_bytes())), era, "{response}");
        }
        assert_eq!(era_of(None), Era::Legacy, "silence");
    }
}
