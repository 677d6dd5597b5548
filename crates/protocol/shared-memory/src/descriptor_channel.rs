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

/// Maximum size of a frame in bytes.
pub const MAX_FRAME: usize = 1024 * 1024;
/// Maximum number of file descriptors passed with one frame.
pub const MAX_DESCRIPTORS: usize = 64;

/// Size in bytes of the header before each frame: the frame's length and its number of descriptors.
const HEADER: usize = 5;
/// Maximum size of one read, in bytes.
const READ: usize = 16 * 1024;

/// A Unix socket for frames that carry descriptors of shared memory (`SCM_RIGHTS`).
#[derive(Debug)]
pub struct DescriptorChannel {
    stream: UnixStream,
    input: BytesMut,
    /// Received descriptors in order of arrival. The descriptors of a frame travel with its first byte, so they have
    /// arrived when the frame is complete.
    descriptors: VecDeque<OwnedFd>,
}

impl DescriptorChannel {
    /// Wraps this socket.
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, input: BytesMut::new(), descriptors: VecDeque::new() }
    }

    /// Sends a frame with up to [`MAX_DESCRIPTORS`] descriptors. Not cancel-safe: the peer would wait for the rest of
    /// the frame.
    ///
    /// # Errors
    /// The peer has closed the connection, or the frame is too large.
    pub async fn send(&self, frame: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if frame.len() > MAX_FRAME || descriptors.len() > MAX_DESCRIPTORS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the frame is too large"));
        }
        let mut all = BytesMut::with_capacity(HEADER + frame.len());
        all.put_u32_le(frame.len() as u32);
        all.put_u8(descriptors.len() as u8);
        all.put_slice(frame);
        let mut descriptors = descriptors;
        while !all.is_empty() {
            let sent = self.stream.async_io(Interest::WRITABLE, || self.try_send(&all, descriptors)).await?;
            descriptors = &[];
            all.advance(sent);
        }
        Ok(())
    }

    fn try_send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        Ok(rustix::net::sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, flags)?)
    }

    /// Receives the next frame with its descriptors. Returns `None` if the peer has closed the connection. Cancel-safe.
    ///
    /// # Errors
    /// The connection breaks, or a frame is malformed.
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
                Ok((read, descriptors)) => {
                    self.input.extend_from_slice(&buffer[..read]);
                    self.descriptors.extend(descriptors);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if self.descriptors.len() > 2 * MAX_DESCRIPTORS {
                return Err(invalid("the peer sent descriptors without a frame"));
            }
        }
    }

    fn next(&mut self) -> io::Result<Option<(Bytes, Vec<OwnedFd>)>> {
        let Some((header, rest)) = self.input.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [a, b, c, d, count] = *header;
        let (len, count) = (u32::from_le_bytes([a, b, c, d]) as usize, usize::from(count));
        if len > MAX_FRAME || count > MAX_DESCRIPTORS {
            return Err(invalid("the peer sent a frame that is too large"));
        }
        if rest.len() < len {
            return Ok(None);
        }
        if self.descriptors.len() < count {
            return Err(invalid("descriptors are missing; check the limit of open files of this process"));
        }
        self.input.advance(HEADER);
        Ok(Some((self.input.split_to(len).freeze(), self.descriptors.drain(..count).collect())))
    }
}

fn read(stream: &UnixStream, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = rustix::net::recvmsg(stream, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(invalid("descriptors were lost; check the limit of open files of this process"));
    }
    Ok((message.bytes, descriptors))
}

fn invalid(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SealedMemory;

    fn pair() -> (DescriptorChannel, DescriptorChannel) {
        let (a, b) = UnixStream::pair().unwrap();
        (DescriptorChannel::new(a), DescriptorChannel::new(b))
    }

    #[tokio::test]
    async fn channel_frames_arrive_in_order_with_their_file_descriptors() {
        let (here, mut there) = pair();
        let made: Vec<_> = (0..5_u64).map(|i| SealedMemory::seal_words("test", &[i]).unwrap()).collect();
        let sending = async {
            here.send(b"none", &[]).await.unwrap();
            here.send(&[7; 300_000], &[made[0].descriptor().unwrap(), made[1].descriptor().unwrap()])
                .await
                .unwrap();
            here.send(b"", &[made[2].descriptor().unwrap()]).await.unwrap();
            here.send(b"last", &[]).await.unwrap();
        };
        let receiving = async {
            let mut got = Vec::new();
            for _ in 0..4 {
                let (frame, descriptors) = there.receive().await.unwrap().unwrap();
                let words = descriptors.into_iter().map(|descriptor| {
                    let words = SealedMemory::from_descriptor(descriptor).unwrap();
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
    async fn malformed_channel_frame_ends_connection() {
        for sent in [&[255_u8, 255, 255, 255, 0][..], &[1, 0, 0, 0, 3, 9], &[1, 0, 0, 0]] {
            let (here, mut there) = pair();
            here.stream.try_write(sent).unwrap();
            drop(here);
            assert!(there.receive().await.is_err(), "{sent:?}");
        }
    }
}
