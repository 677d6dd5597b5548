//! Arguments that long-running commands share.

use std::{net::SocketAddr, str::FromStr};

use fairmesh_model::Invalid;
use fairmesh_wire::environment;

/// Address of admin pages, or none.
#[derive(Clone, Copy, Debug)]
pub struct AdminAddress(pub Option<SocketAddr>);

impl FromStr for AdminAddress {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text {
            "none" => Ok(Self(None)),
            text => text.parse().map(|address| Self(Some(address))).map_err(|_| {
                let problem = format!("'{text}' is not an address");
                Invalid::new("", problem, "write ip:port, such as 127.0.0.1:7402, or none")
            }),
        }
    }
}

/// Host name of this machine, or a substitute if the machine has none.
pub fn host_name() -> String {
    environment::host_name().unwrap_or_else(|| "unnamed".into())
}
