//! This replica, one of several with the same store.
//!
//! Owned here: the lease ([`lease`]), requests to other replicas ([`rpc`]), and the messages from
//! them. The event log decides what follows from a message about readers ([`EventLog`]); the
//! ingress handles requests that another replica has forwarded. Absent: the meaning of a request.

mod lease;
mod rpc;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::{debug, info, warn};

pub use rpc::{Absence, Requests};

use crate::clock;
use crate::event_log::{Displaced, EventLog, READER_HOLD};
use crate::protocol::cluster::{HttpMessage, Message, RepeatedCall};
use crate::protocol::ids::Owner;
use crate::store::{Coordination, Error, Renewal};
use lease::{LeaseKeeper, PAUSE};

/// Interval of the search for displaced readers, without a message about one.
const DISPLACED_INTERVAL: Duration = Duration::from_secs(1);

/// Cause of a process that cannot join the replicas.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// Another living process has its name.
    #[error(
        "another process that uses this store is called the same and was heard of within the last {0:?}: \
         give each a replica.name of its own"
    )]
    Taken(Duration),
    /// The store failed.
    #[error("the store cannot be used: {0}")]
    Store(#[from] Error),
}

/// This replica, one of several with the same store.
pub struct Replicas {
    coordination: Arc<dyn Coordination>,
    log: Arc<EventLog>,
    lease: Duration,
    requests: Requests,
    is_name_taken: AtomicBool,
}

impl Replicas {
    /// Takes this replica's name, and ends the streams that an earlier process of this name left
    /// open. If that process still holds a lease, waits until the lease has expired.
    ///
    /// # Errors
    /// If another living process has the name, or the store fails.
    pub async fn begin(
        coordination: Arc<dyn Coordination>,
        log: Arc<EventLog>,
        lease: Duration,
    ) -> Result<Arc<Self>, BeginError> {
        if coordination.renew(lease).wait().await? == Renewal::HeldByAnother {
            info!(?lease, "a process of this name was running a moment ago: waiting until it counts as gone");
            // A little longer, because the lease is renewed three times in its length.
            clock::sleep(lease + lease / 10).await;
            if coordination.renew(lease).wait().await? == Renewal::HeldByAnother {
                return Err(BeginError::Taken(lease));
            }
        }
        let left = log.adoption().recover().await?;
        if left > 0 {
            info!(streams = left, "ended the streams that this replica left open before");
        }
        log.resync().note_generation(coordination.epoch(), *coordination.possible_losses().borrow(), lease);
        let requests = Requests::new(coordination.clone(), log.clone());
        Ok(Arc::new(Self { coordination, log, lease, requests, is_name_taken: AtomicBool::new(false) }))
    }

    /// Returns the id of this replica.
    pub fn owner(&self) -> Owner {
        self.coordination.owner()
    }

    /// Returns true if another process has taken the name of this one, which then serves nothing
    /// new.
    pub fn is_name_taken(&self) -> bool {
        self.is_name_taken.load(Ordering::Relaxed)
    }

    /// Returns the requests to other replicas.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Keeps the lease, ends the streams of replicas that are gone, and takes messages, until
    /// dropped. `take` handles a forwarded request, or returns `None` if the request concerns
    /// nothing here.
    pub async fn run<F>(&self, take: impl Fn(HttpMessage) -> F)
    where
        F: Future<Output = Option<HttpMessage>> + Send + 'static,
    {
        let keeper = LeaseKeeper::new(&*self.coordination, &self.log, self.lease, &self.is_name_taken);
        tokio::join!(keeper.run(), self.receive(take), self.watch_readers());
    }

    /// Ends the lease. No stream may be open here any more.
    pub async fn leave(&self) {
        self.log.claims().leave_all();
        if let Err(error) = self.coordination.release().wait().await {
            warn!(%error, "the lease could not be released: it expires by itself");
        }
    }

    async fn receive<F>(&self, take: impl Fn(HttpMessage) -> F)
    where
        F: Future<Output = Option<HttpMessage>> + Send + 'static,
    {
        loop {
            match self.coordination.receive().wait().await {
                Ok(messages) => {
                    for message in messages {
                        self.dispatch(&message, &take).await;
                    }
                }
                Err(error) => {
                    debug!(%error, "messages of other replicas cannot be received");
                    clock::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn dispatch<F>(&self, message: &[u8], take: &impl Fn(HttpMessage) -> F)
    where
        F: Future<Output = Option<HttpMessage>> + Send + 'static,
    {
        match Message::decode(message) {
            Some(Message::Reader(reader)) => self.displace(self.log.remote_readers().note_report(&reader)).await,
            Some(Message::Displaced { stream, attach }) => self.log.remote_readers().displace(stream, attach),
            Some(Message::Request { from, number, request }) => {
                let (coordination, taken) = (self.coordination.clone(), take(request));
                // Spawned: the upstream may take its time, and other messages do not wait for it.
                tokio::spawn(async move {
                    let reply = Message::Reply { number, reply: taken.await };
                    rpc::reply(&*coordination, from, reply).await;
                });
            }
            Some(Message::Reply { number, reply }) => self.requests.take_reply(number, reply),
            Some(Message::Repeated { from, number, call, run, body }) => {
                let (coordination, log) = (self.coordination.clone(), self.log.clone());
                // Spawned: the reply may wait for a first event of the upstream.
                tokio::spawn(async move {
                    let known = match body {
                        Some(body) => log.claims().lookup_retry(&call, run, &body).await,
                        None => RepeatedCall::Nothing,
                    };
                    rpc::reply(&*coordination, from, Message::Known { number, known }).await;
                });
            }
            Some(Message::Known { number, known }) => self.requests.take_known(number, known),
            Some(Message::Where { from, number, stream }) => {
                let upto = self.log.restoration().written_upto(stream);
                rpc::reply(&*self.coordination, from, Message::There { number, upto }).await;
            }
            Some(Message::There { number, upto }) => self.requests.take_position(number, upto),
            None => debug!("a message of another replica cannot be decoded"),
        }
    }

    async fn watch_readers(&self) {
        loop {
            tokio::select! {
                biased;
                () = self.log.remote_readers().wait_for_displaced() => {}
                () = clock::sleep(DISPLACED_INTERVAL) => {}
            }
            self.displace(self.log.remote_readers().take_displaced()).await;
        }
    }

    async fn displace(&self, displaced: Vec<Displaced>) {
        for (to, stream, attach) in displaced {
            let message = Message::Displaced { stream, attach }.encode();
            if let Err(error) = self.coordination.send(to, &message, READER_HOLD).wait().await {
                debug!(stream.id = %stream, %error, "a reader could not be notified that it is displaced");
            }
        }
    }
}
