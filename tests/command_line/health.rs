//! `mcp-resume health` and `mcp-resume drain`.

use super::*;

#[test]
fn health_says_what_the_process_says_and_exits_with_it() {
    let mut child = serve(FREE, FREE).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary runs");
    let lines = BufReader::new(child.stdout.take().expect("its stdout is piped")).lines();
    let admin =
        lines.map(|line| line.expect("text")).find_map(|line| Some(line.split_once("admin on http://")?.1.into()));
    let admin: String = admin.expect("it has an admin listener");
    let ready = health(&["--admin", &admin]);
    let live = health(&["--admin", &admin, "--live"]);
    child.kill().expect("it runs");
    child.wait().expect("a status");
    let said = "the upstream has not accepted a connection yet\n";
    assert_eq!((ready.status.code(), text(&ready.stdout)), (Some(1), said), "its server does not listen");
    assert_eq!((live.status.code(), text(&live.stdout)), (Some(0), "ok\n"));
    assert!(ready.stderr.is_empty() && live.stderr.is_empty());
}

#[test]
fn health_without_a_listener_exits_1_and_of_a_wrong_address_2() {
    let output = health(&["--admin", "127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no admin listener answers at 127.0.0.1:1: "), "{}", text(&output.stderr));
    for (admin, problem) in [("here", "--admin"), ("", "admin.address is empty")] {
        let output = health(&["--admin", admin]);
        assert_eq!(output.status.code(), Some(2), "{admin:?}");
        assert!(text(&output.stderr).contains(problem), "{}", text(&output.stderr));
    }
}

/// An admin listener that answers these, one connection each; says how many it had.
fn admin_answering(statuses: &'static [&'static str]) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind(FREE).expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let answering = std::thread::spawn(move || {
        for status in statuses {
            let (mut connection, _) = listener.accept().expect("a connection");
            let mut request = [0; 1024];
            let _ = connection.read(&mut request).expect("a request");
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n");
            connection.write_all(answer.as_bytes()).expect("it reads");
        }
    });
    (address, answering)
}

#[test]
fn health_with_wait_waits_until_the_process_is_healthy() {
    let (admin, answering) = admin_answering(&["503 Service Unavailable", "503 Service Unavailable", "200 OK"]);
    let output = health(&["--admin", &admin, "--wait", "60"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    answering.join().expect("it was asked three times");

    let (admin, answering) = admin_answering(&["503 Service Unavailable"]);
    assert_eq!(health(&["--admin", &admin]).status.code(), Some(1));
    answering.join().expect("it was asked once");
}

#[test]
fn drain_says_in_its_help_what_it_waits_for() {
    let output = run(&["drain", "--help"]);
    assert_eq!(output.status.code(), Some(0));
    for word in ["replica.drain_timeout_secs", "SIGTERM", "X-Drain", "Exit codes"] {
        assert!(text(&output.stdout).contains(word), "{word}");
    }
}
