//! Reconnects, for commands that run until they are interrupted.

use std::time::Duration;

use fairmesh_console::{
    connect::{self, SOFTWARE},
    failure::Failure,
    output,
};
use fairmesh_wire::handshake::{self, ConnectError, Connection};
use tokio::time::sleep;

/// Interval between attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of refusals tolerated from a control plane that responds, for example while it starts.
const MAX_REFUSALS: u32 = 20;

/// Reconnects after the connection `lost`, for as long as no control plane is reachable. A restart of the control
/// plane must not end the command.
#[derive(Debug)]
pub struct Reconnect {
    lost: Connection,
    refusals: u32,
    /// The reason that was printed last.
    last_printed: String,
}

impl Reconnect {
    /// Starts to reconnect after a connection was lost. The reason `why` is printed.
    pub fn new(lost: Connection, why: &Failure) -> Self {
        output::note(format!("{}; connecting again", why.message()));
        Self { lost, refusals: 0, last_printed: String::new() }
    }

    /// Returns the next connection.
    ///
    /// # Errors
    /// When a control plane responds but keeps refusing.
    pub async fn next(&mut self) -> Result<Connection, Failure> {
        loop {
            sleep(RETRY_INTERVAL).await;
            let error = match handshake::connect(self.lost.transport(), self.lost.address(), SOFTWARE).await {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            let failure = connect::unreachable(self.lost.address(), &error);
            if !matches!(error, ConnectError::Unreachable { .. } | ConnectError::NoHello { .. }) {
                self.refused(failure)?;
            } else if self.last_printed != error.to_string() {
                self.last_printed = error.to_string();
                output::note(&self.last_printed);
            }
        }
    }

    /// Counts a refusal.
    ///
    /// # Errors
    /// The refusal, once there are too many.
    pub fn refused(&mut self, refusal: Failure) -> Result<(), Failure> {
        self.refusals += 1;
        if self.refusals < MAX_REFUSALS { Ok(()) } else { Err(refusal) }
    }
}
