//! When to stop.

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// Ends at the first SIGTERM or SIGINT. The handlers are in place when this returns, so that none is missed.
pub(crate) fn shutdown() -> Result<impl Future<Output = ()> + Send + 'static, Failure> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::failed)?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
