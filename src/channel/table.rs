//! Table of the channels of one server: sessions, servers, and starts.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use super::caller::{Caller, Sharers};
use super::limits::Limits;
use super::link::Open;
use super::pending_start::{PendingStart, StartFailure};
use super::pool::{Occupant, StartRate};
use super::server::Server;
use super::server_era::ServerEra;
use super::settings::Settings;
use super::start_gate::StartGate;
use super::start_queue::StartQueue;
use crate::protocol::channel::ids::MemberKey;
use crate::random;

/// All channels of one server. Clones of the `Arc` share them.
pub struct Channels {
    pub(super) open: Box<dyn Open>,
    pub(super) settings: Settings,
    pub(super) limits: Limits,
    /// Runtime of all starts and ends. It outlives the runtimes of the workers.
    pub(super) runtime: Handle,
    pub(super) state: Mutex<State>,
    pub(super) era: ServerEra,
    /// Held during a discovery of the era.
    pub(super) discovery: Arc<tokio::sync::Mutex<()>>,
    /// Notified when a server has ended or became idle, and when another start may be next.
    pub(super) room: Notify,
}

/// A server that sessions share.
pub(super) struct SharedServer {
    pub(super) server: Arc<Server>,
    /// Response of the server to `initialize`.
    pub(super) initialize_response: Bytes,
}

/// The start of a channel for requests without sessions, with its outcome at the end.
pub(super) type SharedStart = watch::Receiver<Option<Result<Arc<Server>, StartFailure>>>;

/// A session at its server.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) server: Arc<Server>,
    pub(super) member: MemberKey,
}

impl Session {
    /// Returns a name that cannot be guessed.
    pub(super) fn new_name() -> String {
        random::bytes::<16>().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[derive(Default)]
pub(super) struct State {
    /// Sessions, by name.
    pub(super) sessions: HashMap<String, Session>,
    /// Servers that sessions share.
    pub(super) shared: HashMap<Sharers, SharedServer>,
    /// Channels without sessions, by caller.
    pub(super) without_sessions: HashMap<Option<Arc<Caller>>, SharedStart>,
    /// All running servers by number, including servers whose session has no name yet.
    pub(super) servers: HashMap<u64, Arc<Server>>,
    /// Pending starts, by start number.
    pub(super) pending_starts: BTreeMap<u64, PendingStart>,
    /// Server with sessions that was asked for its revisions, and waits for the first session.
    pub(super) asked: Option<Arc<Server>>,
    pub(super) start_rate: StartRate,
    pub(super) start_gate: StartGate,
    /// Starts that wait for their turn or for room. `None` for a start that needs no turn any more.
    pub(super) start_queue: StartQueue<Option<PendingStart>>,
    pub(super) next_start: u64,
    pub(super) is_draining: bool,
}

impl State {
    /// Returns the running and starting servers, as the bounds see them.
    pub(super) fn occupants(&self) -> Vec<Occupant> {
        let given_up = |server: &Server| {
            let of_server = |start: &&PendingStart| start.server.as_ref().is_some_and(|it| it.number == server.number);
            self.pending_starts.values().find(of_server).and_then(PendingStart::unwanted_since)
        };
        let counted_as = |caller: &Option<Arc<Caller>>| caller.as_ref().map(|caller| caller.counted_as().clone());
        let servers = self.servers.values().filter(|server| server.connection.ending().is_none());
        let servers = servers.map(|server| Occupant {
            number: Some(server.number),
            caller: counted_as(&server.caller),
            unused_since: server.unused_since().or_else(|| given_up(server)),
        });
        let starting = self.pending_starts.values().filter(|start| start.server.is_none());
        let starting =
            starting.map(|start| Occupant { number: None, caller: counted_as(&start.caller), unused_since: None });
        servers.chain(starting).collect()
    }
}
