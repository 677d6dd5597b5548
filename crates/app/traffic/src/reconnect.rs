//! Connects again, for commands that go on until they are interrupted.

use std::time::Duration;

use fairmesh_console::{
    connect::{self, SOFTWARE},
    failure::Failure,
    output,
};
use fairmesh_wire::handshake::{self, ConnectError, Connection};
use tokio::time::sleep;

/// Interval of attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// How often a control plane that responds may refuse the connection, or what is asked for over it, as while it starts.
const MAX_REFUSALS: u32 = 20;

/// Attempts to have again what `lost` had, however long no control plane is there: a restart of one is no end of what happens.
#[derive(Debug)]
pub struct Reconnect {
    lost: Connection,
    refusals: u32,
    /// The reason that was printed last.
    told: String,
}

impl Reconnect {
    /// After the connection was lost for this reason, which is printed.
    pub fn new(lost: Connection, why: &Failure) -> Self {
        output::note(format!("{}; connecting again", why.message()));
        Self { lost, refusals: 0, told: String::new() }
    }

    /// The next connection.
    ///
    /// # Errors
    /// When a control plane responds and refuses again and again.
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
            } else if self.told != error.to_string() {
                self.told = error.to_string();
                output::note(&self.told);
            }
        }
    }

    /// Counts a refusal.
    ///
    /// # Errors
    /// The refusal, if it is one too many.
    pub fn refused(&mut self, refusal: Failure) -> Result<(), Failure> {
        self.refusals += 1;
        if self.refusals < MAX_REFUSALS { Ok(()) } else { Err(refusal) }
    }
}
