//! The text of faults.

use std::io;

use fairmesh_calls::{Fault, FaultKind};
use fairmesh_connections::SendError;

#[test]
fn fault_text_contains_every_cause_once() {
    let refused = SendError::Unreachable(io::Error::from(io::ErrorKind::ConnectionRefused));
    let fault = Fault::new(FaultKind::Unreachable, "cart-0 cannot be reached").caused_by(refused);
    assert_eq!(fault.to_string(), "cart-0 cannot be reached: no connection: connection refused");
    let quoted = io::Error::other(fault.to_string());
    let fault = Fault::new(FaultKind::Reset, "broke off").caused_by(io::Error::other(quoted));
    assert_eq!(fault.to_string().matches("connection refused").count(), 1);
}
