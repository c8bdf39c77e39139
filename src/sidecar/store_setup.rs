//! Opening of the configured store, and the identity and keys that go with its contents.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tracing::{info, warn};

use super::error::Error;
use super::metrics::Metrics;
use crate::clock;
use crate::config::key_file::{self, KeyFile};
use crate::config::{self, Config, KeyPair, OnUnreachable};
use crate::event_log::{Backing, Identity};
use crate::protocol::ids::{Keyring, Owner, StoreEpoch};
use crate::random;
use crate::store::Keys;
use crate::store::disk::{self, Disk};
use crate::store::redis::{self, Redis};

/// An open store, and the values that depend on its contents.
pub(super) struct StoreSetup {
    pub(super) identity: Identity,
    /// Key of the hashes that distinguish callers.
    pub(super) principal_key: [u8; 32],
    /// The store behind the event log, or `None` if events are in memory alone.
    pub(super) backing: Option<Backing>,
}

impl StoreSetup {
    /// Opens the configured store for a replica named `name`; a disk store keeps the name it was
    /// created with. Boxed, so that the callers' futures do not contain the futures of the stores.
    pub(super) fn open<'a>(
        config: &'a Config,
        name: &'a str,
        metrics: &'a Metrics,
    ) -> Pin<Box<dyn Future<Output = Result<Self, Error>> + Send + 'a>> {
        Box::pin(async move {
            let given = load_keys(config)?;
            match &config.store {
                config::Store::Memory => Ok(Self::in_memory(name, given.as_ref())),
                config::Store::Disk(disk) => Self::on_disk(disk, config, name, given.as_ref(), metrics).await,
                config::Store::Redis(redis) => Self::in_redis(redis, name, given.as_ref(), metrics).await,
            }
        })
    }

    /// Sets up memory as the store: nothing outlives the process but signatures by the `given`
    /// keys.
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
        if config.replica.name.as_ref().is_some_and(|configured| *configured != kept) {
            warn!(name = kept, "the store was made under another replica.name, which stays");
        }
        let backing = Backing {
            store,
            coordination: None,
            on_unreachable: OnUnreachable::Degrade,
            lease_health: Arc::default(),
            generation: Arc::default(),
            displacing: Arc::default(),
            released: Arc::default(),
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
            coordination: Some(store),
            on_unreachable: redis.on_unreachable,
            lease_health: Arc::default(),
            generation: Arc::default(),
            displacing: Arc::default(),
            released: Arc::default(),
            metrics: metrics.ingress.event_log.clone(),
        };
        Ok(Self::with(name, &keys, given, backing))
    }

    /// The principal key is always the store's own: the owners of the stored streams were recorded
    /// under it.
    fn with(name: &str, keys: &Keys, given: Option<&KeyFile>, backing: Backing) -> Self {
        let keyring = keyring(given, Some(keys.signing));
        let identity = Identity { owner: Owner::from_name(name), epoch: keys.epoch, keys: keyring };
        Self { identity, principal_key: keys.principal, backing: Some(backing) }
    }
}

/// Returns the options of a Redis connection.
pub(super) fn redis_options(redis: &config::RedisStore) -> redis::Options {
    let identity = redis.identity.clone().map(|KeyPair { cert, key }| redis::Identity { cert, key });
    redis::Options { prefix: redis.prefix.clone(), ca: redis.ca.clone(), identity, ..redis::Options::new(&redis.url) }
}

/// Loads the key file, or returns `None` if none is configured.
pub(super) fn load_keys(config: &Config) -> Result<Option<KeyFile>, key_file::Error> {
    config.replica.key_file.as_deref().map(KeyFile::load).transpose()
}

/// Signs with the first given key, else with the store's key, else with a random one. Accepts the
/// signatures of all given keys and of the store's.
fn keyring(given: Option<&KeyFile>, stored: Option<[u8; 32]>) -> Keyring {
    match given {
        Some(given) => given.keyring(stored),
        None => Keyring::new(stored.unwrap_or_else(random::bytes), Vec::new()),
    }
}
