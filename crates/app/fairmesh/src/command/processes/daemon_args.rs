//! Arguments that long-running commands share.

use std::{fs, net::SocketAddr, str::FromStr};

/// Address of metrics, or none.
#[derive(Clone, Copy, Debug)]
pub(super) struct MetricsAddress(pub(super) Option<SocketAddr>);

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            text => text.parse().map(|address| Self(Some(address))).map_err(|_| {
                format!("'{text}' is not an address; write ip:port, such as 127.0.0.1:7402, or none")
            }),
        }
    }
}

/// Host name of this machine.
pub(super) fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "unnamed".into(),
        name => name.into(),
    }
}
