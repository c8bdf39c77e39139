//! Fast and slow peers: nothing is held back, nothing is lost, no stream waits for another.

use crate::support::*;

fn sized(n: usize, size: usize) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"n","params":{{"n":{n},"t":"{}"}}}}"#, "x".repeat(size))
}

#[tokio::test]
async fn the_last_event_before_a_silence_arrives_at_any_size() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let sizes = (0..40).map(|n| n * 97).chain([4000, 8100, 8192, 16_300, 65_000, 65_536, 200_000, 500_000]);
    for (n, size) in sizes.enumerate() {
        let payload = sized(n, size);
        let (event, ()) = tokio::join!(response.event(), sse.event(&payload));
        assert!(event.bytes() == payload.as_bytes(), "{size} bytes");
    }
    sse.finish(result(1)).await;
    response.event().await;
    response.ends().await;
}

#[tokio::test]
async fn a_stream_far_larger_than_its_bounds_passes_a_reader_whole() {
    let (mut upstream, proxy, session) = setup_with(|c| {
        c.streams.max_event_bytes = 64 * 1024;
        c.streams.max_bytes = 256 * 1024;
    })
    .await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    let many = 2000;
    let write = async {
        for n in 1..=many {
            sse.event(sized(n, 10_000)).await;
        }
        sse.finish(result(1)).await;
    };
    let read = async {
        for n in 1..=many {
            let event = response.event().await;
            assert_eq!(event.id(), place.at(n));
            assert!(event.bytes() == sized(n, 10_000).as_bytes(), "{n}");
        }
        assert_eq!(response.event().await.bytes(), result(1).as_bytes());
        response.ends().await;
    };
    tokio::join!(write, read);
}

#[tokio::test]
async fn a_client_that_reads_nothing_delays_no_other() {
    let (mut upstream, proxy, session) = setup_with(|c| {
        c.streams.max_event_bytes = 64 * 1024;
        c.streams.max_bytes = 256 * 1024;
        c.streams.full_wait = LIMIT * 6;
    })
    .await;
    let (stuck, stuck_response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(2))).await;
    let flood = async {
        // More than all sockets and bounds hold: this never comes to its end.
        for n in 1..=10_000 {
            stuck.event(sized(n, 10_000)).await;
        }
        panic!("100 MB went somewhere");
    };
    let other = async {
        for n in 1..=500 {
            sse.event(progress(n)).await;
            assert_eq!(response.event().await.bytes(), progress(n).as_bytes());
        }
        sse.event(result(2)).await;
        response.event().await;
    };
    tokio::select! {
        () = flood => {}
        () = other => {}
    }
    drop(stuck_response);
}

#[tokio::test]
async fn a_client_may_stop_reading_and_go_on_later() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    // 4 MB are within the bounds: the upstream can send them all without a reader.
    let many = 400;
    for n in 1..=many {
        sse.event(sized(n, 10_000)).await;
    }
    sse.finish(result(1)).await;
    for n in 1..=many {
        assert_eq!(response.event().await.id(), place.at(n));
    }
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
}

#[tokio::test]
async fn a_client_that_stopped_reading_and_left_gets_everything_it_had_not_read() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    let many = 200;
    for n in 1..=many {
        sse.event(sized(n, 10_000)).await;
    }
    assert_eq!(response.event().await.id(), place.at(1));
    response.reset();
    sse.finish(result(1)).await;
    // What was written to the dead connection counts as undelivered.
    let mut back = session.resume(&place.at(1)).send(proxy.addr).await.sse();
    for n in 2..=many {
        let event = back.event().await;
        assert_eq!(event.id(), place.at(n));
        assert!(event.bytes() == sized(n, 10_000).as_bytes());
    }
    assert_eq!(back.event().await.bytes(), result(1).as_bytes());
    back.ends().await;
}

#[tokio::test]
async fn many_clients_cut_at_once_and_back_at_once_lose_nothing() {
    let (mut upstream, proxy, session) = setup().await;
    let mut running = Vec::new();
    for id in 0..100 {
        let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(id))).await;
        let place = EventId::of(response.prime().await.id());
        running.push((id, sse, response, place));
    }
    let mut calls = Vec::new();
    for (id, sse, response, place) in running {
        response.reset();
        calls.push((id, sse, place));
    }
    let mut back = Vec::new();
    for (id, sse, place) in calls {
        sse.event(progress(id as u64)).await;
        back.push((id, sse, session.resume(&place.at(0)).start(proxy.addr).await));
    }
    for (id, sse, pending) in back {
        let mut response = pending.response().await.sse();
        assert_eq!(response.event().await.bytes(), progress(id as u64).as_bytes());
        sse.finish(result(id)).await;
        assert_eq!(response.event().await.bytes(), result(id).as_bytes());
        response.ends().await;
    }
}

#[tokio::test]
async fn a_pipelined_request_waits_for_the_response_before_it() {
    let (mut upstream, proxy, session) = setup().await;
    let (sse, mut response) = begin(&proxy, &mut upstream, &session.post(call(1))).await;
    let place = EventId::of(response.prime().await.id());
    response.send(&session.post(call(2)).bytes(proxy.addr)).await;
    for n in 1..=3 {
        sse.event(progress(n)).await;
        assert_eq!(response.event().await.id(), place.at(n));
    }
    sse.finish(result(1)).await;
    assert_eq!(response.event().await.bytes(), result(1).as_bytes());
    response.ends().await;
    let client = response.into_client();
    upstream.expect("tools/call").await.json(200, result(2)).await;
    assert_eq!(client.response().await.body().await, result(2).as_bytes());
}

#[tokio::test]
async fn a_long_answer_that_is_not_read_has_not_arrived_however_long_its_connection_stays() {
    let (mut upstream, proxy, session) = setup().await;
    let request = session.post(call(1)).with("Accept", "application/json");
    let pending = request.start(proxy.addr).await;
    // Far more than sockets and buffers hold.
    let long = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"text":"{}"}}}}"#, "long ".repeat(2_500_000));
    upstream.expect("tools/call").await.sse().await.finish(&long).await;
    // Its head is read, and nothing else.
    let response = pending.response().await;
    settle(&proxy, &mut upstream).await;
    pass(LIMIT * 6).await;
    settle(&proxy, &mut upstream).await;
    response.reset();
    settle(&proxy, &mut upstream).await;
    let mut again = request.send(proxy.addr).await;
    assert!(again.body().await == long.as_bytes());
    assert!(upstream.is_quiet());
}
