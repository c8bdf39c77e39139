//! Where events rest, as the configuration says: opened, and made known to those that use it.

use std::sync::Arc;

use tracing::{info, warn};

use super::{Error, Metrics};
use crate::clock;
use crate::config::key_file::{self, KeyFile};
use crate::config::{self, Config, OnUnreachable};
use crate::event_log::{Backing, Identity};
use crate::protocol::ids::{Keyring, Owner, StoreEpoch};
use crate::random;
use crate::store::Keys;
use crate::store::disk::{self, Disk};
use crate::store::redis::{self, Redis};

/// A store that is open, and what depends on its contents.
pub(super) struct Rest {
    pub(super) identity: Identity,
    /// Hashes who a caller is.
    pub(super) principal_key: [u8; 32],
    /// `None`: memory is the store.
    pub(super) backing: Option<Backing>,
}

impl Rest {
    /// Nothing that outlives the process, but for what `given` keys sign.
    pub(super) fn in_memory(name: &str, given: Option<&KeyFile>) -> Self {
        Self {
            identity: Identity {
                owner: Owner::from_name(name),
                // The contents are lost at each start.
                epoch: StoreEpoch(u32::from_be_bytes(random::bytes())),
                keys: keyring(given, None),
            },
            principal_key: given.map_or_else(random::bytes, KeyFile::principal_key),
            backing: None,
        }
    }

    /// What `config` says, for a replica that is called `name` unless its store knows better.
    pub(super) async fn open(config: &Config, name: &str, metrics: &Metrics) -> Result<Self, Error> {
        let given = keys(config)?;
        match &config.store {
            config::Store::Memory => Ok(Self::in_memory(name, given.as_ref())),
            config::Store::Disk(disk) => Self::on_disk(disk, config, name, given.as_ref(), metrics).await,
            config::Store::Redis(redis) => Self::in_redis(redis, name, given.as_ref(), metrics).await,
        }
    }

    async fn on_disk(
        disk: &config::DiskStore,
        config: &Config,
        name: &str,
        given: Option<&KeyFile>,
        metrics: &Metrics,
    ) -> Result<Self, Error> {
        let began = clock::now();
        let default_name = name.to_owned();
        let options = disk::Options { path: disk.path.clone(), fsync: disk.fsync, max_bytes: disk.max_bytes };
        let opening = tokio::task::spawn_blocking(move || Disk::open(options, &default_name));
        let disk::Opened { store, keys, name: kept } = opening.await.map_err(|_| Error::Opening)??;
        info!(took = ?clock::now().saturating_duration_since(began), "disk store open");
        if config.replica.name.as_ref().is_some_and(|said| *said != kept) {
            warn!(name = kept, "the store was made under another replica.name, which stays");
        }
        let backing = Backing {
            store,
            shared: None,
            on_unreachable: OnUnreachable::Degrade,
            heard: Arc::default(),
            contents: Arc::default(),
            displacing: Arc::default(),
            metrics: metrics.ingress.event_log.clone(),
        };
        Ok(Self::with(&kept, &keys, given, backing))
    }

    async fn in_redis(
        redis: &config::RedisStore,
        name: &str,
        given: Option<&KeyFile>,
        metrics: &Metrics,
    ) -> Result<Self, Error> {
        let redis::Opened { store, keys } = Redis::connect(redis_options(redis), Owner::from_name(name)).await?;
        info!("Redis store open");
        let backing = Backing {
            store: store.clone(),
            shared: Some(store),
            on_unreachable: redis.on_unreachable,
            heard: Arc::default(),
            contents: Arc::default(),
            displacing: Arc::default(),
            metrics: metrics.ingress.event_log.clone(),
        };
        Ok(Self::with(name, &keys, given, backing))
    }

    /// Whose a stream is was written down under the store's own key: no other may take the place of that one.
    fn with(name: &str, keys: &Keys, given: Option<&KeyFile>, backing: Backing) -> Self {
        let keyring = keyring(given, Some(keys.signing));
        let identity = Identity { owner: Owner::from_name(name), epoch: keys.epoch, keys: keyring };
        Self { identity, principal_key: keys.principal, backing: Some(backing) }
    }
}

/// How the Redis of a configuration is spoken to.
pub(super) fn redis_options(redis: &config::RedisStore) -> redis::Options {
    redis::Options {
        prefix: redis.prefix.clone(),
        ca: redis.ca.clone(),
        identity: redis.identity.clone(),
        ..redis::Options::new(&redis.url)
    }
}

/// The keys that the operator gives.
pub(super) fn keys(config: &Config) -> Result<Option<KeyFile>, key_file::Error> {
    config.replica.key_file.as_deref().map(KeyFile::load).transpose()
}

/// Signs with what is given, else with what is in the store, else with a key that nobody else has; and accepts all of the first two.
fn keyring(given: Option<&KeyFile>, stored: Option<[u8; 32]>) -> Keyring {
    match given {
        Some(given) => given.keyring(stored),
        None => Keyring::new(stored.unwrap_or_else(random::bytes), Vec::new()),
    }
}
