//! What `check` looks at of the files that a configuration names: what `serve` reads when it starts, and nothing else.
//!
//! Absent: listeners, and opening a store. A directory that is no store of ours, and a Redis that is away, show at the start alone.

use super::{Error, store_setup};
use crate::config::{self, Config, RedisStore, UpstreamTls};
use crate::store::redis::Redis;
use crate::tls::{self, Certificates, Source};
use crate::upstream::Upstream;

/// Reads every certificate and key that `serve` would read, and returns what is wrong with each; with files that only their owner may
/// read, also whether that is so.
pub fn check_files(config: &Config) -> Vec<Error> {
    let mut wrong = Vec::new();
    if let Some(listener) = &config.listen.tls {
        wrong.extend(unusable(listener, || Certificates::load(listener.clone()).map(drop).map_err(Error::Tls)));
    }
    wrong.extend(unusable(&config.upstream.tls, || {
        Upstream::new(config.upstream.clone()).map(drop).map_err(Error::Tls)
    }));
    wrong.extend(store_setup::keys(config).err().map(Error::Keys));
    match &config.store {
        config::Store::Memory | config::Store::Disk(_) => {}
        config::Store::Redis(redis) => {
            let RedisStore { ca, identity, .. } = redis;
            let files = UpstreamTls { ca: ca.clone(), identity: identity.clone() };
            wrong.extend(unusable(&files, || Redis::check(store_setup::redis_options(redis)).map_err(Error::Redis)));
        }
    }
    wrong
}

/// Every file that cannot be read. Where all can be, what is wrong with what `make` makes of them, which is one thing at a time.
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
    fn every_file_that_is_not_there_is_named() {
        let pair =
            |side: &str| KeyPair { cert: format!("/no/{side}.crt").into(), key: format!("/no/{side}.key").into() };
        let mut config = Config::for_upstream("https://127.0.0.1:9/mcp").expect("a usable URL");
        config.listen.tls = Some(ListenTls { identity: pair("listener"), client_ca: Some("/no/clients.crt".into()) });
        config.upstream.tls = UpstreamTls { ca: Some("/no/servers.crt".into()), identity: Some(pair("upstream")) };
        let said: Vec<String> = check_files(&config).iter().map(ToString::to_string).collect();
        for file in ["listener.crt", "listener.key", "clients.crt", "upstream.crt", "upstream.key", "servers.crt"] {
            assert_eq!(said.iter().filter(|line| line.contains(&format!("/no/{file}"))).count(), 1, "{file}: {said:?}");
        }
    }
}
