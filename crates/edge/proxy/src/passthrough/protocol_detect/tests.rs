use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::timeout,
};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);

fn verdict(bytes: &[u8]) -> String {
    match classify(&mut bytes.to_vec()) {
        None => "more".into(),
        Some(DetectedProtocol::Http1(host)) => host,
        Some(DetectedProtocol::Http2) => "HTTP/2".into(),
        Some(DetectedProtocol::Other(_)) => "other".into(),
    }
}

#[test]
fn http_is_detected_as_soon_as_bytes_suffice() {
    for (bytes, what) in [
        (&b""[..], "more"),
        (b"P", "more"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", "more"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0", "HTTP/2"),
        (b"GET / HTTP/1.1\r\nhost: cart.sh", "more"),
        (b"GET / HTTP/1.1\r\na: b\r\nHoSt: cart.shop:80 \r\n\r\nbody", "cart.shop:80"),
        (b"GET http://cart.shop/a HTTP/1.1\r\nhost: other\r\n\r\n", "cart.shop"),
        (b"GET http://cart.shop/<a>?`\"http://x/ HTTP/1.1\r\nhost: other\r\n\r\n", "cart.shop"),
        (b"GET /?a=http://x/ HTTP/1.1\r\nhost: cart.shop\r\n\r\n", "cart.shop"),
        (b"CONNECT cart.shop:443 HTTP/1.1\r\nhost: other\r\n\r\n", "cart.shop:443"),
        (b"GET / HTTP/1.0\r\n\r\n", "other"),
        (b"GET / HTTP/1.2\r\nhost: cart.shop\r\n\r\n", "cart.shop"),
        (b"GET / HTTP/2.0\r\nhost: cart.shop\r\n\r\n", "other"),
        (b"GET /\r\n", "other"),
        (b"\x16\x03\x01\x02\0", "other"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "other"),
        (b"EHLO here\r\n", "other"),
        (b"*1\r\n$4\r\nPING\r\n", "other"),
        (b"\0\0\0\x08\x04\xd2\x16\x2f", "other"),
    ] {
        assert_eq!(verdict(bytes), what, "{:?}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn headers_over_peek_limit_are_not_detected_as_http() {
    let mut parts = b"GET / HTTP/1.1\r\n".to_vec();
    for number in 0..100 {
        parts.extend(format!("x-{number}: {}\r\n", "y".repeat(700)).into_bytes());
    }
    assert_eq!(verdict(&parts[..MAX_PEEK - 1]), "more");
    assert_eq!(verdict(&parts[..MAX_PEEK]), "other");
}

/// Parts of HTTP requests.
const PIECES: [&str; 8] = [
    "GET ",
    "/",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    "host: cart.shop",
    "\r\n",
    "http://a.b",
    "PRI * HTTP/2.0\r\n",
];

/// Strategy for client input: these pieces in any order, and random bytes.
fn said() -> impl Strategy<Value = Vec<u8>> {
    let piece = proptest::sample::select(&PIECES[..]).prop_map(|piece| piece.as_bytes().to_vec());
    let piece = prop_oneof![4 => piece, 1 => proptest::collection::vec(any::<u8>(), 1..4)];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn detected_protocol_does_not_change_with_later_bytes(said in said(), cut in any::<proptest::sample::Index>()) {
        let early = verdict(&said[..cut.index(said.len() + 1)]);
        prop_assert!(early == "more" || early == verdict(&said), "{early}: {:?}", String::from_utf8_lossy(&said));
    }
}

/// A client, its captured connection, and the called server.
async fn between() -> (TcpStream, TcpStream, TcpListener) {
    let [captures, server] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0"));
    let (captures, server) = (captures.await.unwrap(), server.await.unwrap());
    let client = TcpStream::connect(captures.local_addr().unwrap()).await.unwrap();
    (client, captures.accept().await.unwrap().0, server)
}

async fn detect_with(captured: &TcpStream, server: &TcpListener, time_limit: Duration) -> DetectedProtocol {
    let meant = server.local_addr().unwrap();
    let connector = PassthroughConnector::default();
    let caller = captured.peer_addr().unwrap();
    let detected = detect(captured, caller, meant, &connector, time_limit);
    timeout(TIMEOUT, detected).await.expect("it goes on to look").unwrap()
}

#[tokio::test]
async fn http_headers_sent_in_pieces_are_detected_and_not_consumed() {
    let (mut client, mut captured, server) = between().await;
    let pieces = async {
        for piece in ["GET / HT", "TP/1.1\r\nhost: cart", ".shop\r\n\r\n"] {
            // The second piece may arrive after the proxy has connected to the server.
            tokio::time::sleep(CLIENT_SILENCE).await;
            client.write_all(piece.as_bytes()).await.unwrap();
        }
    };
    let (detected, ()) = tokio::join!(detect_with(&captured, &server, TIMEOUT), pieces);
    assert!(matches!(detected, DetectedProtocol::Http1(host) if host == "cart.shop"));
    drop(client);
    let mut parts = String::new();
    timeout(TIMEOUT, captured.read_to_string(&mut parts)).await.unwrap().unwrap();
    assert_eq!(parts, "GET / HTTP/1.1\r\nhost: cart.shop\r\n\r\n");
}

#[tokio::test]
async fn server_that_speaks_first_loses_no_data() {
    let (_program, captured, server) = between().await;
    let greets = async {
        let (mut stream, _) = server.accept().await.unwrap();
        stream.write_all(b"220 hello").await.unwrap();
    };
    let (detected, ()) = tokio::join!(detect_with(&captured, &server, TIMEOUT), greets);
    let DetectedProtocol::Other(Some(mut server)) = detected else { panic!("{detected:?}") };
    let mut message = String::new();
    timeout(TIMEOUT, server.read_to_string(&mut message)).await.unwrap().unwrap();
    assert_eq!(message, "220 hello");
}

#[tokio::test]
async fn non_http_client_is_connected_without_delay() {
    let (mut client, captured, server) = between().await;
    client.write_all(b"HELO").await.unwrap();
    let detected = detect_with(&captured, &server, 2 * CLIENT_SILENCE).await;
    assert!(matches!(detected, DetectedProtocol::Other(_)), "{detected:?}");
    // Registered again, as the connection's user does. Otherwise the read would wait for further bytes.
    let mut captured = TcpStream::from_std(captured.into_std().unwrap()).unwrap();
    let mut message = [0; 4];
    timeout(TIMEOUT, captured.read_exact(&mut message)).await.unwrap().unwrap();
    assert_eq!(&message, b"HELO");
}

#[tokio::test]
async fn protocol_detection_times_out_if_both_sides_are_silent() {
    let (_program, captured, server) = between().await;
    let meant = server.local_addr().unwrap();
    drop(server);
    let connector = PassthroughConnector::default();
    let caller = captured.peer_addr().unwrap();
    let detected = detect(&captured, caller, meant, &connector, 3 * CLIENT_SILENCE);
    assert!(matches!(timeout(TIMEOUT, detected).await.unwrap().unwrap(), DetectedProtocol::Other(None)));
}

#[tokio::test]
async fn silent_connection_of_proxy_itself_is_not_passed_through() {
    let [captures, server] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0"));
    let (captures, server) = (captures.await.unwrap(), server.await.unwrap());
    let connector = PassthroughConnector::default();
    let _own = connector.connect(captures.local_addr().unwrap()).await.unwrap();
    let (captured, caller) = captures.accept().await.unwrap();
    let detected = detect(&captured, caller, server.local_addr().unwrap(), &connector, 10 * TIMEOUT);
    assert!(matches!(timeout(TIMEOUT, detected).await.unwrap().unwrap(), DetectedProtocol::Other(None)));
    assert!(timeout(CLIENT_SILENCE, server.accept()).await.is_err(), "it was connected to");
}
