//! Connections that programs meant for somebody else.

use std::{io, net::SocketAddr, sync::Arc};

use socket2::SockRef;
use tokio::net::TcpStream;

use super::Serving;
use crate::{
    Listen, Traffic,
    forward::{Captured, Origin},
    metrics::count,
    onward::Passage,
    place::Place,
    sniff::{Seen, sniff},
    tcp,
};

impl Serving {
    /// Serves what is HTTP for services, and carries the rest to where it was meant to go.
    pub(super) async fn captured(
        &self,
        stream: TcpStream,
        caller: SocketAddr,
        listen: &Listen,
        place: Arc<Place>,
    ) {
        let (forwarder, counts) = (&self.forwarder, &self.forwarder.metrics.captured);
        let Traffic::Captured { only_services, transparent } = listen.traffic else { return };
        let own = transparent.then_some(listen.address);
        let Some(original) = original_of(&stream, own) else {
            count(&counts.looped);
            tracing::debug!(%caller, "a connection that nobody redirected was refused");
            return tcp::reset(stream);
        };
        let seen = tokio::select! {
            seen = sniff(&stream, (caller, original), &forwarder.onward, self.limits.head) => seen,
            () = self.stopping.quiet().cancelled() => return,
        };
        // Only now: by the time one of its own connections says something, it is known as such.
        if forwarder.onward.made(caller) {
            count(&counts.looped);
            tracing::warn!(%original, "the proxy's own connection was redirected to it; except it from capture");
            return tcp::reset(stream);
        }
        let (serves, passage) = match seen {
            Ok(Seen::Http1(host)) => (only_services || forwarder.services().has(&host).await, None),
            Ok(Seen::Http2) => (true, None),
            Ok(Seen::Other(passage)) => (false, passage),
            Err(_) => return count(&forwarder.metrics.broken),
        };
        if serves {
            count(&counts.served);
            tcp::limit_silence(&stream, self.limits.head);
            let captured = Captured::new(original, only_services);
            let origin = Origin::captured(caller, place, captured).connecting(listen.connect);
            self.serve(stream, origin).await;
        } else if only_services {
            count(&counts.refused);
            tcp::reset(stream);
        } else {
            self.pass_on(stream, original, passage).await;
        }
    }

    async fn pass_on(&self, stream: TcpStream, original: SocketAddr, passage: Option<Passage>) {
        let (forwarder, counts) = (&self.forwarder, &self.forwarder.metrics.captured);
        count(&counts.passed_on);
        let passage = async {
            match passage {
                Some(passage) => Ok(passage),
                None => forwarder.onward.connect(original).await,
            }
        };
        let passage = tokio::select! {
            passage = passage => passage,
            () = self.cut_off() => return count(&forwarder.metrics.cut),
        };
        match (passage, anew(stream)) {
            (Ok(passage), Ok(stream)) => forwarder.tunnels().carry(stream, passage).await,
            (Err(error), Ok(stream)) => {
                count(&counts.in_vain);
                tracing::debug!(%error, %original, "a connection could not be passed on");
                tcp::reset(stream);
            }
            (_, Err(_)) => count(&forwarder.metrics.broken),
        }
    }
}

/// Where a connection was meant to go; `None` where it was meant to come here. `own` is where a listener is to whom some come as they
/// are.
fn original_of(stream: &TcpStream, own: Option<SocketAddr>) -> Option<SocketAddr> {
    let socket = SockRef::from(stream);
    let here = stream.local_addr().ok()?;
    if own.is_some_and(|own| own != here) {
        return Some(here);
    }
    let original = if here.is_ipv4() { socket.original_dst_v4() } else { socket.original_dst_v6() };
    original.ok()?.as_socket().filter(|original| *original != here)
}

/// The same connection, of which the runtime looks again whether there is something to read.
fn anew(stream: TcpStream) -> io::Result<TcpStream> {
    TcpStream::from_std(stream.into_std()?)
}
