//! A recorded exchange cut at every byte and resumed: the same bytes as the uncut one.

use crate::support::*;

/// An event as the application sees it.
type Seen = (Option<String>, Vec<u8>);

/// Time at which the upstream sends the events that the client has not read yet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rest {
    /// All at once, before the client reads.
    Before,
    /// After the cut, while no client is there.
    Away,
    /// After the client has come back.
    Back,
}

/// The events of the exchange as the upstream writes them.
fn wire(id: u64) -> Vec<String> {
    vec![
        format!("event: message\ndata: {}\n\n", progress(1)),
        "event: odd\ndata: {\"two\":\ndata:  \"lines\"}\n\n".to_owned(),
        format!("data: {}\n\n", progress(2)),
        format!("event: message\ndata: {}\n\n", result(id)),
    ]
}

/// The events of the exchange as a client must see them.
fn expected(id: u64) -> Vec<Seen> {
    let message = Some("message".to_owned());
    vec![
        (message.clone(), progress(1).into_bytes()),
        (Some("odd".to_owned()), b"{\"two\":\n \"lines\"}".to_vec()),
        (None, progress(2).into_bytes()),
        (message, result(id).into_bytes()),
    ]
}

fn seen(frame: Frame) -> Seen {
    (frame.event, frame.data.unwrap_or_default())
}

/// Events that the first connection brought before the cut.
struct Cut {
    events: Vec<Seen>,
    last_id: Option<String>,
    complete: bool,
}

/// An upstream answer in progress and the events it has still to send.
struct Script {
    sse: Option<Sse>,
    left: std::vec::IntoIter<String>,
}

impl Script {
    /// Sends the next event; false when there is none.
    async fn step(&mut self) -> bool {
        let Some(sse) = &self.sse else { return false };
        match self.left.next() {
            Some(event) => sse.bytes(event).await,
            None => match self.sse.take() {
                Some(sse) => sse.end().await,
                None => return false,
            },
        }
        true
    }

    async fn finish(&mut self) {
        while self.step().await {}
    }
}

/// Reads until the client's limit, letting the upstream speak only when the client waits.
async fn read_until_cut(client: Client, script: &mut Script) -> Cut {
    let mut cut = Cut { events: Vec::new(), last_id: None, complete: false };
    let Ok(response) = client.try_response().await else {
        return cut;
    };
    let mut response = response.sse();
    let mut owed = 0;
    // The empty first event, then one event for each step.
    while let Some(frame) = response.frame().await {
        cut.last_id = response.last_id().map(str::to_owned);
        if frame.is_event() {
            cut.events.push(seen(frame));
            owed -= 1;
        }
        if owed == 0 {
            script.step().await;
            owed = 1;
        }
    }
    cut.complete = response.end() == Some(End::Complete);
    response.reset();
    cut
}

/// Begins the exchange with a client that reads `limit` bytes.
async fn first_part(
    proxy: &Proxy,
    upstream: &mut Upstream,
    request: &Request,
    (id, limit, rest): (u64, usize, Rest),
) -> (Cut, Script) {
    let client = request.start(proxy.addr).await.stop_after(limit);
    let sse = upstream.next().await.sse().await;
    let mut script = Script { sse: Some(sse), left: wire(id).into_iter() };
    if rest == Rest::Before {
        script.finish().await;
    }
    let cut = read_until_cut(client, &mut script).await;
    if rest == Rest::Away {
        script.finish().await;
    }
    (cut, script)
}

/// Reads what a resumed connection brings; `None` where there was nothing left.
async fn second_part(response: Response, script: &mut Script) -> Vec<Seen> {
    if response.status == 204 {
        return Vec::new();
    }
    let mut response = response.sse();
    let mut events = Vec::new();
    let mut first = true;
    while let Some(frame) = response.frame().await {
        if frame.is_event() {
            assert!(!first, "a resumed connection starts with an empty event");
            events.push(seen(frame));
        }
        first = false;
        script.finish().await;
    }
    assert_eq!(response.end(), Some(End::Complete));
    events
}

async fn cut_everywhere(rest: Rest) {
    let (mut upstream, proxy, session) = setup().await;
    let mut bytes = 0;
    for limit in 1.. {
        let id = 10_000 + limit as u64;
        let request = session.post(call(id));
        let (cut, mut script) = first_part(&proxy, &mut upstream, &request, (id, limit, rest)).await;
        let back = match &cut.last_id {
            Some(last) => session.resume(last),
            // Nothing names the place: the same request again finds the call running. The proxy
            // must have noticed that the first client is gone.
            None => {
                settle(&proxy, &mut upstream).await;
                request.clone()
            }
        };
        let response = back.send(proxy.addr).await;
        let mut all = cut.events;
        all.extend(second_part(response, &mut script).await);
        assert_eq!(all, expected(id), "{rest:?}, cut after {limit} bytes");
        assert!(upstream.is_quiet(), "{rest:?}, {limit}: the tool ran twice");
        bytes = limit;
        if cut.complete {
            break;
        }
    }
    assert!(bytes > 500, "the exchange was cut at {bytes} places");
}

#[tokio::test]
async fn a_finished_answer_cut_at_every_byte_is_resumed_whole() {
    cut_everywhere(Rest::Before).await;
}

#[tokio::test]
async fn an_answer_cut_at_every_byte_and_finished_meanwhile_is_resumed_whole() {
    cut_everywhere(Rest::Away).await;
}

#[tokio::test]
async fn an_answer_cut_at_every_byte_and_finished_later_is_resumed_whole() {
    cut_everywhere(Rest::Back).await;
}

#[tokio::test]
async fn a_modern_answer_cut_at_every_byte_after_its_first_id_is_resumed_whole() {
    let mut upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream, |_| {}).await;
    let mut resumed = 0;
    for limit in 1.. {
        let id = 10_000 + limit as u64;
        let (cut, mut script) = first_part(&proxy, &mut upstream, &modern(id), (id, limit, Rest::Away)).await;
        let Some(last) = &cut.last_id else { continue };
        let response = modern_resume(last).send(proxy.addr).await;
        let mut all = cut.events;
        all.extend(second_part(response, &mut script).await);
        assert_eq!(all, expected(id), "cut after {limit} bytes");
        resumed += 1;
        if cut.complete {
            break;
        }
    }
    assert!(resumed > 300, "the exchange was resumed {resumed} times");
    assert!(upstream.is_quiet());
}

#[tokio::test]
async fn a_resumed_answer_cut_at_every_byte_is_resumed_again() {
    let (mut upstream, proxy, session) = setup().await;
    let mut bytes = 0;
    for limit in 1.. {
        let id = 10_000 + limit as u64;
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(id))).await;
        let mut events = wire(id).into_iter();
        let first = response.prime().await.id().to_owned();
        sse.bytes(events.next().unwrap()).await;
        let mut all = vec![seen(response.event().await)];
        let mut last = response.last_id().unwrap_or(&first).to_owned();
        response.reset();
        for event in events {
            sse.bytes(event).await;
        }
        sse.end().await;

        let client = session.resume(&last).start(proxy.addr).await;
        let mut complete = false;
        if let Ok(mut again) = client.stop_after(limit).try_response().await {
            while let Some(frame) = again.frame().await {
                if frame.is_event() {
                    all.push(seen(frame));
                }
            }
            complete = again.end() == Some(End::Complete);
            last = again.last_id().unwrap_or(&last).to_owned();
            again.reset();
        }
        let third = session.resume(&last).send(proxy.addr).await;
        let mut script = Script { sse: None, left: Vec::new().into_iter() };
        all.extend(second_part(third, &mut script).await);
        assert_eq!(all, expected(id), "cut after {limit} bytes");
        bytes = limit;
        if complete {
            break;
        }
    }
    assert!(bytes > 500, "the exchange was cut at {bytes} places");
}
