//! Upgraded connections: bytes in both directions, which end independently.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    time::Duration,
};

use super::forms::Forms;

const UPGRADE: &str =
    "GET /chat HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\r\n";

/// Upgrades a connection, sends a message, closes the sending side, and returns everything after the response headers.
fn chat(to: &str) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(UPGRADE.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
    }
    let head = head.to_lowercase();
    assert!(head.starts_with("http/1.1 101 ") && head.contains("upgrade: websocket\r\n"), "{head}");
    stream.write_all(b"tea").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    said
}

fn upgrades_are_the_same(forms: &Forms) {
    for form in &forms.forms {
        assert_eq!(chat(&form.address), "helloyou said tea", "{}", form.name);
    }
}

#[test]
fn http_upgrades_over_plaintext_work_equally_by_each_proxy_path() {
    upgrades_are_the_same(&Forms::plain());
}

#[test]
fn http_upgrades_over_mutual_tls_work_equally_by_each_proxy_path() {
    upgrades_are_the_same(&Forms::mutual_tls());
}
