//! What is wrong with a connection.

use super::{
    super::super::{
        Violation,
        frame::{HIGHEST, PADDED, PRIORITIZED, PRIORITY, PUSH_PROMISE},
        message::MOST,
    },
    *,
};

type Case = (&'static str, Vec<u8>, Reason);

const ENABLE_PUSH: u16 = 2;
const MAX_FRAME_SIZE: u16 = 5;

/// After this the program is told why nothing more is taken; `first` is what it begins with.
async fn wrong(first: &[u8], (what, bytes, reason): &Case) -> Option<String> {
    let mut program = Program::ahead(first);
    program.send(bytes).await;
    let mut heard = Vec::new();
    while heard.last() != Some(&Heard::End) {
        let Ok(next) = timeout(Duration::from_secs(30), program.hear()).await else {
            return Some(format!("{what}: {heard:?}, and nothing more"));
        };
        heard.push(next);
    }
    let told = matches!(&heard[..], [.., Heard::Goodbye(_, told), Heard::End] if told == reason);
    match program.ended().await {
        Err(End::Violation(violation)) if told && violation.reason == *reason => None,
        ended => Some(format!("{what}: {:?}, {ended:?}", &heard[heard.len().saturating_sub(3)..])),
    }
}

async fn all_wrong(first: &[u8], cases: Vec<Case>) {
    let mut unexpected = Vec::new();
    for case in cases {
        unexpected.extend(wrong(first, &case).await);
    }
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}

/// Of frames that are of no stream, or of the wrong one.
fn misplaced() -> Vec<Case> {
    let wrong = Reason::PROTOCOL_ERROR;
    vec![
        ("data on no stream", said(DATA, 0, 0, "a"), wrong),
        ("a head on no stream", get(0, "/"), wrong),
        ("a head on a stream of ours", get(2, "/"), wrong),
        ("a head on a stream that was passed over", [get(3, "/"), get(1, "/")].concat(), wrong),
        ("an order of no stream", said(PRIORITY, 0, 0, [0, 0, 0, 3, 0]), wrong),
        ("a reset of no stream", reset(0, Reason::CANCEL), wrong),
        ("a reset of a stream that was not begun", reset(1, Reason::CANCEL), wrong),
        ("settings of a stream", said(SETTINGS, 0, 1, []), wrong),
        ("a ping on a stream", said(PING, 0, 1, [0; 8]), wrong),
        ("a goodbye on a stream", said(GOAWAY, 0, 1, [0; 8]), wrong),
        ("room on a stream that was not begun", room(1, 1), wrong),
        ("data on a stream that was not begun", said(DATA, 0, 1, "a"), wrong),
        ("a promise", [get(1, "/"), said(PUSH_PROMISE, END_HEADERS, 1, [0, 0, 0, 2])].concat(), wrong),
    ]
}

fn heads() -> Vec<Case> {
    let wrong = Reason::PROTOCOL_ERROR;
    let begun = said(HEADERS, END_STREAM, 1, block(&GET));
    let within = |frame: Vec<u8>| [begun.clone(), frame].concat();
    let endless: Vec<u8> = (0..9).flat_map(|_| said(CONTINUATION, 0, 1, vec![0; USUAL])).collect();
    let empty = said(CONTINUATION, 0, 1, []).repeat(10_001);
    let lost = Reason::COMPRESSION_ERROR;
    vec![
        ("more of a head that was not begun", said(CONTINUATION, END_HEADERS, 1, block(&GET)), wrong),
        ("more of a whole head", [get(1, "/"), said(CONTINUATION, END_HEADERS, 1, [])].concat(), wrong),
        ("more of another head", within(said(CONTINUATION, END_HEADERS, 3, [])), wrong),
        ("a ping within a head", within(said(PING, 0, 0, [0; 8])), wrong),
        ("another head within a head", within(get(3, "/")), wrong),
        ("data within a head", within(said(DATA, 0, 1, "a")), wrong),
        ("settings within a head", within(set(&[])), wrong),
        ("what nobody knows within a head", within(said(0xfa, 0, 1, [])), wrong),
        ("a head without an end", within(endless), Reason::ENHANCE_YOUR_CALM),
        ("a head of nothing", within(empty), Reason::ENHANCE_YOUR_CALM),
        ("more padding than head", said(HEADERS, END_HEADERS | PADDED, 1, [3, 0x82, 0]), wrong),
        (
            "no room for an order",
            said(HEADERS, END_HEADERS | PRIORITIZED, 1, [0; 4]),
            Reason::FRAME_SIZE_ERROR,
        ),
        ("an index of 0", said(HEADERS, END_HEADERS, 1, [0x80]), lost),
        ("an index beyond the table", said(HEADERS, END_HEADERS, 1, [0xc0]), lost),
        ("a field that is cut off", said(HEADERS, END_HEADERS, 1, [0, 5, b'a']), lost),
        ("trailers that are cut off", [post(1, &[]), said(HEADERS, 5, 1, [0, 5, b'a'])].concat(), lost),
    ]
}

fn settings_and_windows() -> Vec<Case> {
    let (wrong, beyond) = (Reason::PROTOCOL_ERROR, Reason::FLOW_CONTROL_ERROR);
    let grown = [post(1, &[]), room(1, HIGHEST - 65_535), set(&[(INITIAL_WINDOW_SIZE, 65_536)])].concat();
    vec![
        ("a push that is neither off nor on", set(&[(ENABLE_PUSH, 2)]), wrong),
        ("a window above the highest", set(&[(INITIAL_WINDOW_SIZE, HIGHEST + 1)]), beyond),
        ("too short frames", set(&[(MAX_FRAME_SIZE, (1 << 14) - 1)]), wrong),
        ("too long frames", set(&[(MAX_FRAME_SIZE, 1 << 24)]), wrong),
        ("a second that is wrong", set(&[(INITIAL_WINDOW_SIZE, 1), (ENABLE_PUSH, 2)]), wrong),
        ("a window that settings make too large", grown, beyond),
        ("no more room", room(0, 0), wrong),
        ("too much room", room(0, HIGHEST - 65_534), beyond),
        ("too much room in two steps", [room(0, HIGHEST - 65_535), room(0, 1)].concat(), beyond),
    ]
}

fn lengths() -> Vec<Case> {
    let wrong = Reason::FRAME_SIZE_ERROR;
    let begun = |frame: Vec<u8>| [post(1, &[]), frame].concat();
    vec![
        ("settings that are not whole", said(SETTINGS, 0, 0, [0; 5]), wrong),
        ("settings that agree and say more", said(SETTINGS, ACK, 0, [0; 6]), wrong),
        ("a short ping", said(PING, 0, 0, [0; 7]), wrong),
        ("a long ping", said(PING, 0, 0, [0; 9]), wrong),
        ("a short reset", begun(said(RST_STREAM, 0, 1, [0; 3])), wrong),
        ("long room", begun(said(WINDOW_UPDATE, 0, 0, [1; 5])), wrong),
        ("short room on a stream", begun(said(WINDOW_UPDATE, 0, 1, [1; 3])), wrong),
        ("too much data", begun(said(DATA, 0, 1, vec![0; USUAL + 1])), wrong),
        ("too much of what nobody knows", said(0xfa, 0, 0, vec![0; USUAL + 1]), wrong),
        ("more padding than data", begun(said(DATA, PADDED, 1, [3, 0, 0])), Reason::PROTOCOL_ERROR),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_program_is_told_what_is_wrong_with_what_it_says() {
    let cases = [misplaced(), heads(), settings_and_windows(), lengths()].concat();
    all_wrong(&set(&[]), cases).await;
}

#[tokio::test(start_paused = true)]
async fn a_program_begins_with_settings() {
    let wrong = Reason::PROTOCOL_ERROR;
    let cases = vec![
        ("a request", get(1, "/"), wrong),
        ("a ping", said(PING, 0, 0, [0; 8]), wrong),
        ("room", room(0, 1), wrong),
        ("what nobody knows", said(0xfa, 0, 0, []), wrong),
    ];
    all_wrong(&[], cases).await;
}

#[tokio::test(start_paused = true)]
async fn a_goodbye_that_is_cut_short_is_wrong() {
    all_wrong(&set(&[]), vec![("a goodbye", said(GOAWAY, 0, 0, [0; 7]), Reason::FRAME_SIZE_ERROR)]).await;
}

#[tokio::test(start_paused = true)]
async fn a_head_where_none_may_be_is_wrong_even_if_it_comes_after_itself() {
    let head = |stream: u8| {
        let payload = [&[0, 0, 0, stream, 0], &block(&GET)[..]].concat();
        said(HEADERS, END_HEADERS | PRIORITIZED, stream.into(), payload)
    };
    let wrong = Reason::PROTOCOL_ERROR;
    let cases = vec![
        ("on no stream", head(0), wrong),
        ("on a stream of ours", head(2), wrong),
        ("on a stream that was passed over", [post(3, &[]), head(1)].concat(), wrong),
    ];
    all_wrong(&set(&[]), cases).await;
}

#[tokio::test(start_paused = true)]
async fn a_frame_of_a_stream_of_ours_is_wrong_however_low_its_number() {
    let wrong = Reason::PROTOCOL_ERROR;
    let after = |frame: Vec<u8>| [post(3, &[]), frame].concat();
    let cases = vec![
        ("data", after(said(DATA, 0, 2, "a")), wrong),
        ("room", after(room(2, 1)), wrong),
        ("a reset", after(reset(2, Reason::CANCEL)), wrong),
    ];
    all_wrong(&set(&[]), cases).await;
}

#[tokio::test(start_paused = true)]
async fn a_goodbye_names_the_last_request_that_was_looked_at() {
    let mut program = Program::new().await;
    let asked = program.asks(&[get(1, "/"), post(7, &[])].concat()).await;
    let mut read = program.asked().await.request.into_body();
    program.send(&said(PING, 0, 3, [0; 8])).await;
    program.hears([Heard::Goodbye(7, Reason::PROTOCOL_ERROR), Heard::End]).await;
    assert!(asked.answer.is_closed());
    assert!(in_time(read.frame()).await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_head_after_an_answered_request_is_wrong() {
    let mut program = Program::new().await;
    program.goes_on(1).await;
    program.send(&said(HEADERS, END_HEADERS | END_STREAM, 1, block(&[("x-sum", "1")]))).await;
    program.hears([Heard::Goodbye(1, Reason::STREAM_CLOSED), Heard::End]).await;
}

#[tokio::test(start_paused = true)]
async fn what_comes_after_the_last_word_is_read_for_a_while() {
    let mut program = Program::new().await;
    program.send(&get(2, "/")).await;
    program.hears([Heard::Goodbye(0, Reason::PROTOCOL_ERROR), Heard::End]).await;
    program.send(&vec![0; 2 * MOST]).await;
    assert!(!program.serving.is_finished());
    // Without the program's goodbye it ends all the same.
    assert!(matches!(in_time(&mut program.serving).await.unwrap(), Err(End::Violation(_))));
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_refused_for_what_only_its_owner_knows() {
    let (mut near, far) = duplex(WINDOW);
    let service = |_| Box::pin(std::future::pending::<Answer>());
    let connection = Connection::new(far, [PREFACE, &set(&[])].concat()[..].into(), service);
    let refused = tokio::spawn(connection.refuse(Violation::RESTLESS));
    let mut came = Vec::new();
    in_time(near.read_to_end(&mut came)).await.unwrap();
    let goodbye = [0_u32, Reason::ENHANCE_YOUR_CALM.0].map(u32::to_be_bytes).concat();
    assert!(came.ends_with(&said(GOAWAY, 0, 0, goodbye)));
    drop(near);
    in_time(refused).await.unwrap().unwrap();
}
