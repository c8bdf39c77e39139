use proptest::prelude::*;

use super::*;

const LIMIT: usize = 1 << 16;

/// All events of `pieces`, and the error that ended them.
fn decode<'a>(limit: usize, pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Event>, Option<Error>) {
    let mut decoder = Decoder::new(limit);
    let mut events = Vec::new();
    for piece in pieces {
        decoder.feed(Bytes::copy_from_slice(piece));
        loop {
            match decoder.poll_event() {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(error) => return (events, Some(error)),
            }
        }
    }
    (events, None)
}

fn decode_one(text: &[u8]) -> Event {
    let (mut events, error) = decode(LIMIT, [text]);
    assert_eq!(error, None);
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

/// The rules of the specification, read literally over the whole input; no limit.
fn model(bytes: &[u8]) -> Vec<Event> {
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    let mut lines = vec![Vec::new()];
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"\r\n") {
            at += 1;
        }
        match bytes[at] {
            b'\r' | b'\n' => lines.push(Vec::new()),
            byte => lines.last_mut().unwrap().push(byte),
        }
        at += 1;
    }
    lines.pop();
    let mut events = Vec::new();
    let mut data: Vec<Vec<u8>> = Vec::new();
    let mut event = Event::default();
    let mut begun = false;
    for line in lines {
        if line.is_empty() {
            let mut done = std::mem::take(&mut event);
            done.data = data.join(&b'\n').into();
            data.clear();
            if std::mem::take(&mut begun) {
                events.push(done);
            }
            continue;
        }
        let colon = line.iter().position(|&b| b == b':');
        let (name, value) = match colon {
            None => (&line[..], &[][..]),
            Some(at) => {
                let value = &line[at + 1..];
                (&line[..at], value.strip_prefix(b" ").unwrap_or(value))
            }
        };
        begun |= [&b"event"[..], b"data", b"id", b"retry"].contains(&name);
        match name {
            b"event" => event.name = Bytes::copy_from_slice(value),
            b"data" => data.push(value.to_vec()),
            b"id" if !value.contains(&0) => event.id = Some(Bytes::copy_from_slice(value)),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                let text = std::str::from_utf8(value).unwrap();
                let millis = text.parse::<u64>().unwrap_or(u64::MAX).min(MAX_RETRY_MS);
                event.retry = Some(Duration::from_millis(millis));
            }
            _ => {}
        }
    }
    events
}

/// Text made of the pieces that matter to the grammar, so that random inputs reach its corners.
fn streamish() -> impl Strategy<Value = Vec<u8>> {
    let token = prop_oneof![
        6 => prop::sample::select(vec![
            &b"data"[..], b"event", b"id", b"retry", b"dat", b"datas", b"unknown", b":", b": ", b" ", b"\0",
            b"123", b"99999999999999999999", b"message", b"\xEF\xBB\xBF", b"\xEF", b"\xFF", b"{}",
        ])
        .prop_map(<[u8]>::to_vec),
        3 => prop::sample::select(vec![&b"data: "[..], b"event: ", b"id: ", b"data:", b"data: {}\n\n", b"event: message\r\n"])
            .prop_map(<[u8]>::to_vec),
        5 => prop::sample::select(vec![&b"\n"[..], b"\r", b"\r\n", b"\n\n", b"\r\n\r\n", b"\ndata: ", b"\nid:"])
            .prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(any::<u8>(), 0..12),
    ];
    prop::collection::vec(token, 0..60).prop_map(|tokens| tokens.concat())
}

fn slices<'a>(bytes: &'a [u8], sizes: &[usize]) -> Vec<&'a [u8]> {
    let mut rest = bytes;
    let mut pieces = Vec::new();
    let mut sizes = sizes.iter().cycle();
    while !rest.is_empty() {
        let size = sizes.next().map_or(1, |&s| s.clamp(1, rest.len()));
        let (piece, tail) = rest.split_at(size.min(rest.len()));
        pieces.push(piece);
        rest = tail;
    }
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn agrees_with_the_rules_read_literally(bytes in streamish()) {
        prop_assert_eq!(decode(LIMIT, [&bytes[..]]), (model(&bytes), None));
    }

    #[test]
    fn any_slicing_equals_one_piece(
        bytes in streamish(),
        sizes in prop::collection::vec(1usize..9, 1..20),
        limit in prop_oneof![Just(LIMIT), 0usize..24],
    ) {
        let whole = decode(limit, [&bytes[..]]);
        prop_assert_eq!(decode(limit, slices(&bytes, &sizes)), whole);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let whole = decode(32, [&bytes[..]]);
        prop_assert_eq!(decode(32, bytes.chunks(1)), whole);
    }

    #[test]
    fn written_events_read_back(
        name in "[a-z/]{0,12}",
        data in prop::collection::vec(any::<u8>(), 0..200),
        id in prop::option::of("[A-Za-z0-9_.-]{1,40}"),
    ) {
        let mut wire = BytesMut::new();
        if let Some(id) = &id {
            encode_id(&mut wire, id);
        }
        encode_event(&mut wire, name.as_bytes(), &data);
        let event = decode_one(&wire);
        prop_assert_eq!(&event.name[..], name.as_bytes());
        prop_assert_eq!(event.id, id.map(Bytes::from));
        prop_assert_eq!(&event.data[..], &with_lf_only(&data)[..]);
        prop_assert_eq!(&encoded_data(&wire)[..], &event.data[..]);
        for (at, byte) in event.data.iter().enumerate() {
            prop_assert_eq!(wire[encoded_place(&wire, at)], *byte);
        }
    }

    #[test]
    fn an_event_in_pieces_has_the_bytes_of_a_whole_one(data in prop::collection::vec("[ab\r\n]{0,8}", 3)) {
        // No caller has a piece that ends within a line end.
        let data: Vec<String> = data.into_iter().map(|piece| format!("x{piece}x")).collect();
        let mut whole = BytesMut::new();
        encode_id(&mut whole, "7");
        let start = whole.clone();
        encode_event(&mut whole, b"message", data.concat().as_bytes());
        let pieces = encode_apart(start, b"message", data.into_iter().map(Bytes::from));
        prop_assert_eq!(pieces.concat(), whole);
    }

    #[test]
    fn what_is_held_is_bounded_by_the_limit(
        bytes in streamish(),
        long in prop::sample::select(vec![&b"data: "[..], b"event: ", b"id: ", b"retry: ", b": ", b"x: ", b""]),
        chunk in 1usize..400,
    ) {
        let limit = 100;
        let mut endless = bytes;
        endless.extend_from_slice(b"\n");
        endless.extend_from_slice(long);
        endless.extend(std::iter::repeat_n(b'7', 5000));
        let mut decoder = Decoder::new(limit);
        for piece in endless.chunks(chunk) {
            decoder.feed(Bytes::copy_from_slice(piece));
            while let Ok(Some(_)) = decoder.poll_event() {}
            prop_assert!(decoder.held() <= limit + 32, "{} held", decoder.held());
            for capacity in decoder.value_capacities() {
                prop_assert!(capacity <= limit, "{capacity} allocated for one value");
            }
            prop_assert!(decoder.input.0.len() <= MAX_FIELD_NAME + 1);
        }
    }
}

impl Decoder {
    fn held(&self) -> usize {
        let block = &self.block;
        self.input.rest().len()
            + block.name.len()
            + block.data.len()
            + block.id.as_ref().map_or(0, Bytes::len)
            + block.cut_value.len()
    }

    fn value_capacities(&self) -> [usize; 2] {
        [self.block.data.capacity(), self.block.cut_value.capacity()]
    }
}

fn with_lf_only(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (at, &byte) in data.iter().enumerate() {
        match byte {
            b'\r' if data.get(at + 1) == Some(&b'\n') => {}
            b'\r' => out.push(b'\n'),
            byte => out.push(byte),
        }
    }
    out
}

#[test]
fn invalid_utf8_goes_through_unchanged() {
    let event = decode_one(b"data: \xff\xfe\0{\n\n");
    assert_eq!(&event.data[..], b"\xff\xfe\0{");
}

#[test]
fn comment_only_blocks_yield_nothing() {
    assert_eq!(decode(LIMIT, [&b": ping\n\n:\n\nfoo: bar\n\n"[..]]), (vec![], None));
}

#[test]
fn a_block_with_an_id_alone_is_an_event_with_empty_data() {
    let event = decode_one(b"id: 7\nretry: 1500\n\n");
    assert_eq!(event.id.as_deref(), Some(&b"7"[..]));
    assert_eq!(event.retry, Some(Duration::from_millis(1500)));
    assert!(event.data.is_empty());
}

#[test]
fn a_cr_ends_an_event_without_waiting_for_an_lf() {
    let mut decoder = Decoder::new(LIMIT);
    decoder.feed(Bytes::from_static(b"data: a\r\r"));
    assert_eq!(&decoder.poll_event().unwrap().unwrap().data[..], b"a");
    decoder.feed(Bytes::from_static(b"\ndata: b\n\n"));
    assert_eq!(&decoder.poll_event().unwrap().unwrap().data[..], b"b");
    assert_eq!(decoder.poll_event(), Ok(None));
}

#[test]
fn an_event_of_exactly_the_limit_passes_and_one_byte_more_fails_before_it_ends() {
    assert_eq!(decode(4, [&b"data: abcd\n\n"[..]]).0.len(), 1);
    let mut decoder = Decoder::new(4);
    decoder.feed(Bytes::from_static(b"data: abcde"));
    let error = Err(Error::TooLarge { limit: 4 });
    assert_eq!(decoder.poll_event(), error);
    decoder.feed(Bytes::from_static(b"\n\ndata: a\n\n"));
    assert_eq!(decoder.poll_event(), error);
}

#[test]
fn the_limit_counts_each_event_alone_and_comments_never() {
    let wire = b": a long comment\n\ndata: abcd\n\ndata: abcd\n\n";
    assert_eq!(decode(4, [&wire[..]]).0.len(), 2);
}

#[test]
fn events_in_the_usual_forms_are_slices_of_what_was_fed_and_what_is_left_is_not() {
    let fed = Bytes::from_static(
        b"data: first\n\nevent: message\r\ndata: second\r\n\r\nid: 3\nevent: e\ndata: third\n\ndata:fourth\n\ndata: fif",
    );
    let mut decoder = Decoder::new(LIMIT);
    decoder.feed(fed.clone());
    let is_slice = |event: &Event| fed.as_ptr_range().contains(&event.data.as_ptr());
    let events: Vec<Event> = std::iter::from_fn(|| decoder.poll_event().unwrap()).collect();
    let seen: Vec<_> = events.iter().map(|event| (&event.data[..], is_slice(event))).collect();
    assert_eq!(seen, [(&b"first"[..], true), (b"second", true), (b"third", true), (b"fourth", false)]);
    assert_eq!(decoder.block.data, "fif");
    decoder.feed(Bytes::from_static(b"th\n\nda"));
    assert_eq!(&decoder.poll_event().unwrap().unwrap().data[..], b"fifth");
    assert_eq!(decoder.poll_event(), Ok(None));
    assert_eq!((&decoder.input.0[..], decoder.block.data.capacity()), (&b"da"[..], 0));
}

#[test]
fn half_an_event_is_partial_and_a_comment_is_not() {
    let mut decoder = Decoder::new(LIMIT);
    for (piece, partial) in
        [(&b": co"[..], false), (b"mment\n\n", false), (b"da", true), (b"ta: x", true), (b"\n", true), (b"\n", false)]
    {
        decoder.feed(Bytes::copy_from_slice(piece));
        decoder.poll_event().unwrap();
        assert_eq!(decoder.has_partial(), partial, "after {piece:?}");
    }
}

#[test]
fn the_wire_forms_are_pinned() {
    let mut out = BytesMut::new();
    encode_empty(&mut out, None, Some("h.0"), Some(Duration::from_secs(1)));
    encode_comment(&mut out, "keep-alive");
    encode_id(&mut out, "h.1");
    encode_event(&mut out, b"message", b"{\n}");
    encode_event(&mut out, b"", b"");
    encode_empty(&mut out, None, None, None);
    assert_eq!(
        &out[..],
        b"id: h.0\nretry: 1000\ndata: \n\n: keep-alive\n\nid: h.1\nevent: message\ndata: {\ndata: }\n\ndata: \n\n\
          data: \n\n"
    );
}

#[test]
fn a_value_cannot_write_lines_of_its_own() {
    let mut out = BytesMut::new();
    encode_id(&mut out, "1\ndata: forged");
    encode_event(&mut out, b"x\r\rdata: forged", b"real");
    assert_eq!(&decode_one(&out).data[..], b"real");
}

/// Decodes `stream` in pieces of `size`, with events over `limit` skipped.
fn items(stream: &[u8], size: usize, limit: usize) -> Vec<Item> {
    let mut decoder = Decoder::new(limit);
    let mut items = Vec::new();
    for piece in stream.chunks(size) {
        decoder.feed(Bytes::copy_from_slice(piece));
        items.extend(std::iter::from_fn(|| decoder.poll_item()));
        assert!(decoder.bytes_held() <= 2 * limit, "{} bytes are held", decoder.bytes_held());
    }
    items
}

#[test]
fn an_event_over_the_limit_can_be_skipped_to_its_end() {
    let stream = b"data: one\n\nevent: message\ndata: longer than\ndata: twenty bytes\nid: 7\n\ndata: two\n\n";
    let data =
        |text: &'static str| Item::Event(Event { data: Bytes::from_static(text.as_bytes()), ..Event::default() });
    for size in 1..stream.len() {
        let items = items(stream, size, 20);
        let [one, Item::Cut(cut), end, two] = &items[..] else { panic!("{items:?}") };
        let (one, end, two) = (one.clone(), end.clone(), two.clone());
        assert_eq!((one, end, two), (data("one"), Item::CutEnd("longer than\ntwenty bytes".into()), data("two")));
        assert_eq!(cut.name, "message");
        assert!(b"longer than\ntwenty bytes".starts_with(&cut.first), "{:?}", cut.first);
    }
}

#[test]
fn an_event_can_be_skipped_on_demand() {
    let mut decoder = Decoder::new(100);
    decoder.feed("data: one".into());
    assert_eq!((decoder.poll_item(), decoder.partial_data()), (None, &b"one"[..]));
    assert_eq!(decoder.cut(), Cut { name: Bytes::new(), first: "one".into() });
    decoder.feed(" and more\n\ndata: two\n\n".into());
    assert_eq!(decoder.poll_item(), Some(Item::CutEnd("one and more".into())));
    assert!(matches!(decoder.poll_item(), Some(Item::Event(event)) if event.data == "two"));
}
