//! Address of Redis: the URL, parsed once.

use std::str::FromStr;

/// Default ports of Redis and of its sentinels.
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// A URL that was understood. `Debug` is left out: it may hold a password.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) kind: Kind,
    pub(super) tls: bool,
    /// One at least.
    pub(super) hosts: Vec<(String, u16)>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
}

/// Kind of deployment at the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One server.
    Single,
    /// Sentinels that know where the master of this name is.
    Sentinel { master: String },
    /// Nodes of a Cluster, which know the others.
    Cluster,
}

/// Why a text is no URL of Redis. Quotes nothing of it: it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Another scheme, or none.
    #[error("must begin with redis://, redis+sentinel:// or redis+cluster://, or the same with rediss for TLS")]
    Scheme,
    /// No host, or an incomplete host.
    #[error("has no host, as in redis://127.0.0.1:6379")]
    Host,
    /// Several hosts where there is one server.
    #[error("names several hosts; give redis+sentinel:// or redis+cluster:// for them")]
    Hosts,
    /// Port 0, above 65535, or a colon with nothing behind it.
    #[error("has a port that is not between 1 and 65535")]
    Port,
    /// Sentinels without the name of a master.
    #[error("names no master, as in redis+sentinel://127.0.0.1:26379/mymaster")]
    Master,
    /// The database is no number.
    #[error("has a database that is not a number of 0 or more")]
    Database,
    /// A Cluster has one database.
    #[error("names a database, and a Cluster has no other than 0")]
    ClusterDatabase,
    /// A query or a fragment: nothing is set there.
    #[error("has a ? or a #, and nothing can be set there; write %3F or %23 in a password")]
    Query,
    /// A percent sign that is not followed by two hexadecimal digits of UTF-8.
    #[error("has a user name or password with a percent sign that encodes nothing")]
    Escape,
}

impl FromStr for Address {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = url.trim().split_once("://").ok_or(UrlError::Scheme)?;
        if rest.contains(['?', '#']) {
            return Err(UrlError::Query);
        }
        let (server, part) = scheme.split_once('+').map_or((scheme, None), |(server, part)| (server, Some(part)));
        let tls = match server {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(UrlError::Scheme),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) =
            authority.rsplit_once('@').map_or((None, authority), |(login, hosts)| (Some(login), hosts));
        let (user, password) = login.map_or(Ok((None, None)), read_login)?;
        let (kind, database) = match part {
            None => (Kind::Single, path),
            Some("cluster") if path.is_empty() || path == "0" => (Kind::Cluster, ""),
            Some("cluster") => return Err(UrlError::ClusterDatabase),
            Some("sentinel") => {
                let (master, database) = path.split_once('/').unwrap_or((path, ""));
                if master.is_empty() {
                    return Err(UrlError::Master);
                }
                (Kind::Sentinel { master: unescape(master)? }, database)
            }
            Some(_) => return Err(UrlError::Scheme),
        };
        let port = if matches!(kind, Kind::Sentinel { .. }) { SENTINEL_PORT } else { PORT };
        let hosts = hosts.split(',').map(|host| read_host(host, port)).collect::<Result<Vec<_>, _>>()?;
        if hosts.len() > 1 && kind == Kind::Single {
            return Err(UrlError::Hosts);
        }
        Ok(Self { kind, tls, hosts, user, password, database: read_database(database)? })
    }
}

fn read_login(login: &str) -> Result<(Option<String>, Option<String>), UrlError> {
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let some = |text: &str| if text.is_empty() { Ok(None) } else { unescape(text).map(Some) };
    Ok((some(user)?, some(password)?))
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`.
fn read_host(text: &str, default: u16) -> Result<(String, u16), UrlError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, behind) = rest.split_once(']').ok_or(UrlError::Host)?;
            (host, if behind.is_empty() { None } else { Some(behind.strip_prefix(':').ok_or(UrlError::Host)?) })
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err(UrlError::Host);
    }
    let port = match port {
        None => default,
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or(UrlError::Port)?,
    };
    Ok((host.to_owned(), port))
}

fn read_database(text: &str) -> Result<i64, UrlError> {
    match text.strip_suffix('/').unwrap_or(text) {
        "" => Ok(0),
        digits => digits.parse::<u32>().map(i64::from).map_err(|_| UrlError::Database),
    }
}

fn unescape(text: &str) -> Result<String, UrlError> {
    let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'%' => {
                let (high, low) = (digit(bytes.next()), digit(bytes.next()));
                (high.ok_or(UrlError::Escape)? * 16 + low.ok_or(UrlError::Escape)?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(plain).map_err(|_| UrlError::Escape)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Address {
        url.parse().unwrap_or_else(|error| panic!("{url} {error}"))
    }

    #[test]
    fn a_url_names_one_server_sentinels_or_a_cluster() {
        let single = read("redis://127.0.0.1");
        assert_eq!((single.kind, single.tls, single.database), (Kind::Single, false, 0));
        assert_eq!(single.hosts, [("127.0.0.1".to_owned(), 6379)]);
        let full = read("rediss://me:a%3Ab%40%2f@[::1]:7000/3");
        assert_eq!((full.tls, full.database, &full.hosts[..]), (true, 3, &[("::1".to_owned(), 7000)][..]));
        assert_eq!((full.user.as_deref(), full.password.as_deref()), (Some("me"), Some("a:b@/")));
        let alone = read("redis://:secret@host/");
        assert_eq!((alone.user, alone.password.as_deref()), (None, Some("secret")));
        let sentinel = read("redis+sentinel://a,b:5/the%20master/2");
        assert_eq!(sentinel.kind, Kind::Sentinel { master: "the master".to_owned() });
        assert_eq!(sentinel.hosts, [("a".to_owned(), 26379), ("b".to_owned(), 5)]);
        assert_eq!(sentinel.database, 2);
        let cluster = read("rediss+cluster://a:1,b:2");
        assert_eq!((cluster.kind, cluster.tls, cluster.hosts.len()), (Kind::Cluster, true, 2));
        assert!(read("valkeys://v").tls);
    }

    #[test]
    fn a_url_that_is_none_says_why() {
        let cases = [
            ("http://a", UrlError::Scheme),
            ("a:6379", UrlError::Scheme),
            ("redis+disk://a", UrlError::Scheme),
            ("redis://", UrlError::Host),
            ("redis://[::1", UrlError::Host),
            ("redis://a,b", UrlError::Hosts),
            ("redis://a:0", UrlError::Port),
            ("redis://a:", UrlError::Port),
            ("redis+sentinel://a", UrlError::Master),
            ("redis://a/-1", UrlError::Database),
            ("redis+cluster://a/1", UrlError::ClusterDatabase),
            ("redis://a?db=1", UrlError::Query),
            ("redis://u:%4@a", UrlError::Escape),
            ("redis://u:%ff@a", UrlError::Escape),
        ];
        for (url, why) in cases {
            assert_eq!(url.parse::<Address>().err(), Some(why), "{url}");
        }
    }
}
