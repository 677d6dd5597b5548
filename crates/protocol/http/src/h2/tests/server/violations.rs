//! Violations end the connection with GOAWAY.

use super::{
    super::super::{
        Violation,
        frame::{MAX_31_BIT, PADDED, PRIORITY, PRIORITY_FLAG, PUSH_PROMISE},
        message::HEADER_LIST_LIMIT,
    },
    *,
};

type Case = (&'static str, Vec<u8>, Reason);

const ENABLE_PUSH: u16 = 2;
const MAX_FRAME_SIZE: u16 = 5;

/// Checks that the connection ends with GOAWAY. `first` is what the client sends first.
async fn wrong(first: &[u8], (what, bytes, reason): &Case) -> Option<String> {
    let mut client = Client::ahead(first);
    client.send(bytes).await;
    let mut event = Vec::new();
    while event.last() != Some(&Event::Closed) {
        let Ok(next) = timeout(Duration::from_secs(30), client.next_event()).await else {
            return Some(format!("{what}: {event:?}, and nothing more"));
        };
        event.push(next);
    }
    let updates = matches!(&event[..], [.., Event::GoAway(_, updates), Event::Closed] if updates == reason);
    match client.ended().await {
        Err(ConnectionError::Violation(violation)) if updates && violation.reason == *reason => None,
        ended => Some(format!("{what}: {:?}, {ended:?}", &event[event.len().saturating_sub(3)..])),
    }
}

async fn expect_all_goaway(first: &[u8], cases: Vec<Case>) {
    let mut unexpected = Vec::new();
    for case in cases {
        unexpected.extend(wrong(first, &case).await);
    }
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}

/// Frames on stream 0, or on a stream of the wrong kind.
fn misplaced() -> Vec<Case> {
    let wrong = Reason::PROTOCOL_ERROR;
    vec![
        ("DATA on stream 0", raw_frame(DATA, 0, 0, "a"), wrong),
        ("HEADERS on stream 0", get(0, "/"), wrong),
        ("HEADERS on an even stream", get(2, "/"), wrong),
        ("HEADERS on a skipped stream", [get(3, "/"), get(1, "/")].concat(), wrong),
        ("PRIORITY on stream 0", raw_frame(PRIORITY, 0, 0, [0, 0, 0, 3, 0]), wrong),
        ("RST_STREAM on stream 0", rst_stream(0, Reason::CANCEL), wrong),
        ("RST_STREAM on an idle stream", rst_stream(1, Reason::CANCEL), wrong),
        ("SETTINGS on a stream", raw_frame(SETTINGS, 0, 1, []), wrong),
        ("PING on a stream", raw_frame(PING, 0, 1, [0; 8]), wrong),
        ("GOAWAY on a stream", raw_frame(GOAWAY, 0, 1, [0; 8]), wrong),
        ("WINDOW_UPDATE on an idle stream", window_update(1, 1), wrong),
        ("DATA on an idle stream", raw_frame(DATA, 0, 1, "a"), wrong),
        (
            "PUSH_PROMISE",
            [get(1, "/"), raw_frame(PUSH_PROMISE, END_HEADERS, 1, [0, 0, 0, 2])].concat(),
            wrong,
        ),
    ]
}

fn heads() -> Vec<Case> {
    let wrong = Reason::PROTOCOL_ERROR;
    let begun = raw_frame(HEADERS, END_STREAM, 1, header_block(&GET));
    let within = |frame: Vec<u8>| [begun.clone(), frame].concat();
    let endless: Vec<u8> =
        (0..9).flat_map(|_| raw_frame(CONTINUATION, 0, 1, vec![0; DEFAULT_FRAME_SIZE])).collect();
    let empty = raw_frame(CONTINUATION, 0, 1, []).repeat(10_001);
    let lost = Reason::COMPRESSION_ERROR;
    vec![
        ("CONTINUATION without HEADERS", raw_frame(CONTINUATION, END_HEADERS, 1, header_block(&GET)), wrong),
        (
            "CONTINUATION after END_HEADERS",
            [get(1, "/"), raw_frame(CONTINUATION, END_HEADERS, 1, [])].concat(),
            wrong,
        ),
        ("CONTINUATION on another stream", within(raw_frame(CONTINUATION, END_HEADERS, 3, [])), wrong),
        ("PING within a header block", within(raw_frame(PING, 0, 0, [0; 8])), wrong),
        ("HEADERS within a header block", within(get(3, "/")), wrong),
        ("DATA within a header block", within(raw_frame(DATA, 0, 1, "a")), wrong),
        ("SETTINGS within a header block", within(settings_frame(&[])), wrong),
        ("an unknown frame within a header block", within(raw_frame(0xfa, 0, 1, [])), wrong),
        ("an endless header block", within(endless), Reason::ENHANCE_YOUR_CALM),
        ("an endless empty header block", within(empty), Reason::ENHANCE_YOUR_CALM),
        ("padding beyond HEADERS", raw_frame(HEADERS, END_HEADERS | PADDED, 1, [3, 0x82, 0]), wrong),
        (
            "too short for the priority fields",
            raw_frame(HEADERS, END_HEADERS | PRIORITY_FLAG, 1, [0; 4]),
            Reason::FRAME_SIZE_ERROR,
        ),
        ("index 0", raw_frame(HEADERS, END_HEADERS, 1, [0x80]), lost),
        ("an index beyond the table", raw_frame(HEADERS, END_HEADERS, 1, [0xc0]), lost),
        ("a truncated field", raw_frame(HEADERS, END_HEADERS, 1, [0, 5, b'a']), lost),
        ("truncated trailers", [post(1, &[]), raw_frame(HEADERS, 5, 1, [0, 5, b'a'])].concat(), lost),
    ]
}

fn settings_and_windows() -> Vec<Case> {
    let (wrong, beyond) = (Reason::PROTOCOL_ERROR, Reason::FLOW_CONTROL_ERROR);
    let grown = [
        post(1, &[]),
        window_update(1, MAX_31_BIT - 65_535),
        settings_frame(&[(INITIAL_WINDOW_SIZE, 65_536)]),
    ]
    .concat();
    vec![
        ("an invalid ENABLE_PUSH", settings_frame(&[(ENABLE_PUSH, 2)]), wrong),
        (
            "an INITIAL_WINDOW_SIZE above the maximum",
            settings_frame(&[(INITIAL_WINDOW_SIZE, MAX_31_BIT + 1)]),
            beyond,
        ),
        ("a MAX_FRAME_SIZE below the minimum", settings_frame(&[(MAX_FRAME_SIZE, (1 << 14) - 1)]), wrong),
        ("a MAX_FRAME_SIZE above the maximum", settings_frame(&[(MAX_FRAME_SIZE, 1 << 24)]), wrong),
        ("an invalid second setting", settings_frame(&[(INITIAL_WINDOW_SIZE, 1), (ENABLE_PUSH, 2)]), wrong),
        ("a window overflow by SETTINGS", grown, beyond),
        ("a zero increment", window_update(0, 0), wrong),
        ("a window overflow", window_update(0, MAX_31_BIT - 65_534), beyond),
        (
            "a window overflow in two steps",
            [window_update(0, MAX_31_BIT - 65_535), window_update(0, 1)].concat(),
            beyond,
        ),
    ]
}

fn lengths() -> Vec<Case> {
    let wrong = Reason::FRAME_SIZE_ERROR;
    let begun = |frame: Vec<u8>| [post(1, &[]), frame].concat();
    vec![
        ("truncated SETTINGS", raw_frame(SETTINGS, 0, 0, [0; 5]), wrong),
        ("an acknowledgement with payload", raw_frame(SETTINGS, ACK, 0, [0; 6]), wrong),
        ("a short PING", raw_frame(PING, 0, 0, [0; 7]), wrong),
        ("a long PING", raw_frame(PING, 0, 0, [0; 9]), wrong),
        ("a short RST_STREAM", begun(raw_frame(RST_STREAM, 0, 1, [0; 3])), wrong),
        ("a long WINDOW_UPDATE", begun(raw_frame(WINDOW_UPDATE, 0, 0, [1; 5])), wrong),
        ("a short WINDOW_UPDATE on a stream", begun(raw_frame(WINDOW_UPDATE, 0, 1, [1; 3])), wrong),
        ("too long DATA", begun(raw_frame(DATA, 0, 1, vec![0; DEFAULT_FRAME_SIZE + 1])), wrong),
        ("a too long unknown frame", raw_frame(0xfa, 0, 0, vec![0; DEFAULT_FRAME_SIZE + 1]), wrong),
        ("padding beyond DATA", begun(raw_frame(DATA, PADDED, 1, [3, 0, 0])), Reason::PROTOCOL_ERROR),
    ]
}

#[tokio::test(start_paused = true)]
async fn protocol_violation_is_reported_by_goaway() {
    let cases = [misplaced(), heads(), settings_and_windows(), lengths()].concat();
    expect_all_goaway(&settings_frame(&[]), cases).await;
}

#[tokio::test(start_paused = true)]
async fn connection_whose_first_frame_is_not_settings_is_refused() {
    let wrong = Reason::PROTOCOL_ERROR;
    let cases = vec![
        ("HEADERS", get(1, "/"), wrong),
        ("PING", raw_frame(PING, 0, 0, [0; 8]), wrong),
        ("WINDOW_UPDATE", window_update(0, 1), wrong),
        ("an unknown frame", raw_frame(0xfa, 0, 0, []), wrong),
    ];
    expect_all_goaway(&[], cases).await;
}

#[tokio::test(start_paused = true)]
async fn truncated_goaway_frame_is_protocol_violation() {
    expect_all_goaway(
        &settings_frame(&[]),
        vec![("GOAWAY", raw_frame(GOAWAY, 0, 0, [0; 7]), Reason::FRAME_SIZE_ERROR)],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn misplaced_headers_frame_is_violation_even_with_self_dependency() {
    let head = |stream: u8| {
        let payload = [&[0, 0, 0, stream, 0], &header_block(&GET)[..]].concat();
        raw_frame(HEADERS, END_HEADERS | PRIORITY_FLAG, stream.into(), payload)
    };
    let wrong = Reason::PROTOCOL_ERROR;
    let cases = vec![
        ("on stream 0", head(0), wrong),
        ("on an even stream", head(2), wrong),
        ("on a skipped stream", [post(3, &[]), head(1)].concat(), wrong),
    ];
    expect_all_goaway(&settings_frame(&[]), cases).await;
}

#[tokio::test(start_paused = true)]
async fn frame_on_even_stream_is_protocol_violation() {
    let wrong = Reason::PROTOCOL_ERROR;
    let after = |frame: Vec<u8>| [post(3, &[]), frame].concat();
    let cases = vec![
        ("data", after(raw_frame(DATA, 0, 2, "a")), wrong),
        ("WINDOW_UPDATE", after(window_update(2, 1)), wrong),
        ("RST_STREAM", after(rst_stream(2, Reason::CANCEL)), wrong),
    ];
    expect_all_goaway(&settings_frame(&[]), cases).await;
}

#[tokio::test(start_paused = true)]
async fn goaway_names_last_processed_stream() {
    let mut client = Client::new().await;
    let dispatched = client.request(&[get(1, "/"), post(7, &[])].concat()).await;
    let mut read = client.dispatched().await.request.into_body();
    client.send(&raw_frame(PING, 0, 3, [0; 8])).await;
    client.expect([Event::GoAway(7, Reason::PROTOCOL_ERROR), Event::Closed]).await;
    assert!(dispatched.response.is_closed());
    assert!(in_time(read.frame()).await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn headers_on_closed_stream_are_protocol_violation() {
    let mut client = Client::new().await;
    client.expect_alive(1).await;
    client.send(&raw_frame(HEADERS, END_HEADERS | END_STREAM, 1, header_block(&[("x-sum", "1")]))).await;
    client.expect([Event::GoAway(1, Reason::STREAM_CLOSED), Event::Closed]).await;
}

#[tokio::test(start_paused = true)]
async fn connection_lingers_after_protocol_violation() {
    let mut client = Client::new().await;
    client.send(&get(2, "/")).await;
    client.expect([Event::GoAway(0, Reason::PROTOCOL_ERROR), Event::Closed]).await;
    client.send(&vec![0; 2 * HEADER_LIST_LIMIT]).await;
    assert!(!client.serving.is_finished());
    // The connection ends even without GOAWAY from the client.
    assert!(matches!(in_time(&mut client.serving).await.unwrap(), Err(ConnectionError::Violation(_))));
}

#[tokio::test(start_paused = true)]
async fn refused_connection_ends_with_given_error_code() {
    let (mut near, far) = duplex(PIPE);
    let service = |_| Box::pin(std::future::pending::<BoxResponse>());
    let connection = ServerConnection::new(far, [PREFACE, &settings_frame(&[])].concat()[..].into(), service);
    let expect_reset = tokio::spawn(connection.refuse(Violation::RAPID_RESET));
    let mut came = Vec::new();
    in_time(near.read_to_end(&mut came)).await.unwrap();
    let goaway = [0_u32, Reason::ENHANCE_YOUR_CALM.0].map(u32::to_be_bytes).concat();
    assert!(came.ends_with(&raw_frame(GOAWAY, 0, 0, goaway)));
    drop(near);
    in_time(expect_reset).await.unwrap().unwrap();
}
