use std::{ffi::OsString, net::SocketAddr, time::Duration};

use fairmesh_console::failure::Failure;
use fairmesh_identity::JoinToken;
use fairmesh_model::{HostType, InstanceId, Invalid, Location, Protocol, Service, ServiceKind};
use fairmesh_server::{Registration, default_instance, drain_deadline, registry_addresses};
use fairmesh_wire::{
    environment::{self, Upstream},
    transport::Address,
};

use super::{Probe, RegisterArgs};

/// Validated and completed arguments.
pub(super) struct ValidArguments {
    pub(super) registration: Registration,
    /// Whether the instance id is the default one, which is the same for equal ports of one host.
    pub(super) has_default_instance: bool,
    /// Address at which the program listens, if this command listens in front of it.
    pub(super) program: Option<SocketAddr>,
    /// Whether callers reach the program directly even in a mesh with a trust domain.
    pub(super) plaintext: bool,
    /// Whether connections are forwarded as bytes instead of requests.
    pub(super) tcp: bool,
    pub(super) addresses: Vec<Address>,
    /// Whether only FAIRMESH_CONTROL selects the control plane, which is then used instead of the local agent.
    pub(super) by_environment: bool,
    pub(super) probe: Probe,
    pub(super) interval: Duration,
    pub(super) drain_deadline: Duration,
    pub(super) grace: Duration,
    pub(super) command: Vec<OsString>,
}

impl ValidArguments {
    pub(super) fn new(args: RegisterArgs) -> Result<Self, Failure> {
        JoinToken::of_environment().map_err(refused)?;
        let instance = instance(&args)?;
        let given: Vec<Address> = args.agent.into_iter().chain(args.control).collect();
        if args.interval.is_zero() {
            return Err(Failure::refused("interval: 0 is too short", "write a duration such as 2s"));
        }
        let (address, program) = match (args.listen, args.program) {
            (Some(listen), _) => (listen, Some(args.address)),
            (None, program) => (args.address, program),
        };
        let location = environment::location(args.region.map(Location::in_region)).map_err(refused)?;
        let location = with_host_type(location, args.host_type).map_err(refused)?;
        let declaration = Service {
            kind: ServiceKind::Replicated,
            protocol: args.protocol,
            virtual_address: None,
            identity: None,
        };
        let registration = Registration {
            service: args.service,
            instance,
            address,
            location,
            weight: args.weight,
            lease: args.lease,
            mtls: false,
            labels: args.labels.into_iter().collect(),
            declaration: Some(declaration),
        };
        registration.validate().map_err(refused)?;
        Ok(Self {
            registration,
            has_default_instance: args.instance.is_none(),
            program,
            plaintext: args.plaintext,
            tcp: args.tcp,
            by_environment: given.is_empty()
                && matches!(environment::upstream(), Ok(Upstream::ControlPlanes(_))),
            addresses: registry_addresses(&given).map_err(refused)?,
            probe: args.probe,
            interval: args.interval,
            drain_deadline: drain_deadline(args.drain_deadline).map_err(refused)?,
            grace: args.grace,
            command: args.command,
        })
    }
}

impl ValidArguments {
    /// Address at which the program listens.
    pub(super) fn program_address(&self) -> SocketAddr {
        self.program.unwrap_or(self.registration.address)
    }
}

/// The instance id within the service.
pub(super) fn instance(args: &RegisterArgs) -> Result<InstanceId, Failure> {
    match &args.instance {
        Some(instance) => Ok(instance.clone()),
        None => default_instance(args.address).map_err(refused),
    }
}

fn refused(e: Invalid) -> Failure {
    Failure::refused(format!("{}: {}", e.field, e.problem), e.hint)
}

/// Adds the host type to the location. If no region is given, the agent provides both.
fn with_host_type(
    location: Option<Location>,
    host_type: Option<HostType>,
) -> Result<Option<Location>, Invalid> {
    match (location, host_type) {
        (Some(location), Some(host_type)) => Ok(Some(Location { host_type: Some(host_type), ..location })),
        (None, Some(host_type)) => Err(Invalid::new(
            "host-type",
            format!("'{host_type}' is given without a region, so that the agent provides the location"),
            "give the region too, or start the agent with --host-type",
        )),
        (location, None) => Ok(location),
    }
}

/// Parses the address of the program. Host names are not resolved, because callers elsewhere could resolve them
/// differently.
pub(super) fn address(text: &str) -> Result<SocketAddr, Invalid> {
    text.parse().map_err(|_| {
        let problem = format!("'{text}' is not an IP address and a port");
        let hint = match text.strip_prefix("localhost:") {
            Some(port) => format!("write 127.0.0.1:{port} where all callers are on this machine"),
            None => "write an address of this machine that callers reach, such as 10.0.0.7:8080".to_owned(),
        };
        Invalid::new("address", problem, hint)
    })
}

/// Parses a protocol as in manifests.
pub(crate) fn protocol(text: &str) -> Result<Protocol, Invalid> {
    match text {
        "http1" => Ok(Protocol::Http1),
        "http2" => Ok(Protocol::Http2),
        "grpc" => Ok(Protocol::Grpc),
        _ => Err(Invalid::new("protocol", format!("'{text}' is unknown"), "write http1, http2 or grpc")),
    }
}

/// Parses `NAME=VALUE`.
pub(super) fn label(text: &str) -> Result<(String, String), Invalid> {
    let Some((name, value)) = text.split_once('=') else {
        return Err(Invalid::new("label", format!("'{text}' has no '='"), "write NAME=VALUE"));
    };
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use fairmesh_model::Region;

    use super::*;

    #[test]
    fn host_type_argument_requires_region() {
        let host_type = || HostType::new("milan-64").unwrap();
        let eu = || Location::in_region(Region::new("eu").unwrap());
        let both = with_host_type(Some(eu()), Some(host_type())).unwrap().unwrap();
        assert_eq!(both, Location { host_type: Some(host_type()), ..eu() });
        assert_eq!(with_host_type(None, None).unwrap(), None);
        assert!(with_host_type(None, Some(host_type())).unwrap_err().hint.contains("region"));
    }
}
