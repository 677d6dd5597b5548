//! Any bytes on a watch: either side decodes its messages, up to the first invalid one, and ends.

use fairmesh_wire::{
    transport::Address,
    v1::{HelloRequest, HelloResponse, WatchRequest, WatchResponse, watch_request, watch_response},
    watch::{Watch, WatchServer},
};
use prost::Message;
use std::future::poll_fn;
use tokio::io::{DuplexStream, duplex};

use crate::{
    cut,
    pipe::{self, Act, ROOM},
};

/// The bytes of the length in front of each message.
const HEAD: usize = 4;

/// What must hold of these bytes: one that chooses the side, and what comes after the greeting.
pub fn run(data: &[u8]) {
    let Some((side, sent)) = data.split_first() else { return };
    let asked = side & 1 == 0;
    let greeting = if asked { framed(&asks()) } else { framed(&answers()) };
    let mut acts = vec![Act::Send(greeting)];
    acts.extend(cut::pieces(sent).into_iter().map(|piece| Act::Send(piece.to_vec())));
    let (read, _) = pipe::run(async {
        let (near, far) = duplex(ROOM);
        let reading = async { if asked { watched(near).await } else { watching(near).await } };
        tokio::join!(reading, pipe::play(far, acts, false))
    });
    let expected = if asked { alone::<WatchRequest>(sent, |_| false) } else { alone(sent, ends) };
    assert_eq!(read, expected);
}

fn framed(message: &impl Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], &bytes].concat()
}

fn asks() -> WatchRequest {
    let hello = HelloRequest {
        oldest_version: 1,
        newest_version: u32::MAX,
        software: "fuzz".into(),
        ..Default::default()
    };
    WatchRequest { kind: Some(watch_request::Kind::Hello(hello)) }
}

fn answers() -> WatchResponse {
    let hello =
        HelloResponse { version: *fairmesh_wire::handshake::PROTOCOL.end(), ..HelloResponse::default() };
    WatchResponse { kind: Some(watch_response::Kind::Hello(hello)), more: false }
}

fn ends(message: &WatchResponse) -> bool {
    matches!(message.kind, Some(watch_response::Kind::Ended(_)))
}

/// Messages as they were read, written again.
type Read = Vec<Vec<u8>>;

async fn watched(stream: DuplexStream) -> Read {
    let (mut watched, _) = WatchServer::accept(stream, None).await.expect("it is greeted");
    let mut read = Vec::new();
    while let Ok(message) = poll_fn(|context| {
        // Responses to PINGs.
        let _ = watched.poll_flush(context);
        watched.poll_request(context)
    })
    .await
    {
        read.push(message.encode_to_vec());
    }
    read
}

async fn watching(stream: DuplexStream) -> Read {
    let address = Address::Unix("/nowhere".into());
    let mut watch = Watch::handshake(stream, &address, "fuzz").await.expect("it is greeted");
    let mut read = Vec::new();
    while let Ok(message) = watch.next().await {
        read.push(message.encode_to_vec());
    }
    read
}

/// The messages that these bytes are, up to the first that is none, or that ends the watch.
fn alone<M: Message + Default>(mut sent: &[u8], ends: impl Fn(&M) -> bool) -> Read {
    let mut read = Vec::new();
    while let Some((length, rest)) = sent.split_first_chunk::<HEAD>() {
        let length = u32::from_be_bytes(*length) as usize;
        let Some((message, rest)) = rest.split_at_checked(length) else { break };
        sent = rest;
        // Asks whether this side is there, or says that the other is.
        if message.is_empty() {
            continue;
        }
        match M::decode(message) {
            Ok(message) if !ends(&message) => read.push(message.encode_to_vec()),
            _ => break,
        }
    }
    read
}
