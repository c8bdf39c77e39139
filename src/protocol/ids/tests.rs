use proptest::prelude::*;

use super::*;

const BASE64URL: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn keys(byte: u8) -> Keyring {
    Keyring::new([byte; 32], vec![])
}

fn number(text: &str) -> RequestId {
    RequestId::Number(text.into())
}

fn text(text: &str) -> RequestId {
    RequestId::String(text.into())
}

fn request_handle(keys: &Keyring, ids: &[RequestId], batch: bool) -> Handle {
    let stream = StreamId::from_bytes([7; 12]);
    Handle::mint(keys, StreamKind::Request, Owner(1), StoreEpoch(2), stream, ids.iter(), batch)
}

fn event_id(handle: &Handle, seq: Seq, attach: Option<AttachId>) -> String {
    let mut out = String::new();
    write_event_id(&mut out, handle, seq, attach).unwrap();
    out
}

fn requests_of(handle: &Handle) -> Requests {
    EventId::parse(event_id(handle, Seq(1), None).as_bytes()).unwrap().unverified_requests()
}

fn request_id() -> impl Strategy<Value = RequestId> {
    prop_oneof![
        any::<i64>().prop_map(|n| number(&n.to_string())),
        any::<f64>().prop_filter("finite", |n| n.is_finite()).prop_map(|n| number(&format!("{n:e}"))),
        ".{0,20}".prop_map(|s| text(&s)),
        "\\PC{0,90}".prop_map(|s| text(&s)),
    ]
}

/// Returns the requests of a handle for `ids`, by the rule itself.
fn expected_requests(ids: &[RequestId], batch: bool) -> Requests {
    let sizes = ids.iter().map(|id| match id {
        RequestId::Number(t) | RequestId::String(t) => t.len(),
    });
    match ids {
        _ if batch && sizes.clone().map(|s| s.max(1)).sum::<usize>() <= 128 => Requests::Batch(ids.to_vec()),
        [id] if !batch && sizes.sum::<usize>() <= 64 => Requests::One(id.clone()),
        _ => Requests::Unknown,
    }
}

proptest! {
    #[test]
    fn what_was_minted_is_read_back(
        (owner, epoch, stream) in any::<(u32, u32, [u8; 12])>(),
        standalone in any::<bool>(),
        ids in prop::collection::vec(request_id(), 0..6),
        batch in any::<bool>(),
        seq in any::<u64>(),
        attach in any::<Option<u64>>(),
    ) {
        let kind = if standalone { StreamKind::Standalone } else { StreamKind::Request };
        let stream = StreamId::from_bytes(stream);
        let handle = Handle::mint(&keys(1), kind, Owner(owner), StoreEpoch(epoch), stream, ids.iter(), batch);
        let wire = event_id(&handle, Seq(seq), attach.map(AttachId));
        prop_assert!(wire.bytes().all(|b| BASE64URL.contains(&b) || b == b'.'));
        let parsed = EventId::parse(wire.as_bytes()).unwrap();
        let requests = if standalone { Requests::Unknown } else { expected_requests(&ids, batch) };
        prop_assert_eq!(parsed.handle_text(), handle.as_str());
        prop_assert_eq!(parsed.cursor(), Cursor::Seq(Seq(seq)));
        prop_assert_eq!(parsed.unverified_kind(), Some(kind));
        prop_assert_eq!(parsed.unverified_requests(), requests.clone());
        let expected = Verified {
            stream, owner: Owner(owner), epoch: StoreEpoch(epoch), kind, seq: Seq(seq), is_adopted: false, requests, handle,
        };
        prop_assert_eq!(parsed.verify(&keys(1)), Some(expected.clone()));
        prop_assert_eq!(parsed.verify(&keys(2)), None);
        let mut adopted = String::new();
        write_adopted_id(&mut adopted, &expected.handle, Seq(seq), attach.map(AttachId)).unwrap();
        let parsed = EventId::parse(adopted.as_bytes()).unwrap();
        prop_assert_eq!(parsed.verify(&keys(1)), Some(Verified { is_adopted: true, ..expected }));
    }

    #[test]
    fn a_handle_changed_anywhere_is_not_believed(
        ids in prop::collection::vec(request_id(), 1..3),
        batch in any::<bool>(),
        at in any::<prop::sample::Index>(),
        to in prop::sample::select(BASE64URL),
    ) {
        let keys = keys(1);
        let mut wire = event_id(&request_handle(&keys, &ids, batch), Seq(3), None).into_bytes();
        let at = at.index(wire.len() - 2);
        prop_assume!(wire[at] != to);
        wire[at] = to;
        let parsed = EventId::parse(&wire).unwrap();
        prop_assert_eq!(parsed.verify(&keys), None);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        wire in "[A-Za-z0-9_-]{40,80}(\\.[0-9a-z]{0,22}){0,3}",
    ) {
        for text in [&bytes[..], wire.as_bytes()] {
            look_everywhere(text);
        }
        // The contents of a handle are as untrusted as its text.
        let mut inner = vec![VERSION, bytes.first().map_or(1, |b| b % 5)];
        inner.extend_from_slice(&bytes);
        let wire = format!("{}.1", URL_SAFE_NO_PAD.encode(inner));
        look_everywhere(wire.as_bytes());
    }

    #[test]
    fn unverified_ids_are_always_good_json(ids in prop::collection::vec(any::<u8>(), 0..40)) {
        let mut inner = vec![VERSION, Shape::Batch as u8];
        inner.extend_from_slice(&[0; FIXED_BYTES - 2]);
        inner.extend_from_slice(&[NUMBER, ids.len() as u8]);
        inner.extend_from_slice(&ids);
        inner.extend_from_slice(&[0; MAC_BYTES]);
        let wire = format!("{}.1", URL_SAFE_NO_PAD.encode(inner));
        if let Requests::Batch(ids) = EventId::parse(wire.as_bytes()).unwrap().unverified_requests() {
            for id in ids {
                prop_assert_eq!(RequestId::from_json(&id.to_json()), Some(id));
            }
        }
    }
}

fn look_everywhere(text: &[u8]) {
    if let Some(id) = EventId::parse(text) {
        let _ = (id.unverified_kind(), id.unverified_requests(), id.verify(&keys(1)));
        let mut end = String::new();
        write_end_id(&mut end, id.handle_text()).unwrap();
        assert_eq!(EventId::parse(end.as_bytes()).unwrap().cursor(), Cursor::End);
    }
}

#[test]
fn a_rotated_key_is_still_accepted() {
    let old = event_id(&request_handle(&keys(1), &[number("1")], false), Seq(1), None);
    let old = EventId::parse(old.as_bytes()).unwrap();
    let rotated = Keyring::new([2; 32], vec![[3; 32], [1; 32]]);
    assert!(old.verify(&rotated).is_some());
    let new = event_id(&request_handle(&rotated, &[number("1")], false), Seq(1), None);
    assert!(EventId::parse(new.as_bytes()).unwrap().verify(&keys(2)).is_some());
}

#[test]
fn only_the_documented_places_are_well_formed() {
    let handle = request_handle(&keys(1), &[number("1")], false);
    let place = |place: &str| EventId::parse(format!("{}{place}", handle.as_str()).as_bytes()).map(|id| id.cursor());
    assert_eq!(place(".0"), Some(Cursor::Seq(Seq(0))));
    assert_eq!(place(".12.345"), Some(Cursor::Seq(Seq(12))));
    assert_eq!(place(".end"), Some(Cursor::End));
    assert_eq!(place(".99999999999999999999"), Some(Cursor::Seq(Seq(u64::MAX))));
    for bad in ["", ".", "..", ".x", ".-1", ".+1", ".1.", ".1.2.3", ".1. 2", ".end.1", ".END", ".1\n", "=.1", " .1"] {
        assert_eq!(place(bad), None, "{bad:?}");
    }
    assert_eq!(place(".999999999999999999999"), None, "21 digits");
}

#[test]
fn the_length_of_a_handle_is_bounded_on_both_sides() {
    let shortest = request_handle(&keys(1), &[], false);
    assert_eq!(shortest.as_str().len(), MIN_HANDLE_LEN);
    let ids = vec![number("1"); MAX_BATCH_ID_BYTES];
    let longest = request_handle(&keys(1), &ids, true);
    assert_eq!(longest.as_str().len(), MAX_HANDLE_LEN);
    assert_eq!((MIN_HANDLE_LEN, MAX_HANDLE_LEN), (51, 563));
    for (len, well_formed) in [(50, false), (51, true), (563, true), (564, false)] {
        let wire = format!("{}.1", "A".repeat(len));
        assert_eq!(EventId::parse(wire.as_bytes()).is_some(), well_formed, "{len}");
    }
}

#[test]
fn ids_over_the_bounds_are_left_out() {
    let keys = keys(1);
    let fits = text(&"x".repeat(64));
    let too_long = text(&"x".repeat(65));
    assert_eq!(requests_of(&request_handle(&keys, std::slice::from_ref(&fits), false)), Requests::One(fits.clone()));
    assert_eq!(requests_of(&request_handle(&keys, std::slice::from_ref(&too_long), false)), Requests::Unknown);
    let pair = vec![fits.clone(), fits.clone()];
    assert_eq!(requests_of(&request_handle(&keys, &pair, true)), Requests::Batch(pair.clone()));
    assert_eq!(requests_of(&request_handle(&keys, &[fits, too_long], true)), Requests::Unknown);
    let empty = vec![text(""); 129];
    assert_eq!(requests_of(&request_handle(&keys, &empty, true)), Requests::Unknown);
}

#[test]
fn an_end_names_no_place() {
    let keys = keys(1);
    let mut wire = String::new();
    write_end_id(&mut wire, request_handle(&keys, &[number("1")], false).as_str()).unwrap();
    let parsed = EventId::parse(wire.as_bytes()).unwrap();
    assert_eq!(parsed.unverified_requests(), Requests::One(number("1")));
    assert_eq!(parsed.verify(&keys), None);
}

#[test]
fn the_wire_form_is_pinned() {
    let handle = request_handle(&keys(1), &[number("1")], false);
    let inner = URL_SAFE_NO_PAD.decode(handle.as_str()).unwrap();
    let fields = [&[1, 1, 0, 0, 0, 1, 0, 0, 0, 2][..], &[7; 12], &[NUMBER, 1, b'1']].concat();
    assert_eq!(inner[..inner.len() - MAC_BYTES], fields);
    assert_eq!(Owner::from_name("abc"), Owner(0xba78_16bf));
}

#[test]
fn keys_and_handles_do_not_show_in_debug() {
    let keys = keys(0xAB);
    assert_eq!(format!("{keys:?}"), "Keyring(1 keys)");
    let handle = request_handle(&keys, &[number("1")], false);
    let id = EventId::parse(event_id(&handle, Seq(1), None).as_bytes()).unwrap();
    let shown = format!("{handle:?} {id:?} {:?}", id.verify(&keys));
    assert!(!shown.contains(&handle.as_str()[..24]), "{shown}");
}
