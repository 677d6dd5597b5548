use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::timeout,
};

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

fn words(bytes: &[u8]) -> String {
    match judge(&mut bytes.to_vec()) {
        None => "more".into(),
        Some(Seen::Http1(host)) => host,
        Some(Seen::Http2) => "HTTP/2".into(),
        Some(Seen::Other(_)) => "other".into(),
    }
}

#[test]
fn what_is_http_is_told_from_what_is_not_as_soon_as_it_can_be() {
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
        assert_eq!(words(bytes), what, "{:?}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn a_head_that_never_ends_is_waited_for_no_further_than_one_may_be_long() {
    let mut head = b"GET / HTTP/1.1\r\n".to_vec();
    for number in 0..100 {
        head.extend(format!("x-{number}: {}\r\n", "y".repeat(700)).into_bytes());
    }
    assert_eq!(words(&head[..MOST - 1]), "more");
    assert_eq!(words(&head[..MOST]), "other");
}

/// What heads of HTTP are made of.
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

/// Bytes that programs may say: those pieces in any order, and anything.
fn said() -> impl Strategy<Value = Vec<u8>> {
    let piece = proptest::sample::select(&PIECES[..]).prop_map(|piece| piece.as_bytes().to_vec());
    let piece = prop_oneof![4 => piece, 1 => proptest::collection::vec(any::<u8>(), 1..4)];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn what_was_judged_stays_so_whatever_follows(said in said(), cut in any::<proptest::sample::Index>()) {
        let early = words(&said[..cut.index(said.len() + 1)]);
        prop_assert!(early == "more" || early == words(&said), "{early}: {:?}", String::from_utf8_lossy(&said));
    }
}

/// A program, its connection as it is captured, and the server that it meant.
async fn between() -> (TcpStream, TcpStream, TcpListener) {
    let [captures, server] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0"));
    let (captures, server) = (captures.await.unwrap(), server.await.unwrap());
    let program = TcpStream::connect(captures.local_addr().unwrap()).await.unwrap();
    (program, captures.accept().await.unwrap().0, server)
}

async fn seen(captured: &TcpStream, server: &TcpListener, patience: Duration) -> Seen {
    let meant = server.local_addr().unwrap();
    let onward = Onward::default();
    let caller = captured.peer_addr().unwrap();
    let seen = sniff(captured, (caller, meant), &onward, patience);
    timeout(PATIENCE, seen).await.expect("it goes on to look").unwrap()
}

#[tokio::test]
async fn a_head_in_pieces_is_recognised_and_left_where_it_is() {
    let (mut program, mut captured, server) = between().await;
    let pieces = async {
        for piece in ["GET / HT", "TP/1.1\r\nhost: cart", ".shop\r\n\r\n"] {
            // The second may come in the time in which the server would be asked to speak.
            tokio::time::sleep(SILENCE).await;
            program.write_all(piece.as_bytes()).await.unwrap();
        }
    };
    let (seen, ()) = tokio::join!(seen(&captured, &server, PATIENCE), pieces);
    assert!(matches!(seen, Seen::Http1(host) if host == "cart.shop"));
    drop(program);
    let mut head = String::new();
    timeout(PATIENCE, captured.read_to_string(&mut head)).await.unwrap().unwrap();
    assert_eq!(head, "GET / HTTP/1.1\r\nhost: cart.shop\r\n\r\n");
}

#[tokio::test]
async fn a_server_that_speaks_first_is_heard_and_none_of_its_words_are_lost() {
    let (_program, captured, server) = between().await;
    let greets = async {
        let (mut stream, _) = server.accept().await.unwrap();
        stream.write_all(b"220 hello").await.unwrap();
    };
    let (seen, ()) = tokio::join!(seen(&captured, &server, PATIENCE), greets);
    let Seen::Other(Some(mut passage)) = seen else { panic!("{seen:?}") };
    let mut words = String::new();
    timeout(PATIENCE, passage.read_to_string(&mut words)).await.unwrap().unwrap();
    assert_eq!(words, "220 hello");
}

#[tokio::test]
async fn a_program_that_waits_for_an_answer_to_half_a_head_is_not_kept_waiting() {
    let (mut program, captured, server) = between().await;
    program.write_all(b"HELO").await.unwrap();
    let seen = seen(&captured, &server, 2 * SILENCE).await;
    assert!(matches!(seen, Seen::Other(_)), "{seen:?}");
    // As whoever carries it registers it, or what has come would be waited for.
    let mut captured = TcpStream::from_std(captured.into_std().unwrap()).unwrap();
    let mut words = [0; 4];
    timeout(PATIENCE, captured.read_exact(&mut words)).await.unwrap().unwrap();
    assert_eq!(&words, b"HELO");
}

#[tokio::test]
async fn a_program_that_says_nothing_and_a_server_that_is_not_there_end_with_patience() {
    let (_program, captured, server) = between().await;
    let meant = server.local_addr().unwrap();
    drop(server);
    let onward = Onward::default();
    let caller = captured.peer_addr().unwrap();
    let seen = sniff(&captured, (caller, meant), &onward, 3 * SILENCE);
    assert!(matches!(timeout(PATIENCE, seen).await.unwrap().unwrap(), Seen::Other(None)));
}

#[tokio::test]
async fn a_silent_connection_of_the_proxys_own_is_carried_no_further() {
    let [captures, server] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0"));
    let (captures, server) = (captures.await.unwrap(), server.await.unwrap());
    let onward = Onward::default();
    let _own = onward.connect(captures.local_addr().unwrap()).await.unwrap();
    let (captured, caller) = captures.accept().await.unwrap();
    let seen = sniff(&captured, (caller, server.local_addr().unwrap()), &onward, 10 * PATIENCE);
    assert!(matches!(timeout(PATIENCE, seen).await.unwrap().unwrap(), Seen::Other(None)));
    assert!(timeout(SILENCE, server.accept()).await.is_err(), "it was connected to");
}
