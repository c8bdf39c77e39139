//! One response: read under its fault, shown to the model event by event, judged at its end.

use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::caller::{Caller, Ended, ExchangeOutcome};
use super::connection::{Connection, LONGEST};
use crate::model::{Reading, Taken};
use crate::plan::Fault;
use crate::wire::{Events, Head, Part};

/// A slow reader loses its slowness after so many reads: no run waits for the last byte of a long
/// response.
const SLOW_READS: usize = 200;

/// One use of a connection.
pub(super) struct Errand<'a> {
    pub(super) request: &'a str,
    /// The number the response has to go on from, if that is known.
    pub(super) cursor: Option<u64>,
    pub(super) is_post: bool,
    /// The connection's own, among those of its call.
    pub(super) number: usize,
    pub(super) fault: &'a Fault,
}

/// Response as far as it was read.
#[derive(Default)]
struct Response {
    status: u16,
    reading: Option<Reading>,
    events: Events,
    body: Vec<u8>,
    progress: bool,
    seen: usize,
    /// Bytes, and how often some were read.
    taken: usize,
    reads: usize,
}

impl Response {
    /// Draws the size and the delay of the next read, or ends the connection by `fault`.
    fn next_read(&mut self, fault: &Fault) -> Result<(usize, Duration), Box<ExchangeOutcome>> {
        match fault {
            Fault::Cut(at) if self.taken >= *at => Err(ExchangeOutcome::Cut(self.progress).into()),
            Fault::CutAfterEvents(count) if self.seen >= *count => Err(ExchangeOutcome::Cut(self.progress).into()),
            Fault::Hang(at, hold) if self.taken >= *at => {
                Err(ExchangeOutcome::Hung(self.progress, self.reading.take(), std::mem::take(&mut self.events), *hold)
                    .into())
            }
            Fault::Cut(at) | Fault::Hang(at, _) => Ok((at - self.taken, Duration::ZERO)),
            Fault::Slow(size, pause) if self.reads < SLOW_READS => Ok((*size, *pause)),
            _ => Ok((usize::MAX, Duration::ZERO)),
        }
    }
}

/// False where the connection is gone before the request was whole.
async fn send(connection: &mut Connection, errand: &Errand<'_>) -> bool {
    let request = errand.request.as_bytes();
    if let Fault::CutRequest(at) = errand.fault {
        let _ = connection.pipe.write_all(&request[..request.len().min(*at)]).await;
        return false;
    }
    connection.pipe.write_all(request).await.is_ok()
}

impl Caller {
    pub(super) async fn converse(&mut self, connection: &mut Connection, errand: &Errand<'_>) -> ExchangeOutcome {
        let world = self.world.clone();
        if !send(connection, errand).await {
            return ExchangeOutcome::Cut(false);
        }
        let asked = world.now();
        if errand.is_post {
            world.model().call(self.key).posted.get_or_insert(world.elapsed());
        }
        let mut response = Response::default();
        loop {
            if let Some(told) = self.take_parts(connection, errand, asked, &mut response) {
                return told;
            }
            let (most, pause) = match response.next_read(errand.fault) {
                Ok(next) => next,
                Err(told) => return *told,
            };
            if !pause.is_zero() {
                world.sleep(pause).await;
            }
            response.reads += 1;
            let silence = self.longest_silence(errand, &response);
            match timeout(silence, connection.read(&world, most)).await {
                Ok(Some(read)) => response.taken += read,
                Ok(None) => return ExchangeOutcome::Cut(response.progress),
                Err(_) => {
                    world.blame(format!("{}: silent for {silence:?}", connection.name));
                    return ExchangeOutcome::Wrong;
                }
            }
        }
    }

    fn longest_silence(&self, errand: &Errand<'_>, response: &Response) -> Duration {
        let longest = match response.reading {
            Some(_) => self.world.plan.config.delivery.heartbeat + Duration::from_millis(2),
            None if errand.is_post || self.key.1 == 0 => LONGEST,
            None => Duration::from_millis(2),
        };
        longest + self.world.jumped()
    }

    /// Takes what was read; says how the connection was used, once that is known.
    fn take_parts(
        &mut self,
        connection: &mut Connection,
        errand: &Errand<'_>,
        asked: Instant,
        response: &mut Response,
    ) -> Option<ExchangeOutcome> {
        while let Some(part) = connection.parser.next() {
            match part {
                Part::Head(head) => {
                    if let Some(told) = self.take_head(&connection.name, errand, asked, &head, response) {
                        return Some(told);
                    }
                }
                Part::Data(data) if response.reading.is_some() => {
                    response.events.feed(&data);
                    if !self.take_events(response) {
                        return Some(ExchangeOutcome::Wrong);
                    }
                }
                Part::Data(data) => response.body.extend(data),
                Part::End => return Some(self.finish(std::mem::take(response))),
            }
        }
        None
    }

    fn take_head(
        &self,
        name: &str,
        errand: &Errand<'_>,
        asked: Instant,
        head: &Head,
        response: &mut Response,
    ) -> Option<ExchangeOutcome> {
        let world = &self.world;
        let is_stream = head.header("content-type") == Some("text/event-stream");
        response.status = head.status();
        let expected = [200, 204].contains(&response.status);
        let is_ended = response.status == 404 && world.model().deleted.contains(&self.key.0);
        let refused = self.key.1 == 0 && (is_ended || (response.status >= 500 && world.plan.may_be_down()));
        if refused {
            return Some(ExchangeOutcome::Cut(false));
        }
        if !errand.is_post && !expected {
            world.blame(format!("{name}: a resume was answered {}", head.line));
            return Some(ExchangeOutcome::Wrong);
        }
        if is_stream && response.status == 200 {
            let prompt = !matches!(errand.fault, Fault::Slow(..));
            response.reading = Some(Reading::new(errand.number, errand.cursor, prompt, (asked, world.now())));
        }
        None
    }

    fn take_events(&mut self, response: &mut Response) -> bool {
        let world = self.world.clone();
        let Some(reading) = &mut response.reading else { return false };
        while let Some(event) = response.events.next() {
            let taken = world.model().take(&world.plan, self.key, reading, &event, world.now());
            let Some(taken) = world.check(taken) else { return false };
            if let Some(retry) = event.retry {
                self.retry = Duration::from_millis(retry);
            }
            if let Some(id) = event.id.filter(|id| !id.ends_with(".end")) {
                self.ids.push(id);
                self.highest = self.highest.max(reading.cursor());
                self.spy();
            }
            match taken {
                Taken::Nothing => continue,
                Taken::Notice | Taken::Farewell => {}
                Taken::Ask(ask, id, text) => self.answer(ask, id, text),
                Taken::Answer(requests) => {
                    self.answered.extend(requests);
                    self.is_answered = self.answered.len() == self.call.script.requests;
                }
                Taken::Lost => {
                    self.is_lost = true;
                    world.reach("a lost stream");
                }
            }
            response.seen += 1;
            response.progress = true;
        }
        true
    }

    /// The response is complete.
    fn finish(&mut self, response: Response) -> ExchangeOutcome {
        let world = self.world.clone();
        let Some(reading) = response.reading else {
            return self.finish_plain(response.status, &response.body);
        };
        if self.is_lost || (self.is_answered && reading.cursor() >= self.highest) {
            return ExchangeOutcome::Whole(Ended::Over);
        }
        // Where bounds are tight, a batch's first answers may be gone: who comes without a place is
        // told of a gap.
        if world.plan.is_tight() && self.call.script.requests > 1 && !self.answered.is_empty() {
            return ExchangeOutcome::Whole(Ended::Over);
        }
        let allowed = world.model().end_early(&world.plan, self.key, &reading, world.now());
        match world.check(allowed) {
            Some(()) => {
                world.reach("a response closed early");
                ExchangeOutcome::Whole(Ended::Early { progress: response.progress })
            }
            None => ExchangeOutcome::Wrong,
        }
    }

    fn finish_plain(&mut self, status: u16, body: &[u8]) -> ExchangeOutcome {
        let world = self.world.clone();
        if status == 204 {
            let is_ended = self.key.1 == 0 && world.model().deleted.contains(&self.key.0);
            if !self.is_answered && !is_ended && !world.model().call(self.key).cancelled {
                world.blame(format!("{:?}: an end without an answer", self.key));
            }
            world.reach("a resume at the end");
            return ExchangeOutcome::Whole(Ended::Over);
        }
        let body = String::from_utf8_lossy(body);
        let taken = world.model().take_plain(&world.plan, self.key, status, &body, world.now());
        match world.check(taken) {
            Some(()) => ExchangeOutcome::Whole(Ended::Over),
            None => ExchangeOutcome::Wrong,
        }
    }
}
