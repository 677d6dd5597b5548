//! Reaching the control plane.

use fairmesh_wire::{
    handshake::{self, ConnectError, Connection},
    transport::Address,
};

use crate::{cli::Reach, failure::Failure};

/// What this program calls itself to others.
pub(crate) const SOFTWARE: &str = concat!("fairmesh command line ", env!("CARGO_PKG_VERSION"));

/// How to ask somebody else.
const ANOTHER: &str = "name another with --control ADDRESS or FAIRMESH_CONTROL";

/// Connects to the control plane that was named.
pub(crate) async fn connect(reach: &Reach) -> Result<Connection, Failure> {
    handshake::connect(&reach.control, SOFTWARE).await.map_err(|error| unreachable(&reach.control, &error))
}

fn unreachable(address: &Address, error: &ConnectError) -> Failure {
    match error {
        ConnectError::Unreachable { .. } => Failure::failed_with(
            format!("cannot reach the control plane at {address}"),
            format!("start it with 'fairmesh control', or {ANOTHER}"),
        ),
        ConnectError::NoHello { .. } => {
            Failure::failed_with(error, format!("look at the log of 'fairmesh control' there, or {ANOTHER}"))
        }
        ConnectError::Version { .. } | ConnectError::Nonsense { .. } => Failure::failed(error),
    }
}
