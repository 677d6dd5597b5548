//! What is wrong with one request, and with nothing else.

use super::{
    super::super::{
        frame::{HIGHEST, PRIORITIZED, PRIORITY},
        message::MOST,
    },
    *,
};

type Case = (&'static str, Vec<u8>, Reason);

/// The frames on the first stream are answered with a reset alone, and nobody is asked for it.
async fn refused((what, bytes, reason): Case) -> Option<String> {
    let mut program = Program::new().await;
    program.send(&[bytes, get(3, "/after")].concat()).await;
    let asked = program.asked().await;
    let path = asked.request.uri().path().to_owned();
    asked.answers(whole(200, ""));
    let heard = [program.hear().await, program.hear().await];
    match path == "/after" && heard == [Heard::Reset(1, reason), head(3, 200, &[], true)] {
        true => None,
        false => Some(format!("{what}: {path}, {heard:?}")),
    }
}

async fn all_refused(cases: Vec<Case>) {
    let mut unexpected = Vec::new();
    for case in cases {
        unexpected.extend(refused(case).await);
    }
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_head_is_wrong_is_refused_alone() {
    let [method, scheme, authority, path] = GET;
    let more = |field| [method, scheme, authority, path, field].to_vec();
    let length = |text| more(("content-length", text));
    let cases = vec![
        ("no method", vec![scheme, authority, path]),
        ("no scheme", vec![method, authority, path]),
        ("no path", vec![method, scheme, authority]),
        ("an empty path", vec![method, scheme, authority, (":path", "")]),
        ("a path that is none", vec![method, scheme, authority, (":path", "x")]),
        ("a path with a fragment", vec![method, scheme, authority, (":path", "/a#b")]),
        ("a path with a control character", vec![method, scheme, authority, (":path", "/a\u{7f}b")]),
        ("an asterisk of no OPTIONS", vec![method, scheme, authority, (":path", "*")]),
        ("a method that is none", vec![(":method", "G T"), scheme, authority, path]),
        ("two paths", more(path)),
        ("two methods", more(method)),
        ("a field before a path", vec![method, scheme, authority, ("a", "b"), path]),
        ("an unknown field of HTTP/2's own", more((":a", "b"))),
        ("a status", more((":status", "200"))),
        ("another protocol", more((":protocol", "websocket"))),
        ("an upper-case name", more(("X-Sum", "1"))),
        ("a name that is none", more(("x sum", "1"))),
        ("no name", more(("", "1"))),
        ("a value of two lines", more(("a", "b\r\nc"))),
        ("connection", more(("connection", "close"))),
        ("keep-alive", more(("keep-alive", "1"))),
        ("proxy-connection", more(("proxy-connection", "close"))),
        ("transfer-encoding", more(("transfer-encoding", "chunked"))),
        ("upgrade", more(("upgrade", "h2c"))),
        ("te", more(("te", "gzip"))),
        ("a length and no body", length("1")),
        ("a length that is none", length("x")),
        ("two lengths", length("0, 1")),
        ("a tunnel with a path", vec![(":method", "CONNECT"), scheme, authority, path]),
        ("a tunnel to nowhere", vec![(":method", "CONNECT")]),
    ];
    let said = |fields: Vec<_>| said(HEADERS, END_HEADERS | END_STREAM, 1, block(&fields));
    let cases = cases.into_iter().map(|(what, fields)| (what, said(fields), Reason::PROTOCOL_ERROR));
    all_refused(cases.collect()).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_body_is_wrong_is_refused_alone() {
    let wrong = Reason::PROTOCOL_ERROR;
    let three = post(1, &[("content-length", "3")]);
    let sent = |flags, text| said(DATA, flags, 1, text);
    let last = |flags, fields| said(HEADERS, END_HEADERS | flags, 1, block(fields));
    let sum = &[("x-sum", "1")];
    all_refused(vec![
        ("a longer body", [three.clone(), sent(0, "four")].concat(), wrong),
        ("a body that grows", [three.clone(), sent(0, "thr"), sent(END_STREAM, "e")].concat(), wrong),
        ("a shorter body", [three.clone(), sent(END_STREAM, "it")].concat(), wrong),
        ("trailers too early", [three, sent(0, "it"), last(END_STREAM, sum)].concat(), wrong),
        ("trailers that go on", [post(1, &[]), last(0, sum)].concat(), wrong),
        ("trailers with a path", [post(1, &[]), last(END_STREAM, &GET[3..])].concat(), wrong),
        ("data after the end", [get(1, "/"), sent(0, "a")].concat(), Reason::STREAM_CLOSED),
        ("nothing after the end", [get(1, "/"), sent(END_STREAM, "")].concat(), Reason::STREAM_CLOSED),
        ("trailers after the end", [get(1, "/"), last(END_STREAM, sum)].concat(), Reason::STREAM_CLOSED),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_with_a_stream_ends_it_alone() {
    let wrong = Reason::PROTOCOL_ERROR;
    let itself = [&[0, 0, 0, 1, 0], &block(&GET)[..]].concat();
    let begun = |frame: Vec<u8>| [post(1, &[]), frame].concat();
    all_refused(vec![
        ("a request after itself", said(HEADERS, END_HEADERS | PRIORITIZED, 1, itself), wrong),
        ("a stream after itself", begun(said(PRIORITY, 0, 1, [0, 0, 0, 1, 0])), wrong),
        ("an order cut short", begun(said(PRIORITY, 0, 1, [0; 4])), Reason::FRAME_SIZE_ERROR),
        ("no more room", begun(room(1, 0)), wrong),
        ("too much room", begun(room(1, HIGHEST - 65_534)), Reason::FLOW_CONTROL_ERROR),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_request_after_itself_is_refused_alone_even_if_its_head_comes_in_pieces() {
    let mut program = Program::new().await;
    let (whole, mut first) = (block(&GET), vec![0, 0, 0, 1, 0]);
    first.extend_from_slice(&whole[..5]);
    let head = said(HEADERS, END_STREAM | PRIORITIZED, 1, first);
    program.send(&[head, said(CONTINUATION, END_HEADERS, 1, &whole[5..])].concat()).await;
    program.hears([Heard::Reset(1, Reason::PROTOCOL_ERROR)]).await;
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_turns_out_wrong_while_it_is_read_is_refused_alone() {
    let mut program = Program::new().await;
    let asked = program.asks(&post(1, &[("content-length", "5")])).await;
    let mut body = asked.request.into_body();
    program.send(&said(DATA, 0, 1, "one")).await;
    assert_eq!(in_time(body.frame()).await.unwrap().unwrap().into_data().unwrap(), "one");
    program.send(&said(DATA, 0, 1, "two")).await;
    program.hears([Heard::Reset(1, Reason::PROTOCOL_ERROR)]).await;
    assert!(in_time(body.frame()).await.unwrap().is_err());
    assert!(asked.answer.is_closed());
    // The program may not know yet.
    program.send(&said(DATA, END_STREAM, 1, "three")).await;
    program.goes_on(3).await;
}

#[tokio::test(start_paused = true)]
async fn data_after_an_answered_request_is_refused() {
    let mut program = Program::new().await;
    program.goes_on(1).await;
    program.send(&said(DATA, 0, 1, "more")).await;
    program.hears([Heard::Reset(1, Reason::STREAM_CLOSED)]).await;
    program.goes_on(3).await;
}

/// A request whose head counts more than is allowed, in frames as long as they may be.
fn too_large(stream: u32, flags: u8) -> Vec<u8> {
    let long = "a".repeat(100);
    let fields: Vec<_> = GET.into_iter().chain((0..MOST / 100).map(|_| ("x-long", &long[..]))).collect();
    let block = block(&fields);
    let last = block.len().div_ceil(USUAL) - 1;
    let frame = |(n, piece): (usize, &[u8])| {
        let (kind, flags) = if n == 0 { (HEADERS, flags) } else { (CONTINUATION, 0) };
        said(kind, if n == last { flags | END_HEADERS } else { flags }, stream, piece)
    };
    block.chunks(USUAL).enumerate().flat_map(frame).collect()
}

#[tokio::test(start_paused = true)]
async fn a_program_is_told_that_a_head_is_too_large() {
    let mut program = Program::new().await;
    program.send(&too_large(1, END_STREAM)).await;
    program.hears([head(1, 431, &[], true)]).await;
    program.goes_on(3).await;
    program.send(&[too_large(5, 0), said(DATA, END_STREAM, 5, "more")].concat()).await;
    program.hears([head(5, 431, &[], true), Heard::Reset(5, Reason::NO_ERROR)]).await;
    program.goes_on(7).await;
}

#[tokio::test(start_paused = true)]
async fn as_many_headers_are_taken_as_over_http1_and_a_cookie_in_pieces_is_one() {
    let mut program = Program::new().await;
    let with = |stream, count: usize| {
        let fields = [&GET[..], &[("x-a", "b")].repeat(count), &[("cookie", "c=d")].repeat(200)].concat();
        said(HEADERS, END_HEADERS | END_STREAM, stream, block(&fields))
    };
    let asked = program.asks(&with(1, 127)).await;
    assert_eq!(asked.request.headers().len(), 127 + 200);
    program.send(&with(3, 128)).await;
    program.hears([head(3, 431, &[], true)]).await;
    asked.answers(whole(200, ""));
    program.hears([head(1, 200, &[], true)]).await;
    program.goes_on(5).await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_gets_too_much_wrong_is_cut_off() {
    let mut program = Program::new().await;
    for stream in (0..1024).map(|number| 2 * number + 1) {
        program.send(&said(HEADERS, END_HEADERS | END_STREAM, stream, block(&[(":method", "GET")]))).await;
        program.hears([Heard::Reset(stream, Reason::PROTOCOL_ERROR)]).await;
    }
    program.goes_on(2049).await;
    program.send(&said(HEADERS, END_HEADERS | END_STREAM, 2051, block(&[(":method", "GET")]))).await;
    let reset = Heard::Reset(2051, Reason::PROTOCOL_ERROR);
    program.hears([reset, Heard::Goodbye(2051, Reason::ENHANCE_YOUR_CALM), Heard::End]).await;
}

#[tokio::test(start_paused = true)]
async fn a_length_is_handed_on_as_one_number() {
    let mut program = Program::new().await;
    let fields = [("content-length", "3, 3"), ("content-length", " 3")];
    let asked = program.asks(&[post(1, &fields), said(DATA, END_STREAM, 1, "tea")].concat()).await;
    let told: Vec<_> = asked.request.headers().get_all("content-length").iter().collect();
    assert_eq!(told, ["3"]);
}
