//! Clients of the balancer: their addresses, limits and HTTP versions.

use super::*;

#[tokio::test]
async fn only_trusted_proxies_name_the_client() {
    let one = Sidecar::start(1).await;
    let forwarded = "X-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n";
    let others =
        ["Forwarded", "X-Forwarded-Port", "X-Forwarded-Prefix", "X-Forwarded-User", "X-Forwarded-Ssl", "X-Real-IP"];
    let forwarded = others.iter().fold(forwarded.to_owned(), |all, name| format!("{all}{name}: a\r\n{name}: b\r\n"));
    for (trusted, address, scheme) in
        [("", "127.0.0.1", "http"), ("127.0.0.1,::1/128", "192.0.2.7, 127.0.0.1", "https")]
    {
        let balancer = balance(&[&one], &[("LISTEN__TRUSTED_PROXIES", trusted)]).await;
        let answer = balancer.ask(&post(CALL, &forwarded)).await;
        assert!(answer.ends_with("sidecar 1"), "{answer}");
        let came = one.next().await;
        assert_eq!(header(&came, "x-forwarded-for"), Some(address), "{came}");
        assert_eq!(header(&came, "x-forwarded-proto"), Some(scheme));
        for name in others.map(str::to_ascii_lowercase) {
            assert_eq!(header(&came, &name).is_some(), !trusted.is_empty(), "{name}");
        }
    }
    let settings = [("LISTEN__TRUSTED_PROXIES", "127.0.0.0/8"), ("BALANCE__PROXY_PROTOCOL", "true")];
    let balancer = balance(&[&one], &settings).await;
    let mut io = TcpStream::connect(balancer.address).await.unwrap();
    io.write_all(b"PROXY TCP4 198.51.100.9 127.0.0.1 4000 80\r\n").await.unwrap();
    io.write_all(post(CALL, "").as_bytes()).await.unwrap();
    assert!(support::read(&mut io).await.unwrap().ends_with("sidecar 1"));
    assert_eq!(header(&one.next().await, "x-forwarded-for"), Some("198.51.100.9"));
}

#[tokio::test]
async fn requests_of_one_address_are_limited() {
    let one = Sidecar::start(1).await;
    let balancer = balance(&[&one], &[("BALANCE__REQUESTS_PER_SEC", "3")]).await;
    let mut refused = 0;
    for _ in 0..20 {
        let seen = balancer.ask(&post(CALL, "")).await;
        if seen.starts_with("HTTP/1.1 429") {
            assert!(header(&seen, "retry-after") == Some("1") && seen.contains("too many requests"), "{seen}");
            refused += 1;
        }
    }
    assert!(refused > 0 && one.take_seen().len() == 20 - refused);
    assert_eq!(balancer.metric("failures_total{code=\"too_many_requests\"}").await, refused);
}

#[tokio::test]
async fn a_connection_over_the_limit_is_closed_and_counted() {
    let one = Sidecar::start(1).await;
    let balancer = balance(&[&one], &[("LIMITS__CONNECTIONS", "1")]).await;
    let mut first = balancer.send(&post(CALL, "")).await;
    assert!(support::read(&mut first).await.unwrap().ends_with("sidecar 1"));
    let mut second = TcpStream::connect(balancer.address).await.unwrap();
    assert_eq!(second.read(&mut [0]).await.unwrap_or(0), 0);
    assert_eq!(balancer.metric("connections_refused_total").await, 1);
    assert_eq!(balancer.metric("connections_max").await, 1);
    assert_eq!(balancer.metric("connections").await, 1);
}

#[tokio::test]
async fn the_admin_listener_has_a_connection_limit_of_its_own() {
    let one = Sidecar::start(1).await;
    let balancer = balance(&[&one], &[("LIMITS__CONNECTIONS", "1")]).await;
    let asked = async || {
        let mut io = TcpStream::connect(balancer.admin).await.unwrap();
        io.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let seen = support::read(&mut io).await.expect("an answer");
        (io, seen)
    };
    let mut held = Vec::new();
    for _ in 0..256 {
        let (io, seen) = asked().await;
        assert!(seen.starts_with("HTTP/1.1 200"), "{seen}");
        held.push(io);
    }
    let (_, seen) = asked().await;
    assert!(seen.starts_with("HTTP/1.1 503"), "{seen}");
    assert!(balancer.ask(&post(CALL, "")).await.ends_with("sidecar 1"));
}

#[tokio::test]
async fn clients_may_use_http2() {
    let one = Sidecar::start(1).await;
    let balancer = balance(&[&one], &[]).await;
    let io = TokioIo::new(TcpStream::connect(balancer.address).await.unwrap());
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..3 {
        let request = Request::get("http://localhost/mcp").header("last-event-id", one.event_id());
        let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
        assert_eq!(response.version(), Version::HTTP_2);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "sidecar 1");
    }
}
