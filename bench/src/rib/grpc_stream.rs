//! A gRPC call on its own connection, with as little between socket and message as the protocol allows: ten thousand of
//! them share two processors with the measured processes.

use std::sync::{Arc, atomic::AtomicU64};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::{RecvStream, SendStream, client};
use http::{Request, Version, header};
use prost::Message;
use tokio::task::AbortHandle;

use super::counting_stream::CountingStream;

/// Flow control window in bytes, large enough that no message waits for a WINDOW_UPDATE.
const WINDOW: u32 = 4 << 20;

/// A call in flight. Dropping it closes its connection.
#[derive(Debug)]
pub(super) struct Stream {
    /// Kept open, because ending the requests would end the call.
    _send: SendStream<Bytes>,
    receive: RecvStream,
    buffer: BytesMut,
    connection: AbortHandle,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Stream {
    /// Connects and calls; `first` holds the opening messages. Bytes in both directions are counted in `traffic`.
    pub(super) async fn open<M: Message>(
        address: &str,
        path: &str,
        first: &[M],
        traffic: &Arc<AtomicU64>,
    ) -> Result<Self, String> {
        let failed = |e: &dyn std::fmt::Display| format!("{path} at {address}: {e}");
        let socket = CountingStream::connect(address, traffic).await.map_err(|e| failed(&e))?;
        let mut builder = client::Builder::new();
        builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
        let (mut sender, connection) = builder.handshake::<_, Bytes>(socket).await.map_err(|e| failed(&e))?;
        // If the connection breaks, the stream reports it.
        let connection = tokio::spawn(async { drop(connection.await) }).abort_handle();
        let request = Request::post(format!("http://{address}{path}"))
            .version(Version::HTTP_2)
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .body(())
            .map_err(|e| failed(&e))?;
        let (answer, mut send) = sender.send_request(request, false).map_err(|e| failed(&e))?;
        for message in first {
            send.send_data(frame(message), false).map_err(|e| failed(&e))?;
        }
        let answer = answer.await.map_err(|e| failed(&e))?;
        if let Some(status) = answer.headers().get("grpc-status") {
            return Err(failed(&format!("{status:?} {:?}", answer.headers().get("grpc-message"))));
        }
        Ok(Self { _send: send, receive: answer.into_body(), buffer: BytesMut::new(), connection })
    }

    /// Receives the next message.
    pub(super) async fn next<M: Message + Default>(&mut self) -> Result<M, String> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(message);
            }
            let chunk = self.receive.data().await.ok_or("the stream ended")?.map_err(|e| e.to_string())?;
            self.receive.flow_control().release_capacity(chunk.len()).map_err(|e| e.to_string())?;
            self.buffer.extend_from_slice(&chunk);
        }
    }

    fn take<M: Message + Default>(&mut self) -> Result<Option<M>, String> {
        let Some((head, _)) = self.buffer.split_first_chunk::<5>() else { return Ok(None) };
        let [0, length @ ..] = head else { return Err("a compressed message".into()) };
        let length = u32::from_be_bytes(*length) as usize;
        if self.buffer.len() < 5 + length {
            return Ok(None);
        }
        self.buffer.advance(5);
        let message = self.buffer.split_to(length);
        M::decode(message.freeze()).map(Some).map_err(|e| e.to_string())
    }
}

fn frame<M: Message>(message: &M) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(5 + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    frame.extend_from_slice(&message.encode_to_vec());
    frame.freeze()
}
