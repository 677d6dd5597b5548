//! When to stop.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// Ends when the program shall stop.
pub(crate) type Shutdown = dyn Future<Output = ()> + Send;

/// Ends at the first SIGTERM or SIGINT. The handlers are in place when this returns, so that none is missed.
pub(crate) fn shutdown() -> Result<impl Future<Output = ()> + Send + 'static, Failure> {
    heard().map_err(Failure::failed)
}

/// The same as [`shutdown`], for those who fail otherwise.
pub(crate) fn heard() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
