//! Checks that the proxy's parser reads every request that the C parser accepts as plain in the same way.

use bytes::BytesMut;
use fairmesh_http::{
    h1::{RequestReader, ResponseReader},
    path::RawPath,
};
use fairmesh_model::arith::Generator;
use http::{Method, header::HOST};

use crate::{decider::Decider, route::REQUEST_BYTES};

const INPUTS: usize = 20_000;
const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
const REQUESTS: [&str; 4] = [
    "GET /a/b?c=d HTTP/1.1\r\nhost: cart.shop\r\nx-canary: yes\r\n\r\n",
    "POST /cart HTTP/1.1\r\nHost: cart.shop\r\nContent-Length: 5\r\nContent-Type: text/plain\r\n\r\nhello",
    "DELETE / HTTP/1.1\r\naccept: */*\r\nhost:cart.shop\r\nconnection: keep-alive\r\n\r\n",
    "PUT /%2f HTTP/1.1\r\nhost: cart.shop:80\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
];
const RESPONSES: [&str; 5] = [
    "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    "HTTP/1.1 404 Not Found\r\nDate: Thu, 26 Nov 2026 18:00:00 GMT\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n",
    "HTTP/1.1 204 No Content\r\nserver: nginx/1.22.1\r\nkeep-alive: timeout=5\r\n\r\n",
    "HTTP/1.1 200 OK\r\nendpoint-load-metrics: TEXT cpu_utilization=0.25\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
];
/// Fragments that two parsers may read differently.
const WORDS: [&str; 21] = [
    "\r\n",
    "\n",
    "\r",
    "\0",
    " ",
    "\t",
    ":",
    ",",
    "-1",
    "+5",
    "0",
    "99999999",
    "\r\n ",
    "#",
    "?",
    "\u{ff}",
    "host: other.shop\r\n",
    "content-length: 3\r\n",
    "transfer-encoding: chunked\r\n",
    "endpoint-load-metrics: TEXT mem_utilization=0.5\r\n",
    "\r\n\r\n",
];

/// One of these messages, with random changes.
fn mutated(dice: &mut Generator, messages: &[&str]) -> Vec<u8> {
    let mut bytes = messages[dice.below(messages.len() as u64) as usize].as_bytes().to_vec();
    for _ in 0..dice.below(4) {
        let at = dice.below(bytes.len() as u64) as usize;
        let word = WORDS[dice.below(WORDS.len() as u64) as usize].as_bytes();
        match dice.below(4) {
            0 => bytes[at] ^= 1 << dice.below(8),
            1 => drop(bytes.remove(at)),
            2 => bytes[at] = dice.next() as u8,
            _ => drop(bytes.splice(at..at, word.iter().copied())),
        }
    }
    bytes
}

fn input(request: &[u8]) -> Vec<u8> {
    let mut input = (request.len() as u64).to_ne_bytes().to_vec();
    input.extend(request);
    input.resize(8 + REQUEST_BYTES, 0);
    input
}

/// Compares a request that the C parser accepts with the proxy's reading.
fn compare(request: &[u8], words: &[usize]) {
    let [end, content_length, method, path_at, path_length, host_at, host_length] = words else { panic!() };
    let shown = String::from_utf8_lossy(request);
    let mut rest = BytesMut::from(request);
    let read = RequestReader::default().read(&mut rest);
    let read = read.unwrap_or_else(|error| panic!("{error}: {shown}")).unwrap();
    assert_eq!(request.len() - rest.len(), *end, "{shown}");
    assert!(read.persistent && !read.expects_continue && !read.may_switch, "{shown}");
    assert_eq!(read.body.left(), Some(*content_length as u64), "{shown}");
    assert_eq!(read.head.method(), METHODS[method.ilog2() as usize], "{shown}");
    if read.head.extensions().get::<RawPath>().is_none() {
        assert_eq!(read.head.uri().path().as_bytes(), &request[*path_at..path_at + path_length], "{shown}");
    }
    let hosts: Vec<_> = read.head.headers().get_all(HOST).iter().map(|host| host.as_bytes()).collect();
    assert_eq!(hosts, [request[*host_at..host_at + host_length].trim_ascii()], "{shown}");
}

#[test]
fn requests_accepted_by_kernel_are_parsed_equally_by_proxy() {
    let Some(mut decider) = Decider::native() else { return };
    let mut dice = Generator::new(7);
    let requests: Vec<_> = (0..INPUTS).map(|_| mutated(&mut dice, &REQUESTS)).collect();
    let inputs: Vec<_> = requests.iter().map(|request| input(request)).collect();
    let mut accepted = 0;
    for (request, output) in requests.iter().zip(decider.decide("parse", &inputs, 32)) {
        let words = output.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()) as usize);
        let words: Vec<_> = words.collect();
        if words[0] != 0 {
            accepted += 1;
            compare(request, &words[1..]);
        }
    }
    assert!(accepted > INPUTS / 10 && accepted < INPUTS, "{accepted}");
}

/// Compares a response that the C code would send to the caller with the proxy's reading.
fn compare_response(response: &[u8], words: &[usize]) {
    let [end, content_length, status, load_at, load_length] = words else { panic!() };
    let shown = String::from_utf8_lossy(response);
    let mut rest = BytesMut::from(response);
    let read = ResponseReader::new(&Method::GET).read(&mut rest);
    let read = read.unwrap_or_else(|error| panic!("{error}: {shown}")).unwrap();
    assert_eq!(response.len() - rest.len(), *end, "{shown}");
    assert_eq!(rest.len(), *content_length, "nothing follows: {shown}");
    assert!(read.persistent, "{shown}");
    assert_eq!(read.body.left(), Some(*content_length as u64), "{shown}");
    assert_eq!(usize::from(read.head.status().as_u16()), *status, "{shown}");
    let loads: Vec<_> = read.head.headers().get_all("endpoint-load-metrics").iter().collect();
    let load = response[*load_at..load_at + load_length].trim_ascii();
    assert!(loads.is_empty() && load.is_empty() || loads == [load], "{shown}");
}

#[test]
fn responses_relayed_by_kernel_are_parsed_equally_by_proxy() {
    let Some(mut decider) = Decider::native() else { return };
    let mut dice = Generator::new(11);
    let responses: Vec<_> = (0..INPUTS).map(|_| mutated(&mut dice, &RESPONSES)).collect();
    let inputs: Vec<_> = responses.iter().map(|response| input(response)).collect();
    let mut accepted = 0;
    for (response, output) in responses.iter().zip(decider.decide("answer", &inputs, 24)) {
        let words = output.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()) as usize);
        let words: Vec<_> = words.collect();
        if words[0] != 0 {
            accepted += 1;
            compare_response(response, &words[1..]);
        }
    }
    assert!(accepted > INPUTS / 10 && accepted < INPUTS, "{accepted}");
}

/// Header fields, and whether the C parser accepts a message with them.
const REQUEST_FIELDS: [(&str, bool); 6] = [
    ("cookie: a=b; c=d\r\n", true),
    ("cookie: a=b\r\nCookie: c=d\r\n", false),
    ("content-type: application/json\r\n", true),
    ("content-type: Application/gRPC+proto\r\n", false),
    ("content-type: \tapplication/grpc\r\n", false),
    ("endpoint-load-metrics: TEXT\r\nx: 1\r\n", true),
];
const RESPONSE_FIELDS: [(&str, bool); 5] = [
    ("endpoint-load-metrics: TEXT cpu_utilization=0.5\r\n", true),
    (
        "endpoint-load-metrics: TEXT cpu_utilization=0.5\r\nEndpoint-Load-Metrics: TEXT cpu_utilization=0.5\r\n",
        false,
    ),
    ("endpoint-load-metrics:\r\nendpoint-load-metrics: TEXT cpu_utilization=0.5\r\n", false),
    ("endpoint-load-metrics: TEXT cpu_utilization=0.5\r\nendpoint-load-metrics: \r\n", false),
    ("set-cookie: a=b\r\nset-cookie: c=d\r\n", true),
];

/// For each message, whether the C parser accepts it.
fn taken(decider: &mut Decider, kind: &str, length: usize, messages: &[String]) -> Vec<bool> {
    let inputs: Vec<_> = messages.iter().map(|message| input(message.as_bytes())).collect();
    decider.decide(kind, &inputs, length).iter().map(|output| output[0] != 0).collect()
}

#[test]
fn kernel_leaves_ambiguous_messages_to_proxy() {
    let Some(mut decider) = Decider::native() else { return };
    let request = |fields: &str| format!("GET / HTTP/1.1\r\nhost: cart.shop\r\n{fields}\r\n");
    let response = |fields: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{fields}\r\n");
    let mut requests = REQUEST_FIELDS.map(|(fields, expected)| (request(fields), expected)).to_vec();
    // The host header is one of at most 48 fields.
    requests.extend([47, 48].map(|count| (request(&"x: 1\r\n".repeat(count)), count == 47)));
    let responses = RESPONSE_FIELDS.map(|(fields, expected)| (response(fields), expected)).to_vec();
    for (kind, length, cases) in [("parse", 32, requests), ("answer", 24, responses)] {
        let (messages, expected): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
        assert_eq!(taken(&mut decider, kind, length, &messages), expected, "{messages:?}");
    }
}
