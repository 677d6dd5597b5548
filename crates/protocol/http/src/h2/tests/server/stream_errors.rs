//! Stream errors reset their stream and leave the connection alone.

use super::{
    super::super::{
        frame::{MAX_31_BIT, PRIORITY, PRIORITY_FLAG},
        message::HEADER_LIST_LIMIT,
    },
    *,
};

type Case = (&'static str, Vec<u8>, Reason);

/// Checks that the frames on the first stream cause only a reset, and that no request is dispatched.
async fn expect_reset((what, bytes, reason): Case) -> Option<String> {
    let mut client = Client::new().await;
    client.send(&[bytes, get(3, "/after")].concat()).await;
    let dispatched = client.dispatched().await;
    let path = dispatched.request.uri().path().to_owned();
    dispatched.respond(whole(200, ""));
    let event = [client.next_event().await, client.next_event().await];
    match path == "/after" && event == [Event::Reset(1, reason), head(3, 200, &[], true)] {
        true => None,
        false => Some(format!("{what}: {path}, {event:?}")),
    }
}

async fn expect_all_reset(cases: Vec<Case>) {
    let mut unexpected = Vec::new();
    for case in cases {
        unexpected.extend(expect_reset(case).await);
    }
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}

#[tokio::test(start_paused = true)]
async fn malformed_headers_reset_only_their_stream() {
    let [method, scheme, authority, path] = GET;
    let more = |field| [method, scheme, authority, path, field].to_vec();
    let length = |text| more(("content-length", text));
    let cases = vec![
        ("no :method", vec![scheme, authority, path]),
        ("no :scheme", vec![method, authority, path]),
        ("no :path", vec![method, scheme, authority]),
        ("an empty :path", vec![method, scheme, authority, (":path", "")]),
        ("an invalid :path", vec![method, scheme, authority, (":path", "x")]),
        ("a path with a fragment", vec![method, scheme, authority, (":path", "/a#b")]),
        ("a path with a control character", vec![method, scheme, authority, (":path", "/a\u{7f}b")]),
        ("an asterisk without OPTIONS", vec![method, scheme, authority, (":path", "*")]),
        ("an invalid :method", vec![(":method", "G T"), scheme, authority, path]),
        ("two of :path", more(path)),
        ("two of :method", more(method)),
        ("a header before :path", vec![method, scheme, authority, ("a", "b"), path]),
        ("an unknown pseudo-header", more((":a", "b"))),
        ("a :status", more((":status", "200"))),
        ("a switch of protocols", more((":protocol", "websocket"))),
        ("an upper-case name", more(("X-Sum", "1"))),
        ("an invalid name", more(("x sum", "1"))),
        ("an empty name", more(("", "1"))),
        ("a value with a line break", more(("a", "b\r\nc"))),
        ("connection", more(("connection", "close"))),
        ("keep-alive", more(("keep-alive", "1"))),
        ("proxy-connection", more(("proxy-connection", "close"))),
        ("transfer-encoding", more(("transfer-encoding", "chunked"))),
        ("upgrade", more(("upgrade", "h2c"))),
        ("te", more(("te", "gzip"))),
        ("a content-length without body", length("1")),
        ("an invalid content-length", length("x")),
        ("two content-lengths", length("0, 1")),
        ("CONNECT with a :path", vec![(":method", "CONNECT"), scheme, authority, path]),
        ("CONNECT without :authority", vec![(":method", "CONNECT")]),
    ];
    let raw_frame = |fields: Vec<_>| raw_frame(HEADERS, END_HEADERS | END_STREAM, 1, header_block(&fields));
    let cases = cases.into_iter().map(|(what, fields)| (what, raw_frame(fields), Reason::PROTOCOL_ERROR));
    expect_all_reset(cases.collect()).await;
}

#[tokio::test(start_paused = true)]
async fn malformed_body_resets_only_its_stream() {
    let wrong = Reason::PROTOCOL_ERROR;
    let three = post(1, &[("content-length", "3")]);
    let sent = |flags, text| raw_frame(DATA, flags, 1, text);
    let last = |flags, fields| raw_frame(HEADERS, END_HEADERS | flags, 1, header_block(fields));
    let sum = &[("x-sum", "1")];
    expect_all_reset(vec![
        ("a longer body", [three.clone(), sent(0, "four")].concat(), wrong),
        ("a body that grows", [three.clone(), sent(0, "thr"), sent(END_STREAM, "e")].concat(), wrong),
        ("a shorter body", [three.clone(), sent(END_STREAM, "it")].concat(), wrong),
        ("trailers too early", [three, sent(0, "it"), last(END_STREAM, sum)].concat(), wrong),
        ("trailers without END_STREAM", [post(1, &[]), last(0, sum)].concat(), wrong),
        ("trailers with a path", [post(1, &[]), last(END_STREAM, &GET[3..])].concat(), wrong),
        ("DATA after END_STREAM", [get(1, "/"), sent(0, "a")].concat(), Reason::STREAM_CLOSED),
        ("empty DATA after END_STREAM", [get(1, "/"), sent(END_STREAM, "")].concat(), Reason::STREAM_CLOSED),
        ("trailers after END_STREAM", [get(1, "/"), last(END_STREAM, sum)].concat(), Reason::STREAM_CLOSED),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn stream_error_resets_only_its_stream() {
    let wrong = Reason::PROTOCOL_ERROR;
    let itself = [&[0, 0, 0, 1, 0], &header_block(&GET)[..]].concat();
    let begun = |frame: Vec<u8>| [post(1, &[]), frame].concat();
    expect_all_reset(vec![
        ("HEADERS with a self-dependency", raw_frame(HEADERS, END_HEADERS | PRIORITY_FLAG, 1, itself), wrong),
        ("PRIORITY with a self-dependency", begun(raw_frame(PRIORITY, 0, 1, [0, 0, 0, 1, 0])), wrong),
        ("a short PRIORITY", begun(raw_frame(PRIORITY, 0, 1, [0; 4])), Reason::FRAME_SIZE_ERROR),
        ("a zero increment", begun(window_update(1, 0)), wrong),
        ("a window overflow", begun(window_update(1, MAX_31_BIT - 65_534)), Reason::FLOW_CONTROL_ERROR),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn self_dependency_in_continuation_resets_only_its_stream() {
    let mut client = Client::new().await;
    let (whole, mut first) = (header_block(&GET), vec![0, 0, 0, 1, 0]);
    first.extend_from_slice(&whole[..5]);
    let head = raw_frame(HEADERS, END_STREAM | PRIORITY_FLAG, 1, first);
    client.send(&[head, raw_frame(CONTINUATION, END_HEADERS, 1, &whole[5..])].concat()).await;
    client.expect([Event::Reset(1, Reason::PROTOCOL_ERROR)]).await;
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn stream_error_while_body_is_read_resets_only_its_stream() {
    let mut client = Client::new().await;
    let dispatched = client.request(&post(1, &[("content-length", "5")])).await;
    let mut body = dispatched.request.into_body();
    client.send(&raw_frame(DATA, 0, 1, "one")).await;
    assert_eq!(in_time(body.frame()).await.unwrap().unwrap().into_data().unwrap(), "one");
    client.send(&raw_frame(DATA, 0, 1, "two")).await;
    client.expect([Event::Reset(1, Reason::PROTOCOL_ERROR)]).await;
    assert!(in_time(body.frame()).await.unwrap().is_err());
    assert!(dispatched.response.is_closed());
    // The client may not have received the reset.
    client.send(&raw_frame(DATA, END_STREAM, 1, "three")).await;
    client.expect_alive(3).await;
}

#[tokio::test(start_paused = true)]
async fn data_after_end_of_request_resets_its_stream() {
    let mut client = Client::new().await;
    client.expect_alive(1).await;
    client.send(&raw_frame(DATA, 0, 1, "more")).await;
    client.expect([Event::Reset(1, Reason::STREAM_CLOSED)]).await;
    client.expect_alive(3).await;
}

/// Encodes a request whose headers exceed the limit, in frames of the maximum size.
fn too_large(stream: u32, flags: u8) -> Vec<u8> {
    let long = "a".repeat(100);
    let fields: Vec<_> =
        GET.into_iter().chain((0..HEADER_LIST_LIMIT / 100).map(|_| ("x-long", &long[..]))).collect();
    let header_block = header_block(&fields);
    let last = header_block.len().div_ceil(DEFAULT_FRAME_SIZE) - 1;
    let frame = |(n, piece): (usize, &[u8])| {
        let (kind, flags) = if n == 0 { (HEADERS, flags) } else { (CONTINUATION, 0) };
        raw_frame(kind, if n == last { flags | END_HEADERS } else { flags }, stream, piece)
    };
    header_block.chunks(DEFAULT_FRAME_SIZE).enumerate().flat_map(frame).collect()
}

#[tokio::test(start_paused = true)]
async fn oversized_http2_request_headers_get_431() {
    let mut client = Client::new().await;
    client.send(&too_large(1, END_STREAM)).await;
    client.expect([head(1, 431, &[], true)]).await;
    client.expect_alive(3).await;
    client.send(&[too_large(5, 0), raw_frame(DATA, END_STREAM, 5, "more")].concat()).await;
    client.expect([head(5, 431, &[], true), Event::Reset(5, Reason::NO_ERROR)]).await;
    client.expect_alive(7).await;
}

#[tokio::test(start_paused = true)]
async fn http2_header_limits_equal_http1_and_split_cookies_count_once() {
    let mut client = Client::new().await;
    let with = |stream, count: usize| {
        let fields = [&GET[..], &[("x-a", "b")].repeat(count), &[("cookie", "c=d")].repeat(200)].concat();
        raw_frame(HEADERS, END_HEADERS | END_STREAM, stream, header_block(&fields))
    };
    let dispatched = client.request(&with(1, 127)).await;
    assert_eq!(dispatched.request.headers().len(), 127 + 200);
    client.send(&with(3, 128)).await;
    client.expect([head(3, 431, &[], true)]).await;
    dispatched.respond(whole(200, ""));
    client.expect([head(1, 200, &[], true)]).await;
    client.expect_alive(5).await;
}

#[tokio::test(start_paused = true)]
async fn too_many_stream_errors_end_connection() {
    let mut client = Client::new().await;
    for stream in (0..1024).map(|number| 2 * number + 1) {
        client
            .send(&raw_frame(HEADERS, END_HEADERS | END_STREAM, stream, header_block(&[(":method", "GET")])))
            .await;
        client.expect([Event::Reset(stream, Reason::PROTOCOL_ERROR)]).await;
    }
    client.expect_alive(2049).await;
    client
        .send(&raw_frame(HEADERS, END_HEADERS | END_STREAM, 2051, header_block(&[(":method", "GET")])))
        .await;
    let rst_stream = Event::Reset(2051, Reason::PROTOCOL_ERROR);
    client.expect([rst_stream, Event::GoAway(2051, Reason::ENHANCE_YOUR_CALM), Event::Closed]).await;
}

/// Encodes a request without method, path and authority, which is a stream error.
fn malformed(flags: u8, stream: u32) -> Vec<u8> {
    raw_frame(HEADERS, END_HEADERS | flags, stream, header_block(&[(":method", "GET")]))
}

#[tokio::test(start_paused = true)]
async fn rare_stream_errors_never_end_connection() {
    let mut client = Client::new().await;
    for number in 0..1500 {
        let stream = 2 * number + 1;
        client.send(&malformed(END_STREAM, stream)).await;
        client.expect([Event::Reset(stream, Reason::PROTOCOL_ERROR)]).await;
        tokio::time::advance(Duration::from_millis(100)).await;
    }
    client.expect_alive(3001).await;
}

#[tokio::test(start_paused = true)]
async fn late_frames_on_forgotten_reset_stream_are_ignored() {
    let mut client = Client::new().await;
    client.send(&malformed(0, 1)).await;
    client.expect([Event::Reset(1, Reason::PROTOCOL_ERROR)]).await;
    let later = (1..400).map(|number| 2 * number + 1);
    for stream in later {
        client.expect_alive(stream).await;
    }
    let trailers = raw_frame(HEADERS, END_HEADERS | END_STREAM, 1, header_block(&[("x-sum", "1")]));
    client.send(&[raw_frame(DATA, 0, 1, "tea"), trailers].concat()).await;
    client.expect_alive(801).await;
}

#[tokio::test(start_paused = true)]
async fn repeated_equal_content_lengths_are_forwarded_once() {
    let mut client = Client::new().await;
    let fields = [("content-length", "3, 3"), ("content-length", " 3")];
    let dispatched =
        client.request(&[post(1, &fields), raw_frame(DATA, END_STREAM, 1, "tea")].concat()).await;
    let updates: Vec<_> = dispatched.request.headers().get_all("content-length").iter().collect();
    assert_eq!(updates, ["3"]);
}
