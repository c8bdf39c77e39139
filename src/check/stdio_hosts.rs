//! The command of `connect` for a host that starts its servers as programs.
//!
//! Absent: credentials. The report does not know where the user keeps them.

use crate::config::{Config, UpstreamUrl};
use crate::connect;

/// Returns the command for the server of this configuration, without the query of its URL, which
/// may hold a key.
pub(super) fn command(config: &Config) -> String {
    const PROGRAM: &str = "mcp-resume connect";
    let upstream = &config.upstream;
    if let Some(command) = &upstream.command {
        let rest = if command.line.len() > 1 { " …" } else { "" };
        return format!("{PROGRAM} -- {}{rest}", command.name());
    }
    let url = upstream.sse.as_ref().map_or(&upstream.url, |server| &server.url);
    let is_sse = upstream.sse.is_some() && !url.endpoint_path().ends_with("/sse");
    let options = [(" --transport sse", is_sse), (" --allow-http", needs_permission(url))];
    let options: String = options.iter().filter(|(_, is_needed)| *is_needed).map(|(option, _)| *option).collect();
    format!("{PROGRAM} {url}{options}")
}

fn needs_permission(url: &UpstreamUrl) -> bool {
    !url.is_https() && !connect::is_loopback(url.authority().host())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flags;

    #[test]
    fn a_command_has_the_options_that_its_server_needs() {
        let of_url = |url: &str| command(&Config::for_upstream(url).expect("a configuration"));
        assert_eq!(of_url("https://a.example/mcp?key=1"), "mcp-resume connect https://a.example/mcp");
        assert_eq!(of_url("http://localhost:3000/mcp"), "mcp-resume connect http://localhost:3000/mcp");
        assert_eq!(of_url("http://a.example/mcp"), "mcp-resume connect http://a.example/mcp --allow-http");
        let of = |flags: Flags| command(&Config::load(None, [], flags).expect("a configuration"));
        let of_sse = |url: &str| of(Flags { upstream_sse: Some(url.to_owned()), ..Flags::default() });
        assert_eq!(of_sse("https://a.example/sse"), "mcp-resume connect https://a.example/sse");
        assert_eq!(of_sse("https://a.example/events"), "mcp-resume connect https://a.example/events --transport sse");
        let line = ["/usr/bin/npx", "secret"].map(str::to_owned).to_vec();
        assert!(!of(Flags { command: line, ..Flags::default() }).contains("secret"));
    }
}
