//! Floods of header fields.

use super::*;

#[tokio::test]
async fn heads_without_end_are_431_and_cost_no_more_than_the_bound() {
    let (mut upstream, proxy, session) = bounded(|c| c.limits.header_bytes = 16 * 1024).await;
    let mut neighbour = Neighbour::moves_in(&proxy, &mut upstream).await;
    let mut many = session.post(call(1));
    for n in 0..500 {
        many = many.and(&format!("X-{n}"), "x");
    }
    let mut endless = session.post(call(1)).with("X-Endless", "").bytes(proxy.addr);
    let end = endless.windows(9).position(|w| w == b"X-Endless").expect("the field") + 11;
    endless.truncate(end);
    endless.resize(1_000_000, b'x');
    let large = session.post(call(1)).with("X-Large", &"x".repeat(20_000)).bytes(proxy.addr);
    let many = many.bytes(proxy.addr);
    for n in 0..60 {
        let bytes = [&many, &endless, &large][n % 3];
        let (_, response) = Client::connect(proxy.addr).await.send_and_read(bytes).await;
        assert_eq!(response.expect("an answer").status, 431);
        neighbour.hears().await;
    }
    assert!(upstream.is_quiet());
    neighbour.moves_out().await;
}
