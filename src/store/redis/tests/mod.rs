//! Tests against real servers.

mod coordination;
mod plain;
mod server;
mod trouble;
mod ways;

use std::sync::Arc;
use std::time::Duration;

use self::server::{Admin, Cluster, Common, Server};
use super::{Opened, Options, Redis};
use crate::{Appended, Error, Read, Store, StoreHealth, WriterEpoch, contract};
use mcp_resume_base::random;
use mcp_resume_protocol::ids::{Owner, Seq, StreamId};
use mcp_resume_protocol::stream::Batch;

/// Long enough for every test.
const KEEP: Duration = Duration::from_secs(600);
const PATIENCE: Duration = Duration::from_secs(60);

/// Polls a condition until it is true.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let looking = async {
        while !holds().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Returns a prefix that no other test has.
fn prefix() -> String {
    format!("test-{:016x}:", u64::from_be_bytes(random::bytes()))
}

fn options(url: &str) -> Options {
    Options { prefix: prefix(), key_wait: Duration::ZERO, ..Options::new(url) }
}

async fn connect(options: &Options, owner: u32) -> Arc<Redis> {
    let opened = Redis::connect(options.clone(), Owner(owner)).await;
    opened.unwrap_or_else(|error| panic!("{error}")).store
}

fn name() -> StreamId {
    StreamId::from_bytes(random::bytes())
}

/// Returns a batch of one event after `after`.
fn batch(after: u64, text: &str) -> Batch {
    let mut batch = Batch::starting_at(Seq(after + 1));
    batch.push(b"", text.as_bytes());
    batch
}

async fn append(store: &Redis, stream: StreamId, epoch: WriterEpoch, after: u64) -> Result<Appended, Error> {
    store.append(stream, epoch, Seq(after), &batch(after, "event"), None).wait().await
}

async fn create(store: &Redis) -> (StreamId, WriterEpoch) {
    let stream = name();
    (stream, store.create(stream, b"about", Seq(0), KEEP).wait().await.unwrap())
}

/// Returns the number of events after `after`.
async fn count(store: &Redis, stream: StreamId, after: u64) -> usize {
    match store.read(stream, Seq(after), usize::MAX).wait().await.unwrap() {
        Read::Events(events) => events.len(),
        other => panic!("{other:?}"),
    }
}

async fn ready(store: &Redis) {
    until("Redis is reached", async || store.health() == StoreHealth::Ready).await;
}

async fn unreachable(store: &Redis) {
    until("Redis is not reached", async || store.health() == StoreHealth::Unreachable).await;
}

/// A store with the server that it needs.
struct Fixture<T> {
    store: Arc<Redis>,
    _place: Arc<T>,
}

impl<T> contract::Fixture for Fixture<T> {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }
}

static SERVER: Common<Server> = Common::new();
static CLUSTER: Common<Cluster> = Common::new();

async fn on_a_server() -> Fixture<Server> {
    let place = SERVER.get(Server::start);
    Fixture { store: connect(&options(&place.url()), 1).await, _place: place }
}

async fn on_a_cluster() -> Fixture<Cluster> {
    let place = CLUSTER.get(Cluster::start);
    place.meet().await;
    Fixture { store: connect(&options(&place.url()), 1).await, _place: place }
}

mod single {
    use super::on_a_server;

    crate::contract::suite!(on_a_server().await);
}

mod cluster {
    use super::on_a_cluster;

    crate::contract::suite!(on_a_cluster().await);
}
