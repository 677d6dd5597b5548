//! Connects to the control plane.

use fairmesh_wire::{
    handshake::{self, ConnectError, Connection},
    transport::{Address, Transport},
};

use crate::{cli::TargetArgs, failure::Failure};

/// Name of this program in handshakes.
pub(crate) const SOFTWARE: &str = concat!("fairmesh command line ", env!("CARGO_PKG_VERSION"));

/// Hint on how to give another address.
const ADDRESS_HINT: &str = "give another address with --control ADDRESS or FAIRMESH_CONTROL";

/// How this program connects, and accepts connections of the mesh.
pub(crate) fn transport() -> Transport {
    Transport::default()
}

/// Connects to the given control plane.
pub(crate) async fn connect(target: &TargetArgs) -> Result<Connection, Failure> {
    handshake::connect(&transport(), &target.control, SOFTWARE)
        .await
        .map_err(|error| unreachable(&target.control, &error))
}

fn unreachable(address: &Address, error: &ConnectError) -> Failure {
    match error {
        ConnectError::Unreachable { .. } => Failure::failed_with(
            format!("cannot reach the control plane at {address}"),
            format!("start it with 'fairmesh control', or {ADDRESS_HINT}"),
        ),
        ConnectError::NoHello { .. } => Failure::failed_with(
            error,
            format!("check the log of 'fairmesh control' there, or {ADDRESS_HINT}"),
        ),
        ConnectError::Version { .. } | ConnectError::InvalidHello { .. } => Failure::failed(error),
    }
}
