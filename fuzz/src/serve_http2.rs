//! Any frames of an HTTP/2 client: the server side ends the connection, no window is exceeded, no frame follows the end of a
//! stream, and responses belong to their stream.

use std::collections::BTreeSet;

use arbitrary::{Arbitrary as _, Result, Unstructured};
use fairmesh_edge::fuzzing;
use tokio::io::duplex;

use crate::{
    echo::{self, Wish},
    frames::{self, DATA, END_STREAM, HEADERS, Role, Script, WINDOW_UPDATE, tag},
    pipe::{self, Act, ROOM},
};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The default window of a connection.
const WINDOW: u64 = 65_535;

/// A program: opens streams in their order.
#[derive(Default)]
struct Program {
    last: Option<u32>,
}

impl Role for Program {
    fn begin(&mut self, u: &mut Unstructured<'_>) -> Result<Option<(u32, Vec<u8>)>> {
        let stream = self.last.map_or(1, |last| last + 2);
        self.last = Some(stream);
        let manner = b'a' + u.int_in_range(0..=7)?;
        let path = Wish { manner, tag: tag(stream) }.path();
        let method = if u.arbitrary()? { 0x82 } else { 0x83 };
        // Literals that no table keeps: nothing that came before changes what they mean.
        let mut fields = vec![method, 0x86, 0x04, path.len() as u8];
        fields.extend_from_slice(path.as_bytes());
        fields.extend_from_slice(b"\x01\x08one.shop");
        Ok(Some((stream, fields)))
    }
}

/// What must hold of these bytes.
pub fn run(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let begins = u8::arbitrary(&mut u).unwrap_or_default();
    let mut program = Program::default();
    let mut script = Script::read(&mut u, Vec::new(), &mut program);
    // Nearly always as HTTP/2 begins, since there is little to see of others.
    let is_http2 = begins < 0xf0;
    if is_http2 {
        script.acts.insert(0, Act::Send(PREFACE.to_vec()));
    }
    let acts = script.acts.clone();
    let came = pipe::run(async {
        let (near, far) = duplex(ROOM);
        tokio::join!(fuzzing::serve(near, echo::answer), pipe::play(far, acts, begins & 1 == 1)).1
    });
    if is_http2 {
        check(&script, &came);
    }
}

fn check(script: &Script, came: &[u8]) {
    let sent = frames::read(&script.bytes()[24..]);
    let made_room = sent.iter().filter(|frame| frame.kind == WINDOW_UPDATE && frame.stream == 0);
    let made_room =
        made_room.filter_map(|frame| frame.payload.first_chunk().copied().map(u32::from_be_bytes));
    let window = WINDOW + made_room.map(|size| u64::from(size & 0x7fff_ffff)).sum::<u64>();
    let asked: BTreeSet<u32> =
        sent.iter().filter(|frame| frame.kind == HEADERS).map(|frame| frame.stream).collect();
    let (mut ended, mut taken) = (BTreeSet::new(), 0);
    for frame in frames::read(came) {
        if !matches!(frame.kind, DATA | HEADERS) {
            continue;
        }
        assert!(asked.contains(&frame.stream), "an answer on a stream that nobody opened: {frame:?}");
        assert!(!ended.contains(&frame.stream), "it goes on after its end: {frame:?}");
        if frame.flags & END_STREAM != 0 {
            ended.insert(frame.stream);
        }
        if frame.kind == DATA {
            taken += frame.payload.len() as u64;
            assert!(taken <= window, "{taken} bytes where there is room for {window}");
            let own = tag(frame.stream);
            let clean = script.is_clean(frame.stream);
            assert!(!clean || frame.payload.iter().all(|byte| *byte == own), "of another stream: {frame:?}");
        }
    }
}
