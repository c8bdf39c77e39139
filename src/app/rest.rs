//! Where events rest, as the configuration says: opened, and made known to those that use it.

use std::sync::Arc;

use tracing::{info, warn};

use super::Error;
use crate::clock;
use crate::config::{self, Config, OnUnreachable};
use crate::event_log::{Backing, Identity};
use crate::metrics::Metrics;
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
    /// Nothing that outlives the process.
    pub(super) fn in_memory(name: &str) -> Self {
        Self {
            identity: Identity {
                owner: Owner::from_name(name),
                // The contents are lost at each start.
                epoch: StoreEpoch(u32::from_be_bytes(random::bytes())),
                keys: Keyring::new(random::bytes(), Vec::new()),
            },
            principal_key: random::bytes(),
            backing: None,
        }
    }

    /// What `config` says, for a replica that is called `name` unless its store knows better.
    pub(super) async fn open(config: &Config, name: &str, metrics: &Arc<Metrics>) -> Result<Self, Error> {
        match &config.store {
            config::Store::Memory => Ok(Self::in_memory(name)),
            config::Store::Disk(disk) => Self::on_disk(disk, config, name, metrics).await,
            config::Store::Redis(redis) => Self::in_redis(redis, name, metrics).await,
        }
    }

    async fn on_disk(
        disk: &config::DiskStore,
        config: &Config,
        name: &str,
        metrics: &Arc<Metrics>,
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
            heard_until: Arc::default(),
            displacing: Arc::default(),
            metrics: metrics.clone(),
        };
        Ok(Self::with(&kept, &keys, backing))
    }

    async fn in_redis(redis: &config::RedisStore, name: &str, metrics: &Arc<Metrics>) -> Result<Self, Error> {
        let options = redis::Options {
            prefix: redis.prefix.clone(),
            ca: redis.ca.clone(),
            identity: redis.identity.clone(),
            ..redis::Options::new(&redis.url)
        };
        let redis::Opened { store, keys } = Redis::connect(options, Owner::from_name(name)).await?;
        info!("Redis store open");
        let backing = Backing {
            store: store.clone(),
            shared: Some(store),
            on_unreachable: redis.on_unreachable,
            heard_until: Arc::default(),
            displacing: Arc::default(),
            metrics: metrics.clone(),
        };
        Ok(Self::with(name, &keys, backing))
    }

    fn with(name: &str, keys: &Keys, backing: Backing) -> Self {
        let identity =
            Identity { owner: Owner::from_name(name), epoch: keys.epoch, keys: Keyring::new(keys.signing, Vec::new()) };
        Self { identity, principal_key: keys.principal, backing: Some(backing) }
    }
}
