//! Termination signals.

use std::{io, process::ExitCode};

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// Completes when the program should stop.
pub type Shutdown = dyn Future<Output = ()> + Send;

/// A signal that asks a program to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// SIGINT, as sent by Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl StopSignal {
    /// Name of the signal.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }

    /// The exit code that shells report for a program ended by this signal.
    pub fn exit_code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        })
    }
}

/// Completes at the first SIGTERM or SIGINT. The handlers are installed when this function returns, so that no signal
/// is missed.
pub fn shutdown() -> Result<impl Future<Output = ()> + Send + 'static, Failure> {
    termination().map_err(Failure::failed)
}

/// The same as [`shutdown`], with another error type.
pub fn termination() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let stop = stop_signal()?;
    Ok(async move {
        stop.await;
    })
}

/// The same as [`termination`], with the signal.
pub fn stop_signal() -> io::Result<impl Future<Output = StopSignal> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => StopSignal::Terminate,
            _ = interrupt.recv() => StopSignal::Interrupt,
        }
    })
}
