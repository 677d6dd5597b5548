//! Converts plaintext callers from and to protobuf messages.

use std::time::Duration;

use fairmesh_model::{InstanceId, Invalid};
use fairmesh_wire::v1;
use tokio::time::Instant;

use crate::PlaintextCaller;

pub(super) fn read(message: v1::PlaintextCaller) -> Result<PlaintextCaller, Invalid> {
    let address = message.address.parse().map_err(|_| {
        let problem = format!("is '{}', which is no IP address", message.address);
        Invalid::new("address", problem, "send the address of the connection's peer")
    })?;
    let now = Instant::now();
    // The monotonic clock of this machine may have started less than `seconds_ago` ago.
    let last = now.checked_sub(Duration::from_secs(message.seconds_ago.into())).unwrap_or(now);
    Ok(PlaintextCaller { address, connections: message.connections, last })
}

pub(super) fn server(
    instance: &InstanceId,
    callers: &[PlaintextCaller],
) -> v1::read_plaintext_callers_response::Server {
    let caller = |caller: &PlaintextCaller| v1::PlaintextCaller {
        address: caller.address.to_string(),
        connections: caller.connections,
        seconds_ago: u32::try_from(caller.last.elapsed().as_secs()).unwrap_or(u32::MAX),
    };
    let callers = callers.iter().map(caller).collect();
    v1::read_plaintext_callers_response::Server { instance: instance.to_string(), callers }
}
