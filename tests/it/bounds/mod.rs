//! Each bound of `docs/operations.md`, filled over real HTTP while a second caller's stream is
//! watched: its events arrive while the flood goes on, in order, and none is missing. The watching
//! is by events, not by time.

mod batches;
mod bodies;
mod calls;
mod connections;
mod heads;
mod large;
mod memory;
mod pending;
mod resumes;
pub(crate) mod sessions;

use crate::support::*;
use mcp_resume::config::Config;

/// An upstream, a proxy with these bounds and an admin page, and the caller who fills them.
async fn bounded(change: impl FnOnce(&mut Config)) -> (Upstream, Proxy, Session) {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |c| {
        c.admin.address = Some(([127, 0, 0, 1], 0).into());
        change(c);
    })
    .await;
    let session = Session::open_as(&proxy, &mut upstream, V2025_11, "s-flood", Some("Bearer flood")).await;
    (upstream, proxy, session)
}

/// Another caller, whose stream must not notice anything.
struct Neighbour {
    session: Session,
    sse: Sse,
    response: Response,
    place: EventId,
    events: u64,
}

impl Neighbour {
    async fn moves_in(proxy: &Proxy, upstream: &mut Upstream) -> Neighbour {
        let session = Session::open_as(proxy, upstream, V2025_11, "s-neighbour", Some("Bearer neighbour")).await;
        let (sse, mut response) = begin(proxy, upstream, &session.post(call(1))).await;
        let place = EventId::of(response.prime().await.id());
        Neighbour { session, sse, response, place, events: 0 }
    }

    /// Receives one more event of its stream in time, under any load.
    async fn hears(&mut self) {
        self.events += 1;
        self.sse.event(progress(self.events)).await;
        let event = self.response.event().await;
        assert_eq!(event.id(), self.place.at(self.events));
        assert_eq!(event.bytes(), progress(self.events).as_bytes());
    }

    /// Ends its call as without the load.
    async fn moves_out(mut self) {
        self.hears().await;
        self.sse.finish(result(1)).await;
        assert_eq!(self.response.event().await.bytes(), result(1).as_bytes());
        self.response.ends().await;
    }
}

fn sized(n: usize, size: usize) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"n","params":{{"n":{n},"t":"{}"}}}}"#, "x".repeat(size))
}

/// Asserts a refusal that names when to come back.
async fn assert_refused(mut response: Response, status: u16, fault: &str) {
    assert_eq!(response.status, status);
    assert_eq!(response.header("retry-after"), Some("1"));
    let message = response.json().await;
    assert_eq!(message["error"]["code"], BOUND, "{message}");
    assert_eq!(message["error"]["data"]["fault"], fault, "{message}");
    assert_eq!(message["error"]["data"]["mayHaveRun"], false, "{message}");
}

fn rejects(reason: &str) -> String {
    format!("mcp_resume_rejects_total{{reason=\"{reason}\"}}")
}
