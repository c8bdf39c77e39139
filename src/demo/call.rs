//! One tool call across the cuts of a bad network, and the verification of the events that arrived.

use std::collections::HashSet;
use std::error::Error as _;
use std::io;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::Client;
use super::error::Error;
use super::relay::Relay;
use crate::protocol::sse::Event;

/// The last number of the tool's count.
pub(super) const COUNT_TO: u64 = 10;
/// The pause before each number.
const INTERVAL_MS: u64 = 300;
/// Reconnect delay of a client that received none.
const DEFAULT_RETRY: Duration = Duration::from_secs(1);

/// Calls `count` through `relay`, which cuts the connection once each progress in `cuts`
/// (ascending) has arrived. After a cut the client resumes if it knows an event ID. Without one the
/// call is lost, and the events that arrived are returned.
pub(super) async fn count(client: &mut Client<'_>, relay: &Relay, cuts: &[u64]) -> Result<ReceivedEvents, Error> {
    let mut received = ReceivedEvents::default();
    let mut cuts = cuts.iter().peekable();
    let mut stream = client.call("count", json!({"to": COUNT_TO, "interval_ms": INTERVAL_MS})).await?;
    loop {
        let ending = match stream.next().await {
            Ok(Some(event)) => {
                client.transcript.event(&event)?;
                received.take(event);
                if cuts.next_if(|cut| received.progress.last() == Some(*cut)).is_some() {
                    relay.cut();
                }
                continue;
            }
            Ok(None) => "the response ended".to_owned(),
            Err(error) => describe(&error),
        };
        if received.responses > 0 {
            return Ok(received);
        }
        client.transcript.cut(&ending)?;
        received.breaks += 1;
        let Some(cursor) = received.cursor.clone() else {
            return Ok(received);
        };
        client.transcript.note(&format!("  the client waits {} ms", received.retry().as_millis()))?;
        tokio::time::sleep(received.retry()).await;
        stream = client.resume(&cursor).await?;
    }
}

fn describe(error: &hyper::Error) -> String {
    let cause = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    match cause.map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionReset) => "connection reset".to_owned(),
        _ => error.to_string(),
    }
}

/// Events of a call so far.
#[derive(Debug, Default)]
pub(super) struct ReceivedEvents {
    /// Every progress value, in the order of arrival.
    pub(super) progress: Vec<u64>,
    /// Number of breaks of the response before the result.
    pub(super) breaks: u32,
    /// Number of JSON-RPC responses, and of responses that report a whole count.
    responses: u32,
    results: u32,
    /// The ids of the events with data, for none may come twice.
    ids: HashSet<String>,
    repeated: Option<String>,
    /// Event ID to resume with, and the delay before.
    cursor: Option<String>,
    retry: Option<Duration>,
    /// Event ID of the third number, to show a replay with.
    pub(super) third: Option<String>,
}

impl ReceivedEvents {
    fn take(&mut self, event: Event) {
        self.retry = event.retry.or(self.retry);
        let id = event.id.as_deref().map(|id| String::from_utf8_lossy(id).into_owned());
        self.cursor = id.clone().or(self.cursor.take());
        if event.data.is_empty() {
            return;
        }
        let message: Value = serde_json::from_slice(&event.data).unwrap_or_default();
        self.progress.extend(message["params"]["progress"].as_u64());
        if message.get("result").is_some() || message.get("error").is_some() {
            self.responses += 1;
            let text = message["result"]["content"][0]["text"].as_str();
            self.results += u32::from(text == Some(format!("counted to {COUNT_TO}").as_str()));
        }
        if let Some(id) = id {
            if self.progress.len() == 3 && self.third.is_none() {
                self.third = Some(id.clone());
            }
            if let Some(repeated) = self.ids.replace(id) {
                self.repeated = Some(repeated);
            }
        }
    }

    fn retry(&self) -> Duration {
        self.retry.unwrap_or(DEFAULT_RETRY)
    }

    /// Checks that every number arrived exactly once and in order, then the result, once. The error
    /// describes the violation.
    pub(super) fn verify(&self) -> Result<(), String> {
        if let Some(id) = &self.repeated {
            return Err(format!("the id {id} came twice"));
        }
        if !self.progress.iter().copied().eq(1..=COUNT_TO) {
            return Err(format!("of the numbers 1 to {COUNT_TO}, these arrived: {:?}", self.progress));
        }
        if (self.responses, self.results) != (1, 1) {
            return Err(format!("{} responses came, {} of them the result", self.responses, self.results));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str, data: &str) -> Event {
        Event { id: Some(id.to_owned().into()), data: data.to_owned().into(), ..Event::default() }
    }

    fn progress(n: u64) -> Event {
        let data = json!({"params": {"progress": n, "total": COUNT_TO}});
        event(&format!("h.{n}"), &data.to_string())
    }

    fn result() -> Event {
        let text = format!("counted to {COUNT_TO}");
        let data = json!({"id": 2, "result": {"content": [{"type": "text", "text": text}]}});
        event(&format!("h.{}", COUNT_TO + 1), &data.to_string())
    }

    fn received(events: impl IntoIterator<Item = Event>) -> ReceivedEvents {
        let mut received = ReceivedEvents::default();
        for event in events {
            received.take(event);
        }
        received
    }

    fn whole() -> Vec<Event> {
        (1..=COUNT_TO).map(progress).chain([result()]).collect()
    }

    #[test]
    fn a_whole_call_is_verified() {
        assert_eq!(received(whole()).verify(), Ok(()));
    }

    #[test]
    fn a_lost_repeated_or_misplaced_event_is_seen() {
        for (name, spoil) in [
            ("lost number", (|events| _ = events.remove(4)) as fn(&mut Vec<Event>)),
            ("lost result", |events| _ = events.pop()),
            ("repeated number", |events| events.insert(5, progress(5))),
            ("repeated result", |events| events.push(result())),
            ("repeated id", |events| events[4].id = Some("h.4".into())),
            ("misplaced number", |events| events.swap(4, 5)),
            ("error for the result", |events| {
                events.last_mut().unwrap().data = r#"{"id":2,"error":{"code":-32010,"message":"gone"}}"#.into();
            }),
        ] {
            let mut events = whole();
            spoil(&mut events);
            assert!(received(events).verify().is_err(), "{name}");
        }
    }

    #[test]
    fn an_empty_event_moves_the_cursor_and_nothing_else() {
        let retry = Some(Duration::from_millis(250));
        let prime = Event { retry, ..event("h.0", "") };
        let received = received([prime]);
        assert_eq!(received.cursor.as_deref(), Some("h.0"));
        assert_eq!(received.retry(), Duration::from_millis(250));
        assert!(received.progress.is_empty() && received.ids.is_empty());
    }
}
