use std::{
    future::{Future, pending},
    pin::pin,
    time::Duration,
};

use futures_util::StreamExt;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tonic::{
    service::Routes,
    transport::{Error, Server},
};

use super::{Listener, channel::KEEP_ALIVE};
use crate::handshake::VersionCheck;

/// Serves `routes` on `listener` until `shutdown` completes, then lets calls under way finish for at most `drain` and
/// ends the rest: a watch would otherwise never end.
///
/// Every call passes [`VersionCheck`] and carries its caller's identity ([`super::identity_of`]); quiet connections are
/// probed, and one whose peer is gone is closed. The listener is closed as soon as `shutdown` completes.
pub async fn serve(
    routes: Routes,
    listener: Listener,
    shutdown: impl Future<Output = ()>,
    drain: Duration,
) -> Result<(), Error> {
    let cut = CancellationToken::new();
    let incoming = listener.incoming().map(|socket| socket.map(|socket| socket.cut_by(cut.clone())));
    let (began, drain_began) = oneshot::channel();
    let closing = async {
        shutdown.await;
        // Nobody listens only when serving has ended already.
        let _ = began.send(());
    };
    let (interval, timeout) = KEEP_ALIVE;
    let mut serving = pin!(
        Server::builder()
            .layer(VersionCheck)
            .http2_keepalive_interval(Some(interval))
            .http2_keepalive_timeout(Some(timeout))
            .add_routes(routes)
            .serve_with_incoming_shutdown(incoming, closing)
    );
    let overdue = async {
        if drain_began.await.is_err() {
            return pending().await;
        }
        tokio::time::sleep(drain).await;
    };
    tokio::select! {
        served = &mut serving => return served,
        () = overdue => cut.cancel(),
    }
    serving.await
}
