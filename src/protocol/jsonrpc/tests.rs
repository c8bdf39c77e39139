use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn number(text: &str) -> RequestId {
    RequestId::Number(text.into())
}

fn text(text: &str) -> RequestId {
    RequestId::String(text.into())
}

/// Classifies a message by all of its members as values.
fn model_one(members: &[(String, Value)]) -> Result<Message, PeekError> {
    let all = |key: &str| -> Vec<&Value> { members.iter().filter(|(k, _)| k == key).map(|(_, v)| v).collect() };
    let last_duplicate = members.iter().enumerate().rev().find_map(|(at, (key, _))| {
        let known = ["jsonrpc", "id", "method", "result", "error"].into_iter().find(|known| known == key)?;
        members[..at].iter().any(|(earlier, _)| earlier == key).then_some(known)
    });
    if let Some(key) = last_duplicate {
        return Err(PeekError::DuplicateKey(key));
    }
    if all("jsonrpc").first() != Some(&&json!("2.0")) {
        return Err(PeekError::NotMessage);
    }
    let id = match all("id").first() {
        None => Ok(None),
        Some(Value::Null) => Ok(Some(None)),
        Some(Value::Number(n)) => Ok(Some(Some(number(&n.to_string())))),
        Some(Value::String(s)) => Ok(Some(Some(text(s)))),
        Some(_) => Err(PeekError::BadId),
    };
    // `null` counts as absent beside a member that has a value.
    let value = |key: &str| all(key).first().is_some_and(|value| !value.is_null());
    let null = |key: &str| all(key).first().is_some_and(|value| value.is_null());
    let result = value("result") || (null("result") && !value("error") && !value("method"));
    let error = value("error") || (null("error") && all("result").is_empty() && !value("method"));
    match all("method").first().filter(|method| !method.is_null()) {
        Some(Value::String(method)) if !result && !error => match id? {
            None => Ok(Message::Notification { method: method.clone().into() }),
            Some(None) => Err(PeekError::BadId),
            Some(Some(id)) => Ok(Message::Request { id, method: method.clone().into() }),
        },
        None if result != error => match id? {
            None if result => Err(PeekError::NotMessage),
            id => Ok(Message::Response { id: id.flatten(), is_error: error }),
        },
        _ => Err(PeekError::NotMessage),
    }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9..1e9).prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-z]{1,6}|id|method|\\PC{1,4}", inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn member() -> impl Strategy<Value = (String, Value)> {
    let id = prop_oneof![4 => any::<i64>().prop_map(Value::from), 4 => ".{0,9}".prop_map(Value::from), 1 => value()];
    let method = prop_oneof![8 => "[a-z/]{1,12}".prop_map(Value::from), 1 => value()];
    prop_oneof![
        4 => id.prop_map(|v| ("id".to_owned(), v)),
        3 => method.prop_map(|v| ("method".to_owned(), v)),
        1 => value().prop_map(|v| ("result".to_owned(), v)),
        1 => value().prop_map(|v| ("error".to_owned(), v)),
        2 => value().prop_map(|v| ("params".to_owned(), v)),
        1 => (".{0,5}", value()),
        1 => Just(("jsonrpc".to_owned(), json!("1.0"))),
    ]
}

/// Members of one object in writing order, repeats possible.
fn members() -> impl Strategy<Value = Vec<(String, Value)>> {
    let rest = prop::collection::vec(member(), 0..5);
    (prop::bool::weighted(0.9), rest).prop_flat_map(|(versioned, mut all)| {
        if versioned {
            all.push(("jsonrpc".to_owned(), json!("2.0")));
        }
        Just(all).prop_shuffle()
    })
}

fn write(members: &[(String, Value)], gap: &str) -> String {
    let list: Vec<_> = members
        .iter()
        .map(|(key, value)| format!("{gap}{}{gap}:{gap}{value}{gap}", Value::from(key.as_str())))
        .collect();
    format!("{{{}}}", list.join(","))
}

#[test]
fn most_notifications_are_seen_to_have_no_id() {
    let progress = br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":2,"message":"a\nb"}}"#;
    assert!(!may_have_id(progress) && peek(progress).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn agrees_with_a_model_that_parses_everything(members in members(), gap in "[ \n\t]{0,2}") {
        let written = write(&members, &gap);
        prop_assert!(serde_json::from_str::<Value>(&written).is_ok());
        prop_assert_eq!(peek(written.as_bytes()), model_one(&members).map(Body::Single), "{}", written);
    }

    #[test]
    fn what_has_an_id_is_never_said_to_have_none(members in members(), spelled in 0usize..4) {
        let spelled = [r#""id""#, r#""\u0069d""#, r#""i\u0064""#, r#""\u0069\u0064""#][spelled];
        let written = write(&members, "").replace(r#""id":"#, &format!("{spelled}:"));
        let id = |message: &Message| matches!(message, Message::Request { .. } | Message::Response { id: Some(_), .. });
        let has_id = peek(written.as_bytes()).is_ok_and(|body| body.messages().iter().any(id));
        prop_assert!(may_have_id(written.as_bytes()) || !has_id, "{}", written);
    }

    #[test]
    fn a_batch_is_its_messages_in_order(list in prop::collection::vec(members(), 1..5)) {
        let written = format!("[{}]", list.iter().map(|m| write(m, "")).collect::<Vec<_>>().join(", "));
        let expected: Result<Vec<_>, _> = list.iter().map(|m| model_one(m)).collect();
        prop_assert_eq!(peek(written.as_bytes()), expected.map(Body::Batch), "{}", written);
    }

    #[test]
    fn json_of_another_shape_is_no_message(value in value(), tail in "[\\]}x]{0,1}") {
        let expected = if tail.is_empty() { PeekError::NotMessage } else { PeekError::NotJson };
        prop_assert_eq!(peek(format!("[[{value}]]{tail}").as_bytes()), Err(expected));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..400) {
        look_everywhere(&bytes);
        let mut message = br#"[{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{},"name":""#.to_vec();
        message.extend_from_slice(&bytes);
        message.extend_from_slice(br#""}},{"jsonrpc":"2.0","id":"\u00e9","result":{"capabilities":{}}}]"#);
        message.truncate(cut);
        look_everywhere(&message);
        look_everywhere(&message[1.min(message.len())..]);
    }

    #[test]
    fn deeper_members_agree_with_a_full_parse(params in value(), deep in value()) {
        let mut message = json!({"jsonrpc": "2.0", "id": 1, "method": "m", "params": params});
        if message["params"].is_object() {
            message["params"]["name"] = deep.clone();
            message["params"]["requestId"] = deep.clone();
            message["params"]["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": deep});
        }
        let bytes = message.to_string().into_bytes();
        let params = &message["params"];
        let version = &params["_meta"]["io.modelcontextprotocol/protocolVersion"];
        prop_assert_eq!(tool_name(&bytes), params["name"].as_str().map(str::to_owned));
        prop_assert_eq!(meta_protocol_version(&bytes), version.as_str().map(str::to_owned));
        let id = RequestId::from_json(&params["requestId"].to_string());
        prop_assert_eq!(cancelled_request_id(&bytes), id);
    }

    #[test]
    fn the_place_of_a_name_is_that_of_the_tool(
        all in prop::collection::vec(prop::collection::vec((0usize..4, value()), 0..4), 1..3),
        gap in "[ \n\t]{0,2}",
    ) {
        const KEYS: [&str; 4] = [r#""name""#, r#""n\u0061me""#, r#""named""#, r#""_meta""#];
        let member = |(key, value): &(usize, Value)| format!("{}{gap}:{gap}{value}", KEYS[*key]);
        let params = all.iter().map(|members| {
            let members: Vec<_> = members.iter().map(member).collect();
            format!(r#""params":{gap}{{{gap}{}{gap}}}"#, members.join(&format!("{gap},{gap}")))
        });
        let params: Vec<_> = params.collect();
        let written = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call",{}}}"#, params.join(","));
        let request = peek_request(written.as_bytes(), 1).unwrap();
        let name = tool_name_at(written.as_bytes(), request.name.as_ref());
        prop_assert_eq!(name.map(Cow::into_owned), tool_name(written.as_bytes()), "{}", written);
    }

    #[test]
    fn a_scan_finds_what_a_parser_finds(members in members(), gap in "[ \n\t]{0,2}") {
        const PATHS: [&[&str]; 6] =
            [&["m", "id"], &["m", "method"], &["m", "params"], &["m", "result", "id"], &["m", "x"], &["m"]];
        let written = format!(r#"{gap}{{"a":[],{gap}"m":{}}}"#, write(&members, &gap));
        for path in PATHS {
            let found = find(written.as_bytes(), path).map(|raw| raw.get().as_bytes());
            prop_assert_eq!(scan(written.as_bytes(), path), found, "{:?} in {}", path, written);
        }
    }

    #[test]
    fn ids_survive_json(id in prop_oneof![".*".prop_map(|s| text(&s)), any::<i64>().prop_map(|n| number(&n.to_string()))]) {
        prop_assert_eq!(RequestId::from_json(&id.to_json()), Some(id));
    }
}

fn look_everywhere(bytes: &[u8]) {
    let _ = peek(bytes);
    let _ = meta_protocol_version(bytes);
    let _ = cancelled_request_id(bytes);
    let _ = tool_name(bytes);
    let _ = initialize_result(bytes);
}

#[test]
fn numbers_are_kept_as_written() {
    for written in ["1", "1.0", "-0", "1e3", "9007199254740993", "123456789012345678901234567890"] {
        let bytes = format!(r#"{{"jsonrpc":"2.0","id": {written} ,"method":"m"}}"#);
        let expected = Message::Request { id: number(written), method: "m".into() };
        assert_eq!(peek(bytes.as_bytes()), Ok(Body::Single(expected)));
    }
    assert_eq!(RequestId::from_json("01"), None);
    assert_eq!(RequestId::from_json("true"), None);
    assert_eq!(RequestId::from_json("1 2"), None);
}

#[test]
fn invalid_utf8_in_a_payload_is_no_error() {
    let bytes = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"text\":\"\xff\xfe\", \"\xff\": [\"\xc3\"]}}";
    let expected = Message::Response { id: Some(number("1")), is_error: false };
    assert_eq!(peek(bytes), Ok(Body::Single(expected)));
    let call =
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"arguments\":\"\xff\",\"name\":\"t\"}}";
    assert!(peek(call).is_ok());
}

#[test]
fn deep_nesting_neither_panics_nor_overflows_the_stack() {
    let deep = "[".repeat(1_000_000);
    look_everywhere(deep.as_bytes());
    assert_eq!(peek(deep.as_bytes()), Err(PeekError::NotJson));
    let objects = r#"{"params":"#.repeat(300_000);
    look_everywhere(objects.as_bytes());
    assert_eq!(peek(objects.as_bytes()), Err(PeekError::NotJson));
    let closed = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{deep}{}}}"#, "]".repeat(1_000_000));
    assert!(peek(closed.as_bytes()).is_ok());
}

#[test]
fn a_member_that_decides_is_there_once() {
    for (twice, members) in [
        ("jsonrpc", r#""jsonrpc":"1.0","jsonrpc":"2.0","id":1,"method":"m""#),
        ("id", r#""jsonrpc":"2.0","id":1,"method":"m","id":1"#),
        ("method", r#""jsonrpc":"2.0","id":1,"method":"m","method":"n""#),
        ("result", r#""jsonrpc":"2.0","id":1,"result":{},"result":null"#),
        ("error", r#""jsonrpc":"2.0","id":1,"error":{},"x":1,"error":{}"#),
    ] {
        assert_eq!(peek(format!("{{{members}}}").as_bytes()), Err(PeekError::DuplicateKey(twice)));
    }
    let payload = br#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"id":1,"id":2},"params":{}}"#;
    assert!(peek(payload).is_ok());
}

#[test]
fn an_escaped_key_is_the_same_key() {
    let bytes = br#"{"jsonrpc":"2.0","id":1,"\u0069d":2,"method":"m"}"#;
    assert_eq!(peek(bytes), Err(PeekError::DuplicateKey("id")));
}

#[test]
fn an_empty_batch_and_an_empty_body_are_no_messages() {
    assert_eq!(peek(b"[]"), Err(PeekError::NotMessage));
    assert_eq!(peek(b"[1]"), Err(PeekError::NotMessage));
    assert_eq!(peek(b""), Err(PeekError::NotJson));
}

#[test]
fn the_revision_of_a_batch_is_the_first_one_named() {
    let bytes = br#"[{"params":3},{"params":{"_meta":{}}},
        {"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}},
        {"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"later"}}}]"#;
    assert_eq!(meta_protocol_version(bytes).as_deref(), Some("2026-07-28"));
    assert_eq!(tool_name(br#"[{"params":{"name":"t"}}]"#), None);
}

#[test]
fn the_tool_is_the_last_name_beside_any_other_member() {
    let tool = |params: &str| tool_name(format!(r#"{{"jsonrpc":"2.0","method":"m",{params},"id":1}}"#).as_bytes());
    for (params, name) in [
        (r#""params":{"name":"t"}"#, Some("t")),
        (r#""params" : { "arguments" : {"name":"x","a":["}",{"name":1}]} , "name" : "t" }"#, Some("t")),
        (r#""params":{"name":"s","name":"t"}"#, Some("t")),
        (r#""params":{"name":"s"},"params":{"name":"t"}"#, Some("t")),
        (r#""params":{"name":"s"},"params":{}"#, None),
        (r#""par\u0061ms":{"n\u0061me":"\"t\\"}"#, Some("\"t\\")),
        (r#""params":{"x":"\\","name":"t","y":"\",\"name\":\"n\""}"#, Some("t")),
        (r#""params":{"name":1e999}"#, None),
        (r#""params":["name","t"]"#, None),
        (r#""params":"name""#, None),
    ] {
        assert_eq!(tool(params).as_deref(), name, "{params}");
    }
    assert_eq!(tool_name(b"{\"params\":{\"\xff\":\"\xfe\",\"name\":\"t\"}}").as_deref(), Some("t"));
}

#[test]
fn an_initialize_result_tells_revision_and_logging() {
    let with = br#"{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{"logging":{}}}}"#;
    let without = br#"{"jsonrpc":"2.0","id":0,"result":{"capabilities":{},"protocolVersion":"2025-06-18"}}"#;
    for (bytes, logging) in [(&with[..], true), (without, false)] {
        let expected = Initialized { protocol_version: "2025-06-18".to_owned(), logging };
        assert_eq!(initialize_result(bytes), Some(expected));
    }
    assert_eq!(initialize_result(br#"{"jsonrpc":"2.0","id":0,"error":{}}"#), None);
}

#[test]
fn an_error_of_ours_is_one_line_of_json_rpc() {
    let id = text("a\"\n");
    let bytes = response::error_with_data(Some(&id), -32010, "line\nbreak", json!({"fault": "upstream"}));
    assert!(!bytes.contains(&b'\n'));
    let parsed: Value = serde_json::from_slice(&bytes).unwrap();
    let error = json!({"code": -32010, "message": "line\nbreak", "data": {"fault": "upstream"}});
    assert_eq!(parsed, json!({"jsonrpc": "2.0", "id": "a\"\n", "error": error}));
    assert_eq!(
        response::error_with_data(None, -32012, "gone", Value::Null),
        br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32012,"message":"gone"}}"#
    );
}

#[test]
fn an_error_is_given_another_id_and_keeps_its_bytes() {
    let message = br#"{"jsonrpc":"2.0","error":{"code":-32001, "message":"Session \u006eot found"},"id":null}"#;
    let addressed = response::readdressed(message, &RequestId::String("a\"b".into())).unwrap();
    let expected = r#"{"jsonrpc":"2.0","id":"a\"b","error":{"code":-32001, "message":"Session \u006eot found"}}"#;
    assert_eq!(addressed, expected.as_bytes());
    assert_eq!(response::readdressed(br#"{"result":1}"#, &RequestId::Number("1".into())), None);
}

#[test]
fn an_array_beyond_the_bound_is_read_no_further_than_that() {
    let message = r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#;
    let array = |length: usize, rest: &str| format!("[{}{rest}", vec![message; length].join(","));
    assert_eq!(peek_up_to(array(100, "]").as_bytes(), 100).map(|body| body.messages().len()), Ok(100));
    assert_eq!(peek_up_to(array(101, "]").as_bytes(), 100), Err(PeekError::TooLong));
    // What follows is no JSON, and is not looked at.
    assert_eq!(peek_up_to(array(101, " and so on").as_bytes(), 100), Err(PeekError::TooLong));
    assert_eq!(peek_up_to(array(100, " and so on").as_bytes(), 100), Err(PeekError::NotJson));
    // Neither is what its elements are.
    assert_eq!(peek_up_to(format!("[{}]", vec!["{}"; 101].join(",")).as_bytes(), 100), Err(PeekError::TooLong));
    assert_eq!(peek_up_to(format!("[{}]", vec!["{}"; 100].join(",")).as_bytes(), 100), Err(PeekError::NotMessage));
}

#[test]
fn messages_are_shown_one_by_one() {
    let shown = |body: &'static str| {
        let mut shown = Vec::new();
        let is_json = for_each_message(body.as_bytes(), |message| shown.push(message));
        (shown, is_json)
    };
    assert_eq!(shown(r#" [{"a":1}, 2 ,[3]] "#), (vec![r#"{"a":1}"#, "2", "[3]"], true));
    assert_eq!(shown(r#" {"a":[1,2]} "#), (vec![r#"{"a":[1,2]}"#], true));
    assert_eq!(shown("[1,2"), (vec!["1", "2"], false));
    assert_eq!(shown(""), (vec![], false));
    let second = |message: &str| (message == "2").then_some(true);
    assert_eq!(find_message(b"[1,2,3]", second), Some(true));
    assert_eq!(find_message(b"[1,2,3", second), None, "what is cut off has nothing");
}
