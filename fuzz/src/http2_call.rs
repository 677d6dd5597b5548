//! Any frames of an HTTP/2 server: calls end, no window of the server is exceeded, and a response belongs to the call's stream.

use std::time::Duration;

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use fairmesh_calls::{BoxError, fuzzing::Http2};
use http_body_util::BodyExt as _;
use tokio::{io::duplex, time::timeout};

use crate::{
    echo::{Step, Steps},
    frames::{self, DATA, Role, Script, WINDOW_UPDATE, tag},
    pipe::{self, Act, ROOM},
};

/// What every script begins with: settings that set nothing.
const SETTLED: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
const STREAMS: [u32; 4] = [1, 3, 5, 7];
/// How long a caller waits.
const PATIENCE: Duration = Duration::from_secs(300);
const WINDOW: u64 = 65_535;
const PREFACE: usize = 24;

/// A server: answers on streams that it was called on.
struct Server;

impl Role for Server {
    fn begin(&mut self, u: &mut Unstructured<'_>) -> Result<Option<(u32, Vec<u8>)>> {
        // `:status: 200`, 204 or 404, of the table that never changes.
        Ok(Some((*u.choose(&STREAMS)?, vec![*u.choose(&[0x88, 0x88, 0x89, 0x8d])?])))
    }
}

/// What must hold of these bytes.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let reads_late = u.arbitrary().unwrap_or_default();
    let mut script = Script::read(&mut u, STREAMS.to_vec(), &mut Server);
    script.acts.insert(0, Act::Send(SETTLED.to_vec()));
    let acts = script.acts.clone();
    let came = pipe::run(async {
        let (near, far) = duplex(ROOM);
        tokio::join!(calls(near, &script), pipe::play(far, acts, reads_late)).1
    });
    check(&script, &came);
}

/// What calls send: nothing, a little, something slowly, and more than there is room for.
fn bodies() -> [Steps; 4] {
    let data = |size| Step::Data(Bytes::from(vec![b'x'; size]));
    let second = Step::Wait(Duration::from_secs(1));
    [vec![], vec![data(10)], vec![data(1), second, data(10)], vec![data(70_000), data(200_000), data(1)]]
        .map(Steps::of)
}

async fn calls(stream: tokio::io::DuplexStream, script: &Script) {
    let connection = Http2::start(stream);
    let [a, b, c, d] = bodies();
    // Streams are opened in this order, as each call is begun when it is first polled.
    let _ = tokio::join!(
        timeout(PATIENCE, call(&connection, a, STREAMS[0], script)),
        timeout(PATIENCE, call(&connection, b, STREAMS[1], script)),
        timeout(PATIENCE, call(&connection, c, STREAMS[2], script)),
        timeout(PATIENCE, call(&connection, d, STREAMS[3], script)),
    );
}

async fn call(
    connection: &Http2,
    body: Steps,
    stream: u32,
    script: &Script,
) -> std::result::Result<(), BoxError> {
    let Some(answer) = connection.call("/", body).await? else { return Ok(()) };
    let mut body = answer.into_body();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        let own = tag(stream);
        assert!(
            !script.is_clean(stream) || data.iter().all(|byte| *byte == own),
            "of another stream than {stream}"
        );
    }
    Ok(())
}

fn check(script: &Script, came: &[u8]) {
    let sent = frames::read(&script.bytes());
    let made_room = sent.iter().filter(|frame| frame.kind == WINDOW_UPDATE && frame.stream == 0);
    let made_room =
        made_room.filter_map(|frame| frame.payload.first_chunk().copied().map(u32::from_be_bytes));
    let window = WINDOW + made_room.map(|size| u64::from(size & 0x7fff_ffff)).sum::<u64>();
    let data =
        frames::read(came.get(PREFACE..).unwrap_or_default()).into_iter().filter(|frame| frame.kind == DATA);
    let taken: u64 = data.map(|frame| frame.payload.len() as u64).sum();
    assert!(taken <= window, "{taken} bytes where there is room for {window}");
}
