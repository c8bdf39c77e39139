//! Check of the files that a configuration names, and that `serve` reads when it starts.
//!
//! Absent: binding listeners and opening the store. A directory that is not a store of this
//! program, or an unreachable Redis, is found only at the start.

use super::error::Error;
use super::store_setup;
use crate::config::{self, Config, RedisStore, UpstreamTls};
use crate::ingress;
use crate::otel;
use crate::store::redis::Redis;
use crate::tls::{self, Certificates, Source};
use crate::upstream::Server;

/// Reads all certificates and keys that `serve` would read, and returns the errors. A key file that
/// other users may read is one.
pub fn check_files(config: &Config) -> Vec<Error> {
    let mut errors = Vec::new();
    if let Some(listener) = &config.listen.tls {
        errors.extend(unusable(listener, || Certificates::load(listener.clone()).map(|_| ()).map_err(Error::Tls)));
    }
    errors.extend(config.upstream.headers.load().err().into_iter().flatten().map(Error::Header));
    errors.extend(unusable(&config.upstream.tls, || {
        Server::new(config.upstream.clone()).map(|_| ()).map_err(Error::Tls)
    }));
    if let Some(otel) = &config.otel {
        let files = UpstreamTls { ca: otel.ca.clone(), ..UpstreamTls::default() };
        errors.extend(unusable(&files, || otel::check(otel).map_err(Error::Traces)));
    }
    errors.extend(ingress::read_document(&config.listen).err().map(Error::ResourceMetadata));
    errors.extend(store_setup::load_keys(config).err().map(Error::Keys));
    match &config.store {
        config::Store::Memory | config::Store::Disk(_) => {}
        config::Store::Redis(redis) => {
            let RedisStore { ca, identity, .. } = redis;
            let files = UpstreamTls { ca: ca.clone(), identity: identity.clone(), ..UpstreamTls::default() };
            errors.extend(unusable(&files, || Redis::check(store_setup::redis_options(redis)).map_err(Error::Redis)));
        }
    }
    errors
}

/// Returns an error for each unreadable file. If all are readable, returns the first error of
/// `make`, which parses them.
fn unusable(files: &impl Source, make: impl FnOnce() -> Result<(), Error>) -> Vec<Error> {
    let unreadable = tls::unreadable(files);
    if unreadable.is_empty() {
        make().err().into_iter().collect()
    } else {
        unreadable.into_iter().map(Error::Tls).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{KeyPair, ListenTls};

    #[test]
    fn every_missing_file_is_named() {
        let pair =
            |side: &str| KeyPair { cert: format!("/no/{side}.crt").into(), key: format!("/no/{side}.key").into() };
        let mut config = Config::for_upstream("https://127.0.0.1:9/mcp").expect("a usable URL");
        config.listen.tls = Some(ListenTls { identity: pair("listener"), client_ca: Some("/no/clients.crt".into()) });
        config.upstream.tls = UpstreamTls {
            ca: Some("/no/servers.crt".into()),
            identity: Some(pair("upstream")),
            ..UpstreamTls::default()
        };
        let messages: Vec<String> = check_files(&config).iter().map(ToString::to_string).collect();
        for file in ["listener.crt", "listener.key", "clients.crt", "upstream.crt", "upstream.key", "servers.crt"] {
            assert_eq!(
                messages.iter().filter(|line| line.contains(&format!("/no/{file}"))).count(),
                1,
                "{file}: {messages:?}"
            );
        }
    }
}
