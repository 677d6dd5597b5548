//! Termination signals.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// Completes when the program shall stop.
pub(crate) type Shutdown = dyn Future<Output = ()> + Send;

/// Completes at the first SIGTERM or SIGINT. The handlers are installed when this returns, so that none is missed.
pub(crate) fn shutdown() -> Result<impl Future<Output = ()> + Send + 'static, Failure> {
    termination().map_err(Failure::failed)
}

/// The same as [`shutdown`], with another error type.
pub(crate) fn termination() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
