//! What `check` looks at of the files that a configuration names: what `serve` reads when it starts, and nothing else.
//!
//! Absent: listeners, and opening a store. A directory that is no store of ours, and a Redis that is away, show at the start alone.

use super::{Error, rest};
use crate::config::{self, Config};
use crate::store::redis::Redis;
use crate::tls::Certificates;
use crate::upstream::Upstream;

/// Reads every certificate and key that `serve` would read, and returns what is wrong with each; with files that only their owner may
/// read, also whether that is so.
pub fn check_files(config: &Config) -> Vec<Error> {
    let listener = config.listen.tls.clone().map(Certificates::load).transpose().map(drop).map_err(Error::Tls);
    let upstream = Upstream::new(config.upstream.clone()).map(drop).map_err(Error::Tls);
    let keys = rest::keys(config).map(drop).map_err(Error::Keys);
    let store = match &config.store {
        config::Store::Memory | config::Store::Disk(_) => Ok(()),
        config::Store::Redis(redis) => Redis::check(rest::redis_options(redis)).map_err(Error::Redis),
    };
    [listener, upstream, keys, store].into_iter().filter_map(Result::err).collect()
}
