//! Errors of the start of a sidecar.

use std::io;

use crate::cluster::BeginError;
use crate::config::{HeaderError, key_file};
use crate::ingress::DocumentError;
use crate::server::listener::BindError;
use crate::store::{self, disk, redis};
use crate::{otel, tls};

/// Cause of a sidecar that could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A listener could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A worker thread or its runtime could not be created.
    #[error("cannot start a worker: {0}")]
    Thread(#[source] io::Error),
    /// The TLS files cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// The directory of the disk store cannot be used.
    #[error("the disk store cannot be opened: {0}")]
    Disk(#[from] disk::OpenError),
    /// The Redis store cannot be used.
    #[error(transparent)]
    Redis(#[from] redis::OpenError),
    /// The key file cannot be used.
    #[error(transparent)]
    Keys(#[from] key_file::Error),
    /// The task that opens the store has panicked.
    #[error("the store could not be opened")]
    Opening,
    /// The value of a static header cannot be used.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Streams that an earlier process left open could not be ended.
    #[error("the contents of the store could not be recovered: {0}")]
    Recovery(#[from] store::Error),
    /// This process cannot join the replicas that share its store.
    #[error(transparent)]
    Replica(#[from] BeginError),
    /// The guard of the server's processes could not be started.
    #[error("cannot guard the processes of the MCP server: {0}")]
    Children(#[source] io::Error),
    /// The metadata of the server as a resource cannot be used.
    #[error(transparent)]
    ResourceMetadata(#[from] DocumentError),
    /// The traces cannot be exported.
    #[error(transparent)]
    Traces(#[from] otel::Error),
    /// Two metrics have the same name.
    #[error("cannot register the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}
