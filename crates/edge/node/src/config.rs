//! The configuration of a node.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

use fairmesh_edge::{lifecycle::kept_options::KeptOptions, limits::Limits};
use fairmesh_model::{Invalid, ServiceName, Zone};
use fairmesh_wire::transport::{Address, Transport};

/// A pod: an address in a network namespace, whose connections this node captures. A pod that serves several services
/// has an entry for each of them, and calls as the service of its first entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodConfig {
    /// The service of the pod. Its certificate names the pod's tenant.
    pub service: ServiceName,
    /// The source address of the pod's connections.
    pub address: IpAddr,
    /// The addresses at which the pod serves, if it is an endpoint of its service.
    pub served: Option<ServedPod>,
}

/// The addresses of a pod that is an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedPod {
    /// Address at which this node listens for gateways. Pods of one service may share it.
    pub node: SocketAddr,
    /// Address at which the pod listens, in its own network.
    pub pod: SocketAddr,
}

/// Configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The pods, each with the transport for its service's identity. All belong to one tenant.
    pub pods: Vec<(PodConfig, Transport)>,
    /// Address at which captured connections arrive, with their original destination (`IP_TRANSPARENT`).
    pub capture: SocketAddr,
    /// Addresses of the gateway's replicas.
    pub gateways: Vec<SocketAddr>,
    /// The zone whose gateway backends are preferred; `None` prefers the home zone of each service.
    pub zone: Option<Zone>,
    /// The agents at which pods are registered, and whose records hold the placements of services.
    pub registry: Vec<Address>,
    /// Address of `/metrics`, `/healthz` and `/readyz`.
    pub admin: Option<SocketAddr>,
    /// Unix socket for hot upgrades.
    pub handover: Option<PathBuf>,
    /// Limits of connections and times. Limits of requests do not apply.
    pub limits: Limits,
    /// Whether each connection is logged when it ends.
    pub logs_connections: bool,
}

impl NodeConfig {
    /// Checks that all pods belong to one tenant, that each pod calls as one service, and that each listener serves
    /// one service.
    ///
    /// # Errors
    /// The first pod that violates a rule.
    pub fn check(&self) -> Result<(), Invalid> {
        let pods: Vec<&PodConfig> = self.pods.iter().map(|(pod, _)| pod).collect();
        if self.gateways.is_empty() {
            return Err(Invalid::new(
                "gateway",
                "is missing",
                "give the address of each replica of the gateway",
            ));
        }
        for (position, pod) in pods.iter().enumerate() {
            for other in &pods[..position] {
                check_pair(other, pod)?;
            }
        }
        match pods.is_empty() {
            true => {
                Err(Invalid::new("pod", "is missing", "give each pod of this node, such as red/web=10.1.0.2"))
            }
            false => Ok(()),
        }
    }
}

impl NodeConfig {
    /// The listeners that a successor must have too. Pods come and go with upgrades.
    pub(crate) fn kept_options(&self) -> KeptOptions {
        let admin = self.admin.map(|address| ("--admin", address.to_string()));
        KeptOptions::new("node", [("--capture", self.capture.to_string())].into_iter().chain(admin))
    }
}

fn check_pair(one: &PodConfig, other: &PodConfig) -> Result<(), Invalid> {
    let refused = |problem: String, hint: &str| Err(Invalid::new("pod", problem, hint));
    if one.service.tenant != other.service.tenant {
        let problem = format!("{} and {} are of two tenants", one.service, other.service);
        return refused(problem, "run a node for each tenant");
    }
    if one.address == other.address && one.service != other.service && other.served.is_none() {
        let problem = format!("{} calls as {} and {}", one.address, one.service, other.service);
        return refused(
            problem,
            "give the service as which the pod calls first, and only services that it serves after it",
        );
    }
    match (one.served, other.served) {
        (Some(a), Some(b)) if a.node == b.node && one.service != other.service => {
            let problem = format!("{} and {} listen at {}", one.service, other.service, a.node);
            refused(problem, "give each service an address of its own: its certificate is shown there")
        }
        (Some(a), Some(b)) if a == b => refused(format!("{} is given twice", a.pod), "give each pod once"),
        _ => Ok(()),
    }
}

impl FromStr for PodConfig {
    type Err = Invalid;

    /// Parses `red/batch=10.1.0.3`, a pod that only calls, or `red/web@192.0.2.7:7432=10.1.0.2:80`, a pod
    /// that serves as well.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let wrong = |problem: &str| {
            let hint = "write TENANT/SERVICE=IP for a pod that only calls, or TENANT/SERVICE@NODE-IP:PORT=POD-IP:PORT";
            Invalid::new("", format!("'{text}' {problem}"), hint)
        };
        let (name, pod) = text.split_once('=').ok_or_else(|| wrong("has no address of a pod"))?;
        let Some((service, node)) = name.split_once('@') else {
            let address = pod.parse().map_err(|_| wrong("has no IP address"))?;
            return Ok(Self { service: ServiceName::new(name)?, address, served: None });
        };
        let read =
            |text: &str| text.parse().map_err(|_| wrong("has a part that is not an IP address with a port"));
        let served = ServedPod { node: read(node)?, pod: read(pod)? };
        if served.pod.port() == 0 || served.node.ip().is_unspecified() {
            return Err(wrong("has an address that cannot be called"));
        }
        Ok(Self { service: ServiceName::new(service)?, address: served.pod.ip(), served: Some(served) })
    }
}

impl fmt::Display for PodConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.served {
            None => write!(f, "{}={}", self.service, self.address),
            Some(ServedPod { node, pod }) => write!(f, "{}@{node}={pod}", self.service),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pods: &[&str]) -> NodeConfig {
        NodeConfig {
            pods: pods.iter().map(|pod| (pod.parse().unwrap(), Transport::default())).collect(),
            capture: ([127, 0, 0, 1], 7415).into(),
            gateways: vec![([192, 0, 2, 1], 7440).into()],
            zone: None,
            registry: Vec::new(),
            admin: None,
            handover: None,
            limits: Limits::default(),
            logs_connections: false,
        }
    }

    #[test]
    fn node_pod_configuration_parses_as_displayed() {
        for text in
            ["red/batch=10.1.0.3", "red/web@192.0.2.7:7432=10.1.0.2:80", "red/v6@[fd00::7]:1=[fd00:1::2]:80"]
        {
            assert_eq!(text.parse::<PodConfig>().unwrap().to_string(), text);
        }
        for wrong in [
            "red/web",
            "web=10.1.0.2",
            "red/web=10.1.0.2:80",
            "red/web@192.0.2.7=10.1.0.2:80",
            "red/web@0.0.0.0:1=10.1.0.2:80",
        ] {
            assert!(wrong.parse::<PodConfig>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn listener_with_pods_of_two_tenants_or_two_services_is_refused() {
        let web = "red/web@192.0.2.7:7432=10.1.0.2:80";
        config(&[web, "red/web@192.0.2.7:7432=10.1.0.3:80", "red/batch=10.1.0.4"]).check().unwrap();
        config(&["red/batch=10.1.0.2", web, "red/api@192.0.2.7:7433=10.1.0.2:80"]).check().unwrap();
        for (pods, problem) in [
            (&[web, "blue/web=10.1.0.9"][..], "two tenants"),
            (&[web, "red/batch=10.1.0.2"], "calls as red/web and red/batch"),
            (&[web, "red/api@192.0.2.7:7432=10.1.0.5:80"], "listen at"),
            (&[web, web], "twice"),
            (&[], "missing"),
        ] {
            let error = config(pods).check().unwrap_err();
            assert!(error.problem.contains(problem), "{error:?}");
        }
    }
}
