//! Full quotas: the evicted streams, their order and their principals, and the streams that are
//! never evicted.

use super::slow::Slow;
use super::*;
use crate::protocol::stream::{Ending, Resume};

/// Creates a log with limits small enough to fill.
pub(super) fn tight(change: impl FnOnce(&mut QuotaLimits)) -> EventLog {
    let mut tight = QuotaLimits {
        max_bytes: 40_000,
        max_bytes_total: 1 << 28,
        max_streams: 1000,
        max_detached: 1000,
        max_tasks: 64,
        resumes_per_sec: 100,
        delivered_retention: Duration::from_secs(30),
        max_sessions: 1000,
    };
    change(&mut tight);
    let identity = Identity { owner: Owner(1), epoch: StoreEpoch(1), keys: Keyring::new([7; 32], Vec::new()) };
    let bounds = TailLimits { max_bytes: 1 << 20, max_events: 10_000 };
    EventLog::new(identity, bounds, tight, Arc::new(Metrics::new(&Registrar::default()).unwrap()), None, None)
}

/// Creates a stream of a caller whose upstream has begun to respond.
pub(super) fn open_of(log: &EventLog, caller: u8) -> (Arc<Stream>, Writer) {
    let stream = create(log, caller);
    let writer = log.writer(&stream);
    ready(writer.update(|machine, _| machine.handle_stream_head()));
    log.publish_once(&stream);
    (stream, writer)
}

/// Creates the standalone stream of a caller's session, without a reader.
fn standalone_of(log: &EventLog, caller: u8) -> (Arc<Stream>, Writer) {
    let spec = spec();
    let policy = Policy { kind: StreamKind::Standalone, can_pause: false, ..spec.policy };
    let reservation = log.admit_standalone(&quota(log, caller), 0).unwrap();
    let stream = log.create(Spec { policy, ids: Vec::new(), ..spec }, reservation);
    let writer = log.writer(&stream);
    ready(writer.update(|machine, _| machine.handle_stream_head()));
    (stream, writer)
}

#[test]
fn tasks_that_begin_at_once_count_before_their_streams_exist() {
    let log = tight(|limits| limits.max_tasks = 1);
    let [mut first, mut second] = [quota(&log, 1).reserve_stream(0), quota(&log, 1).reserve_stream(0)];
    assert!(first.reserve_task());
    assert!(!second.reserve_task());
    assert!(quota(&log, 2).reserve_stream(0).reserve_task());
    drop(first);
    assert!(second.reserve_task());
    assert_eq!(quota(&log, 1).tasks(), 1);
}

fn sized(size: usize) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"n","params":"{}"}}"#, "x".repeat(size))
}

pub(super) fn write(writer: &Writer, bytes: usize) {
    for _ in 0..bytes.div_ceil(1000) {
        ready(writer.update(says(&sized(1000))));
    }
}

/// Ends the stream; its client reads all of it, and the delivery is noted.
fn deliver(log: &EventLog, stream: &Arc<Stream>, writer: &Writer) {
    finish(log, stream, writer);
    let mut client = Client::attach(stream, Seq(0));
    assert_eq!(client.read_all(), Poll::Ready(ReadOutcome::Ended));
    drop(client);
    log.retention().note_delivered(stream.clone(), DeliveryCertainty::Likely);
}

pub(super) fn finish(log: &EventLog, stream: &Arc<Stream>, writer: &Writer) {
    ready(writer.update(|machine, now| {
        machine.handle_message(b"message", RESPONSE.as_bytes(), now);
        machine.handle_upstream_end(Ending::Clean, now);
    }));
    log.retention().retain(stream);
}

pub(super) fn is_kept(log: &EventLog, stream: &Stream) -> bool {
    log.streams.get(stream.id()).is_some()
}

fn is_paused(writer: &Writer) -> bool {
    !schedule(writer).1
}

#[tokio::test(start_paused = true)]
async fn held_bytes_are_counted_and_released() {
    let log = tight(|_| ());
    let mine = quota(&log, 1);
    {
        let (stream, writer) = open_of(&log, 1);
        assert_eq!((mine.streams(), mine.detached()), (1, 1), "it has no reader yet");
        let client = Client::attach(&stream, Seq(0));
        assert_eq!(mine.detached(), 0);
        let before = mine.bytes();
        write(&writer, 10_000);
        assert!((10_000..20_000).contains(&(mine.bytes() - before)), "{} bytes", mine.bytes() - before);
        assert_eq!(log.streams.quotas.global().metrics.held_bytes(), mine.bytes());
        drop(client);
        assert_eq!(mine.detached(), 1);
        finish(&log, &stream, &writer);
        assert_eq!(mine.detached(), 0, "it is over");
        log.retention().forget(&stream);
    }
    assert_eq!((mine.streams(), mine.detached(), mine.bytes()), (0, 0, 0));
    assert_eq!(log.streams.quotas.global().metrics.held_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn delivered_streams_are_evicted_first_the_oldest_before_the_others() {
    let log = tight(|allowance| allowance.max_bytes = 44_000);
    let kept: Vec<_> = (0..3).map(|_| open_of(&log, 1)).collect();
    for (stream, writer) in &kept {
        write(writer, 8000);
        deliver(&log, stream, writer);
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    let left = || kept.iter().map(|(stream, _)| is_kept(&log, stream)).collect::<Vec<bool>>();
    let (stream, writer) = open_of(&log, 1);
    assert_eq!(left(), [true, true, true]);
    let mut client = Client::attach(&stream, Seq(0));
    write(&writer, 12_000);
    assert_eq!(client.read_all(), Poll::Pending);
    assert!(quota(&log, 1).bytes() <= 44_000);
    assert_eq!(left(), [false, true, true]);
    while left() == [false, true, true] {
        write(&writer, 1000);
    }
    assert_eq!(left(), [false, false, true]);
    assert!(!is_paused(&writer));
    assert_eq!(client.read_all(), Poll::Pending);
    assert!(client.text().matches("\n\n").count() > 12, "what its reader is to get stays");
}

#[tokio::test(start_paused = true)]
async fn delivered_streams_are_trimmed_to_their_end() {
    let log = tight(|allowance| allowance.max_bytes = 1_500_000);
    let (old, old_writer) = open_of(&log, 1);
    write(&old_writer, 900_000);
    deliver(&log, &old, &old_writer);
    let (_, writer) = open_of(&log, 1);
    let before = quota(&log, 1).bytes();
    write(&writer, 1_500_000 - before + 100_000);
    assert!(is_kept(&log, &old));
    assert!(!is_paused(&writer));
    let (trimmed, tail) = old.with_machine(|machine| (machine.numbering().trimmed(), machine.numbering().tail()));
    assert!((300..500).contains(&trimmed.0), "{trimmed:?}");
    let mut back = Client::attach(&old, trimmed);
    assert_eq!(back.read_all(), Poll::Ready(ReadOutcome::Ended));
    assert_eq!(back.cursor, tail, "its end is there");
    drop(back);
    write(&writer, 310_000);
    assert!(!is_kept(&log, &old), "then it goes");
    assert!(!is_paused(&writer));
}

#[tokio::test(start_paused = true)]
async fn a_delivered_stream_that_is_read_again_is_not_evicted() {
    let log = tight(|_| ());
    let (old, old_writer) = open_of(&log, 1);
    write(&old_writer, 20_000);
    deliver(&log, &old, &old_writer);
    tokio::time::advance(Duration::from_secs(31)).await;
    let mut again = Client::attach(&old, Seq(0));
    let (_, writer) = open_of(&log, 1);
    write(&writer, 25_000);
    assert!(is_kept(&log, &old));
    assert!(is_paused(&writer));
    assert_eq!(again.read_all(), Poll::Ready(ReadOutcome::Ended));
    drop(again);
    // The stream is the last in the queue from now on.
    tokio::time::advance(Duration::from_secs(31)).await;
    ready(writer.update(|_, _| ()));
    assert!(!is_kept(&log, &old));
    assert!(!is_paused(&writer));
}

#[tokio::test(start_paused = true)]
async fn a_full_quota_keeps_unread_events_and_its_upstream_waits() {
    let log = tight(|_| ());
    let (unread, unread_writer) = open_of(&log, 1);
    write(&unread_writer, 20_000);
    finish(&log, &unread, &unread_writer);
    let (stream, writer) = open_of(&log, 1);
    write(&writer, 30_000);
    assert!(is_paused(&writer));
    assert!(is_kept(&log, &unread));
    let whole: usize = 20 + 1;
    let mut client = Client::attach(&unread, Seq(0));
    assert_eq!(client.read_all(), Poll::Ready(ReadOutcome::Ended));
    assert_eq!(client.text().matches("\n\n").count(), whole);
    // No client resumes the other: after `full_wait` its call fails.
    tokio::time::advance(Duration::from_secs(31)).await;
    ready(writer.update(|machine, now| machine.handle_timeout(now)));
    let mut late = Client::attach(&stream, Seq(0));
    assert_eq!(late.read_all(), Poll::Ready(ReadOutcome::Ended));
    assert!(late.text().contains("-32013"));
    assert_eq!(late.text().matches("\n\n").count(), 30 + 1);
}

#[tokio::test(start_paused = true)]
async fn a_stream_with_a_reader_flows_on_in_a_full_quota() {
    let log = tight(|_| ());
    let (unread, unread_writer) = open_of(&log, 1);
    write(&unread_writer, 45_000);
    finish(&log, &unread, &unread_writer);
    assert!(quota(&log, 1).is_exceeded());
    let (stream, writer) = {
        let reservation = quota(&log, 1).reserve_stream(0);
        let stream = log.create(spec(), reservation);
        let writer = log.writer(&stream);
        ready(writer.update(|machine, _| machine.handle_stream_head()));
        (stream, writer)
    };
    let mut client = Client::attach(&stream, Seq(0));
    for n in 1..=500 {
        assert!(!is_paused(&writer), "event {n}");
        ready(writer.update(says(&sized(1000))));
        assert!(is_paused(&writer), "it is read before there is more");
        let read = client.read(usize::MAX);
        assert!(matches!(read, Poll::Ready(ReadOutcome::Events { last: Seq(last), written: 1, .. }) if last == n));
    }
    assert!(quota(&log, 1).bytes() < 60_000, "what was read is gone");
    // A client that resumes it receives the error.
    let mut late = Client::attach(&stream, Seq(0));
    assert!(matches!(late.read(usize::MAX), Poll::Ready(ReadOutcome::Trimmed(_))));
}

#[tokio::test(start_paused = true)]
async fn a_pause_ends_when_another_stream_of_the_quota_frees_memory() {
    let log = tight(|_| ());
    let (other, other_writer) = open_of(&log, 1);
    write(&other_writer, 20_000);
    let (_, writer) = open_of(&log, 1);
    write(&writer, 25_000);
    assert!(is_paused(&writer));
    let (deadline, _) = schedule(&writer);
    assert!(deadline.unwrap() - clock::now() < Duration::from_secs(1), "it looks again soon");
    drop(other_writer);
    log.retention().forget(&other);
    drop(other);
    ready(writer.update(|_, _| ()));
    assert!(!is_paused(&writer));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_never_pauses_drops_its_oldest_events_and_keeps_the_next_piece() {
    let log = tight(|_| ());
    let (unread, unread_writer) = open_of(&log, 1);
    write(&unread_writer, 30_000);
    finish(&log, &unread, &unread_writer);
    let (stream, writer) = standalone_of(&log, 1);
    write(&writer, 50_000);
    let mut client = Client::attach(&stream, Seq(0));
    assert_eq!(client.read_all(), Poll::Pending, "it holds less than a reader takes at once");
    assert_eq!(client.text().matches("\n\n").count(), 50);
    drop(client);
    write(&writer, 100_000);
    assert!(!is_paused(&writer));
    let trimmed = stream.with_machine(|machine| machine.numbering().trimmed());
    assert!((50 + 20..50 + 60).contains(&trimmed.0), "{trimmed:?}");
}

#[tokio::test(start_paused = true)]
async fn the_responses_for_a_client_that_takes_no_stream_are_not_evicted() {
    let log = tight(|_| ());
    let spec = spec();
    let policy = Policy { can_pause: false, should_refuse_requests: true, ..spec.policy };
    let ids = vec![RequestId::Number("1".into()), RequestId::Number("2".into())];
    let reservation = log.admit(quota(&log, 1).reserve(0), 0).unwrap();
    let stream = log.create(Spec { policy, ids, is_batch: true, ..spec }, reservation);
    let writer = log.writer(&stream);
    ready(writer.update(|machine, _| machine.handle_stream_head()));
    write(&writer, 200_000);
    assert!(quota(&log, 1).bytes() < 100_000, "a message that is no response has no reader");
    ready(writer.update(says(RESPONSE)));
    write(&writer, 200_000);
    assert!(!is_paused(&writer));
    ready(writer.update(says(&RESPONSE.replace("\"id\":1", "\"id\":2"))));
    let collected = stream.delivery().collect().unwrap();
    assert_eq!(collected.responses, 2);
    assert_eq!(collected.body, format!("[{RESPONSE},{}]", RESPONSE.replace("\"id\":1", "\"id\":2")));
}

/// Receives a part of a large event; returns whether the rest of it is read.
fn begins_large_event(writer: &Writer) -> bool {
    writer.note_arriving(80_000);
    ready(writer.update(|_, _| ()));
    !is_paused(writer)
}

/// Receives the rest of the event.
fn ends_large_event(writer: &Writer) {
    writer.note_arriving(0);
    write(writer, 1);
    ready(writer.update(says(&large())));
}

fn large() -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"n","params":"{}"}}"#, "x".repeat(90_000))
}

#[tokio::test(start_paused = true)]
async fn a_full_quota_is_exceeded_by_one_large_event_until_its_client_has_it() {
    let log = tight(|allowance| allowance.max_bytes_total = 1 << 24);
    let read: Vec<_> = (0..3).map(|_| open_of(&log, 1)).collect();
    let mut clients: Vec<_> = read.iter().map(|(stream, _)| Client::attach(stream, Seq(0))).collect();
    let [(_, hog), (_, left)] = [open_of(&log, 1), open_of(&log, 1)];
    write(&hog, 45_000);
    assert!(!begins_large_event(&left), "no client waits for that one");
    assert!(begins_large_event(&read[0].1));
    assert!(!begins_large_event(&read[1].1), "the turn is another one's");
    ends_large_event(&read[0].1);
    assert!(!begins_large_event(&read[1].1), "its client has not got it yet");
    assert_eq!(clients[0].read_all(), Poll::Pending);
    assert!(begins_large_event(&read[1].1));
    ends_large_event(&read[1].1);

    // A client that reads nothing keeps the overrun for a while. A client that leaves releases it.
    assert!(!begins_large_event(&read[2].1));
    tokio::time::advance(Duration::from_millis(4900)).await;
    assert!(!begins_large_event(&read[2].1));
    tokio::time::advance(Duration::from_millis(200)).await;
    assert!(begins_large_event(&read[2].1));
    assert!(!begins_large_event(&read[0].1));
    assert_eq!(clients[1].read_all(), Poll::Pending);
    assert!(!begins_large_event(&read[0].1), "the turn that it lost is not its to give back");
    drop(clients.pop());
    assert!(begins_large_event(&read[0].1));
    assert!(!begins_large_event(&left));
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_client_has_all_events_waits_for_the_overrun_and_does_not_fail() {
    let log = tight(|allowance| allowance.max_bytes_total = 1 << 24);
    let [(first, first_writer), (second, second_writer)] = [open_of(&log, 1), open_of(&log, 1)];
    let [_first, mut client] = [&first, &second].map(|stream| Client::attach(stream, Seq(0)));
    let (_, hog) = open_of(&log, 1);
    write(&hog, 45_000);
    assert!(begins_large_event(&first_writer));
    for more in 1..30 {
        assert!(!begins_large_event(&second_writer), "the turn is another one's");
        tokio::time::advance(Duration::from_secs(4)).await;
        first_writer.note_arriving(80_000 + more);
        ready(first_writer.update(|_, _| ()));
        ready(second_writer.update(|machine, now| machine.handle_timeout(now)));
        assert_eq!(client.read_all(), Poll::Pending, "its call has failed");
    }
    // A client that leaves is waited for as long as any other.
    drop(client);
    ready(second_writer.update(|_, _| ()));
    tokio::time::advance(Duration::from_secs(31)).await;
    ready(second_writer.update(|machine, now| machine.handle_timeout(now)));
    let mut late = Client::attach(&second, Seq(0));
    assert_eq!(late.read_all(), Poll::Ready(ReadOutcome::Ended));
    assert!(late.text().contains("-32013"));
}

#[test]
fn stubs_are_evicted_for_concurrent_calls_of_one_caller() {
    let log = tight(|allowance| {
        allowance.max_streams = 64;
        allowance.max_bytes = 100_000;
    });
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let (stream, writer) = open_of(&log, 1);
                    finish(&log, &stream, &writer);
                    assert_eq!(Client::attach(&stream, Seq(0)).read_all(), Poll::Ready(ReadOutcome::Ended));
                    drop(writer);
                    log.retention().note_delivered(stream, DeliveryCertainty::Proven);
                }
            });
        }
    });
}

#[tokio::test(start_paused = true)]
async fn the_excess_of_one_caller_does_not_affect_another() {
    let log = tight(|_| ());
    let (_, hog) = open_of(&log, 1);
    write(&hog, 45_000);
    assert!(is_paused(&hog));
    assert_eq!(log.admit(quota(&log, 1).reserve(0), 0).err(), Some(ErrorCode::ShareFull));
    let (stream, writer) = open_of(&log, 2);
    let mut client = Client::attach(&stream, Seq(0));
    write(&writer, 25_000);
    assert!(!is_paused(&writer));
    assert_eq!(client.read_all(), Poll::Pending);
    assert_eq!(client.text().matches("\n\n").count(), 25);
}

#[tokio::test(start_paused = true)]
async fn a_full_process_evicts_from_the_largest_holder() {
    let log = tight(|allowance| {
        allowance.max_bytes = 1 << 20;
        allowance.max_bytes_total = 160_000;
    });
    let (arrived, arrived_writer) = open_of(&log, 1);
    write(&arrived_writer, 60_000);
    deliver(&log, &arrived, &arrived_writer);
    tokio::time::advance(Duration::from_secs(31)).await;
    let (_, running) = open_of(&log, 2);
    write(&running, 100_000);
    assert!(!is_kept(&log, &arrived), "it had arrived");
    assert!(!is_paused(&running), "that was room enough");
    write(&running, 60_000);
    assert!(is_paused(&running));
    assert_eq!(log.admit(quota(&log, 2).reserve(0), 0).err(), Some(ErrorCode::ProxyFull));
    // A principal that holds little has the reserve.
    let (stream, small) = open_of(&log, 3);
    write(&small, 3000);
    assert!(!is_paused(&small));
    assert!(!stream.with_machine(|machine| machine.lifecycle().is_paused()));
    write(&small, 30_000);
    assert!(is_paused(&small), "that is not little any more");
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_limit_are_refused_until_one_ends() {
    let log = tight(|allowance| allowance.max_streams = 2);
    let (first, first_writer) = open_of(&log, 1);
    let (_second, _writer) = open_of(&log, 1);
    assert_eq!(log.admit(quota(&log, 1).reserve(0), 0).err(), Some(ErrorCode::TooManyStreams));
    assert_eq!(quota(&log, 1).streams(), 2, "a refusal takes no place");
    assert!(log.admit(quota(&log, 2).reserve(0), 0).is_ok());
    finish(&log, &first, &first_writer);
    assert!(is_kept(&log, &first), "it counts no more, and stays");
    let reservation = log.admit(quota(&log, 1).reserve(0), 0).unwrap();
    assert_eq!(quota(&log, 1).streams(), 2);
    drop(reservation);
}

#[tokio::test(start_paused = true)]
async fn finished_streams_refuse_no_call_delivered_or_not() {
    let log = tight(|allowance| {
        allowance.max_streams = 2;
        allowance.max_bytes = 1 << 20;
    });
    for n in 0..100 {
        let (stream, writer) = open_of(&log, 1);
        match n % 2 {
            0 => finish(&log, &stream, &writer),
            _ => deliver(&log, &stream, &writer),
        }
    }
    assert_eq!(quota(&log, 1).streams(), 0);
    assert_eq!(log.len(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_standalone_stream_is_no_call() {
    let log = tight(|allowance| {
        allowance.max_streams = 1;
        allowance.max_detached = 1;
    });
    let mine = quota(&log, 1);
    let kept: Vec<_> = (0..3).map(|_| standalone_of(&log, 1)).collect();
    assert_eq!((mine.streams(), mine.detached()), (0, 0));
    let (_stream, _writer) = open_of(&log, 1);
    assert_eq!(log.admit(mine.reserve(0), 0).err(), Some(ErrorCode::TooManyDetached));
    assert!(log.admit_standalone(&mine, 0).is_ok(), "calls do not keep it out either");
    drop(kept);
}

#[tokio::test(start_paused = true)]
async fn detached_calls_refuse_new_ones_until_a_client_resumes() {
    let log = tight(|allowance| allowance.max_detached = 2);
    let (stream, _writer) = open_of(&log, 1);
    let (_other, _other_writer) = open_of(&log, 1);
    assert_eq!(log.admit(quota(&log, 1).reserve(0), 0).err(), Some(ErrorCode::TooManyDetached));
    assert!(log.admit(quota(&log, 2).reserve(0), 0).is_ok());
    let _client = Client::attach(&stream, Seq(0));
    assert!(log.admit(quota(&log, 1).reserve(0), 0).is_ok());
}

#[tokio::test(start_paused = true)]
async fn resumes_beyond_the_rate_wait_in_a_queue() {
    let log = tight(|_| ());
    let mine = quota(&log, 1);
    // Ten seconds' worth at once.
    assert!((0..=1000).all(|_| mine.try_resume()));
    let began = clock::now();
    let wait = async || {
        assert!(!mine.try_resume(), "those that wait come first");
        mine.wait_for_resume().await;
        clock::now() - began
    };
    let (first, second, third) = tokio::join!(wait(), wait(), wait());
    for (waited, expected) in [(first, 10), (second, 20), (third, 30)] {
        assert!((expected..expected + 5).contains(&waited.as_millis()), "{waited:?} for {expected} ms");
    }
    assert!(quota(&log, 2).try_resume());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(mine.try_resume());
}

#[tokio::test(start_paused = true)]
async fn resumes_whose_clients_leave_do_not_delay_the_others() {
    let log = tight(|_| ());
    let mine = quota(&log, 1);
    while mine.try_resume() {}
    let began = clock::now();
    let mut leaving: Vec<_> = (0..45_000).map(|_| Box::pin(mine.wait_for_resume())).collect();
    for waiting in &mut leaving {
        assert!(poll_once(waiting).is_pending());
    }
    let mut staying = Box::pin(mine.wait_for_resume());
    assert!(poll_once(&mut staying).is_pending());
    drop(leaving);
    staying.await;
    mine.wait_for_resume().await;
    let waited = clock::now() - began;
    assert!(waited < Duration::from_millis(30), "{waited:?}");
}

fn poll_once(future: &mut (impl Future<Output = ()> + Unpin)) -> Poll<()> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(start_paused = true)]
async fn unused_quotas_are_forgotten() {
    let log = tight(|_| ());
    let kept = quota(&log, 1);
    let _held = kept.reserve(10);
    for n in 0..20_000_u32 {
        let key = QuotaKey::Peer(std::net::Ipv4Addr::from_bits(n).into());
        drop(log.quota(key));
    }
    assert!(log.streams.quotas.len() < 3000, "{}", log.streams.quotas.len());
    assert!(Arc::ptr_eq(&kept, &quota(&log, 1)));
}

#[test]
fn a_caller_without_a_credential_counts_by_its_session_else_by_its_network() {
    let session = crate::protocol::headers::SessionId::parse("s").unwrap();
    let peer = |text: &str| text.parse().unwrap();
    let anonymous = |opened, address| QuotaKey::of(&Principal::Anonymous, true, opened, peer(address));
    assert_eq!(anonymous(Some(&session), "192.0.2.1"), QuotaKey::Session(session.clone()));
    assert_eq!(anonymous(None, "192.0.2.1"), QuotaKey::Peer(peer("192.0.2.1")));
    assert_eq!(anonymous(None, "::ffff:192.0.2.1"), QuotaKey::Peer(peer("192.0.2.1")));
    assert_eq!(anonymous(None, "2001:db8::1"), anonymous(None, "2001:db8::ffff:1"));
    assert_ne!(anonymous(None, "2001:db8::1"), anonymous(None, "2001:db8:0:1::1"));
    let known = Principal::Known([1; 16]);
    assert_eq!(QuotaKey::of(&known, true, Some(&session), peer("192.0.2.1")), QuotaKey::Known([1; 16]));
    // A credential that may be made up counts as none, and so does a query.
    for (principal, is_proven) in [(known, false), (Principal::AnonymousAt([2; 16]), true)] {
        let of = |opened| QuotaKey::of(&principal, is_proven, opened, peer("192.0.2.1"));
        assert_eq!(
            (of(Some(&session)), of(None)),
            (anonymous(Some(&session), "192.0.2.1"), anonymous(None, "192.0.2.1"))
        );
    }
}

/// Creates a log with small limits and a store that is waited for.
fn tight_before(store: &Arc<Slow>) -> EventLog {
    let metrics = Arc::new(Metrics::new(&Registrar::default()).unwrap());
    let backing = Backing {
        store: store.clone(),
        coordination: None,
        on_unreachable: OnUnreachable::Refuse,
        lease_health: Arc::default(),
        generation: Arc::default(),
        displacing: Arc::default(),
        released: Arc::default(),
        metrics: metrics.clone(),
    };
    let small = QuotaLimits { max_bytes: 40_000, max_bytes_total: 1 << 24, ..allowance() };
    let identity = Identity { owner: Owner(1), epoch: StoreEpoch(1), keys: Keyring::new([7; 32], Vec::new()) };
    let bounds = TailLimits { max_bytes: 1 << 20, max_events: 10_000 };
    EventLog::new(identity, bounds, small, metrics, Some(backing), None)
}

#[tokio::test(start_paused = true)]
async fn large_events_that_wait_for_the_store_are_counted_and_read_one_by_one() {
    let store = Slow::new();
    let log = tight_before(&store);
    let calls: Vec<_> = (0..12).map(|_| open_of(&log, 1)).collect();
    let mut clients: Vec<_> = calls.iter().map(|(stream, _)| Client::attach(stream, Seq(0))).collect();
    let held = || quota(&log, 1).bytes();
    let (before, event) = (held(), large());
    assert!(begins_large_event(&calls[0].1));
    calls[0].1.note_arriving(0);
    let mut update = ByHand::new(calls[0].1.update(says(&event)));
    assert!(update.poll().is_pending());
    assert!((event.len()..event.len() + 1000).contains(&(held() - before)), "{} after {before}", held());
    for (_, writer) in &calls[1..] {
        assert!(!begins_large_event(writer), "the turn is another one's");
    }

    store.let_one_through();
    assert!(update.poll().is_ready());
    assert!(!begins_large_event(&calls[1].1), "its client has not got it yet");
    assert_eq!(clients[0].read_all(), Poll::Pending);
    assert!(begins_large_event(&calls[1].1));
    drop(clients);
    calls.iter().for_each(|(_, writer)| writer.note_arriving(0));
    assert!(held() < before + 100_000, "{} after {before}", held());
}

#[tokio::test(start_paused = true)]
async fn a_large_event_keeps_the_overrun_while_the_store_is_unreachable() {
    let store = Slow::new();
    let log = tight_before(&store);
    let [(stream, writer), (other, other_writer)] = [open_of(&log, 1), open_of(&log, 1)];
    let [mut client, _other] = [&stream, &other].map(|stream| Client::attach(stream, Seq(0)));
    let event = large();
    assert!(begins_large_event(&writer));
    writer.note_arriving(0);
    store.set_broken(true);
    let mut update = ByHand::new(writer.update(says(&event)));
    for _ in 0..240 {
        assert!(update.poll().is_pending());
        tokio::time::advance(Duration::from_millis(250)).await;
    }
    assert!(!begins_large_event(&other_writer));
    store.set_broken(false);
    store.open();
    assert!(update.poll().is_ready());
    assert_eq!(client.read_all(), Poll::Pending);
    assert!(begins_large_event(&other_writer));
}

#[tokio::test(start_paused = true)]
async fn a_response_that_passes_through_is_read_on_with_capacity_or_with_the_overrun() {
    let log = tight(|allowance| allowance.max_bytes_total = 1 << 24);
    let begin = || {
        let stream = create(&log, 1);
        let writer = log.writer(&stream);
        ready(writer.update(|machine, now| machine.handle_plain_head(now)));
        (Client::attach(&stream, Seq(0)), writer)
    };
    let [(client, writer), (_other, other)] = [begin(), begin()];
    [&writer, &other].into_iter().for_each(|writer| writer.note_arriving(80_000));
    ready(writer.wait_for_capacity());
    let mut waiting = ByHand::new(other.wait_for_capacity());
    assert!(waiting.poll().is_pending());
    drop(client);
    assert_eq!(waiting.bell.rings(), 1);
    assert!(waiting.poll().is_ready());
}

/// Ends the stream after so many bytes. Its client reads all of it and closes its connection, so
/// that the delivery is unproven.
fn leave_gracefully(log: &EventLog, stream: &Arc<Stream>, writer: &Writer, bytes: usize) {
    write(writer, bytes);
    finish(log, stream, writer);
    assert_eq!(Client::attach(stream, Seq(0)).read_all(), Poll::Ready(ReadOutcome::Ended));
    stream.delivery().handle_graceful_close();
}

#[tokio::test(start_paused = true)]
async fn a_stream_after_a_graceful_close_stays_for_a_client_that_resumes_it() {
    let log = tight(|_| ());
    let (left, left_writer) = open_of(&log, 1);
    leave_gracefully(&log, &left, &left_writer, 10_000);
    left.resume(Resume::ByCursor, Some(Seq(3)));
    let mut back = Client::attach(&left, Seq(3));
    assert!(matches!(back.read(2000), Poll::Ready(ReadOutcome::Events { .. })));
    let cursor = back.cursor;
    drop(back);
    let (_, writer) = open_of(&log, 1);
    write(&writer, 24_000);
    assert!(is_paused(&writer), "there is nothing that may go");
    assert!(is_kept(&log, &left));
    let mut again = Client::attach(&left, cursor);
    assert_eq!(again.read_all(), Poll::Ready(ReadOutcome::Ended));
    assert!(again.text().contains(RESPONSE));
    drop(again);
    // Until it leaves gracefully once more.
    left.delivery().handle_graceful_close();
    ready(writer.update(|_, _| ()));
    assert!(!is_kept(&log, &left));
    assert!(!is_paused(&writer));
}

#[tokio::test(start_paused = true)]
async fn streams_after_a_graceful_close_are_evicted_whole_and_after_the_delivered_ones() {
    let log = tight(|allowance| allowance.max_bytes = 1_500_000);
    let (left, left_writer) = open_of(&log, 1);
    leave_gracefully(&log, &left, &left_writer, 700_000);
    tokio::time::advance(Duration::from_secs(5)).await;
    let (arrived, arrived_writer) = open_of(&log, 1);
    write(&arrived_writer, 10_000);
    deliver(&log, &arrived, &arrived_writer);
    let (_, writer) = open_of(&log, 1);
    while is_kept(&log, &arrived) {
        write(&writer, 1000);
    }
    assert!(is_kept(&log, &left), "it is the older one");
    assert_eq!(left.with_machine(|machine| machine.numbering().trimmed()), Seq(0));
    while is_kept(&log, &left) {
        assert!(!is_paused(&writer), "nothing waits while it is there");
        write(&writer, 1000);
    }
    assert!(!is_paused(&writer));
    // Once it is delivered, it is evicted like the others.
    let (known, known_writer) = open_of(&log, 1);
    leave_gracefully(&log, &known, &known_writer, 10_000);
    log.retention().note_delivered(known.clone(), DeliveryCertainty::Likely);
    let (later, later_writer) = open_of(&log, 1);
    leave_gracefully(&log, &later, &later_writer, 10_000);
    while is_kept(&log, &known) {
        write(&writer, 1000);
    }
    assert!(is_kept(&log, &later));
}

/// Runs a call to a proven delivery.
fn proven(log: &EventLog, caller: u8) {
    end_proven(log, create(log, caller));
}

fn end_proven(log: &EventLog, stream: Arc<Stream>) {
    let writer = log.writer(&stream);
    ready(writer.update(|machine, _| machine.handle_stream_head()));
    log.publish_once(&stream);
    finish(log, &stream, &writer);
    assert_eq!(Client::attach(&stream, Seq(0)).read_all(), Poll::Ready(ReadOutcome::Ended));
    drop(writer);
    log.retention().note_delivered(stream, DeliveryCertainty::Proven);
}

#[test]
fn a_full_process_evicts_for_a_few_calls_at_a_time() {
    let log = tight(|allowance| {
        allowance.max_bytes = 1 << 23;
        allowance.max_bytes_total = 1 << 22;
    });
    let mut most = 0;
    for _ in 0..6000 {
        let before = log.len();
        proven(&log, 1);
        most = most.max(before.saturating_sub(log.len()));
    }
    assert!(log.len() > 2000, "{} are kept", log.len());
    assert!((10..=64).contains(&most), "{most} went at once");
}

/// Threads that are about to end their calls can hold all evictable streams. So a call is refused
/// now and then.
#[test]
fn a_full_process_admits_nearly_all_concurrent_calls() {
    const CALLS: usize = 500;
    for callers in [1, 8] {
        let log = tight(|allowance| {
            allowance.max_bytes = 1 << 23;
            allowance.max_bytes_total = 120_000;
        });
        let (log, refused) = (&log, &AtomicUsize::new(0));
        let admit = move |caller| {
            let quota = quota(log, caller);
            for tries in 0..10_000 {
                match log.admit(quota.reserve(0), 0) {
                    Ok(reservation) => return log.create(spec(), reservation),
                    Err(code) => assert_eq!(code, ErrorCode::ProxyFull),
                }
                refused.fetch_add(usize::from(tries == 0), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
            panic!("no room is made")
        };
        std::thread::scope(|scope| {
            for thread in 0..8 {
                scope.spawn(move || (0..CALLS).for_each(|_| end_proven(log, admit(thread % callers))));
            }
        });
        assert!(log.len() > 50, "{} are kept", log.len());
        assert!(refused.load(Ordering::Relaxed) < CALLS, "{refused:?} calls were refused");
    }
}
