//! Arguments that long-running commands share.

use std::{net::SocketAddr, str::FromStr};

use clap::Args;
use fairmesh_calls::MeshBuilder;
use fairmesh_console::connect;
use fairmesh_model::Invalid;
use fairmesh_wire::{environment, transport::Address};

/// Where a process gets its records: from the agent of this machine, or from control planes.
#[derive(Clone, Debug, Args)]
pub struct UpstreamArgs {
    /// The agent to follow [default: FAIRMESH_AGENT, else the agent's default socket].
    #[arg(long, value_name = "ADDRESS")]
    pub agent: Option<Address>,
    /// A control plane to follow, where there is no agent: host:port or unix:/path; several are attempted in order.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', conflicts_with = "agent")]
    pub control: Vec<Address>,
}

impl UpstreamArgs {
    /// The agent of this machine, which gives the process its identity.
    pub fn agent(&self) -> Address {
        self.agent.clone().unwrap_or_else(connect::agent)
    }

    /// The addresses to follow. `FAIRMESH_CONTROL` is for registration only: records come from the agent unless
    /// `--control` is given.
    pub fn addresses(&self) -> Vec<Address> {
        match &self.control[..] {
            [] => vec![self.agent()],
            given => given.to_vec(),
        }
    }

    /// Lets a mesh handle follow these addresses.
    pub fn follow(&self, mesh: MeshBuilder) -> MeshBuilder {
        match &self.control[..] {
            [] => mesh.agent(self.agent()),
            given => given.iter().cloned().fold(mesh, MeshBuilder::control),
        }
    }
}

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
