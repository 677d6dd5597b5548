//! The processes of the demo's fleet: started in order, and stopped.

use std::{
    ffi::OsString,
    fmt, io,
    net::{Ipv4Addr, SocketAddr, TcpListener as StdListener},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use fairmesh_console::connect::transport;
use fairmesh_model::{EndpointState, Prefix, Record, RecordKey, RecordKind, ServiceName};
use fairmesh_wire::{
    handshake::{self, Connection},
    record_encoding,
    transport::Address,
    v1,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use super::{
    delay_relay,
    error::DemoError,
    identities, kernel_form, print_step,
    process::{Process, Program},
    process_waits::Wait,
    tls_records::RelayCounts,
    topology::{self, DemoRegion, REGIONS},
};

/// Maximum number of attempts to apply documents: on a busy machine, a command may find the control plane too late.
const APPLY_ATTEMPTS: usize = 3;
/// Timeout for stopping one process; servers first wait for their callers to move.
pub(super) const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// The running fleet.
#[derive(Debug)]
pub(super) struct Fleet {
    /// Path of this program's binary.
    pub binary: PathBuf,
    dir: PathBuf,
    /// gRPC address of the control plane.
    pub control_address: SocketAddr,
    /// HTTP address of the control plane.
    pub control_http: SocketAddr,
    /// Address of the sidecar's pages, which the web page reads.
    sidecar_admin: SocketAddr,
    /// The control plane.
    pub control: Process,
    /// The agents, in the order of [`REGIONS`].
    pub agents: Vec<Process>,
    /// All servers.
    pub servers: Vec<Process>,
    /// The proxy beside an agent, and its address, if it was started.
    sidecar: Option<(Process, SocketAddr)>,
    /// The processes of the kernel form, if they were started.
    pub kernel: Option<kernel_form::Place>,
    /// Relays between the control plane and the agents of other regions.
    relays: Vec<JoinHandle<()>>,
    /// Connection counts of the relays.
    pub relay_counts: Arc<RelayCounts>,
}

impl Fleet {
    /// Starts the control plane; call [`up`](Self::up) next. Calls `say` for each step.
    pub(super) fn start(dir: &Path, say: &dyn Fn(&str)) -> Result<Self, DemoError> {
        let binary = std::env::current_exe()?;
        let (control_address, control_http, sidecar_admin) = (free_port()?, free_port()?, free_port()?);
        say("control plane");
        let addresses = (control_address, control_http, sidecar_admin);
        let control = Process::start(control_program(&binary, dir, addresses), dir)?;
        Ok(Self {
            binary,
            dir: dir.to_owned(),
            control_address,
            control_http,
            sidecar_admin,
            control,
            agents: Vec::new(),
            servers: Vec::new(),
            sidecar: None,
            kernel: None,
            relays: Vec::new(),
            relay_counts: Arc::default(),
        })
    }

    /// Declares the shop, and starts agents and servers. Processes started before a failure are stopped on drop.
    pub(super) async fn up(&mut self, say: &dyn Fn(&str)) -> Result<(), DemoError> {
        self.control_up().await?;
        say("declarations of the shop");
        self.declare().await?;
        say("an agent a region");
        for place in REGIONS {
            self.start_agent(place).await?;
        }
        self.agents_up().await?;
        say("servers");
        for (service, place, instance) in topology::instances() {
            self.start_server(service, place, &instance)?;
        }
        for place in REGIONS {
            self.start_recommend(place)?;
        }
        self.servers_up().await
    }

    /// The control plane's Unix socket, through which the demo acts as its own user.
    pub(super) fn control_socket(&self) -> Address {
        Address::Unix(self.dir.join("control/control.sock"))
    }

    /// Connects to the control plane. Waits for one that responds late.
    pub(super) async fn control_connection(&self) -> Result<Connection, DemoError> {
        let mut wait = Wait::new("the control plane", &print_step);
        loop {
            match handshake::connect(&transport(), &self.control_socket(), "demo").await {
                Ok(connection) => return Ok(connection),
                Err(error) => wait.pause(&error).await?,
            }
        }
    }

    /// The socket of a region's agent.
    pub(super) fn agent_socket(&self, place: DemoRegion) -> Address {
        Address::Unix(self.dir.join(format!("agent-{}.sock", place.name)))
    }

    /// Directory of sockets, data and logs.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Address of the sidecar, if started.
    pub(super) fn sidecar_address(&self) -> Option<SocketAddr> {
        self.sidecar.as_ref().map(|(_, address)| *address)
    }

    /// Starts a proxy beside a region's agent, with `client` as its client ID. Returns the proxy's address once it
    /// listens.
    pub(super) async fn start_sidecar(
        &mut self,
        place: DemoRegion,
        client: &str,
    ) -> Result<SocketAddr, DemoError> {
        let address = free_port()?;
        let program = Program {
            name: "sidecar".into(),
            binary: self.binary.clone(),
            args: args([
                "proxy".into(),
                "--listen".into(),
                address.to_string().into(),
                "--admin".into(),
                self.sidecar_admin.to_string().into(),
                "--agent".into(),
                self.agent_socket(place).to_string().into(),
                "--client-id".into(),
                client.into(),
            ]),
        };
        let (sidecar, _) = self.sidecar.insert((Process::start(program, &self.dir)?, address));
        let mut wait = Wait::new("the sidecar", &print_step);
        while let Err(error) = TcpStream::connect(address).await {
            still_up(sidecar, &mut wait, &error).await?;
        }
        Ok(address)
    }

    /// The server process of this instance.
    pub(super) fn server(&mut self, instance: &str) -> Result<&mut Process, DemoError> {
        let found = self.servers.iter_mut().find(|server| server.name() == instance);
        found.ok_or_else(|| DemoError::Fleet(format!("there is no server {instance}")))
    }

    /// Waits until the control plane responds.
    pub(super) async fn control_up(&mut self) -> Result<(), DemoError> {
        let address = self.control_socket();
        listens(&mut self.control, &address).await
    }

    /// Waits until every agent listens. A server that starts before its agent would serve without an identity.
    async fn agents_up(&mut self) -> Result<(), DemoError> {
        let addresses = REGIONS.map(|place| self.agent_socket(place));
        for (agent, address) in self.agents.iter_mut().zip(&addresses) {
            listens(agent, address).await?;
        }
        Ok(())
    }

    /// Waits until every declared server is in the RIB and serving.
    pub(super) async fn servers_up(&mut self) -> Result<(), DemoError> {
        let expected = self.servers.len();
        let mut wait = Wait::new("the servers", &print_step);
        loop {
            let endpoints = self.endpoints().await?;
            let serving = endpoints.iter().filter(|(_, state)| *state == EndpointState::Serving).count();
            if serving >= expected {
                return Ok(());
            }
            let waiting = format!("{serving} of {expected} servers take calls");
            for server in &mut self.servers {
                running(server)?;
            }
            wait.pause(&waiting).await?;
        }
    }

    /// Every endpoint of the shop and its state.
    pub(super) async fn endpoints(&self) -> Result<Vec<(String, EndpointState)>, DemoError> {
        let records = self.shop(RecordKind::Endpoint).await?;
        let endpoint = |(_, record)| match record {
            Record::Endpoint(endpoint) => Some((endpoint.instance.to_string(), endpoint.state)),
            _ => None,
        };
        Ok(records.into_iter().filter_map(endpoint).collect())
    }

    /// The shop's records of one kind.
    pub(super) async fn shop(&self, kind: RecordKind) -> Result<Vec<(RecordKey, Record)>, DemoError> {
        let shop = ServiceName::new("shop/cart").map_err(|e| DemoError::Fleet(e.to_string()))?;
        self.records(Prefix::tenant(&shop.tenant, kind)).await
    }

    /// The records below a prefix of the control plane.
    pub(super) async fn records(&self, prefix: Prefix) -> Result<Vec<(RecordKey, Record)>, DemoError> {
        let connection = self.control_connection().await?;
        let mut rib = v1::rib_client::RibClient::new(connection.channel);
        let request = v1::ReadRequest { prefixes: vec![prefix.to_string()], at_least: None };
        let answer =
            rib.read(request).await.map_err(|e| DemoError::Fleet(e.message().to_owned()))?.into_inner();
        let record = |entry: v1::Entry| {
            let key = RecordKey::parse(&entry.key).ok()?;
            let record = record_encoding::decode(&key, &entry.value).ok()?;
            Some((key, record))
        };
        Ok(answer.entries.into_iter().filter_map(record).collect())
    }

    /// Stops everything: servers first, so that each can drain. A process that does not stop does not block the others.
    ///
    /// # Errors
    /// The first error.
    pub(super) async fn stop(mut self) -> Result<(), DemoError> {
        let mut outcome = Ok(());
        if let Some(place) = &mut self.kernel {
            outcome = outcome.and(place.stop().await);
        }
        for server in &self.servers {
            outcome = outcome.and(server.terminate());
        }
        let sidecar = self.sidecar.iter_mut().map(|(process, _)| process);
        let then = sidecar.chain(&mut self.agents).chain([&mut self.control]);
        for process in self.servers.iter_mut().chain(then) {
            outcome = outcome.and(process.stop(STOP_TIMEOUT).await.map(drop));
        }
        for border in self.relays {
            border.abort();
        }
        Ok(outcome?)
    }

    async fn declare(&self) -> Result<(), DemoError> {
        self.apply("shop.yaml", topology::DECLARATIONS).await
    }

    /// Writes documents to a file in the demo's folder, and applies them.
    pub(super) async fn apply(&self, file: &str, documents: &str) -> Result<(), DemoError> {
        let file = self.dir.join(file);
        std::fs::write(&file, documents)?;
        let mut attempts = 1..=APPLY_ATTEMPTS;
        loop {
            drop(self.control_connection().await?);
            let output = tokio::process::Command::new(&self.binary)
                .args(["apply", "--control", &self.control_socket().to_string(), "-f"])
                .arg(&file)
                .output()
                .await?;
            if output.status.success() {
                return Ok(());
            }
            let failed = format!("fairmesh apply failed: {}", String::from_utf8_lossy(&output.stderr));
            match attempts.next() {
                Some(attempt) if attempt < APPLY_ATTEMPTS => print_step(&failed),
                _ => return Err(DemoError::Fleet(failed)),
            }
        }
    }

    async fn start_agent(&mut self, place: DemoRegion) -> Result<(), DemoError> {
        let upstream = self.relay_to_control(place).await?;
        let token = self.dir.join(format!("agent-{}.token", place.name));
        std::fs::write(&token, identities::token(self, place).await?)?;
        let program = Program {
            name: format!("agent-{}", place.name),
            binary: self.binary.clone(),
            args: args([
                "agent".into(),
                "--control".into(),
                upstream.to_string().into(),
                "--join-token-file".into(),
                token.into(),
                "--listen".into(),
                self.agent_socket(place).to_string().into(),
                "--state-dir".into(),
                self.dir.join(format!("agent-{}", place.name)).into(),
                "--region".into(),
                place.name.into(),
                "--local-address".into(),
                place.address().to_string().into(),
                "--name".into(),
                format!("agent-{}", place.name).into(),
                "--admin".into(),
                "none".into(),
            ]),
        };
        self.agents.push(Process::start(program, &self.dir)?);
        Ok(())
    }

    /// The control plane's address for a region: a relay with the region's delay.
    async fn relay_to_control(&mut self, place: DemoRegion) -> Result<SocketAddr, DemoError> {
        let delay = place.round_trip(REGIONS[0]) / 2;
        if delay.is_zero() {
            return Ok(self.control_address);
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let counts = Arc::clone(&self.relay_counts);
        let border = delay_relay::serve(listener, self.control_address, Arc::new(move |_| delay), counts);
        self.relays.push(tokio::spawn(border));
        Ok(address)
    }

    fn start_server(&mut self, service: &str, place: DemoRegion, instance: &str) -> Result<(), DemoError> {
        let program = Program {
            name: instance.to_owned(),
            binary: self.binary.clone(),
            args: args([
                "demo".into(),
                "serve".into(),
                service.into(),
                "--instance".into(),
                instance.into(),
                "--region".into(),
                place.name.into(),
                "--agent".into(),
                self.agent_socket(place).to_string().into(),
                "--relay-counts".into(),
                self.dir.join(format!("relay-{instance}.json")).into(),
            ]),
        };
        self.servers.push(Process::start(program, &self.dir)?);
        Ok(())
    }

    /// Starts a plain Python program behind `fairmesh register`, which speaks TLS for it.
    fn start_recommend(&mut self, place: DemoRegion) -> Result<(), DemoError> {
        let script = self.dir.join("recommend.py");
        std::fs::write(&script, include_str!("recommend.py"))?;
        let (address, behind) = (free_port()?, free_port()?);
        let instance = format!("recommend-{}-0", place.name);
        let program = Program {
            name: instance.clone(),
            binary: self.binary.clone(),
            args: args([
                "register".into(),
                "shop/recommend".into(),
                "--instance".into(),
                instance.into(),
                "--address".into(),
                address.to_string().into(),
                "--program".into(),
                behind.to_string().into(),
                "--agent".into(),
                self.agent_socket(place).to_string().into(),
                "--".into(),
                "python3".into(),
                script.into(),
                behind.port().to_string().into(),
            ]),
        };
        self.servers.push(Process::start(program, &self.dir)?);
        Ok(())
    }
}

fn control_program(
    binary: &Path,
    dir: &Path,
    (address, http, sidecar_admin): (SocketAddr, SocketAddr, SocketAddr),
) -> Program {
    Program {
        name: "control".into(),
        binary: binary.to_owned(),
        args: args([
            "control".into(),
            "--data-dir".into(),
            dir.join("control").into(),
            "--grpc".into(),
            address.to_string().into(),
            "--admin".into(),
            http.to_string().into(),
            "--proxy-admin".into(),
            sidecar_admin.to_string().into(),
            "--trust-domain".into(),
            identities::DOMAIN.into(),
        ]),
    }
}

fn args<const N: usize>(args: [OsString; N]) -> Vec<OsString> {
    args.into()
}

/// Returns a port that was free a moment ago. If another program takes it first, the log of the process shows this.
pub(super) fn free_port() -> io::Result<SocketAddr> {
    StdListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Waits until a process of the fleet accepts connections at its address.
async fn listens(process: &mut Process, address: &Address) -> Result<(), DemoError> {
    let name = process.name().to_owned();
    let mut wait = Wait::new(&name, &print_step);
    loop {
        match handshake::connect(&transport(), address, "demo").await {
            Ok(_) => return Ok(()),
            Err(error) => still_up(process, &mut wait, &error).await?,
        }
    }
}

/// Waits between two attempts to reach a process. Fails if it has ended, or when the wait ends.
async fn still_up(
    process: &mut Process,
    wait: &mut Wait<'_>,
    reason: &dyn fmt::Display,
) -> Result<(), DemoError> {
    running(process)?;
    wait.pause(reason).await.map_err(|error| with_log(process, &error))
}

/// Fails if a process has ended.
pub(super) fn running(process: &mut Process) -> Result<(), DemoError> {
    match process.ended()? {
        Some(status) => Err(with_log(process, &format!("{} ended with {status}", process.name()))),
        None => Ok(()),
    }
}

fn with_log(process: &Process, why: &dyn fmt::Display) -> DemoError {
    DemoError::Fleet(format!("{why}; the end of {}:\n{}", process.log().display(), process.log_tail()))
}
