use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use tokio::{io::Interest, net::UnixStream};

/// The most bytes of one frame.
pub const MAX_FRAME: usize = 1024 * 1024;
/// The most handles that come with one frame.
pub const MAX_HANDLES: usize = 64;

/// Length and number of handles, before each frame.
const HEADER: usize = 5;
/// How many bytes are read at a time.
const READ: usize = 16 * 1024;

/// A Unix socket for frames that bring handles of memory along.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    input: BytesMut,
    /// Handles in the order in which they came. Those of a frame travel with its first byte, so that they are here when all
    /// of it is.
    handles: VecDeque<OwnedFd>,
}

impl Channel {
    /// Speaks over this socket.
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, input: BytesMut::new(), handles: VecDeque::new() }
    }

    /// Sends a frame and up to [`MAX_HANDLES`] handles. Not to be given up half way: the other side would wait for the rest.
    ///
    /// # Errors
    /// When the other side is gone, or the frame is too large.
    pub async fn send(&self, frame: &[u8], handles: &[BorrowedFd<'_>]) -> io::Result<()> {
        if frame.len() > MAX_FRAME || handles.len() > MAX_HANDLES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a frame is too large"));
        }
        let mut all = BytesMut::with_capacity(HEADER + frame.len());
        all.put_u32_le(frame.len() as u32);
        all.put_u8(handles.len() as u8);
        all.put_slice(frame);
        let mut handles = handles;
        while !all.is_empty() {
            let sent = self.stream.async_io(Interest::WRITABLE, || self.try_send(&all, handles)).await?;
            handles = &[];
            all.advance(sent);
        }
        Ok(())
    }

    fn try_send(&self, bytes: &[u8], handles: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_HANDLES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !handles.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(handles));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        Ok(rustix::net::sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, flags)?)
    }

    /// The next frame with its handles; `None` where the other side has closed. May be given up and asked again.
    ///
    /// # Errors
    /// When the connection broke or brings what is no frame.
    pub async fn receive(&mut self) -> io::Result<Option<(Bytes, Vec<OwnedFd>)>> {
        loop {
            if let Some(frame) = self.next()? {
                return Ok(Some(frame));
            }
            self.stream.readable().await?;
            let mut buffer = [0; READ];
            match self.stream.try_io(Interest::READABLE, || read(&self.stream, &mut buffer)) {
                Ok((0, _)) if self.input.is_empty() => return Ok(None),
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((read, handles)) => {
                    self.input.extend_from_slice(&buffer[..read]);
                    self.handles.extend(handles);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if self.handles.len() > 2 * MAX_HANDLES {
                return Err(invalid("it brings handles that no frame speaks of"));
            }
        }
    }

    fn next(&mut self) -> io::Result<Option<(Bytes, Vec<OwnedFd>)>> {
        let Some((header, rest)) = self.input.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [a, b, c, d, count] = *header;
        let (len, count) = (u32::from_le_bytes([a, b, c, d]) as usize, usize::from(count));
        if len > MAX_FRAME || count > MAX_HANDLES {
            return Err(invalid("it sends frames that are too large"));
        }
        if rest.len() < len {
            return Ok(None);
        }
        if self.handles.len() < count {
            return Err(invalid("handles are missing; check the limit of open files of this process"));
        }
        self.input.advance(HEADER);
        Ok(Some((self.input.split_to(len).freeze(), self.handles.drain(..count).collect())))
    }
}

fn read(stream: &UnixStream, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_HANDLES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = rustix::net::recvmsg(stream, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    let mut handles = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            handles.extend(rights);
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(invalid("handles were lost; check the limit of open files of this process"));
    }
    Ok((message.bytes, handles))
}

fn invalid(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sealed;

    fn pair() -> (Channel, Channel) {
        let (a, b) = UnixStream::pair().unwrap();
        (Channel::new(a), Channel::new(b))
    }

    #[tokio::test]
    async fn frames_and_handles_arrive_in_order_and_together() {
        let (here, mut there) = pair();
        let made: Vec<_> = (0..5_u64).map(|i| Sealed::words("test", &[i]).unwrap()).collect();
        let sending = async {
            here.send(b"none", &[]).await.unwrap();
            here.send(&[7; 300_000], &[made[0].handle().unwrap(), made[1].handle().unwrap()]).await.unwrap();
            here.send(b"", &[made[2].handle().unwrap()]).await.unwrap();
            here.send(b"last", &[]).await.unwrap();
        };
        let receiving = async {
            let mut got = Vec::new();
            for _ in 0..4 {
                let (frame, handles) = there.receive().await.unwrap().unwrap();
                let words = handles.into_iter().map(|handle| {
                    let words = Sealed::received(handle).unwrap();
                    AsRef::<[u64]>::as_ref(&words)[0]
                });
                got.push((frame.len(), words.collect::<Vec<_>>()));
            }
            got
        };
        let ((), got) = tokio::join!(sending, receiving);
        assert_eq!(got, [(4, vec![]), (300_000, vec![0, 1]), (0, vec![2]), (4, vec![])]);
        drop(here);
        assert!(there.receive().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn what_is_no_frame_ends_the_connection() {
        for sent in [&[255_u8, 255, 255, 255, 0][..], &[1, 0, 0, 0, 3, 9], &[1, 0, 0, 0]] {
            let (here, mut there) = pair();
            here.stream.try_write(sent).unwrap();
            drop(here);
            assert!(there.receive().await.is_err(), "{sent:?}");
        }
    }
}
