//! The identities of the fleet, each proved to the demo, and the relays' counts of connections.

use std::{collections::BTreeMap, fmt::Write as _, fs, time::Duration};

use fairmesh_console::connect::transport_of_agent;
use fairmesh_model::{
    Endpoint, Identity, MeshRole, Prefix, Record, RecordKey, RecordKind, ServiceName, SpiffePath,
};
use fairmesh_wire::{
    transport::{Address, EndpointAddress, ExpectedPeer, Stream, Transport},
    v1::{CreateTokenRequest, RotateAuthorityRequest},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    error::DemoError,
    fleet::Fleet,
    report,
    tls_records::Seen,
    topology::{DemoRegion, REGIONS},
};

/// The trust domain of the shop.
pub(super) const DOMAIN: &str = "shop.demo";
/// Timeout of one handshake, over any distance.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Lifetime of a token, in seconds.
const TOKEN_TTL_S: u64 = 300;

/// Names of everything in the demo that uses plaintext.
const PLAIN: [&str; 5] = [
    "Unix sockets: programs to the agent of their region, this demo to the control plane; the kernel names the peer's user",
    "loopback between programs (curl, python3, node) and the sidecar in front of them",
    "loopback between 'fairmesh register' and recommend.py behind it",
    "the kernel, from the socket of a program to that of shop/greeting, of the last part, where eBPF is allowed",
    "the HTTP pages of the control plane and of the sidecar, for operators",
];

/// Identities of the processes, and the security of their connections.
#[derive(Debug)]
pub(super) struct Identities {
    /// Number of processes that proved each identity.
    proved: BTreeMap<String, usize>,
    /// Reasons why other processes did not prove their identities.
    problems: Vec<String>,
    connections: Vec<(String, Seen)>,
}

/// A one-time token for a region's agent.
pub(super) async fn token(fleet: &Fleet, place: DemoRegion) -> Result<String, DemoError> {
    let request = CreateTokenRequest {
        agent: format!("agent-{}", place.name),
        // All tenants: the agent checks endpoints for the whole region, and a replica on its machine follows
        // everything.
        tenants: Vec::new(),
        ttl_seconds: TOKEN_TTL_S,
        region: place.name.to_string(),
        ..CreateTokenRequest::default()
    };
    let mut authority = fleet.control_connection().await?.authority();
    let made = authority.create_token(request).await.map_err(|e| DemoError::Fleet(e.message().to_owned()))?;
    Ok(made.into_inner().token)
}

/// Replaces the key that signs certificates.
pub(super) async fn rotate(fleet: &Fleet) -> Result<(), DemoError> {
    let mut authority = fleet.control_connection().await?.authority();
    let failed = |status: tonic::Status| DemoError::Fleet(status.message().to_owned());
    let before = authority.describe_authority(fairmesh_wire::v1::DescribeAuthorityRequest::default()).await;
    let before = before.map_err(failed)?.into_inner().issuer;
    let after = authority.rotate_authority(RotateAuthorityRequest::default()).await.map_err(failed)?;
    match after.into_inner().issuer == before {
        true => Err(DemoError::Fleet("the intermediate is the same after its rotation".into())),
        false => Ok(()),
    }
}

/// Connects to every process that accepts TCP connections, and requires proof of its identity.
pub(super) async fn prove(fleet: &Fleet) -> Result<Identities, DemoError> {
    let own = transport_of_agent(fleet.agent_socket(REGIONS[0]), None, "demo").await;
    let mut found = Identities { proved: BTreeMap::new(), problems: Vec::new(), connections: Vec::new() };
    found.add("the control plane", control_plane(fleet, &own).await);
    for (key, record) in fleet.shop(RecordKind::Endpoint).await? {
        if let (RecordKey::Endpoint(service, _, instance), Record::Endpoint(endpoint)) = (key, record) {
            found.add(instance.as_str(), endpoint_identity(&own, &service, &endpoint).await);
        }
    }
    for (key, _) in fleet.records(Prefix::identity()).await? {
        // The control plane accepts an agent's connection only with its identity, and each agent follows the control
        // plane.
        if let RecordKey::JoinedAgent(name) = key {
            let id = format!("spiffe://{DOMAIN}/{}", SpiffePath::Mesh(MeshRole::Agent, name));
            *found.proved.entry(id).or_default() += 1;
        }
    }
    found.connections = connections(fleet)?;
    Ok(found)
}

async fn control_plane(fleet: &Fleet, own: &Transport) -> Result<Identity, String> {
    let address = Address::Tcp(fleet.control_address.to_string());
    let dialled = timeout(TIMEOUT, own.dial(&address)).await.map_err(|_| "no response")?;
    Ok(dialled.map_err(|e| e.to_string())?.identity().clone())
}

async fn endpoint_identity(
    own: &Transport,
    service: &ServiceName,
    endpoint: &Endpoint,
) -> Result<Identity, String> {
    if !endpoint.mtls {
        return Err("is registered as plaintext".into());
    }
    let to = EndpointAddress {
        address: endpoint.address,
        peer: Some(ExpectedPeer::Service(service)),
        accepts_plaintext: false,
        from: None,
    };
    let connected = timeout(TIMEOUT, own.connect_endpoint(to)).await.map_err(|_| "no response")?;
    match connected.map_err(|e| e.to_string())? {
        Stream::Tls(stream) => Ok(stream.peer()),
        Stream::Tcp(_) | Stream::Unix(_) => Err("did not speak TLS".into()),
    }
}

/// Counts connections by the relays' counters: those of agents' relays in this process, and those of servers' relays
/// in the servers' processes.
fn connections(fleet: &Fleet) -> Result<Vec<(String, Seen)>, DemoError> {
    let mut by_service = BTreeMap::<String, Seen>::new();
    for entry in fs::read_dir(fleet.dir())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Some(instance) = name.strip_prefix("relay-").and_then(|name| name.strip_suffix(".json")) else {
            continue;
        };
        let Some(seen) = Seen::read(&fs::read_to_string(fleet.dir().join(&name))?) else { continue };
        let service = instance.split('-').next().unwrap_or_default();
        *by_service.entry(format!("callers of shop/{service}")).or_default() += seen;
    }
    let agents = ("agents of us and ap to the control plane".to_owned(), fleet.relay_counts.seen());
    Ok(std::iter::once(agents).chain(by_service).collect())
}

impl Identities {
    fn add(&mut self, process: &str, found: Result<Identity, String>) {
        match found {
            Ok(Identity::Spiffe(id)) => *self.proved.entry(id.to_string()).or_default() += 1,
            Ok(other) => self.problems.push(format!("{process}: {other}")),
            Err(problem) => self.problems.push(format!("{process}: {problem}")),
        }
    }

    /// Returns the violations of the rules that a mesh with a trust domain must follow.
    pub(super) fn problems(&self) -> Vec<String> {
        let seen = self.connections.iter().filter_map(|(name, seen)| {
            let plaintext = (seen.plaintext > 0)
                .then(|| format!("{} connections of {name} carried plaintext", seen.plaintext));
            let unused = (seen.records == 0).then(|| format!("no relay has seen {name}"));
            plaintext.or(unused)
        });
        self.problems.iter().cloned().chain(seen).collect()
    }

    /// The identities as text.
    pub(super) fn text(&self) -> String {
        let mut identities = report::table(&["identity", "processes that proved it"]);
        for (id, processes) in &self.proved {
            identities.add_row([id.clone(), processes.to_string()]);
        }
        report::align_right(&mut identities, 1..2);
        let mut connections =
            report::table(&["through the relays between regions", "connections", "TLS records", "plaintext"]);
        for (name, seen) in &self.connections {
            let counts = [seen.connections, seen.records, seen.plaintext].map(|count| count.to_string());
            connections.add_row(std::iter::once(name.clone()).chain(counts));
        }
        report::align_right(&mut connections, 1..4);
        let mut out = format!("{identities}\n\n{connections}\n\nPlaintext:\n");
        // Writing to a String cannot fail.
        for plain in PLAIN {
            let _ = writeln!(out, "- {plain}");
        }
        for problem in self.problems() {
            let _ = writeln!(out, "not secure: {problem}");
        }
        out
    }

    /// The identities as JSON.
    pub(super) fn json(&self) -> Value {
        let connections: Vec<_> = self
            .connections
            .iter()
            .map(|(name, seen)| {
                let mut row = seen.json();
                row["name"] = json!(name);
                row
            })
            .collect();
        json!({
            "proved": self.proved, "connections": connections, "plain": PLAIN, "problems": self.problems(),
        })
    }
}
