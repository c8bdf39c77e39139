//! Targets of discovery, parsed once.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// One entry of `balance.replicas`, or a line of the file beside it: `http://10.0.0.7:8080`,
/// `https://name:8443`, or `srv+http://_mcp._tcp.name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    is_https: bool,
    location: Location,
}

/// Location of a [`Target`]. Names are in lower case; a name with a final dot is complete.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// A single address.
    Address(SocketAddr),
    /// All addresses of a name.
    Name {
        /// The name.
        name: String,
        /// The port.
        port: u16,
    },
    /// The hosts in the SRV records of this name.
    Service(String),
}

/// A text is no [`Target`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// Another scheme, or none.
    #[error("must begin with http://, https://, srv+http:// or srv+https://, as in http://10.0.0.7:8080")]
    Scheme,
    /// User name or password.
    #[error("must not hold a user name or password")]
    UserInfo,
    /// A path, query or fragment behind the port.
    #[error("must end with its port: a path is the client's to give")]
    Path,
    /// No port, where no SRV record supplies one.
    #[error("needs a port, as in http://10.0.0.7:8080")]
    NoPort,
    /// Port 0, above 65535, or a colon without a number.
    #[error("has a port that is not between 1 and 65535")]
    Port,
    /// A port, where SRV records supply it.
    #[error("must not have a port: SRV records give it")]
    ServicePort,
    /// Neither an address nor a name.
    #[error("has no address or host name, as in http://10.0.0.7:8080; an IPv6 address stands in brackets")]
    Host,
}

impl Target {
    /// Returns true if the sidecars use TLS.
    pub fn is_https(&self) -> bool {
        self.is_https
    }

    /// Returns the location.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Returns the name or address that the sidecars' certificates must be valid for: the
    /// configured one, never one from the DNS. For a service it is the service's domain (RFC 6125
    /// §6.2.1).
    pub fn certificate_name(&self) -> String {
        let name = match &self.location {
            Location::Address(address) => return address.ip().to_string(),
            Location::Name { name, .. } => name.as_str(),
            Location::Service(name) => domain_of_service(name),
        };
        name.strip_suffix('.').unwrap_or(name).to_owned()
    }
}

fn domain_of_service(mut name: &str) -> &str {
    while let Some((label, rest)) = name.split_once('.')
        && label.starts_with('_')
        && !rest.is_empty()
    {
        name = rest;
    }
    name
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let (scheme, rest) = text.split_once("://").ok_or(TargetError::Scheme)?;
        let (is_service, is_https) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (false, false),
            "https" => (false, true),
            "srv+http" => (true, false),
            "srv+https" => (true, true),
            _ => return Err(TargetError::Scheme),
        };
        if rest.contains('@') {
            return Err(TargetError::UserInfo);
        }
        if rest.contains(['/', '?', '#']) {
            return Err(TargetError::Path);
        }
        let location = if is_service { service(rest)? } else { location(rest)? };
        Ok(Self { is_https, location })
    }
}

fn location(text: &str) -> Result<Location, TargetError> {
    let behind_host = text.rfind(']').map_or(0, |end| end + 1);
    let Some((host, port)) = text[behind_host..].rsplit_once(':') else { return Err(without_port(text)) };
    let host = &text[..behind_host + host.len()];
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    let port = if is_number { port.parse().ok().filter(|port| *port != 0) } else { None };
    let port = port.ok_or(TargetError::Port)?;
    match address(host) {
        Some(ip) => Ok(Location::Address(SocketAddr::new(ip, port))),
        None => Ok(Location::Name { name: name(host)?, port }),
    }
}

fn without_port(host: &str) -> TargetError {
    if address(host).is_some() || name(host).is_ok() { TargetError::NoPort } else { TargetError::Host }
}

fn service(text: &str) -> Result<Location, TargetError> {
    if text.contains(':') {
        return Err(TargetError::ServicePort);
    }
    Ok(Location::Service(name(text)?))
}

fn address(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.parse().ok().map(IpAddr::V6),
        None => host.parse().ok().map(IpAddr::V4),
    }
}

/// Parses a DNS name (RFC 1035 §2.3.4, with underscores). A name that ends in a number would be an
/// address.
fn name(host: &str) -> Result<String, TargetError> {
    const LONGEST_NAME: usize = 253;
    const LONGEST_LABEL: usize = 63;
    let is_label = |label: &str| {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=LONGEST_LABEL).contains(&label.len()) && label.bytes().all(is_known)
    };
    let bare = host.strip_suffix('.').unwrap_or(host);
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    if bare.len() > LONGEST_NAME || !bare.split('.').all(is_label) || bare.rsplit('.').next().is_some_and(is_number) {
        return Err(TargetError::Host);
    }
    Ok(host.to_ascii_lowercase())
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        match &self.location {
            Location::Address(address) => write!(f, "{scheme}://{address}"),
            Location::Name { name, port } => write!(f, "{scheme}://{name}:{port}"),
            Location::Service(name) => write!(f, "srv+{scheme}://{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Target {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_names_and_services_are_distinguished() {
        let v4 = Location::Address("10.0.0.7:8080".parse().unwrap());
        let v6 = Location::Address("[2001:db8::7]:8080".parse().unwrap());
        let name = Location::Name { name: "mcp.default.svc".to_owned(), port: 8080 };
        let service = Location::Service("_mcp._tcp.mcp.default.svc.".to_owned());
        for (text, is_https, location) in [
            ("http://10.0.0.7:8080", false, v4),
            ("HTTPS://[2001:db8::7]:8080", true, v6),
            ("https://MCP.default.svc:8080", true, name),
            ("srv+http://_mcp._tcp.mcp.default.svc.", false, service.clone()),
            ("srv+https://_mcp._tcp.mcp.default.svc.", true, service),
        ] {
            let target = parse(text);
            assert_eq!((target.is_https(), target.location()), (is_https, &location), "{text}");
            assert_eq!(parse(&target.to_string()), target, "{text}");
        }
    }

    #[test]
    fn certificates_are_for_the_configured_name() {
        for (text, certificate_name) in [
            ("https://10.0.0.7:1", "10.0.0.7"),
            ("https://[::1]:1", "::1"),
            ("https://Mcp.svc.:1", "mcp.svc"),
            ("srv+https://_mcp._tcp.mcp.default.svc", "mcp.default.svc"),
            ("srv+https://mcp.default.svc.", "mcp.default.svc"),
            ("srv+https://_mcp", "_mcp"),
            ("srv+https://_mcp.", "_mcp"),
        ] {
            assert_eq!(parse(text).certificate_name(), certificate_name, "{text}");
        }
    }

    #[test]
    fn each_invalid_target_has_its_error() {
        let long_label = format!("http://{}:1", "a".repeat(64));
        let long_name = format!("http://{}a:1", "a.".repeat(127));
        for (text, error) in [
            ("", TargetError::Scheme),
            ("10.0.0.7:8080", TargetError::Scheme),
            ("srv://_mcp._tcp.h", TargetError::Scheme),
            ("http://me:secret@h:1", TargetError::UserInfo),
            ("http://h:1/", TargetError::Path),
            ("http://h:1/mcp", TargetError::Path),
            ("http://h:1?a", TargetError::Path),
            ("http://h:1#a", TargetError::Path),
            ("srv+http://h/mcp", TargetError::Path),
            ("http://h", TargetError::NoPort),
            ("https://10.0.0.7", TargetError::NoPort),
            ("http://[::1]", TargetError::NoPort),
            ("http://h:", TargetError::Port),
            ("http://h:0", TargetError::Port),
            ("http://h:+80", TargetError::Port),
            ("http://h:65536", TargetError::Port),
            ("srv+http://h:80", TargetError::ServicePort),
            ("srv+http://[::1]", TargetError::ServicePort),
            ("http://", TargetError::Host),
            ("http://:80", TargetError::Host),
            ("http://.:80", TargetError::Host),
            ("http://a..b:80", TargetError::Host),
            ("http://a b:80", TargetError::Host),
            ("http://é:80", TargetError::Host),
            ("http://::1:80", TargetError::Host),
            ("http://[::1:80", TargetError::Host),
            ("http://[10.0.0.7]:80", TargetError::Host),
            ("http://h[::1]:80", TargetError::Host),
            ("http://10.0.0.300:80", TargetError::Host),
            ("http://10.0.0:80", TargetError::Host),
            ("srv+http://10.0.0.7", TargetError::Host),
            (&long_label, TargetError::Host),
            (&long_name, TargetError::Host),
        ] {
            assert_eq!(text.parse::<Target>(), Err(error), "{text}");
        }
    }
}
